"""Two-phase commit (KIP-939) and scope load through the protocol: no timeout, one transaction of many tasks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import UndecidableError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionScope
from airflow_kafka_eos.manifest import Manifest, ManifestEntry
from airflow_kafka_eos.naming import IdRole, TransactionalId
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import TWO_PHASE_TIMEOUT_MS, CoordinatorState
from tests.protocol.world import RUN, World


@pytest.fixture(params=["4.4", "4.1"])
def impatient(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalKafka]:
    """A broker that grants two seconds, and looks for overdue transactions five times a second."""
    with LocalKafka(
        version=request.param,
        data_dir=tmp_path / "kafka",
        broker_settings={
            "transaction.max.timeout.ms": "2000",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        },
    ) as running:
        running.create_topic("orders", partitions=2)
        yield running


@pytest.mark.broker
def test_without_a_timeout_it_outlives_the_limit_and_a_broker_killed_and_is_committed(
    impatient: LocalKafka, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    settings = KafkaSettings.from_mapping({"bootstrap.servers": impatient.bootstrap_servers})
    with connect(settings, url, "test") as session:
        of_all, of_tasks, mortal = (
            World(session, settings, "orders", LoadIdentity("test", "orders", key), timeout_ms=2000)
            for key in ("of all", "of tasks", "mortal")
        )
        shared = of_all.prepare_shared(["a", "b"], ["c"], two_phase=True)
        alone = of_tasks.prepare_two_phase(["d"], ["e", "f"])
        begun = time.monotonic()
        dying = mortal.prepare(["lost"])
        names = [t.transactional_id for m in (shared, alone) for t in m.transactions]
        assert {d.timeout_ms for d in session.coordinator.describe(names).values()} == {TWO_PHASE_TIMEOUT_MS}
        # the broker does end what has a timeout
        _until(lambda: _state(mortal, dying) is CoordinatorState.COMPLETE_ABORT)
        impatient.kill()
        impatient.restart()
        _until(lambda: time.monotonic() - begun > 12)
    with connect(settings, url, "test") as session:
        for world, manifest in ((of_all, shared), (of_tasks, alone)):
            world = dataclasses.replace(world, session=session)
            assert _state(world, manifest) is CoordinatorState.ONGOING
            world.decide(manifest, margin_s=3600)  # no margin can be too long
            world.commit()
        late = dataclasses.replace(mortal, session=session)
        with pytest.raises(UndecidableError, match="CompleteAbort"):
            late.decide(dying)
        assert late.visible() == ["a", "b", "c", "d", "e", "f"]


@pytest.mark.broker
def test_scope_load_needs_no_new_broker(tmp_path: Path) -> None:
    """3.9 (transaction version 1): partitions are announced, EndTxn is v4, and there is a timeout."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    with LocalKafka(version="3.9.2") as old:
        old.create_topic("orders", partitions=2)
        settings = KafkaSettings.from_mapping({"bootstrap.servers": old.bootstrap_servers})
        with connect(settings, url, "test") as session:
            world = World(session, settings, "orders", LoadIdentity("test", "orders", "k"))
            left = world.prepare_shared(["never"], ["seen"])
            world.open_attempt(owner="another run")
            _until(lambda: world.open_ids() == [])
            assert not left.two_phase_commit
            world = dataclasses.replace(world, load=LoadIdentity("test", "orders", "other"))
            world.decide(world.prepare_shared(["a", "b"], ["c"]))
            world.commit()
            assert world.visible() == ["a", "b", "c"]


def _state(world: World, manifest: Manifest) -> CoordinatorState:
    name = manifest.transactions[0].transactional_id
    return world.session.coordinator.describe([name])[name].coordinator_state


def _until(condition: object) -> None:
    end = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.parametrize("claims", [True, False])
def test_what_a_manifest_says_of_two_phases_must_be_what_the_coordinator_shows(world: World, claims: bool) -> None:
    honest = world.prepare(["a"]) if claims else world.prepare_two_phase(["a"])
    timeout_ms = TWO_PHASE_TIMEOUT_MS if claims else 600_000
    swapped = dataclasses.replace(honest, two_phase_commit=claims, transaction_timeout_ms=timeout_ms)
    with pytest.raises(UndecidableError, match=r"shows a timeout of \d+ ms, the manifest says \d+ ms"):
        world.decide(swapped)
    assert world.visible() == []


def test_scope_load_is_decided_committed_and_seen_as_one(world: World) -> None:
    manifest = world.prepare_shared(["a", "b"], ["c"])
    assert len(world.open_ids()) == 1
    world.decide(manifest)
    assert world.commit().scope is TransactionScope.LOAD
    assert world.visible() == ["a", "b", "c"]
    row = world.session.ledger.load(world.load)
    assert row is not None and row.state is LoadState.COMMITTED
    # a load that is committed is not written again (rule: one-key-loads-once), and cleanup leaves it alone
    assert sweep(world.session, world.load, up_to=1, by=RUN).is_quiet


def test_a_task_that_left_the_manifest_is_missed_by_the_brokers_own_partitions(world: World) -> None:
    whole = world.prepare_shared(["a"], ["b"])
    with pytest.raises(UndecidableError, match=f"broker and manifest disagree on partitions {world.topic}-1"):
        world.decide(dataclasses.replace(whole, entries=(whole.entries[0], ManifestEntry(1, None, ()))))
    assert world.visible() == []


@pytest.mark.parametrize("two_phase", [False, True])
def test_cleanup_ends_what_an_attempt_of_scope_load_left(world: World, two_phase: bool) -> None:
    """In two phases cleanup is the only one who does."""
    first = world.prepare_shared(["a"], ["b"], two_phase=two_phase)
    world.open_attempt(owner="another run")  # makes the first undecidable, and sweeps it
    _until(lambda: world.open_ids() == [])  # its end is logged, the markers follow
    with pytest.raises(UndecidableError):
        world.decide(first)
    # one that was never reported is found by its prefix
    ref = reference(world.session, world.session.ledger.attempts(world.load)[-1])
    name = TransactionalId(ref.load, ref.ledger_id, ref.attempt, role=IdRole.LOAD)
    world.write_arrow(name, ["c"], two_phase=two_phase)
    assert sweep(world.session, world.load, up_to=ref.attempt, by=RUN).aborted == [str(name)]
    _until(lambda: world.open_ids() == [])
    assert world.visible() == []
