"""What must not be, planted on a real broker by other clients: the observers see it, and the checkers name it.

No part of our package writes here: a "load" is what some librdkafka producer says it is.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka import Producer

from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.faults.checkers import differing, judge, windows
from tests.faults.facts import Fate, ForeignFact, LoadFact, Observation, PlainFact, Record, Value
from tests.faults.java_reader import read_java
from tests.faults.observing import Observers, at_rest, read_kafka_python, read_librdkafka
from tests.faults.traffic import HeldTransaction, transactional, write
from tests.faults.visible import FOREIGN, LOAD, PLAIN
from tests.kafka.open_transactions import wait_until

PARTITIONS = 3
RECORDS = 30
PREFIX = "eos.orders."


class Site:
    """A topic that is observed, and hands that write into it."""

    def __init__(self, servers: str, topic: str) -> None:
        self.servers = servers
        self.topic = topic
        self.observers = Observers(servers, {topic: PARTITIONS})
        self.load = LoadFact("monday", (topic,), "task", RECORDS, "COMMITTED", 1, True, "committed", PREFIX)
        self._producers = 0

    def prepare(self, numbers: Sequence[int], *, attempt: int = 1, partition: int | None = None) -> Producer:
        """A transaction of the load, open and flushed."""
        self._producers += 1
        producer = transactional(self.servers, f"{PREFIX}{attempt}-{self._producers}")
        producer.begin_transaction()
        for n in numbers:
            place = n % PARTITIONS if partition is None else partition
            value = Value(LOAD, self.load.key, attempt, f"k{place}", n)
            producer.produce(self.topic, value.encode(120), value.key, place)
        assert producer.flush(30) == 0
        return producer

    def commit(self, numbers: Sequence[int], *, attempt: int = 1, partition: int | None = None) -> None:
        self.prepare(numbers, attempt=attempt, partition=partition).commit_transaction(30)

    def seen(
        self, *foreign: ForeignFact, plain: Sequence[PlainFact] = (), settle_s: float = 10, **load: object
    ) -> Observation:
        fact = dataclasses.replace(self.load, **load)  # type: ignore[arg-type]
        return self.observers.observe([fact], foreign, plain, settle_s)


@pytest.fixture
def site(kafka: LocalKafka, topic: Callable[..., str]) -> Iterator[Site]:
    one = Site(kafka.bootstrap_servers, topic(partitions=PARTITIONS))
    with one.observers:
        yield one


def kinds(seen: Observation, torn_s: float = 5.0) -> set[str]:
    return {v.kind for v in judge(seen, torn_s)}


def test_a_load_as_it_must_be(site: Site) -> None:
    """Two transactions, one aborted attempt before it; and every library reads the same."""
    site.prepare(range(RECORDS), attempt=1).abort_transaction(30)
    site.commit(range(10), attempt=2)
    site.commit(range(10, RECORDS), attempt=2)
    seen = site.seen(decided=2)
    assert judge(seen) == []
    assert len(seen.final) == RECORDS
    assert seen.looks[-1].seen == {"monday": RECORDS}
    assert site.observers.brokers is not None
    ends = site.observers.brokers.stable
    readings = {"librdkafka": seen.final, "kafka-python": read_kafka_python(site.servers, ends)}
    assert differing({**readings, "Java": read_java(site.servers, ends)}) == []


def test_a_transaction_aborted_behind_the_decision(site: Site) -> None:
    """By the broker's timeout, or by a foreign hand: what every guard of ours is there for."""
    first, second = site.prepare(range(10)), site.prepare(range(10, RECORDS))
    first.commit_transaction(30)
    transactional(site.servers, f"{PREFIX}1-2")
    del second
    assert kinds(site.seen()) == {"lost", "reported_wrong"}


def test_a_record_written_twice(site: Site) -> None:
    site.commit(range(RECORDS))
    site.commit([7])
    assert kinds(site.seen()) == {"duplicate", "reported_wrong"}


def test_a_second_attempt_committed_too(site: Site) -> None:
    site.commit(range(RECORDS), attempt=1)
    site.commit(range(RECORDS), attempt=2)
    assert kinds(site.seen()) == {"duplicate", "aborted_read", "reported_wrong"}


def test_an_attempt_committed_that_nobody_decided(site: Site) -> None:
    site.commit(range(RECORDS))
    found = kinds(site.seen(decided=None, reported="PREPARED", acked=False, expect="either"))
    assert found == {"undecided_visible"}


def test_a_transaction_left_open(site: Site) -> None:
    site.commit(range(RECORDS))
    left = site.prepare([0], attempt=2)
    seen = site.seen(settle_s=0.5)
    assert kinds(seen) == {"left_open", "stable_short"}
    assert [one.topic_partitions for one in seen.open] == [((site.topic, 0),)]
    assert time.time() * 1000 - seen.open[0].since_ms < 60_000
    left.abort_transaction(30)


def test_settling_is_waited_for(site: Site) -> None:
    """Markers follow an EndTxn: what closes in time was not left open."""
    left = site.prepare(range(RECORDS))
    site.load = dataclasses.replace(site.load, reported="PREPARED", decided=None, acked=False, expect="absent")
    begun = time.monotonic()
    short = at_rest(site.servers, {site.topic: PARTITIONS}, 1.0).short
    assert short.keys() == {(site.topic, p) for p in range(PARTITIONS)}
    assert time.monotonic() - begun > 1.0
    left.abort_transaction(30)
    assert judge(site.seen()) == []


