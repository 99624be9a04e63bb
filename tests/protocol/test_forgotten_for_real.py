"""A broker that is killed while it ends transactions, and comes up again: on one broker it forgets most of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_kafka_eos.kafka.admin.open_producers import open_producers
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.manifest import ManifestEntry
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import TopicPartition
from tests.protocol.lost import state
from tests.protocol.world import RUN, World

TRANSACTIONS, RECORDS, PARTITIONS = 12, 40, 8


@pytest.fixture(scope="module", params=["3.9", "4.4"])
def mortal(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    with LocalKafka(version=request.param) as running:
        yield running


@pytest.mark.broker
@pytest.mark.parametrize(
    ("verdict", "is_decided"), [(Verdict.COMMIT, True), (Verdict.ABORT, True), (Verdict.ABORT, False)]
)
def test_what_a_killed_broker_forgets_is_neither_lost_nor_left_open(
    mortal: LocalKafka, tmp_path: Path, verdict: Verdict, is_decided: bool
) -> None:
    url, topic = f"sqlite:///{tmp_path}/ledger.db", f"killed-{verdict.value}-{is_decided}"
    Ledger.open(url, upgrade=True).close()
    mortal.create_topic(topic, partitions=PARTITIONS)
    settings = KafkaSettings.from_mapping({"bootstrap.servers": mortal.bootstrap_servers})
    load = LoadIdentity("test", "killed", "key")
    with connect(settings, url, "test") as session:
        world = World(session, settings, topic, load)
        ref = reference(session, world.open_attempt())
        names = [TransactionalId(ref.load, ref.ledger_id, ref.attempt, n, n) for n in range(TRANSACTIONS)]
        entries = [ManifestEntry(n, *world.write_arrow(name, _values(n))) for n, name in enumerate(names)]
        manifest = world.manifest(ref, entries)
        record_prepared(session, manifest)
        if is_decided:
            world.decide(manifest)
        session.coordinator.end_many([t.transaction for t in manifest.prepared], verdict)
        mortal.kill()
    time.sleep(0.5)
    mortal.restart()
    with connect(settings, url, "test") as session:
        world = World(session, settings, topic, load)
        if is_decided:
            world.commit(deadline_s=120)
            assert state(world) is LoadState.COMMITTED
        else:
            poll, give_up = CleanPoll(load, up_to=9, by=RUN, quiet_s=0), time.monotonic() + 120
            while poll(session) is not None:
                assert time.monotonic() < give_up
        everywhere = [TopicPartition(topic, n) for n in range(PARTITIONS)]
        assert open_producers(session.partitions.wire, everywhere) == []
        expected = [value for n in range(TRANSACTIONS) for value in _values(n)] if is_decided else []
        assert world.visible() == sorted(expected)


def _values(spark_partition: int) -> list[str]:
    return [f"{spark_partition}-{n}" for n in range(RECORDS)]
