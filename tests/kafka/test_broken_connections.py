"""Brokers die, leaders move and connections break during a write: nothing is lost, doubled or reordered.

With transaction version 2 (Kafka 4.4) and 1 (Kafka 3.9).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

from airflow_kafka_eos.errors import BrokerUnavailableError
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer.arrow.writer import ArrowWriter
from airflow_kafka_eos.kafka.producer.writers import describe, make_writer, wire_before
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import TopicPartition
from tests.kafka.cutting_proxy import CuttingProxy
from tests.kafka.writers_support import (
    an_id,
    consume,
    end,
    is_open,
    opened,
    settings_of,
    target_of,
    writes_of,
)
from tests.secured import free_port

pytestmark = pytest.mark.broker

VERSIONS = ("4.4.0", "3.9.2")
PARTITIONS = 3
ROWS = 10_000  # of one batch
_ids = itertools.count()


@pytest.fixture(scope="module", params=VERSIONS)
def one(request: pytest.FixtureRequest) -> Iterator[tuple[LocalKafka, CuttingProxy]]:
    """A broker with a second listener, whose clients come through a proxy."""
    port = free_port()
    proxy = CuttingProxy(("127.0.0.1", port))
    with LocalKafka(version=request.param) as kafka:
        properties = kafka.log_file().parent / "server.properties"
        more = {
            "listeners": f",PROXIED://127.0.0.1:{port}",
            "advertised.listeners": f",PROXIED://{proxy.address}",
            "listener.security.protocol.map": ",PROXIED:PLAINTEXT",
        }
        lines = [line + more.get(line.partition("=")[0], "") for line in properties.read_text().splitlines()]
        properties.write_text("\n".join(lines) + "\n")
        kafka.restart()
        yield kafka, proxy
    proxy.close()


@pytest.fixture(scope="module", params=VERSIONS)
def three(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    with LocalKafka(version=request.param, brokers=3, heap="256m") as kafka:
        yield kafka


def rows(start: int) -> pa.RecordBatch:
    """Numbered values of about 100 bytes, row n to partition n % 3."""
    numbers = pa.array(np.arange(start, start + ROWS)).cast(pa.string())
    padding = pa.array(["x" * 94] * ROWS)
    values = pa.compute.binary_join_element_wise(numbers, padding, " ").cast(pa.binary())
    partitions = pa.array((np.arange(start, start + ROWS) % PARTITIONS).astype(np.int32))
    return pa.RecordBatch.from_pydict({"value": values, "partition": partitions})


def write_through(
    kafka: LocalKafka, bootstrap: str, disasters: Mapping[int, Callable[[str], object]], batches: int = 30,
    **settings: object
) -> None:
    """Write ``batches``; before batch n call ``disasters[n]``. Prepare, commit, and check what is there."""
    name = f"broken-{next(_ids)}"
    kafka.create_topic(name, partitions=PARTITIONS)
    connection = settings_of(bootstrap, **settings)
    with opened("arrow", connection, target_of(transactional_id := an_id(name), {name: PARTITIONS})) as writer:
        for n in range(batches):
            if n in disasters:
                disasters[n](name)
            writer.write(rows(n * ROWS))
        prepared, writes = writer.prepare()
        end(connection, prepared)
    assert not is_open(connection, transactional_id)
    records = consume(kafka.bootstrap_servers, name, PARTITIONS, batches * ROWS, "read_committed")
    assert writes == writes_of(name, records)
    found: dict[int, list[int]] = defaultdict(list)
    for r in records:
        assert r.value is not None
        found[r.partition].append(int(r.value.split()[0]))
    for partition in range(PARTITIONS):
        assert found[partition] == list(range(partition, batches * ROWS, PARTITIONS))


@pytest.mark.parametrize(
    "cuts",
    [
        [("request", 1_000_000)],
        # the broker has the batch, the client does not know it
        [("answer", 1_000_000)],
        [("answer", 500_000), ("request", 2_000_000), ("answer", 1), ("request", 1_200_000), ("answer", 3_000_000)],
    ],
    ids=["request", "answer", "many"],
)
def test_cut_connections(one: tuple[LocalKafka, CuttingProxy], cuts: list[tuple[str, int]]) -> None:
    kafka, proxy = one
    proxy.made.clear()

    def begin(_: str) -> None:
        proxy.cuts.extend(cuts)

    write_through(kafka, proxy.address, {1: begin})
    assert sorted(proxy.made) == sorted(kind for kind, _ in cuts)


@pytest.mark.parametrize("how", ["while it rests", "request", "answer", "the broker restarts"])
def test_a_wire_that_was_kept_is_cut(one: tuple[LocalKafka, CuttingProxy], how: str) -> None:
    """What writes next, as the next batch of a query does, fails for none of it."""
    kafka, proxy = one
    proxy.made.clear()
    name, settings = f"kept-{next(_ids)}", settings_of(proxy.address)
    kafka.create_topic(name, partitions=PARTITIONS)
    wires = []
    for key in ("before", "behind"):
        target = target_of(an_id(f"{name} {key}"), {name: PARTITIONS})
        wire = wire_before("arrow", settings, keeps_wire=True)
        wires.append(wire)
        assert describe(wire, target.transactional_id) is None
        with closing(make_writer("arrow", settings, target, wire, keeps_wire=True)) as writer:
            writer.open()
            writer.write(rows(0))
            prepared, _ = writer.prepare()
            end(settings_of(kafka.bootstrap_servers), prepared)
        if how == "while it rests":
            proxy.cut()
            time.sleep(0.2)
        elif how == "the broker restarts":
            kafka.restart()
        elif key == "before":
            proxy.cuts.append((how, 1))
    first, second = wires
    assert (second is first) == (how in ("request", "answer")) == (proxy.made == [how])
    assert first._closed == (second is not first)
    assert len(consume(kafka.bootstrap_servers, name, PARTITIONS, 2 * ROWS, "read_committed")) == 2 * ROWS


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_the_only_broker_goes_and_comes_back(one: tuple[LocalKafka, CuttingProxy], how: str) -> None:
    kafka, proxy = one
    back = threading.Thread(target=kafka.restart)

    def go(_: str) -> None:
        if how == "killed":
            kafka.kill()
        back.start()

    try:
        write_through(kafka, proxy.address, {10: go})
    finally:
        back.join(120)


def broker_of(kafka: LocalKafka, what: str, topic: str) -> int:
    with Wire(settings_of(kafka.bootstrap_servers)) as wire:
        if what == "leader":
            tp = TopicPartition(topic, 0)
            return wire.leaders([tp])[tp]
        name = str(an_id(topic))
        return wire.coordinators([name])[name]


@pytest.mark.parametrize("who", ["leader", "coordinator"])
def test_the_leader_or_the_coordinator_moves(three: LocalKafka, who: str) -> None:
    killed: list[int] = []

    def kill(topic: str) -> None:
        killed.append(broker_of(three, who, topic))
        three.kill(killed[0])

    try:
        write_through(three, three.bootstrap_servers, {10: kill})
    finally:
        for node in killed:
            three.restart(node)


def test_each_leader_is_restarted_once_while_it_goes_on(three: LocalKafka) -> None:
    # a rolling upgrade
    def restart(node: int) -> Callable[[str], None]:
        return lambda _: three.restart(node)

    write_through(three, three.bootstrap_servers, {n * 7: restart(n) for n in three.node_ids})


def test_a_broker_that_does_not_come_back_is_said_so() -> None:
    with LocalKafka(version="4.4.0") as kafka:
        kafka.create_topic("gone")
        connection = settings_of(kafka.bootstrap_servers, message_timeout_ms=3000)
        with opened("arrow", connection, target_of(an_id("gone"), {"gone": 1})) as writer:
            writer.write(rows(0).drop_columns("partition"))
            kafka.kill()
            with pytest.raises(BrokerUnavailableError, match=r"gone-0 was acknowledged for 3 s.*last reason was"):
                for n in range(1, 200):
                    writer.write(rows(n * ROWS).drop_columns("partition"))
                writer.prepare()
            assert isinstance(writer, ArrowWriter) and writer._wire is not None
            writer._wire.timeout_s = 1  # abort() tries as long as that
