"""One varint at a time, as Kafka's protocol and record format have them.

Whole columns of them: :mod:`airflow_kafka_eos.kafka.producer.arrow.encoding`.
"""

from __future__ import annotations


def unsigned(number: int) -> bytes:
    """Seven bits a byte, the lowest first (KIP-482)."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def zig_zag(number: int) -> bytes:
    """A whole number of at most 64 bits: 0, -1, 1, -2 … are written as 0, 1, 2, 3 … (KIP-98)."""
    return unsigned((number << 1) ^ (number >> 63))


def read_zig_zag(data: memoryview, at: int) -> tuple[int, int]:
    """What :func:`zig_zag` wrote, and the place behind it."""
    byte = data[at]
    if byte < 0x80:  # most are short
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, at = read_unsigned(data, at)
    return (number >> 1) ^ -(number & 1), at


def skip(data: memoryview, at: int) -> int:
    """The place behind a varint, or behind the end of the data."""
    while at < len(data) and data[at] & 0x80:
        at += 1
    return at + 1


def read_unsigned(data: memoryview, at: int) -> tuple[int, int]:
    """What :func:`unsigned` wrote, and the place behind it."""
    number, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
