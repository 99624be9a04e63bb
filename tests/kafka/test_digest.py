"""The digest says whether two sequences of records are equal."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence

import pyarrow as pa
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.kafka.producer.arrow.binary import data_of
from airflow_kafka_eos.kafka.producer.interface import Tally
from airflow_kafka_eos.kafka.records.digest import ALGORITHM, PartitionDigest, header_section, record_bytes
from airflow_kafka_eos.kafka.records.varint import zig_zag
from airflow_kafka_eos.transaction import TopicPartition

#: key, value, headers
Record = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]

_BYTES = st.none() | st.binary(max_size=6)
_RECORD = st.tuples(_BYTES, _BYTES, st.lists(st.tuples(st.text(max_size=3), _BYTES), max_size=2))
_RECORDS = st.lists(_RECORD, max_size=8)


def digest(records: Iterable[Record]) -> str:
    found = PartitionDigest()
    for record in records:
        found.update(*record)
    return found.hexdigest()


@given(_RECORDS, _RECORDS)
def test_two_sequences_have_one_digest_only_if_they_are_equal(a: list[Record], b: list[Record]) -> None:
    assert (digest(a) == digest(b)) == (a == b)


@given(_RECORDS)
def test_another_order_another_number_or_another_record_shows(records: list[Record]) -> None:
    whole = digest(records)
    assert digest([*records, (None, None, [])]) != whole
    for order in itertools.islice(itertools.permutations(records), 24):
        assert (digest(order) == whole) == (list(order) == records)
    for n, (key, value, headers) in enumerate(records):
        others = ((key or b"") + b"x", value, headers), (key, (value or b"") + b"x", headers), (value, key, headers)
        for other in others:
            if other != (key, value, headers):
                assert digest([*records[:n], other, *records[n + 1 :]]) != whole


def test_where_a_key_ends_and_a_value_begins_shows() -> None:
    sequences: list[list[Record]] = [
        [(b"ab", b"c", [])],
        [(b"a", b"bc", [])],
        [(b"a", b"b", []), (b"b", b"c", [])],
        [(b"ab", None, []), (b"", b"bc", [])],
        [(b"abbc", b"", [])],
        [(None, b"abc", [])],
        [(b"", b"abc", [])],
        [(None, b"abc", [("", None)])],
        [(None, b"abc", [("", b"")])],
    ]
    assert len({digest(s) for s in sequences}) == len(sequences)


@given(_RECORDS, st.integers(0, 8))
def test_columns_are_hashed_as_their_rows(records: list[Record], cut: int) -> None:
    found = PartitionDigest()
    for part in (records[:cut], records[cut:]):
        keys, values = (pa.array([r[n] for r in part], pa.binary()) for n in (0, 1))
        sections = [header_section(h) for _, _, h in part]
        lengths = [
            struct.pack("<3i", *(-1 if c is None else len(c) for c in (key, value)), len(section))
            for (key, value, _), section in zip(part, sections, strict=True)
        ]
        found.update_columns(b"".join(lengths), data_of(keys), data_of(values), b"".join(sections))
    assert found.hexdigest() == digest(records)


def test_what_a_digest_is_does_not_change_under_one_name() -> None:
    # manifests outlive releases: another way of hashing needs another ALGORITHM
    assert ALGORITHM == "xxh3-128-columns"
    records = [(b"k", None, [("h", b"x")]), (None, b"v", [])]
    lengths = struct.pack("<6i", 1, -1, 5, -1, 1, 1)
    streams = [lengths, b"k", b"v", b"\x02" + b"\x02h" + b"\x02x" + b"\x00"]
    wanted = xxhash.xxh3_128(b"".join(xxhash.xxh3_128(s).digest() for s in streams)).hexdigest()
    assert digest(records) == wanted
    assert len(wanted) == 32


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_are_zig_zag(number: int) -> None:
    data = zig_zag(number)
    assert all(b & 0x80 for b in data[:-1]) and data[-1] < 0x80
    read = sum((b & 0x7F) << (7 * n) for n, b in enumerate(data))
    assert (read >> 1) ^ -(read & 1) == number


def test_bytes_count_keys_values_and_headers() -> None:
    assert record_bytes(b"ab", None, [("é", b"xyz"), ("h", None)]) == 2 + 2 + 3 + 1


def test_a_tally_keeps_each_partitions_first_and_last_offset() -> None:
    tally = Tally()
    for partition, first in ((1, 40), (0, 7), (1, 50)):
        found = tally.of(TopicPartition("t", partition))
        found.records += 2
        found.bytes += 10
        found.acknowledge(2, first, first + 1)
    # a batch that was sent again may be acknowledged behind its follower
    tally.of(TopicPartition("t", 1)).acknowledge(2, 30, 31)
    assert [(w.partition, w.records, w.bytes, w.first_offset, w.last_offset)
            for w in tally.writes()] == [(0, 2, 10, 7, 8), (1, 4, 20, 30, 51)]  # fmt: skip
    assert (tally.records, tally.acknowledged) == (6, 8)
    assert tally.partitions == {TopicPartition("t", 0), TopicPartition("t", 1)}
