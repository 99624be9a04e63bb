"""What a moving coordinator may hide of a ledger that was restored, and who asks before an attempt is aborted.

Rules: unknown-commit-stops, listing-only-adds. Coordinators are told here what they show; test_restored.py has brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.cli import ending, main
from airflow_kafka_eos.errors import InDoubtError, NotFinishedError
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.naming import PooledId
from airflow_kafka_eos.protocol.cleanup.force_terminate import force_terminate
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.guards import restored_ledger
from airflow_kafka_eos.protocol.guards.restored_ledger import (
    check_commits_known,
    check_may_abort,
    check_not_restored,
    is_named,
)
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import CoordinatorState, PreparedTransaction, TransactionDescription
from airflow_kafka_eos.two_phase_commit.recipe import init_transactions
from tests.ledger.ledger_support import LOAD, commit, manifest, prepare

ONGOING, COMMITTED = CoordinatorState.ONGOING, CoordinatorState.COMPLETE_COMMIT
HERE, THERE = (frozenset({(0, 1, epoch)}) for epoch in (1, 2))


class Shown:
    """Coordinators: what they show, and where they are, one answer behind the other, the last one for good."""

    def __init__(self) -> None:
        self.shown: dict[str, TransactionDescription] = {}
        self.hidden: set[str] = set()
        self.places: list[frozenset[tuple[int, int, int]] | None] = [HERE]
        self.listings = 0
        self.ended: list[PreparedTransaction] = []

    def show(self, transaction: PreparedTransaction, state: CoordinatorState, *, hidden: bool = False) -> None:
        name = transaction.transactional_id
        self.shown[name] = TransactionDescription(name, state, transaction.state, 900_000, 0, frozenset())
        self.hidden |= {name} if hidden else set()

    def list_states(self, prefix: str) -> list[tuple[str, CoordinatorState]]:
        self.listings += 1
        listed = (d for d in self.shown.values() if d.transactional_id not in self.hidden)
        return [(d.transactional_id, d.coordinator_state) for d in listed if d.transactional_id.startswith(prefix)]

    def list_open(self, prefix: str) -> list[str]:
        return [name for name, state in self.list_states(prefix) if state.is_open]

    def list_committed(self, prefix: str) -> list[str]:
        return [name for name, state in self.list_states(prefix) if state.is_committed]

    def describe(self, ids: Iterable[str]) -> dict[str, TransactionDescription]:
        return {name: self.shown[name] for name in ids if name in self.shown}

    def epochs(self) -> frozenset[tuple[int, int, int]] | None:
        return self.places.pop(0) if len(self.places) > 1 else self.places[0]

    def end_many(self, transactions: Iterable[PreparedTransaction], verdict: Verdict) -> dict[str, Any]:
        for transaction in transactions:
            self.end(transaction, verdict)
        return {}

    def end(self, transaction: PreparedTransaction, verdict: Verdict) -> None:
        assert verdict is Verdict.ABORT
        self.ended.append(transaction)
        self.show(transaction, CoordinatorState.COMPLETE_ABORT)


class Place:
    """A ledger, and what brokers show."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.brokers = ledger, Shown()
        partitions: Any = type("Partitions", (), {"wire": type("Wire", (), {"cluster_id": lambda self: None})()})()
        coordinator: Any = self.brokers
        self.session = Session(LOAD.namespace, ledger, coordinator, partitions)

    @property
    def verdicts(self) -> list[Verdict | None]:
        return [row.verdict for row in self.ledger.attempts(LOAD)]

    def prepared(self, *states: CoordinatorState) -> Manifest:
        """The load's next attempt, and how coordinators show its transactions."""
        made = manifest(self.ledger, prepare(self.ledger, full=len(states)).number, full=len(states))
        for transaction, state in zip(made.transactions, states, strict=True):
            self.brokers.show(transaction, state)
        return made


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(restored_ledger, "SETTLES_S", 0.0)
    monkeypatch.setattr(restored_ledger, "_PAUSE_S", 0.0)
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db", upgrade=True) as ledger:
        yield Place(ledger)


# -- who asks ----------------------------------------------------------------------------------------------------------


