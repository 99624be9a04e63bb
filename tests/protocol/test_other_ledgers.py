"""A second embedded ledger, made by itself on another host or in a lost home: it loads nothing that another one has.

What brokers show is made by hand here; ``tests/airflow/test_other_home.py`` has a real one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.errors import NotFinishedError, OtherLedgerError
from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.ledger.location import default_url
from airflow_kafka_eos.load import LoadIdentity, TransactionNaming
from airflow_kafka_eos.micro_batch import MicroBatch, StreamRun
from airflow_kafka_eos.naming import IdRole, PooledId, TransactionalId
from airflow_kafka_eos.protocol.guards import other_ledgers
from airflow_kafka_eos.protocol.guards.other_ledgers import check_no_other_ledger
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.batches import begin_batch
from airflow_kafka_eos.protocol.stages.begin import begin
from tests.ledger.ledger_support import prepare

LOAD = LoadIdentity("airflow", "orders.load", "2026-01-02")
BEFORE = LoadIdentity("airflow", "orders.load", "2026-01-01")
OTHER = "0123456789"
#: Of another ledger: of the same load, of another key of its name, of a slot of its name.
THEIRS = [
    str(TransactionalId(LOAD, OTHER, 1, 0, 7)),
    str(TransactionalId(BEFORE, OTHER, 2, 3, 11)),
    str(PooledId("airflow", OTHER, "orders.load", 4, role=IdRole.LOAD)),
]
#: Of other names and namespaces, and no id of ours at all.
NOBODYS = [
    str(TransactionalId(LoadIdentity("airflow", "orders.load2", "k"), OTHER, 1, 0, 7)),
    str(TransactionalId(LoadIdentity("airflow", "orders", "load"), OTHER, 1, 0, 7)),
    str(TransactionalId(LoadIdentity("airflow2", "orders.load", "2026-01-01"), OTHER, 1, 0, 7)),
    "airflow.orders-service-1",
]


class Brokers:
    """A coordinator that shows these ids as committed."""

    def __init__(self) -> None:
        self.committed: list[str] = []
        self.moves = False
        self.listings: list[str] = []
        self._asked = 0

    def list_committed(self, prefix: str) -> list[str]:
        self.listings.append(prefix)
        return [one for one in self.committed if one.startswith(prefix)]

    def list_open(self, prefix: str) -> list[str]:
        return []

    def list_states(self, prefix: str) -> list[Any]:
        return []

    def epochs(self) -> frozenset[tuple[int, int, int]]:
        self._asked += self.moves
        return frozenset({(0, 1, self._asked)})


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> Iterator[Session]:
    """An embedded ledger that made itself just now."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    partitions: Any = type("Partitions", (), {"wire": type("Wire", (), {"cluster_id": lambda _: "cluster"})()})
    with Ledger.open(default_url()) as ledger:
        yield Session("airflow", ledger, brokers, partitions)  # type: ignore[arg-type]


@pytest.mark.parametrize("theirs", THEIRS)
def test_what_another_ledger_has_loaded_is_not_begun_in_a_new_one(
    opened: Session, brokers: Brokers, theirs: str
) -> None:
    """Rule: same-ledger."""
    brokers.committed = [theirs, *NOBODYS]
    with pytest.raises(OtherLedgerError, match=rf"ledger {OTHER}: 1 .*compare --ledger-id {OTHER}") as caught:
        begin(opened, LOAD, owner="run")
    assert (caught.value.load, caught.value.transactional_id) == (str(LOAD), theirs)
    assert opened.ledger.load(LOAD) is None


@pytest.mark.parametrize("theirs", THEIRS)
def test_nor_is_a_batch_of_a_query(opened: Session, brokers: Brokers, theirs: str) -> None:
    brokers.committed = [theirs, *NOBODYS]
    batch = MicroBatch("airflow", LOAD.name, "2f3c1a52-0e6f-4c5b-9d2e-8d8b2a1f6a10", 0, "0" * 64)
    with pytest.raises(OtherLedgerError, match=f"ledger {OTHER}: 1 "):
        begin_batch(
            opened, batch, StreamRun("/checkpoint", "driver"), naming=TransactionNaming.INCREMENTING,
            writers_have_ms=1000, deadline_s=1,
        )  # fmt: skip
    assert opened.ledger.load(batch.load) is None


def test_nothing_stops_a_first_deployment_nor_what_others_have_of_other_names(
    opened: Session, brokers: Brokers
) -> None:
    brokers.committed = [*NOBODYS, str(TransactionalId(BEFORE, opened.ledger.ledger_id, 1, role=IdRole.LOAD))]
    assert begin(opened, LOAD, owner="run").number == 1


def test_once_a_load_of_the_name_is_decided_brokers_are_asked_no_more(opened: Session, brokers: Brokers) -> None:
    brokers.committed = THEIRS
    opened.ledger.set_committed(BEFORE, by="ann", reason="the topic has it")
    assert begin(opened, LOAD, owner="run").number == 1
    assert "airflow." not in brokers.listings


def test_an_attempt_alone_says_nothing(opened: Session, brokers: Brokers) -> None:
    prepare(opened.ledger, BEFORE)
    brokers.committed = THEIRS
    with pytest.raises(OtherLedgerError):
        begin(opened, LOAD, owner="run")


def test_a_ledger_that_a_person_has_given_a_new_id_begins_anew(opened: Session, brokers: Brokers) -> None:
    """Behind a backup, too: those are its own of before (docs/howto-on-call.md, The ledger was restored)."""
    brokers.committed = THEIRS
    opened.ledger.new_id(decided_by="ann")
    assert begin(opened, LOAD, owner="run").number == 1


def test_a_ledger_that_a_connection_names_is_meant(
    opened: Session, brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "another"))
    assert not opened.ledger.is_embedded
    brokers.committed = THEIRS
    assert begin(opened, LOAD, owner="run").number == 1
    assert "airflow." not in brokers.listings


def test_where_a_coordinator_moves_it_is_not_known(
    opened: Session, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.moves = True
    monkeypatch.setattr(other_ledgers, "SETTLES_S", 0.0)
    with pytest.raises(NotFinishedError, match="not known whether another ledger has loaded this name"):
        check_no_other_ledger(opened, LOAD)
    brokers.committed = THEIRS  # what is shown is there
    with pytest.raises(OtherLedgerError):
        check_no_other_ledger(opened, LOAD)


def test_a_coordinator_that_moves_once_is_waited_for(
    opened: Session, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while brokers are restarted one by one. What it has hidden is seen then."""
    brokers.moves = True

    def settles(_: float) -> None:
        brokers.moves, brokers.committed = False, THEIRS

    monkeypatch.setattr(time, "sleep", settles)
    with pytest.raises(OtherLedgerError):
        check_no_other_ledger(opened, LOAD)
