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


def read_zig_zag(data: bytes | memoryview, at: int, bits: int = 32) -> tuple[int, int]:
    """What :func:`zig_zag` wrote, and the place behind it. See :func:`read_unsigned`."""
    byte = data[at]
    if byte < 0x80:  # most are short
        return (byte >> 1) ^ -(byte & 1), at + 1
    if (second := data[at + 1]) < 0x80:  # or the next
        return (byte & 0x7F | second << 7) >> 1 ^ -(byte & 1), at + 2
    number, at = read_unsigned(data, at, bits)
    return (number >> 1) ^ -(number & 1), at


def skip(data: memoryview, at: int) -> int:
    """The place behind a varint, or behind the end of the data."""
    while at < len(data) and data[at] & 0x80:
        at += 1
    return at + 1


def read_unsigned(data: bytes | memoryview, at: int, bits: int = 32) -> tuple[int, int]:
    """What :func:`unsigned` wrote, and the place behind it.

    :raises IndexError: the data ends before it does.
    :raises ValueError: it has more bits, or more bytes than so many bits take.
    """
    number = 0
    for shift in range(0, bits, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> bits:
                break
            return number, at
    raise ValueError(f"a varint of more than {bits} bits")
