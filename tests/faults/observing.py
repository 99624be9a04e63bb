"""What readers and brokers show of a run: clients of other libraries only, nothing of our package.

    with Observers(servers, {"orders": 4}) as observers:
        ...  # the run
        seen = observers.observe(loads, foreign, plain, settle_s=60)
    judge(seen)

The product writes through librdkafka or its own wire. The tailing reader is kafka-python's, the final one is
librdkafka's: where one of them reads wrongly, they differ. :func:`read_kafka_python` and
:func:`tests.faults.java_reader.read_java` read everything once more, for who asks.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, TopicPartition
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError as PythonKafkaError
from kafka.errors import TransactionalIdNotFoundError
from kafka.protocol.consumer import OffsetSpec

from tests.faults.facts import ForeignFact, LoadFact, Observation, OpenTransaction, PlainFact, Record
from tests.faults.java_reader import read_java
from tests.faults.markers import CLOCK_ERROR_S, marker_looks, wall_ahead_s
from tests.faults.tailing import POLL_RECORDS, Tail, consumer_of, reached, record_of

T = TypeVar("T")
#: Of a transaction that holds readers back, or whose markers are not all written.
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
#: How long brokers may need to answer at all, after all that was done to them.
PATIENCE_S = 60.0
_PAUSE_S = 0.1


@dataclass(frozen=True)
class Brokers:
    """What the brokers said last.

    :param stable: last stable offset by (topic, partition).
    :param short: last stable offset and end, where they differ.
    """

    open: tuple[OpenTransaction, ...]
    stable: Mapping[tuple[str, int], int]
    short: Mapping[tuple[str, int], tuple[int, int]]


class Observers:
    """A tailing reader from the run's start on; a final one and the brokers' words at its end.

    :param topics: how many partitions each has.
    :param data: the ``log.dirs`` of all brokers, where they are of this machine: looks are made of the log's markers
        then, and of the tailing reader's last look. Without it they are the tailing reader's, and the time that it
        takes to read a load is part of its window.
    """

    def __init__(self, servers: str, topics: Mapping[str, int], data: Sequence[Path] = ()) -> None:
        self._servers = servers
        self._topics = dict(topics)
        self._data = data
        self._recreated: set[str] = set()
        self._ahead_s = wall_ahead_s()
        self.tail = Tail(servers, topics)
        self.brokers: Brokers | None = None

    def __enter__(self) -> Observers:
        self.tail.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tail.stop({}, within_s=0)

    def follow(self, partitions: Mapping[str, int]) -> None:
        """Topics that have more partitions by now."""
        self._topics |= partitions
        self.tail.follow(partitions)

    def forget(self, topics: Iterable[str]) -> None:
        """Topics that were deleted and created anew: who followed the old ones has seen others' records."""
        for topic in topics:
            self._recreated.add(topic)
            self.tail.forget(topic)

    def observe(
        self,
        loads: Sequence[LoadFact],
        foreign: Sequence[ForeignFact],
        plain: Sequence[PlainFact],
        settle_s: float,
        java: bool = False,
        errors: Sequence[str] = (),
    ) -> Observation:
        """To be called once, when nobody writes any more.

        :param settle_s: how long the brokers may need until nothing is open.
        :param java: Java's consumer reads it all, too; seconds.
        :param errors: what of our processes nobody expected.
        :raises AssertionError: the tailing reader did not come to the end.
        """
        self.brokers = at_rest(self._servers, self._topics, settle_s)
        kept = {place: end for place, end in self.brokers.stable.items() if place[0] not in self._recreated}
        ended = self.tail.stop(kept)
        assert ended, f"the tailing reader did not reach {self.brokers.stable}; its troubles: {self.tail.troubles[-5:]}"
        final = read_librdkafka(self._servers, self.brokers.stable)
        looks, clock_error_s = tuple(self.tail.looks), None
        if self._data:
            looks = (*marker_looks(self._data, loads, final, self._ahead_s), *looks[-1:])
            # somebody may have set the machine's clock meanwhile
            clock_error_s = CLOCK_ERROR_S + abs(wall_ahead_s() - self._ahead_s)
        return Observation(
            loads=tuple(loads),
            foreign=tuple(foreign),
            plain=tuple(plain),
            tailed=tuple(r for r in self.tail.records if r.topic not in self._recreated)
            + tuple(r for r in final if r.topic in self._recreated),
            final=final,
            open=self.brokers.open,
            stable_short=self.brokers.short,
            looks=looks,
            others={"Java's": read_java(self._servers, self.brokers.stable)} if java else {},
            clock_error_s=clock_error_s,
            errors=tuple(errors),
        )


def at_rest(
    servers: str, topics: Mapping[str, int], settle_s: float, of: Callable[[str], bool] | None = None
) -> Brokers:
    """Wait until nothing is open on these topics and nothing is short, at most so long; what the brokers say then.

    :param of: look at transactional ids of this kind only, and at no last stable offset.
    """
    until = time.monotonic() + settle_s
    with closing(_admin(servers)) as admin:
        while True:
            found = _look(admin, topics)
            if of is not None:
                found = Brokers(tuple(one for one in found.open if of(one.transactional_id)), found.stable, {})
            if not (found.open or found.short) or time.monotonic() > until:
                return found
            time.sleep(_PAUSE_S)