def test_records_of_a_key_in_another_order(site: Site) -> None:
    site.commit([*range(RECORDS - 4), RECORDS - 1, RECORDS - 2, RECORDS - 3, RECORDS - 4], partition=0)
    assert kinds(site.seen()) == {"order"}


def test_a_load_torn_for_a_second(site: Site) -> None:
    """As where each partition had an end of its own. The window is measured, too."""
    first, second = site.prepare(range(20), partition=0), site.prepare(range(20, RECORDS), partition=1)
    begun = time.monotonic()
    first.commit_transaction(30)
    wait_until(lambda: any(look.seen.get("monday") for look in site.observers.tail.looks), "the first half")
    time.sleep(1)
    second.commit_transaction(30)
    seen = site.seen(scope="load")
    most_s = time.monotonic() - begun
    assert kinds(seen, torn_s=0.5) == {"torn"}
    assert judge(seen, torn_s=most_s) == []
    assert 1000 <= windows(seen)["monday"] <= most_s * 1000


def test_a_load_that_comes_at_once_has_a_short_window(site: Site) -> None:
    site.commit(range(RECORDS))
    assert windows(site.seen(scope="load"))["monday"] < 1000


def test_a_foreign_transaction_ended_by_somebody_else(site: Site) -> None:
    """Whoever uses InitProducerId on its id ends it; its client finds out when it commits."""
    held = HeldTransaction(site.servers, site.topic, "eos.other.1-0-1")
    site.commit(range(RECORDS))
    transactional(site.servers, "eos.other.1-0-1")
    fact = held.commit()
    assert fact.fate is Fate.COMMITTED and "fenced" in held.events[0][1]
    assert kinds(site.seen(fact)) == {"foreign_touched"}


def test_a_foreign_transaction_held_over_the_run(site: Site) -> None:
    held = HeldTransaction(site.servers, site.topic, f"{PREFIX}1-0-1x")
    site.commit(range(RECORDS))
    assert judge(site.seen(held.commit())) == []


def test_a_foreign_transaction_that_its_client_aborted(site: Site) -> None:
    """Its client says that it aborted; somebody committed it."""
    site.commit(range(RECORDS))
    producer = transactional(site.servers, "eos.other.2")
    producer.begin_transaction()
    write(producer, "app", 1, site.topic, 5, random.Random(1))
    producer.commit_transaction(30)
    fact = ForeignFact("app", 1, site.topic, 5, Fate.ABORTED, "eos.other.2")
    assert kinds(site.seen(fact)) == {"aborted_read"}

def test_a_plain_record_that_is_not_there(site: Site) -> None:
    site.commit(range(RECORDS))
    producer = Producer({"bootstrap.servers": site.servers})
    producer.produce(site.topic, Value(PLAIN, "clicks", 0, "k1", 0).encode(), "k1")
    assert producer.flush(30) == 0
    plain = PlainFact("clicks", site.topic, (0, 1))
    assert kinds(site.seen(plain=[plain])) == {"lost"}


def test_a_record_that_nobody_wrote(site: Site) -> None:
    site.commit(range(RECORDS))
    producer = Producer({"bootstrap.servers": site.servers})
    producer.produce(site.topic, b"\x00\xff", None)
    producer.produce(site.topic, Value(FOREIGN, "stranger", 1, "k1", 0).encode(), "k1")
    assert producer.flush(30) == 0
    (found,) = judge(site.seen())
    assert found.kind == "undecided_visible" and found.text.startswith("2 records that nobody")


def test_every_reader_keeps_keys_and_empty_values(site: Site) -> None:
    """Null and empty are two things for a key, and readers end below what they were told, whoever writes on."""
    producer = Producer({"bootstrap.servers": site.servers})
    for key in (None, b"", b"k"):
        producer.produce(site.topic, b"", key, 0)
    producer.produce(site.topic, b"later", None, 0)
    assert producer.flush(30) == 0
    ends = {(site.topic, 0): 3, (site.topic, 1): 0}
    expected = tuple(Record(site.topic, 0, n, key, b"") for n, key in enumerate((None, b"", b"k")))
    for read in (read_librdkafka, read_kafka_python, read_java):
        assert tuple(dataclasses.replace(r, timestamp_ms=None) for r in read(site.servers, ends)) == expected


def test_every_reader_keeps_times_headers_and_null_values(site: Site) -> None:
    producer = Producer({"bootstrap.servers": site.servers})
    stamp = int(time.time() * 1000) - 60_000
    values = [Value(LOAD, "monday", 1, "k" if n % 2 else "", n, stamp + n) for n in (0, 1, 5, 16)]
    for value in values:
        data = value.encode() if value.has_value else None
        producer.produce(site.topic, data, value.key_bytes, 0, headers=list(value.headers), timestamp=value.at_ms)
    assert producer.flush(30) == 0
    assert [value.has_value for value in values] == [True, True, False, False]
    for read in (read_librdkafka, read_kafka_python, read_java):
        found = read(site.servers, {(site.topic, 0): len(values)})
        assert all(value.is_as_written(record) for value, record in zip(values, found, strict=True)), found
