"""Rows become record batches: read back by kafka-python's reader, nothing is lost, changed, moved or too large."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_kafka_eos.errors import RecordError
from airflow_kafka_eos.kafka.producer.arrow.batcher import Batcher, TooLarge
from airflow_kafka_eos.kafka.producer.arrow.columns import pieces, read
from airflow_kafka_eos.kafka.producer.interface import Tally, TopicLimits, WriteTarget
from airflow_kafka_eos.kafka.records.batch import OpenBatch, SealedBatch, seal
from airflow_kafka_eos.kafka.records.compression import CODES, compressor
from airflow_kafka_eos.kafka.records.digest import record_bytes
from airflow_kafka_eos.kafka.records.kernel import kernel
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.transaction import SEQUENCE_MODULUS, PreparedTxnState, TopicPartition
from tests.kafka.arrow_support import (
    DISGUISES,
    Read,
    Row,
    batch,
    batch_of,
    compression_of,
    disguised,
    parse,
    raw,
)

STATE = PreparedTxnState(7_000_000_000, 32_767)
NOW = 1_700_000_000_000


def target_of(limits: Mapping[str, int], default: str = "t") -> WriteTarget:
    return WriteTarget(
        TransactionalId(LoadIdentity("tests", "arrow", "x"), "00000000aa", 1, 0, 0),
        {name: TopicLimits(99_999, limit) for name, limit in limits.items()},
        default,
        60_000,
        int(time.time() * 1000) + 60_000,
    )


class Batches:
    """A batcher, and everything that it sealed: by numpy and Arrow, and the same bytes by the kernel if it is built."""

    def __init__(self, limit: int = 1_048_588, batch_bytes: int = 1_000_000, codec: str = "none") -> None:
        self.limit = limit
        self.tally = Tally()
        self.batchers = [
            Batcher(STATE, {"t": limit}, batch_bytes, compressor(codec), tally, lambda: NOW, by)
            for tally, by in ((self.tally, None), (Tally(), kernel()))
        ]
        self.sealed: list[SealedBatch] = []
        self.target = target_of({"t": limit})

    def add(self, batch: pa.RecordBatch, partitions: Sequence[int] | None = None) -> None:
        """All rows to partition 0, or where ``partitions`` says."""
        for piece in pieces(batch):
            columns = read(piece, self.target, NOW)
            places = np.zeros(piece.num_rows, np.int32) if partitions is None else np.array(partitions, np.int32)
            every = [TopicPartition("t", p) for p in range(int(places.max()) + 1)]
            self.sealed += self._both(lambda one: one.add(columns, places, every))  # noqa: B023

    def rest(self) -> list[SealedBatch]:
        """The batches that are still open, sealed."""
        return self._both(lambda one: one.finish())

    def _both(self, work: Callable[[Batcher], Iterator[SealedBatch]]) -> list[SealedBatch]:
        found: list[list[SealedBatch] | TooLarge] = []
        for one in self.batchers:
            try:
                found.append(list(work(one)))
            except TooLarge as e:
                found.append(e)
        plain, native = (
            of.args if isinstance(of, TooLarge) else [(b.partition, b.order, b.sequence, b.records, raw(b)) for b in of]
            for of in found
        )
        assert plain == native
        if isinstance(found[1], TooLarge):
            raise found[1]
        return found[1]

    def finish(self) -> dict[int, list[Read]]:
        """Seal the rest, check what holds for all batches, and return the records by partition."""
        self.sealed += self.rest()
        records: dict[TopicPartition, list[Read]] = defaultdict(list)
        sequence: dict[TopicPartition, int] = defaultdict(int)
        order: dict[TopicPartition, int] = defaultdict(int)
        for one in self.sealed:
            found, own = parse(one)
            assert (found.producer_id, found.producer_epoch) == (STATE.producer_id, STATE.producer_epoch)
            # gapless: the broker refuses what is not
            assert (one.sequence, one.order) == (sequence[one.partition], order[one.partition])
            assert one.bytes <= self.limit
            sequence[one.partition] += one.records
            order[one.partition] += 1
            records[one.partition] += own
        for partition, own in records.items():
            tally = Tally().of(partition)
            for r in own:
                tally.digest.update(r.key, r.value, r.headers)
            counted = self.tally.of(partition)
            assert counted.records == len(own)
            assert counted.bytes == sum(record_bytes(r.key, r.value, r.headers) for r in own)
            assert counted.digest.hexdigest() == tally.digest.hexdigest()
        assert self.tally.partitions == frozenset(records)
        return {p.partition: own for p, own in records.items()}


def as_read(row: Row) -> Read:
    return Read(row.key, row.value, row.headers, NOW if row.timestamp is None else row.timestamp)


_BYTES = st.none() | st.binary(max_size=12) | st.binary(min_size=100, max_size=300)
_HEADERS = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=70)), max_size=3).map(tuple)
_STAMP = st.none() | st.integers(0, 2**41) | st.sampled_from([0, 2**47])
_ROW = st.builds(Row, _BYTES, _BYTES, _HEADERS, _STAMP, st.integers(0, 4))
_COLUMNS = st.sets(st.sampled_from(["key", "value", "headers", "timestamp"]))


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.lists(_ROW, max_size=25), _COLUMNS), max_size=5),
    st.sampled_from(sorted(CODES)),
    st.integers(1200, 3000),
    st.integers(1, 3000),
    st.sampled_from(DISGUISES),
)
def test_whatever_comes_in_is_in_the_batches(
    adds: list[tuple[list[Row], set[str]]], codec: str, limit: int, batch_bytes: int, how: str
) -> None:
    batches, wanted = Batches(limit, batch_bytes, codec), defaultdict[int | None, list[Read]](list)
    for rows, absent in adds:
        if not rows:
            continue
        found = batch_of(rows, leave_out=absent)
        for name in {"key", "value"} - absent:
            found = found.set_column(found.schema.get_field_index(name), name, disguised(found[name], how))
        batches.add(found, [r.partition or 0 for r in rows])
        empty = Row()
        for row in rows:
            wanted[row.partition].append(as_read(row._replace(**{n: getattr(empty, n) for n in absent})))
    assert batches.finish() == wanted


# -- edges ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8193])
@pytest.mark.parametrize("keyed", [True, False])
def test_offset_deltas_at_the_edges_of_their_varints(count: int, keyed: bool) -> None:
    batches = Batches()
    values = pa.array(np.arange(count)).cast(pa.string()).cast(pa.binary())
    columns = {"value": values} | ({"key": values} if keyed else {})
    batches.add(pa.RecordBatch.from_pydict(columns))
    sealed = batches.rest()
    assert [s.records for s in sealed] == [count]
    _, records = parse(sealed[0])
    assert [r.value for r in records] == values.to_pylist()


@pytest.mark.parametrize("first", [62, 63, 64, 8190, 8191])
def test_a_batch_goes_on_over_several_adds(first: int) -> None:
    batches = Batches()
    batches.add(batch(value=[b"%d" % n for n in range(first)]))
    batches.add(batch(value=[b"%d" % n for n in range(first, first + 5)]))
    assert [r.value for r in batches.finish()[0]] == [b"%d" % n for n in range(first + 5)]
    assert len(batches.sealed) == 1


@pytest.mark.parametrize("size", [0, 63, 64, 8191, 8192, 1_000_000, 1_048_500])
def test_lengths_at_the_edges_of_their_varints(size: int) -> None:
    batches = Batches()
    batches.add(batch(key=[b"k" * size, b""], value=[None, b""]))
    batches.add(batch(key=[None, b""], value=[b"v" * size, b""]))
    assert batches.finish()[0] == [
        as_read(Row(b"k" * size)), as_read(Row(b"", b"")), as_read(Row(None, b"v" * size)), as_read(Row(b"", b"")),
    ]  # fmt: skip


def test_timestamps_may_go_back_within_a_batch_and_between_adds() -> None:
    stamps = [10**12, 10**12 - 1, 0, 10**12 + 63, 10**12 + 64, 253_402_300_799_999, 5, None]
    batches = Batches()
    batches.add(batch(value=[b""] * 8, timestamp=stamps))
    batches.add(batch(value=[b""] * 8, timestamp=stamps[::-1]))
    assert [r.timestamp for r in batches.finish()[0]] == [s if s is not None else NOW for s in [*stamps, *stamps[::-1]]]
    assert len(batches.sealed) == 1
    assert parse(batches.sealed[0])[0].max_timestamp == 253_402_300_799_999


def test_a_null_timestamp_is_the_moment_of_writing_whatever_its_batch_began_with() -> None:
    # the batch is open since 2001; rows that know no time must not become that old
    batches = Batches()
    batches.add(batch(value=[b"old"], timestamp=[10**12]))
    batches.add(batch(value=[b"a", b"b"], timestamp=[None, None]))
    batches.add(batch(value=[b"c"]))
    assert [r.timestamp for r in batches.finish()[0]] == [10**12, NOW, NOW, NOW]


def test_times_below_a_millisecond_are_cut_off() -> None:
    column = pa.array([1_999_999, 999], pa.timestamp("ns"))
    batches = Batches()
    batches.add(pa.RecordBatch.from_pydict({"value": [b"", b""], "timestamp": column}))
    assert [r.timestamp for r in batches.finish()[0]] == [1, 0]


def test_many_partitions_with_few_rows_each() -> None:
    batches = Batches()
    for n in range(20):
        batches.add(batch(value=[b"%d" % (n * 1000 + i) for i in range(1000)]), [i % 200 for i in range(1000)])
    found = batches.finish()
    assert len(found) == len(batches.sealed) == 200
    for partition, records in found.items():
        assert [int(r.value or b"") for r in records] == list(range(partition, 20_000, 200))


@pytest.mark.parametrize("partitions", [2, 255, 256, 257, 65_536, 65_537])
def test_order_within_a_partition_is_kept_however_many_there_are(partitions: int) -> None:
    batches = Batches()
    places = [n % 2 * (partitions - 1) for n in range(3000)]
    batches.add(batch(value=[b"%d" % n for n in range(3000)]), places)
    found = batches.finish()
    assert [int(r.value or b"") for r in found[0]] == list(range(0, 3000, 2))
    assert [int(r.value or b"") for r in found[partitions - 1]] == list(range(1, 3000, 2))


# -- limits --------------------------------------------------------------------------------------------------------


def largest_that_fits(limit: int) -> tuple[int, int]:
    for size in range(limit - 60, 0, -1):
        try:
            batches = Batches(limit)
            batches.add(batch(value=[b"v" * size]))
        except TooLarge:
            continue
        batches.finish()
        return size, batches.sealed[0].bytes
    raise AssertionError(limit)


@pytest.mark.parametrize("limit", [150, 2000, 20_000, 1_048_588])
def test_a_lone_record_is_refused_when_its_batch_would_not_fit_and_only_then(limit: int) -> None:
    size, taken = largest_that_fits(limit)
    assert taken <= limit
    longer = Batches(10**7, 10**7)
    longer.add(batch(value=[b"v" * (size + 1)]))
    longer.finish()
    assert longer.sealed[0].bytes > limit


def test_a_record_that_is_too_large_is_found_where_it_was_before_sorting() -> None:
    batches = Batches(500)
    with pytest.raises(TooLarge) as caught:
        batches.add(batch(value=[b"a", b"b" * 600, b"c"], key=[b"0", b"1", b"2"]), [2, 0, 1])
    assert (caught.value.row, caught.value.partition.partition, caught.value.size) == (1, 0, 601)
    assert batches.tally.records == 0  # nothing was taken


def test_a_record_above_batch_size_but_within_the_topics_limit_goes_alone() -> None:
    batches = Batches(limit=100_000, batch_bytes=1000)
    values = [b"a", b"b" * 50_000, b"c"]
    batches.add(batch(value=values))
    assert [r.value for r in batches.finish()[0]] == values
    assert [s.records for s in batches.sealed] == [1, 1, 1]


def test_batches_are_as_large_as_they_may_be() -> None:
    batches = Batches(limit=10**6, batch_bytes=10_000)
    batches.add(batch(value=[b"v" * 489] * 2000))
    batches.finish()
    # bounds are counted, not sizes: some bytes a record
    assert min(s.bytes for s in batches.sealed[:-1]) > 10_000 - 2 * 520


@pytest.mark.parametrize("stamps", [None, [0, 2**53]])
def test_frames_count_into_the_limit_also_where_they_are_all_there_is(stamps: list[int] | None) -> None:
    # lengths, offset and timestamp deltas of empty records: bounds of them, or the broker refuses the batch
    batches = Batches(limit=2000, batch_bytes=2000)
    times = {} if stamps is None else {"timestamp": [stamps[n % 2] // 1000 for n in range(5000)]}
    batches.add(batch(value=[b""] * 5000, **times))
    assert len(batches.finish()[0]) == 5000  # looks at each batch's size


@pytest.mark.parametrize("codec", sorted(set(CODES) - {"none"}))
def test_what_compression_would_make_larger_is_sent_as_it_is(codec: str) -> None:
    # or a batch that was cut to the topic's limit is refused by the broker
    batches = Batches(limit=1500, batch_bytes=1500, codec=codec)
    values = [np.random.default_rng(n).bytes(1420) for n in range(5)]
    batches.add(batch(value=values))
    assert [r.value for r in batches.finish()[0]] == values
    assert {compression_of(s) for s in batches.sealed} == {0}


@pytest.mark.parametrize("codec", sorted(CODES))
def test_compression_is_named_and_used(codec: str) -> None:
    batches = Batches(codec=codec)
    batches.add(batch(value=[b"abc" * 100] * 1000))
    batches.finish()
    assert {compression_of(s) for s in batches.sealed} == {CODES[codec]}
    assert (batches.sealed[0].bytes < 100_000) == (codec != "none")


# -- memory --------------------------------------------------------------------------------------------------------


def test_open_batches_of_many_partitions_are_sealed_before_they_are_too_many() -> None:
    batches = Batches()
    batch_of_many = batch(value=[b"v" * 1000] * 200)
    for _ in range(300):
        batches.add(batch_of_many, range(200))
    assert 60_000_000 - sum(s.bytes for s in batches.sealed) < 33 * 1024 * 1024
    assert sum(s.records for s in [*batches.sealed, *batches.rest()]) == 60_000


def test_a_partition_with_few_rows_does_not_hold_on_to_the_rows_of_the_others() -> None:
    # its open batch stands for hours: views into what was encoded with it would keep all of that
    before = pa.total_allocated_bytes()
    batches = Batches()
    for _ in range(50):
        batches.add(batch(value=[b"v" * 1000] * 2000), [1, *[0] * 1999])
        batches.sealed.clear()  # as if they were acknowledged
    assert pa.total_allocated_bytes() - before < 20_000_000
    del batches


# -- sequences -----------------------------------------------------------------------------------------------------


@given(st.integers(0, SEQUENCE_MODULUS - 1), st.integers(1, 5))
@example(SEQUENCE_MODULUS - 1, 1)
def test_sequences_begin_again_at_zero_as_the_broker_counts_them(start: int, count: int) -> None:
    # DefaultRecordBatch.incrementSequence
    batches = Batches()
    tp = TopicPartition("t", 0)
    for one in batches.batchers:
        one._next[tp] = (start, 0)
    for n in range(2):
        batches.add(batch(value=[b"%d" % n] * count))
        batches.sealed += batches.rest()
    limit = 2**31 - 1
    after = start + count if start <= limit - count else count - (limit - start) - 1
    assert [s.sequence for s in batches.sealed] == [start, after]


def test_a_sealed_batch_never_changes() -> None:
    # what is sent again must be the same bytes
    tp = TopicPartition("t", 0)
    sealed = seal(OpenBatch(1, 2, [b"\x10" + b"\0" * 8], 1, 9), tp, 0, STATE, 5, compressor("gzip"))
    assert raw(sealed) == raw(sealed)


# -- columns -------------------------------------------------------------------------------------------------------


def test_a_large_batch_is_looked_at_in_pieces() -> None:
    whole = batch(value=[b"v" * 1_000_000] * 100)
    found = [*pieces(whole)]
    assert len(found) == 4
    assert sum(p.num_rows for p in found) == 100
    assert [*pieces(whole.slice(0, 0))] == []


@pytest.mark.parametrize("topic", [None, "u"])
def test_a_time_before_1970_is_refused_naming_its_topic(topic: str | None) -> None:
    target = target_of({"t": 1000, "u": 1000})
    rows = batch(value=[b"", b""], timestamp=[5, -1], topic=[None, topic])
    with pytest.raises(RecordError, match=rf"topic '{topic or 't'}' has timestamp -1 ms"):
        read(rows, target, NOW)


def test_a_microsecond_before_1970_is_not_cut_to_1970() -> None:
    rows = pa.record_batch({"value": [b"v"], "timestamp": pa.array([-1], pa.timestamp("us"))})
    with pytest.raises(RecordError, match="has timestamp -1 ms"):
        read(rows, target_of({"t": 1000}), NOW)


def test_the_same_rows_in_one_call_or_in_many_make_the_same_records() -> None:
    rows = [b"%d" % n for n in range(100)]
    one, many = Batches(), Batches()
    one.add(batch(value=rows))
    for start in range(0, 100, 7):
        many.add(batch(value=rows[start : start + 7]))
    assert one.finish() == many.finish()
