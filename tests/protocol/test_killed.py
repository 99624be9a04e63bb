"""Scope load: everything of ours is killed, nobody comes back, and readers have all of the load or nothing of it.

The transactions have a timeout here: where no EndTxn went out, the broker ends them by itself. A broker that grants
two-phase commit would wait for cleanup instead, and readers would see as little.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_kafka_eos import manifest as m
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, TransactionScope, Verdict
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.protocol.gate import Gate, gated
from tests.protocol.world import World

pytestmark = pytest.mark.broker

PARTS = [[f"{part}-{n}" for n in range(50)] for part in range(4)]
ALL = sorted(value for part in PARTS for value in part)
HOLD_MS = 15_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Gate, str]]:
    """A world on a broker of its own, the gate before that broker, and the ledger's URL."""
    folder = tmp_path_factory.mktemp("killed")
    url = f"sqlite:///{folder}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    with LocalKafka(data_dir=folder / "kafka") as kafka, gated(kafka) as gate:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
        with connect(settings, url, "test") as session:
            yield World(session, settings, "", LoadIdentity("test", "orders", "k"), HOLD_MS), gate, url
        kafka.kill()


def _aftermath(
    place: tuple[World, Gate, str], tmp_path: Path, scope: TransactionScope, end_txns: int
) -> tuple[World, m.Manifest]:
    """Prepare, and run decide and commit in a process group that dies when so many EndTxn are on the wire."""
    base, gate, url = place
    topic = f"{scope.value}-{end_txns}"
    _create(base, topic)
    world = World(base.session, base.settings, topic, LoadIdentity("test", "orders", topic), HOLD_MS)
    path = tmp_path / "manifest.json"
    name = TransactionalId(world.load, world.session.ledger.ledger_id, 1, 0, 0)
    gate.open_for(end_txns)
    victim = subprocess.Popen(
        [sys.executable, "-m", "tests.protocol.deciding_process", gate.address, url, str(path), str(name)],
        cwd=Path(__file__).parents[2], start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    gate.kill_when_closing(victim)
    # before anything is prepared: a busy machine takes as long to start Python as the transactions may stay open
    assert victim.stdout is not None and victim.stdout.readline() == "ready\n", victim.communicate(timeout=60)[1]
    manifest = (world.prepare_shared if scope is TransactionScope.LOAD else world.prepare)(*PARTS)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(m.dump(manifest))
    unfinished.rename(path)
    _, errors = victim.communicate(timeout=60)
    assert gate.closed.is_set(), f"it did not come so far: {errors}"
    assert gate.forwarded == end_txns
    # the decision stands, and nobody is left to roll it forward
    row = world.session.ledger.attempt(world.load, 1)
    assert row is not None and row.verdict is Verdict.COMMIT
    _until_the_broker_has_ended_all(world)
    return world, manifest


def _create(world: World, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": world.settings.for_librdkafka()["bootstrap.servers"]})
    for done in admin.create_topics([NewTopic(topic, num_partitions=4)]).values():
        done.result(30)


def _until_the_broker_has_ended_all(world: World) -> None:
    end = time.monotonic() + 60
    while world.open_ids():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_killed_between_the_decision_and_the_request_nothing_is_visible(
    place: tuple[World, Gate, str], tmp_path: Path
) -> None:
    world, _ = _aftermath(place, tmp_path, TransactionScope.LOAD, 0)
    assert world.visible() == []


def test_killed_right_after_the_one_request_all_is_visible(place: tuple[World, Gate, str], tmp_path: Path) -> None:
    world, _ = _aftermath(place, tmp_path, TransactionScope.LOAD, 1)
    assert world.visible() == ALL


@pytest.mark.parametrize("end_txns", [1, 3])
def test_the_same_in_scope_task_leaves_a_part_visible(
    place: tuple[World, Gate, str], tmp_path: Path, end_txns: int
) -> None:
    """So the tests above can tell: what scope load is for."""
    world, _ = _aftermath(place, tmp_path, TransactionScope.TASK, end_txns)
    assert len(world.visible()) == end_txns * 50


def test_killed_before_the_decision_nothing_is_visible(place: tuple[World, Gate, str]) -> None:
    base, _, _ = place
    _create(base, "undecided")
    world = World(base.session, base.settings, "undecided", LoadIdentity("test", "orders", "undecided"), 5000)
    world.prepare_shared(*PARTS)
    _until_the_broker_has_ended_all(world)
    assert world.visible() == []