def ends_of(servers: str, topics: Mapping[str, int], level: str = "read_committed") -> dict[tuple[str, int], int]:
    """Where a reader of this isolation level ends now."""
    with closing(_admin(servers)) as admin:
        return _offsets(admin, topics, level)


def read_librdkafka(
    servers: str, ends: Mapping[tuple[str, int], int], level: str = "read_committed"
) -> tuple[Record, ...]:
    """All that a reader sees below these offsets, partition by partition in the order that they come."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": str(uuid.uuid4()),
            "isolation.level": level,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
            "check.crcs": True,
        }
    )
    found: list[Record] = []
    open_ends = {tp for tp, end in ends.items() if end > 0}
    until = time.monotonic() + PATIENCE_S
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in open_ends])
        while open_ends:
            messages = consumer.consume(POLL_RECORDS, 0.2)
            if messages:
                until = time.monotonic() + PATIENCE_S
            assert time.monotonic() < until, f"librdkafka's reader does not reach the end of {open_ends}"
            for message in messages:
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    # librdkafka goes on by itself, unless it says that it cannot
                    assert not error.fatal(), error
                    continue
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None and partition is not None and offset is not None
                if error is None:
                    # somebody may write on behind what is asked for
                    if offset < ends[topic, partition]:
                        key, value = _bytes(message.key()), _bytes(message.value())
                        headers = tuple((name, _bytes(data)) for name, data in message.headers() or ())  # type: ignore[str-unpack]
                        stamp = message.timestamp()[1]
                        found.append(Record(topic, partition, offset, key, value, headers, stamp))
                elif offset >= ends[topic, partition]:
                    open_ends.discard((topic, partition))
    finally:
        consumer.close()
    return tuple(found)


def read_kafka_python(servers: str, ends: Mapping[tuple[str, int], int]) -> tuple[Record, ...]:
    """As :func:`read_librdkafka`."""
    wanted = {PythonTopicPartition(*tp): end for tp, end in ends.items() if end > 0}
    found: list[Record] = []
    until = time.monotonic() + PATIENCE_S
    with closing(consumer_of(servers, dict.fromkeys(wanted, 0))) as consumer:
        while not reached(consumer, wanted):
            got = consumer.poll(timeout_ms=200, max_records=POLL_RECORDS)
            if got:
                until = time.monotonic() + PATIENCE_S
            assert time.monotonic() < until, f"kafka-python's reader does not reach {ends}"
            for tp, records in got.items():
                mine = (r for r in records if r.offset < wanted[tp])
                found += map(record_of, mine)
    return tuple(found)


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _admin(servers: str) -> KafkaAdminClient:
    return KafkaAdminClient(bootstrap_servers=servers.split(","), request_timeout_ms=10_000)


def _look(admin: KafkaAdminClient, topics: Mapping[str, int]) -> Brokers:
    # runs share a cluster: what is open in no topic of this one is of other runs, which are not at their end
    found = tuple(one for one in _open(admin) if any(topic in topics for topic, _ in one.topic_partitions))
    # the end first: what is stable is never ahead of an end that was asked for later
    end, stable = (_offsets(admin, topics, level) for level in ("read_uncommitted", "read_committed"))
    short = {tp: (stable[tp], end[tp]) for tp in end if stable[tp] < end[tp]}
    return Brokers(found, stable, short)


def _offsets(admin: KafkaAdminClient, topics: Mapping[str, int], level: str) -> dict[tuple[str, int], int]:
    asked = {PythonTopicPartition(t, p): OffsetSpec.LATEST for t, count in topics.items() for p in range(count)}
    answer = _answer(lambda: admin.list_partition_offsets(asked, isolation_level=level))
    return {(tp.topic, tp.partition): found.offset for tp, found in answer.items()}


def _open(admin: KafkaAdminClient) -> tuple[OpenTransaction, ...]:
    """By the word of each broker about the ids that it coordinates."""
    listed = _answer(lambda: admin.list_transactions(state_filters=OPEN_STATES))
    found = []
    for name in sorted({one.transactional_id for rows in listed.values() for one in rows}):
        try:
            described = _answer(lambda name=name: admin.describe_transactions([name]))[name]  # type: ignore[misc]
        except TransactionalIdNotFoundError:
            continue
        if described.state in OPEN_STATES:
            where = tuple(sorted((tp.topic, tp.partition) for tp in described.topic_partitions))
            found.append(OpenTransaction(name, where, described.transaction_start_time_ms))
    return tuple(found)


def _answer(ask: Callable[[], T]) -> T:
    """A coordinator may be loading, a leader may be moving.

    :raises KafkaError: there was no answer within :data:`PATIENCE_S`, or it is one that will not change.
    """
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except TransactionalIdNotFoundError:
            raise
        except (PythonKafkaError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE_S)
