"""Windows by the log: the figure that is published of both scopes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from confluent_kafka import Producer

from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.faults.checkers import judge, windows
from tests.faults.facts import LoadFact, Observation, Value
from tests.faults.markers import batches
from tests.faults.observing import Observers, at_rest
from tests.faults.traffic import HeldTransaction, transactional
from tests.faults.visible import LOAD

PARTITIONS = 4


def write(servers: str, topic: str, load: str, partitions: range, records: int = 5) -> Producer:
    producer = transactional(servers, f"{topic}-{load}-{partitions.start}")
    producer.begin_transaction()
    for n in partitions:
        for number in range(n * records, (n + 1) * records):
            producer.produce(topic, Value(LOAD, load, 1, f"k{n}", number).encode(), f"k{n}", n)
    assert producer.flush(30) == 0
    return producer


def ended_of(servers: str, topic: str, transactional_id: str) -> None:
    """The markers of this transaction are written."""
    assert not at_rest(servers, {topic: PARTITIONS}, 30, of=lambda named: named == transactional_id).open


def test_windows(kafka: LocalKafka, topic: Callable[..., str]) -> None:
    """Of one transaction some ms; of two with a pause between them, the pause; an aborted attempt does not count."""
    servers, name = kafka.bootstrap_servers, topic(partitions=PARTITIONS)
    write(servers, name, "slow", range(0, 4)).abort_transaction(30)
    begun = time.monotonic()
    first, second = write(servers, name, "slow", range(0, 2)), write(servers, name, "slow", range(2, 4))
    once = write(servers, name, "once", range(0, 4))
    loads = [
        LoadFact(key, (name,), "load", 20, "COMMITTED", 1, True, "committed", name) for key in ("slow", "once", "never")
    ]
    data = [kafka.log_file().parent / "data"]
    with Observers(servers, {name: PARTITIONS}, data) as observers:
        first.commit_transaction(30)
        # a client is answered before the markers are written
        ended_of(servers, name, f"{name}-slow-0")
        time.sleep(1)
        once.commit_transaction(30)
        second.commit_transaction(30)
        ended = time.monotonic()
        seen = observers.observe(loads, [], [], settle_s=10)
    found = windows(seen)
    assert found.keys() == {"slow", "once"}
    assert 990 <= found["slow"] <= (ended - begun) * 1000
    assert 0 <= found["once"] < found["slow"]
    assert begun - 0.1 < seen.looks[0].at < seen.looks[-2].at < ended + 1
    assert seen.looks[-1].seen == {"slow": 20, "once": 20}
    kinds = [b.commit for b in batches(data[0] / f"{name}-0")]
    assert kinds.count(False) == 1 and kinds.count(True) == 2 and kinds.count(None) >= 3


def test_before_the_decision_and_after_the_word(kafka: LocalKafka, topic: Callable[..., str]) -> None:
    """The log's clock is the broker's, the others are monotonic: what is right is right to some ms."""
    servers, name = kafka.bootstrap_servers, topic(partitions=PARTITIONS)
    first, second = write(servers, name, "load", range(0, 2)), write(servers, name, "load", range(2, 4))
    with Observers(servers, {name: PARTITIONS}, [kafka.log_file().parent / "data"]) as observers:
        deciding = time.monotonic()
        first.commit_transaction(30)
        # a client is answered before the markers are written
        ended_of(servers, name, f"{name}-load-0")
        time.sleep(0.2)
        between = time.monotonic()
        time.sleep(0.2)
        second.commit_transaction(30)
        at_rest(servers, {name: PARTITIONS}, 10)
        told = time.monotonic()
        load = LoadFact("load", (name,), "task", 20, "COMMITTED", 1, True, "committed", name, deciding, told)
        seen = observers.observe([load], [], [], settle_s=10)
    assert seen.clock_error_s is not None and seen.clock_error_s < 0.1
    assert judge(seen) == []
    (early,) = judge(replace(seen, loads=(replace(load, deciding_at=between),)))
    assert early.kind == "undecided_visible" and "before anybody recorded its decision" in early.text
    (hasty,) = judge(replace(seen, loads=(replace(load, told_at=between),)))
    assert hasty.kind == "reported_wrong" and "before all is visible" in hasty.text


def test_a_reader_that_is_held_back_does_not_tear_a_load(kafka: LocalKafka, topic: Callable[..., str]) -> None:
    """Another application's open transaction hides one partition of it: it is whole in the log all the same."""
    servers, name = kafka.bootstrap_servers, topic(partitions=PARTITIONS)
    load = LoadFact("held", (name,), "load", 20, "COMMITTED", 1, True, "committed", name)
    seen: list[Observation] = []
    for data in ([], [kafka.log_file().parent / "data"]):
        with Observers(servers, {name: PARTITIONS}, data) as observers:
            if not seen:
                held = HeldTransaction(servers, name, f"other-{name}", records=1)
                write(servers, name, "held", range(0, 4)).commit_transaction(30)
                time.sleep(1)
                fact = held.commit()
            seen.append(observers.observe([load], [fact], [], settle_s=10))
    by_reader, by_log = seen
    assert {v.kind for v in judge(by_reader, torn_s=0.5)} == {"torn"}
    assert judge(by_log, torn_s=0.5) == []
