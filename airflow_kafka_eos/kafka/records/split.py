"""A batch's records, decompressed, are taken apart into what the digest takes (KIP-98; Kafka's DefaultRecord). No I/O.

Here by a loop in Python, a record at a time; by the kernel (:mod:`.kernel`) where it is there. numpy is no third way:
where a record begins is known once the one before it was read, and commit may have no numpy.

What is read comes out of a log. So whatever is not exactly so many records, which fill the section, is refused.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from airflow_kafka_eos.kafka.records.varint import read_zig_zag

#: Of key, value and header section of one record, see :mod:`.digest`.
LENGTHS_BYTES = 3 * 4
#: Length, attributes, two deltas, key length, value length and header count have one byte each, at least.
_LEAST_BYTES = 7
#: A header section without headers.
NO_HEADERS = b"\x00"


class BrokenRecords(Exception):
    """A batch does not hold what its header says. Whoever reads it says of which transaction it is."""


class Split(NamedTuple):
    """What :meth:`.PartitionDigest.update_columns` takes; all are buffers.

    :param headers: the header sections, as they stand in the records.
    """

    lengths: Any
    keys: Any
    values: Any
    headers: Any


def split(section: bytes | memoryview, count: int) -> Split:
    """Take a records section apart.

    Lengths, counts and offset deltas have 32 bits, timestamp deltas 64; what could be written shorter is taken, as
    Kafka does. A length below -1 (null) is refused, and a header without a name.

    :param section: a batch's records, decompressed.
    :param count: how many records its header says there are.
    :raises BrokenRecords: it is not exactly so many records.
    """
    check_room(len(section), count)
    data, view = bytes(section), memoryview(section)  # Python indexes bytes faster, and slices a view without a copy
    lengths: list[int] = []
    keys: list[memoryview] = []
    values: list[memoryview] = []
    sections: list[bytes] = []
    at = 0
    for number in range(count):
        try:
            size, at = read_zig_zag(data, at)
            end = at + size
            at += 1  # attributes
            if data[at] < 0x80:  # timestamp's delta
                at += 1
            else:
                _, at = read_zig_zag(data, at, bits=64)
            if data[at] < 0x80:  # offset's delta
                at += 1
            else:
                _, at = read_zig_zag(data, at)
            key_length, at = read_zig_zag(data, at)
            if key_length > 0:
                keys.append(view[at : at + key_length])
                at += key_length
            value_length, at = read_zig_zag(data, at)
            if value_length > 0:
                values.append(view[at : at + value_length])
                at += value_length
            if key_length < -1 or value_length < -1 or not at < end <= len(data):
                raise ValueError("lengths that cannot be")
            headers = data[at:end]
            if headers != NO_HEADERS and not _are_headers(headers):
                raise ValueError("more or less than headers")
        except (IndexError, ValueError):
            raise malformed(number, count) from None
        sections.append(headers)
        lengths += (key_length, value_length, end - at)
        at = end
    if at != len(data):
        raise malformed(count, count)
    packed = struct.pack(f"<{len(lengths)}i", *lengths)
    return Split(packed, b"".join(keys), b"".join(values), b"".join(sections))


def _are_headers(section: bytes) -> bool:
    """:raises IndexError: a number ends behind the section."""
    count, at = read_zig_zag(section, 0)
    if count < 0:
        return False
    for _ in range(count):
        name, at = read_zig_zag(section, at)
        value, at = read_zig_zag(section, at + name)
        if name < 0 or value < -1:
            return False
        at += max(value, 0)
    return at == len(section)


def check_room(size: int, count: int) -> None:
    """Before memory is asked for.

    :raises BrokenRecords: no section of so many bytes holds so many records.
    """
    if count < 0 or count * _LEAST_BYTES > size:
        raise BrokenRecords(f"{count} records cannot be in {size} bytes")


def malformed(number: int, count: int) -> BrokenRecords:
    """The error for a record by its place in its batch, from 0 on; behind the last one: bytes are left."""
    if number == count:
        return BrokenRecords(f"there is more behind its {count} records")
    return BrokenRecords(f"record {number} of its {count} is malformed")
