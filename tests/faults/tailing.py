"""A reader that follows topics through a whole run, as a consumer of another application would.

kafka-python's consumer, read_committed, with partitions assigned by hand: no group, so nothing is rebalanced or
committed. Its place is its own: one behind the last record it has got, wherever it has to connect anew.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from tests.faults.facts import Look, Record

#: A fetch that waits for news wakes up as soon as a marker lets records through, so this is no delay.
FETCH_WAIT_MS = 100
#: A broker that is stopped, not dead, answers nothing: its partitions' new leaders are asked then.
REQUEST_TIMEOUT_MS = 4_000
#: How many records a poll takes at most: between two polls there is a look.
POLL_RECORDS = 20_000
_LOAD = b"load|"


class Tail:
    """Follows from offset 0 on, in a thread of its own; see :meth:`start` and :meth:`stop`.

    :param topics: how many partitions each has.
    :ivar records: all it got, in its order.
    :ivar looks: after each poll that brought records, and at the end: how many of each load's records it has got.
    :ivar troubles: (monotonic seconds, error) of each time that it had to connect anew.
    """

    def __init__(self, servers: str, topics: Mapping[str, int]) -> None:
        self._servers = servers
        self._next = {TopicPartition(t, p): 0 for t, count in topics.items() for p in range(count)}
        self.records: list[Record] = []
        self.looks: list[Look] = []
        self.troubles: list[tuple[float, str]] = []
        self._seen: Counter[str] = Counter()
        self._changing = threading.Lock()
        self._changed = False
        self._ends: Mapping[TopicPartition, int] = {}
        self._stopping = threading.Event()
        self._stop_at = 0.0
        self._reached = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def follow(self, partitions: Mapping[str, int]) -> None:
        """Topics that have so many partitions by now."""
        with self._changing:
            for topic, count in partitions.items():
                for partition in range(count):
                    self._next.setdefault(TopicPartition(topic, partition), 0)
            self._changed = True

    def forget(self, topic: str) -> None:
        with self._changing:
            self._next = {place: offset for place, offset in self._next.items() if place.topic != topic}
            self._changed = True

    def stop(self, ends: Mapping[tuple[str, int], int], within_s: float = 60) -> bool:
        """Read on up to these offsets, and end.

        :param ends: by (topic, partition): the last stable offset, as somebody else was told.
        :returns: False when it did not come so far in time.
        """
        self._ends = {TopicPartition(*tp): end for tp, end in ends.items()}
        self._stop_at = time.monotonic() + within_s
        self._stopping.set()
        # a request under way may keep it a little longer
        self._thread.join(within_s + 2 * REQUEST_TIMEOUT_MS / 1000)
        if self._error is not None:
            raise self._error
        return self._reached

    def _run(self) -> None:
        try:
            while not self._is_done():
                try:
                    self._follow()
                except (KafkaError, OSError) as error:
                    self.troubles.append((time.monotonic(), f"{type(error).__name__}: {error}"))
                    time.sleep(0.1)
        except BaseException as error:
            self._error = error
        finally:
            self._look()

    def _follow(self) -> None:
        """One connection's life.

        :raises KafkaError: it cannot go on; the next one begins where this one was.
        """
        with self._changing:
            self._changed = False
            consumer = consumer_of(self._servers, dict(self._next))
        try:
            while not (self._is_done() or self._changed):
                got = consumer.poll(timeout_ms=FETCH_WAIT_MS, max_records=POLL_RECORDS)
                self._take(got)
                if self._stopping.is_set() and reached(consumer, self._ends):
                    self._reached = True
        finally:
            with contextlib.suppress(KafkaError, OSError):
                consumer.close()

    def _take(self, got: Mapping[TopicPartition, list[Any]]) -> None:
        for tp, records in got.items():
            for r in records:
                record = record_of(r)
                self.records.append(record)
                if record.said.startswith(_LOAD):
                    self._seen[record.said[len(_LOAD) :].partition(b"|")[0].decode(errors="replace")] += 1
            with self._changing:
                if tp in self._next:
                    self._next[tp] = records[-1].offset + 1
        if got:
            self._look()

    def _look(self) -> None:
        self.looks.append(Look(time.monotonic(), dict(self._seen)))

    def _is_done(self) -> bool:
        return self._reached or (self._stopping.is_set() and time.monotonic() > self._stop_at)


def record_of(found: Any) -> Record:
    """What kafka-python gives, as a value."""
    headers = tuple((name, None if value is None else bytes(value)) for name, value in found.headers)
    return Record(found.topic, found.partition, found.offset, found.key, found.value, headers, found.timestamp)


def consumer_of(servers: str, starts: Mapping[TopicPartition, int]) -> KafkaConsumer:
    """A read_committed consumer at these offsets.

    :raises KafkaError: no broker answers.
    """
    consumer = KafkaConsumer(
        bootstrap_servers=servers.split(","),
        group_id=None,
        enable_auto_commit=False,
        isolation_level="read_committed",
        # never to another place by itself
        auto_offset_reset="none",
        allow_auto_create_topics=False,
        fetch_max_wait_ms=FETCH_WAIT_MS,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        bootstrap_timeout_ms=10_000,
        reconnect_backoff_max_ms=500,
        # who has become leader is asked this often, whether or not anything failed
        metadata_max_age_ms=2_000,
        metrics_enabled=False,
    )
    consumer.assign(list(starts))
    for tp, offset in starts.items():
        consumer.seek(tp, offset)
    return consumer


def reached(consumer: KafkaConsumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Whether its place is there, past the markers too."""
    return ends.keys() <= consumer.assignment() and all(consumer.position(tp) >= end for tp, end in ends.items())
