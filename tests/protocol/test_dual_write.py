"""KIP-939's dual write against SIGKILL: the author's rows and the Kafka records, in the end both there or both not."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from airflow_kafka_eos import manifest as m
from airflow_kafka_eos.dual_write import DualWrite
from airflow_kafka_eos.errors import DualWriteError, InDoubtError, UndecidableError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.database import Database
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.decide import Conditions, decide, undecided_attempt
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.postgresql import PostgreSQL
from tests.protocol.dual_writing_process import INSERT
from tests.protocol.world import RUN, World

pytestmark = pytest.mark.broker

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def ledger_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ledger with a table of the author's beside it."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('dual')}/ledger.db"
    else:
        server: PostgreSQL = request.getfixturevalue("postgresql")
        server.run("CREATE DATABASE dual_write")
        url = server.url("dual_write")
    Ledger.open(url, upgrade=True).close()
    opened = Database(url)
    opened.write(lambda c: c.execute(text("CREATE TABLE marts (load_key VARCHAR(50) PRIMARY KEY, records INTEGER)")))
    opened.close()
    return url


@pytest.fixture
def world(kafka: LocalKafka, ledger_url: str) -> Iterator[World]:
    number = next(_numbers)
    topic = f"dual-{number}"
    kafka.create_topic(topic, partitions=2)
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    with connect(settings, ledger_url, "test") as session:
        yield World(session, settings, topic, LoadIdentity("test", "dual", f"key-{number}"))


def rows(world: World, url: str) -> list[int]:
    """What the author's table says of this load."""
    opened = Database(url)
    query = text("SELECT records FROM marts WHERE load_key = :key")
    try:
        return opened.read(lambda c: [row[0] for row in c.execute(query, {"key": world.load.key})])
    finally:
        opened.close()


def killed_at(step: str, world: World, url: str, folder: Path) -> Manifest:
    manifest = world.prepare(["a", "b"], ["c"])
    path = folder / "manifest.json"
    path.write_text(m.dump(manifest))
    command = [sys.executable, "-m", "tests.protocol.dual_writing_process", world.settings.bootstrap_servers, url,
               str(path), manifest.transactions[0].transactional_id, step]  # fmt: skip
    done = subprocess.run(command, cwd=Path(__file__).parents[2], timeout=120, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    return manifest


@pytest.mark.parametrize(
    ("step", "by_cleanup"),
    [("before", False), ("before", True), ("behind", False), ("behind", True), ("decided", True), ("halfway", False)],
)
def test_killed_at_each_step_rows_and_records_are_both_there_or_both_not(
    world: World, ledger_url: str, tmp_path: Path, step: str, by_cleanup: bool
) -> None:
    """Recovered by cleanup, or by a retry of decide: whoever comes first."""
    manifest = killed_at(step, world, ledger_url, tmp_path)
    is_decided = step in ("decided", "halfway")
    assert bool(rows(world, ledger_url)) is is_decided
    if by_cleanup:
        poll = CleanPoll(world.load, up_to=1, by=RUN, quiet_s=0)
        while poll(world.session) is not None:
            pass
    else:
        row = undecided_attempt(world.session, world.load, owner=RUN)
        if row.verdict is not Verdict.COMMIT:
            decide(world.session, manifest, Conditions(), owner=RUN, margin_s=20, dual_write=DualWrite.of(INSERT, None))
        world.commit()
    together = is_decided or not by_cleanup
    assert rows(world, ledger_url) == ([3] if together else [])
    assert world.visible() == (["a", "b", "c"] if together else [])
    assert world.open_ids() == []


def test_a_statement_that_fails_leaves_the_attempt_prepared(world: World, ledger_url: str) -> None:
    manifest = world.prepare(["a"])
    with pytest.raises(DualWriteError, match="statement 2 failed"):
        wrong = DualWrite.of([INSERT, "DELETE FROM no"], None)
        decide(world.session, manifest, Conditions(), owner=RUN, margin_s=20, dual_write=wrong)
    assert rows(world, ledger_url) == []
    decide(world.session, manifest, Conditions(), owner=RUN, margin_s=20, dual_write=DualWrite.of(INSERT, None))
    world.commit()
    assert (rows(world, ledger_url), world.visible()) == ([1], ["a"])


def test_a_refused_load_writes_no_row(world: World, ledger_url: str) -> None:
    manifest = world.prepare(["a"])
    world.session.coordinator.end(manifest.transactions[0], Verdict.ABORT)
    with pytest.raises(UndecidableError):
        decide(world.session, manifest, Conditions(), owner=RUN, margin_s=20, dual_write=DualWrite.of(INSERT, None))
    assert rows(world, ledger_url) == []


def test_a_callable_that_commits_by_itself_is_rolled_forward_all_the_same(world: World, ledger_url: str) -> None:
    """Its COMMIT holds the decision: what came before it and the records become true together."""

    def dual_write(connection: Connection, document: Manifest) -> None:
        connection.execute(text(INSERT), {"load_key": document.attempt.load.key, "records": document.records})
        connection.connection.commit()

    manifest = world.prepare(["a"])
    with pytest.raises(InDoubtError, match="the decision to commit stands"):
        decide(world.session, manifest, Conditions(), owner=RUN, margin_s=20, dual_write=DualWrite(call=dual_write))
    world.commit()
    assert (rows(world, ledger_url), world.visible()) == ([1], ["a"])
