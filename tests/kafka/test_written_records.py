"""Whatever is written reads back byte for byte, through two other clients, and lies where they would have put it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer.interface import TopicLimits
from airflow_kafka_eos.kafka.producer.writers import make_writer
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import TopicPartition
from tests.kafka.arrow_support import Row, batch_of
from tests.kafka.java_oracle import JavaOracle, java_oracle
from tests.kafka.writers_support import (
    DEFAULT_LIMIT,
    Record,
    an_id,
    consume,
    end,
    is_open,
    settings_of,
    target_of,
    writes_of,
)

pytestmark = pytest.mark.broker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONERS = ("murmur2_random", "murmur2", "consistent", "consistent_random", "random")
PARTITIONS = {"one": 1, "three": 3, "seven": 7}
SMALL_LIMIT = 3000  # bytes of a batch of topic "seven"


@pytest.fixture(scope="module")
def oracle() -> Iterator[JavaOracle]:
    with java_oracle() as running:
        yield running


@pytest.fixture(scope="module")
def topics(kafka: LocalKafka) -> dict[str, str]:
    """Name of each topic; all examples write there."""
    found = {name: f"records-{name}" for name in PARTITIONS}
    for name, topic in found.items():
        config = {"max.message.bytes": str(SMALL_LIMIT)} if name == "seven" else {}
        kafka.create_topic(topic, partitions=PARTITIONS[name], config=config)
    return found


def _bytes_of(size: int, compressible: bool) -> st.SearchStrategy[bytes]:
    return st.integers(0, 2**32).map(
        lambda seed: b"abc%d" % seed * (size // 4) if compressible else random.Random(seed).randbytes(size)
    ).map(lambda data: data[:size])


_SIZES = st.sampled_from([0, 1, 63, 64, 200, 1500]) | st.integers(0, 300)
_BYTES = st.none() | st.binary(max_size=8) | st.tuples(_SIZES, st.booleans()).flatmap(lambda s: _bytes_of(*s))
_BIG = st.tuples(st.sampled_from([8191, 8192, 70_000, 600_000]), st.booleans()).flatmap(lambda s: _bytes_of(*s))
# librdkafka has header names as C strings
_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)
_HEADERS = st.lists(st.tuples(_NAMES, st.none() | st.binary(max_size=90)), max_size=3).map(tuple)
# librdkafka takes 0 for "now"
_STAMPS = st.integers(1, 1_790_000_000_000)
_KEYS = st.none() | st.just(b"") | st.binary(max_size=3) | _BYTES


@st.composite
def _row(draw: st.DrawFn) -> Row:
    topic = draw(st.sampled_from(sorted(PARTITIONS)))
    values = _BYTES if topic == "seven" else _BYTES | _BIG
    partition = draw(st.none() | st.none() | st.integers(0, PARTITIONS[topic] - 1))
    return Row(draw(_KEYS), draw(values), draw(_HEADERS), draw(_STAMPS), partition, topic)


@dataclass(repr=False)
class _Load:
    """The rows of each write. Not shown as a whole: that would be megabytes."""

    parts: list[list[Row]]
    partitioner: str
    batch_size: int


@st.composite
def _load(draw: st.DrawFn) -> _Load:
    """Some hundred rows: a few that Hypothesis thought of, again and again in another order, told apart by a header."""
    templates = draw(st.lists(_row(), min_size=5, max_size=20))
    shuffle = random.Random(draw(st.integers(0, 2**32)))
    rows: list[Row] = []
    for turn in range(draw(st.integers(1, 30))):
        for row in shuffle.sample(templates, len(templates)):
            if turn > 1 and len(row.value or b"") > 5000:
                continue  # hundreds of these would be too much for one test
            rows.append(row._replace(headers=(*row.headers, ("n", b"%d" % len(rows)))))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    parts = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True) if b > a]
    return _Load(parts, draw(st.sampled_from(PARTITIONERS)), draw(st.sampled_from([1_000_000, 900, 20_000])))


@pytest.mark.parametrize("codec", CODECS)
@settings(
    max_examples=2,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would take an hour of broker time
    suppress_health_check=list(HealthCheck),
)
@given(load=_load())
def test_it_reads_back_byte_for_byte_in_order_and_where_it_belongs(
    kafka: LocalKafka, topics: dict[str, str], oracle: JavaOracle, codec: str, load: _Load
) -> None:
    parts, partitioner, batch_size = load.parts, load.partitioner, load.batch_size
    rows = [row for part in parts for row in part]
    connection = settings_of(
        kafka.bootstrap_servers, compression_type=codec, partitioner=partitioner, batch_size=batch_size
    )
    found = {kind: _written(kind, kafka, topics, oracle, connection, parts) for kind in ("arrow", "confluent")}
    for name, count in PARTITIONS.items():
        mine = [r for r in rows if r.topic == name]
        by_number = {kind: {r.headers[-1]: r for r in found[kind][name]} for kind in found}
        keyed = [r for r in mine if r.partition is None and r.key is not None]
        if partitioner.startswith("murmur2"):
            wanted = oracle.partitions([r.key for r in keyed if r.key is not None], count)
            assert [by_number["arrow"][r.headers[-1]].partition for r in keyed] == wanted
        for row in mine:
            places = [by_number[kind][row.headers[-1]].partition for kind in found]
            if row.partition is not None:
                assert places == [row.partition] * 2
            elif not _is_spread(row.key, partitioner):
                assert places[0] == places[1], (row, partitioner)
        for kind in found:
            # all of a partition's records in the order of their rows, so all of a key's
            of_partition = defaultdict(list)
            for row in mine:
                of_partition[by_number[kind][row.headers[-1]].partition].append(_content_of(row))
            read = defaultdict(list)
            for record in found[kind][name]:
                read[record.partition].append(_content_of(record))
            assert read == of_partition


def _written(
    kind: str, kafka: LocalKafka, topics: Mapping[str, str], oracle: JavaOracle, connection: KafkaSettings,
    parts: Sequence[Sequence[Row]],
) -> dict[str, list[Record]]:
    """Write, commit and read back with both clients: the records of each topic."""
    starts = _ends(connection, topics)
    limits = {
        t: TopicLimits(PARTITIONS[name], SMALL_LIMIT if name == "seven" else DEFAULT_LIMIT)
        for name, t in topics.items()
    }
    transactional_id = an_id(f"{kind}-{random.getrandbits(60)}")
    writer = make_writer(kind, connection, target_of(transactional_id, limits, default_topic=None))
    writer.open()
    try:
        for part in parts:
            writer.write(batch_of(r._replace(topic=topics[str(r.topic)]) for r in part))
        prepared, writes = writer.prepare()
    except BaseException:
        writer.abort()
        raise
    finally:
        writer.close()
    end(connection, prepared)
    assert not is_open(connection, transactional_id)
    found: dict[str, list[Record]] = {}
    reported: list[PartitionWrites] = []
    for name, topic in topics.items():
        mine = {tp.partition: offset for tp, offset in starts.items() if tp.topic == topic}
        count = sum(r.topic == name for part in parts for r in part)
        records = consume(kafka.bootstrap_servers, topic, PARTITIONS[name], count, "read_committed", mine)
        # the Java consumer may hand over one partition before the other
        assert sorted(records, key=_place) == sorted(
            oracle.read(kafka.bootstrap_servers, topic, mine), key=_place
        )
        reported += writes_of(topic, records)
        found[name] = records
    assert sorted(reported, key=repr) == sorted(writes, key=repr)
    return found


def _place(record: Record) -> tuple[int, int]:
    return record.partition, record.offset


def _is_spread(key: bytes | None, partitioner: str) -> bool:
    """True when the client places it as it likes."""
    return {
        "murmur2_random": key is None,
        "murmur2": False,
        "consistent": False,
        "consistent_random": not key,
        "random": True,
    }[partitioner]


def _content_of(row: Row | Record) -> tuple[object, ...]:
    return row.key, row.value, row.headers, row.timestamp


def _ends(connection: KafkaSettings, topics: Mapping[str, str]) -> dict[TopicPartition, int]:
    every = [TopicPartition(t, p) for name, t in topics.items() for p in range(PARTITIONS[name])]
    with Wire(connection) as wire:
        return Partitions(wire).end_offsets(every)
