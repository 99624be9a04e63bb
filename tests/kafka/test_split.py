"""Records sections are taken apart by the kernel and by Python alike; what is none is refused alike."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_kafka_eos.kafka.records.digest import PartitionDigest, header_section
from airflow_kafka_eos.kafka.records.kernel import kernel
from airflow_kafka_eos.kafka.records.split import BrokenRecords, Split, split
from airflow_kafka_eos.kafka.records.varint import zig_zag

needs_kernel = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

Headers = list[tuple[str, bytes | None]]
#: key, value, headers, timestamp's delta
Record = tuple[bytes | None, bytes | None, Headers, int]

_BYTES = (
    st.none()
    | st.binary(max_size=40)
    | st.sampled_from([b"x" * 63, b"y" * 64, b"z" * 8191, b"-" * 1_100_000])
)
_HEADERS = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=9)), max_size=130)
_RECORDS = st.lists(st.tuples(_BYTES, _BYTES, _HEADERS, st.integers(-(2**63), 2**63 - 1)), max_size=20)

RECORDS: list[Record] = [
    (b"key", b"v" * 70, [("a", b"\x00"), ("ä", None)], 0),
    (None, b"", [], -(2**63)),
    (b"", None, [("", b"")], 2**63 - 1),
    (b"x", b"y" * 64, [], 300),
]


def body(record: Record, number: int) -> bytes:
    key, value, headers, delta = record
    fields = [zig_zag(-1) if part is None else zig_zag(len(part)) + part for part in (key, value)]
    return b"\x00" + zig_zag(delta) + zig_zag(number) + b"".join(fields) + header_section(headers)


def framed(bodies: Iterable[bytes]) -> bytes:
    return b"".join(zig_zag(len(one)) + one for one in bodies)


def section_of(records: list[Record], first: int = 0) -> bytes:
    return framed(body(record, first + n) for n, record in enumerate(records))


def taken_apart(section: bytes, count: int) -> Split | str:
    """By both; what went wrong, where it is refused. The kernel may be missing: then by Python alone."""
    found: list[Split | str] = []
    native = kernel()
    for way in [split] if native is None else [split, native.split]:
        try:
            found.append(Split(*map(bytes, way(memoryview(section), count))))
        except BrokenRecords as e:
            found.append(str(e))
    assert found[0] == found[-1]
    return found[0]


@needs_kernel
def test_the_kernel_is_there() -> None:
    assert kernel() is not None, "`make setup` compiles it where there is a C compiler"


@given(_RECORDS, st.sampled_from([0, 60, 2**31 - 40]))
@example(RECORDS, 0)
def test_what_a_section_holds_goes_to_the_digest(records: list[Record], first: int) -> None:
    found = taken_apart(section_of(records, first), len(records))
    assert isinstance(found, Split)
    one_by_one, whole = PartitionDigest(), PartitionDigest()
    for key, value, headers, _ in records:
        one_by_one.update(key, value, headers)
    whole.update_columns(*found)
    assert whole.hexdigest() == one_by_one.hexdigest()
    assert found.keys == b"".join(r[0] or b"" for r in records)
    assert found.values == b"".join(r[1] or b"" for r in records)
    assert found.headers == b"".join(header_section(r[2]) for r in records)
    lengths = [
        (-1 if k is None else len(k), -1 if v is None else len(v), len(header_section(h)))
        for k, v, h, _ in records
    ]
    assert list(struct.iter_unpack("<3i", found.lengths)) == lengths


def padded(number: int, size: int) -> bytes:
    """A varint of that many bytes, more than it needs."""
    plain = zig_zag(number)
    return bytes([*(b | 0x80 for b in plain), *[0x80] * (size - len(plain) - 1), 0])


def test_numbers_may_be_longer_than_they_need() -> None:
    """Kafka reads them, whoever wrote them so; what is a header section's is digested as it stands."""
    fields = [b"\xff", padded(3, 10), padded(1, 5), padded(1, 5), b"k", padded(2, 5), b"vv", padded(1, 5)]
    headers = [padded(1, 5), b"h", padded(-1, 5)]
    inside = b"".join([*fields, *headers])
    found = taken_apart(padded(len(inside), 5) + inside, 1)
    assert found == Split(struct.pack("<3i", 1, 2, 16), b"k", b"vv", inside[-16:])


# -- what is refused -----------------------------------------------------------------------------------------------

WHOLE = section_of(RECORDS)
LONG = framed([body((b"k" * 100, b"v" * 300, [("h", b"w")], 0), 0)] * 2)


@pytest.mark.parametrize(("whole", "count"), [(WHOLE, 4), (LONG, 2)])
def test_it_may_not_end_before_its_last_byte(whole: bytes, count: int) -> None:
    for size in range(len(whole)):
        assert "malformed" in refused(whole[:size], count) or f"cannot be in {size} bytes" in refused(
            whole[:size], count
        )


def refused(section: bytes, count: int) -> str:
    found = taken_apart(section, count)
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("more", [b"\x00", b"\x80", WHOLE[:3], WHOLE])
def test_nothing_may_be_behind_it(more: bytes) -> None:
    assert refused(WHOLE + more, 4) == "there is more behind its 4 records"


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 1, 3, 5, 1000, 2**31 - 1])
def test_it_has_as_many_records_as_were_said(count: int) -> None:
    refused(WHOLE, count)
    assert isinstance(taken_apart(WHOLE, 4), Split)