def by_command(place: Place, name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    @contextmanager
    def opened(arguments: object) -> Iterator[Session]:
        yield place.session

    monkeypatch.setattr(ending, "open_session", opened)
    return main(("transactions", "abort", name, "--yes", "--quiet", "0s", "--namespace", LOAD.namespace))


@pytest.mark.parametrize("way", ["force_terminate", "init_transactions", "transactions abort"])
def test_nobody_aborts_an_attempt_of_which_the_ledger_has_lost_the_decision(
    place: Place, way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failover has lost it: one transaction is committed, and `loads reinstate` would commit the other one, too."""
    open_ = place.prepared(COMMITTED, ONGOING).transactions[1].transactional_id
    match way:
        case "transactions abort":
            assert by_command(place, open_, monkeypatch) == 1
            assert "knows no decision to commit" in capsys.readouterr().err
        case "init_transactions":
            with pytest.raises(InDoubtError, match="knows no decision to commit"):
                init_transactions(place.session, open_, keep_prepared=False, by="me")
        case _:
            with pytest.raises(InDoubtError, match=r"knows no decision to commit.*loads reinstate"):
                force_terminate(place.session, open_, by="me", reason="it holds readers back")
    assert place.verdicts == [None], "what is aborted can be taken back no more"
    assert place.brokers.ended == []


@pytest.mark.parametrize("way", ["force_terminate", "transactions abort"])
def test_what_was_never_decided_is_aborted_as_before(place: Place, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = place.prepared(ONGOING, ONGOING).transactions
    if way == "transactions abort":
        monkeypatch.setattr("airflow_kafka_eos.protocol.cleanup.poll.end_ours", lambda *_, **__: [])
        assert by_command(place, first.transactional_id, monkeypatch) == 0
        assert set(place.brokers.ended) == {first, second}
    else:
        force_terminate(place.session, first.transactional_id, by="me", reason="it holds readers back")
        assert place.brokers.ended == [first]
    assert place.verdicts == [Verdict.ABORT]


# -- what was only opened ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("older", [False, True])
def test_an_attempt_that_was_only_opened_has_nothing_open(place: Place, older: bool) -> None:
    """That it was submitted is forgotten. Under the same ids it would be written once more, or ended."""
    if older:
        place.prepared(CoordinatorState.COMPLETE_ABORT)
        place.ledger.make_undecidable(LOAD, up_to=1, decided_by="me", reason="refused")
    number = place.ledger.begin(LOAD, owner="me").number
    forgotten = manifest(place.ledger, number, full=1)
    place.brokers.show(forgotten.transactions[0], ONGOING)
    for work in (
        lambda: check_not_restored(place.session, LOAD),
        lambda: sweep(place.session, LOAD, up_to=number, by="me"),
    ):
        with pytest.raises(InDoubtError, match=f"has given {int(older)} attempts to an application"):
            work()
    assert place.verdicts[-1] is None and place.brokers.ended == []
    place.ledger.submit(LOAD, owner="me")
    check_not_restored(place.session, LOAD)


# -- coordinators that move, or are away -------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [[None], [HERE, THERE]], ids=["away", "moves"])
def test_what_a_coordinator_may_hide_stops_for_now(place: Place, places: Any) -> None:
    """A forgotten commit: of an attempt that the ledger does not know, or that it does not know to be prepared."""
    place.ledger.begin(LOAD, owner="me")
    place.ledger.submit(LOAD, owner="me")
    place.brokers.show(manifest(place.ledger, 1).transactions[0], COMMITTED, hidden=True)
    place.brokers.places = list(places)
    with pytest.raises(NotFinishedError, match="moving or away") as caught:
        check_not_restored(place.session, LOAD)
    assert caught.value.load == str(LOAD)
    place.brokers.places = list(places)
    with pytest.raises(NotFinishedError, match="moving or away"):
        sweep(place.session, LOAD, up_to=1, by="me")
    assert place.verdicts == [None]
    place.brokers.places = list(places)
    waits = CleanPoll(LOAD, up_to=1, by="me", quiet_s=0)(place.session)
    assert waits is not None and "moving or away" in waits, "a cleanup looks again"


def test_a_coordinator_that_moves_is_waited_for_a_moment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restored_ledger, "SETTLES_S", 30.0)
    place.prepared(ONGOING)
    place.brokers.places = [HERE, THERE, None, THERE]
    check_not_restored(place.session, LOAD, slots=False)
    assert place.brokers.listings == 3


def test_what_is_known_by_name_is_ended_while_a_coordinator_is_away(place: Place) -> None:
    """Each id is asked about: none of it is committed. What is hidden has superseded it."""
    made = place.prepared(ONGOING, ONGOING)
    place.brokers.places = [None]
    with pytest.raises(NotFinishedError):
        check_not_restored(place.session, LOAD, slots=False)  # to begin, or to decide, is another matter
    check_may_abort(place.session, LOAD)
    assert not sweep(place.session, LOAD, up_to=1, by="me", guesses=False).is_complete
    assert place.brokers.ended == list(made.transactions)


def test_a_commit_that_is_known_by_name_is_seen_while_its_coordinator_is_hidden(place: Place) -> None:
    made = place.prepared(COMMITTED, ONGOING)
    place.brokers.hidden = {made.transactions[0].transactional_id}
    place.brokers.places = [None]
    with pytest.raises(InDoubtError, match="knows no decision to commit"):
        sweep(place.session, LOAD, up_to=1, by="me")
    assert (place.verdicts, place.brokers.ended) == ([None], [])


def test_a_decided_load_is_rolled_forward_whatever_moves(place: Place) -> None:
    commit(place.ledger)
    place.brokers.places = [None]
    check_not_restored(place.session, LOAD)
    check_may_abort(place.session, LOAD)


def test_a_commit_under_a_slot_may_be_hidden_too(place: Place) -> None:
    name = PooledId(LOAD.namespace, place.ledger.ledger_id, LOAD.name, 0, 0, 0)
    made = PreparedTransaction(str(name), manifest(place.ledger, 1).transactions[0].state)
    place.brokers.show(made, COMMITTED, hidden=True)
    place.brokers.places = [HERE, THERE]
    with pytest.raises(NotFinishedError, match="moving or away"):
        check_commits_known(place.session, LOAD)
    check_commits_known(place.session, LOAD)
    place.brokers.hidden.clear()
    with pytest.raises(InDoubtError, match="under slots"):
        check_commits_known(place.session, LOAD)


def test_a_coordinator_that_moves_once_is_waited_for_under_slots_too(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A streaming query's batch sweeps, and fails by what is raised."""
    monkeypatch.setattr(restored_ledger, "SETTLES_S", 30.0)
    place.brokers.places = [HERE, THERE]
    check_commits_known(place.session, LOAD)


def test_a_cleanup_looks_again_where_a_coordinator_moves_before_its_abort_marker(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = place.prepared(CoordinatorState.COMPLETE_ABORT)
    refusals: list[Exception] = [NotFinishedError("a transaction coordinator is moving or away")]

    def end(*_: object, ended: list[Any], **__: object) -> None:
        if refusals:
            ended.append(made.transactions[0])
            raise refusals.pop()

    monkeypatch.setattr("airflow_kafka_eos.protocol.cleanup.poll.end_ours", end)
    poll = CleanPoll(LOAD, up_to=1, by="me", quiet_s=0)
    waits = poll(place.session)
    assert waits is not None and "moving or away" in waits
    assert poll(place.session) is None
    assert (poll.problem, poll.aborted) == (None, [made.transactions[0].transactional_id])


def row(**known: Any) -> AttemptRow:
    return AttemptRow(LOAD, 1, "me", "then", **known)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([], True),
        ([row(submitted_at="t", prepared_at="t")], True),
        ([row()], False),
        ([row(submitted_at="t")], False),
        ([row(submitted_at="t", closed_at="t")], True),
        ([row(submitted_at="t", prepared_at="t", slot=0)], False),
        ([row(submitted_at="t", prepared_at="t"), row(submitted_at="t")], False),
    ],
)
def test_what_the_ledger_knows_by_name(rows: list[AttemptRow], named: bool) -> None:
    assert is_named(rows) is named