def test_room_is_not_asked_for_on_the_word_of_a_header() -> None:
    assert refused(WHOLE, 2**31 - 1) == f"2147483647 records cannot be in {len(WHOLE)} bytes"
    assert isinstance(taken_apart(b"", 0), Split)
    refused(b"\x00", 0)
    # each of the least bytes
    assert isinstance(taken_apart(b"\x0c\x00\x00\x00\x01\x01\x00" * 100, 100), Split)
    refused(b"\x0c\x00\x00\x00\x01\x01\x00" * 100, 101)


_START = b"\x00\x00\x00"  # attributes, deltas
TOO_LONG_32, TOO_LONG_64 = b"\x80" * 5 + b"\x00", b"\x80" * 10 + b"\x00"
TOO_LARGE_32, TOO_LARGE_64 = b"\xff" * 4 + b"\x10", b"\xff" * 9 + b"\x02"
LARGEST_32 = b"\xfe\xff\xff\xff\x0f"
BODIES = {
    "timestamp too long": b"\x00" + TOO_LONG_64 + b"\x00\x01\x01\x00",
    "timestamp too large": b"\x00" + TOO_LARGE_64 + b"\x00\x01\x01\x00",
    "offset too long": b"\x00\x00" + TOO_LONG_32 + b"\x01\x01\x00",
    "offset too large": b"\x00\x00" + TOO_LARGE_32 + b"\x01\x01\x00",
    **{
        f"{field}'s length {name}": _START + before + length + b"abc" + behind
        for field, before, behind in (
            ("key", b"", b"\x01\x00"), ("value", b"\x01", b"\x00"), ("header name", b"\x01\x01\x02", b"\x01"),
            ("header value", b"\x01\x01\x02\x00", b""),
        )
        for name, length in (
            ("too long", TOO_LONG_32), ("too large", TOO_LARGE_32), ("largest", LARGEST_32),
            ("of 10 bytes", b"\x80" * 9 + b"\x01"), ("-2", b"\x03"), ("-2 billion", b"\xff\xff\xff\xff\x0f"),
            ("unending", b"\x80\x80\x80"), ("one too many", zig_zag(3 + len(behind) + 1)),
        )
    },
    "key of -2": _START + b"\x03\x01\x00",
    "value of -2": _START + b"\x01\x03\x00",
    "header name of -2": _START + b"\x01\x01\x02\x03\x00",
    "header value of -2": _START + b"\x01\x01\x02\x00\x03",
    "a header without a name": _START + b"\x01\x01\x02\x01\x01",
    "headers: -1": _START + b"\x01\x01\x01",
    "headers: one less": _START + b"\x01\x01\x00\x00\x01",
    "headers: one more": _START + b"\x01\x01\x04\x00\x01",
    "headers: as many as can be said": _START + b"\x01\x01" + LARGEST_32,
    "headers: none, and more": _START + b"\x01\x01\x00\x00",
    "no header count": _START + b"\x01\x01",
    "no value": _START + b"\x01",
    "no key": _START,
    "nothing": b"",
}  # fmt: skip


@pytest.mark.parametrize("inside", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("behind", [0, 1, 2])
def test_a_record_is_malformed(inside: bytes, behind: int) -> None:
    """First, between and last: what it would reach into is another record, or nothing."""
    bodies = [body(r, n) for n, r in enumerate(RECORDS[:2])]
    section = framed([*bodies[behind:], inside, *bodies[:behind]])
    # such a short one may be too short for all of them
    assert refused(section, 3) in (
        f"record {2 - behind} of its 3 is malformed",
        f"3 records cannot be in {len(section)} bytes",
    )


@pytest.mark.parametrize(
    "size",
    [
        TOO_LONG_32,
        TOO_LARGE_32,
        LARGEST_32,
        b"\x80" * 9 + b"\x01",
        b"\x00",
        b"\x01",
        b"\x03",
        b"\x13",
        b"\x0a",
    ],
)
def test_a_records_size_is_malformed(size: bytes) -> None:
    least = b"\x00\x00\x00\x01\x01\x00"
    good = zig_zag(len(least)) + least
    assert refused(good + size + least + good, 3) == "record 1 of its 3 is malformed"
    assert refused(good + good + size + least, 3) == "record 2 of its 3 is malformed"


def test_a_negative_size_leads_nowhere() -> None:
    """Counted from the section's end, as Python would, the first record's end is where the second one begins."""
    assert (
        refused(b"\x0f\x00\x00\x00\x01\x01\x00" + b"\x28\x00\x00\x00\x01\x01\x00", 2)
        == "record 0 of its 2 is malformed"
    )


@given(
    st.integers(0, len(WHOLE) - 1), st.sampled_from([b"", b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\x80\x80"]),
    st.integers(0, 3), st.integers(0, 6),
)  # fmt: skip
def test_whatever_else_is_there_is_taken_or_refused_alike(at: int, put: bytes, drop: int, count: int) -> None:
    taken_apart(WHOLE[:at] + put + WHOLE[at + drop :], count)


@given(st.binary(max_size=60), st.integers(-1, 9))
def test_bytes_at_random_are_taken_or_refused_alike(section: bytes, count: int) -> None:
    taken_apart(section, count)
