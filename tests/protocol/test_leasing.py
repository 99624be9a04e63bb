"""What a slot that was given back may show, by state and epoch: equality and one step, never an order.

Rule: look-at-the-slot.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_kafka_eos.ledger.rows import SlotRow
from airflow_kafka_eos.ledger.slots import text_of
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.protocol.guards.slots import gone, may_have_begun, may_show, unaccounted
from airflow_kafka_eos.transaction import (
    MAX_PRODUCER_EPOCH,
    CoordinatorState,
    PreparedTransaction,
    PreparedTxnState,
    TransactionDescription,
)

State = PreparedTxnState


def shown(state: CoordinatorState, identity: PreparedTxnState | None = None) -> TransactionDescription:
    return TransactionDescription("an id", state, identity or State(7, 4), 60_000, 0, frozenset())


@pytest.mark.parametrize(
    ("committed", "seen", "fits"),
    [
        (State(7, 4), State(7, 4), True),  # transaction version 1
        (State(7, 4), State(7, 5), True),  # transaction version 2 has added one
        (State(7, 4), State(7, 6), False),
        (State(7, 4), State(7, 3), False),
        (State(7, 4), State(8, 4), False),
        (State(7, MAX_PRODUCER_EPOCH - 1), State(7, MAX_PRODUCER_EPOCH), True),
        (State(7, MAX_PRODUCER_EPOCH - 1), State(9, 0), True),  # epochs are used up: a new producer id (KIP-890)
        (State(7, MAX_PRODUCER_EPOCH), State(9, 0), True),
        (State(7, MAX_PRODUCER_EPOCH - 2), State(9, 0), False),
        (State(7, MAX_PRODUCER_EPOCH), State(9, 1), False),
    ],
)
def test_what_a_coordinator_shows_of_a_commit(
    committed: PreparedTxnState, seen: PreparedTxnState, fits: bool
) -> None:
    assert may_show(committed, seen) is fits


def test_what_began_behind_a_slot_s_quarantine_is_not_its_last_holder_s() -> None:
    begun = datetime.fromisoformat("2026-01-01T12:00:00+00:00")
    moment, later = text_of(begun), text_of(begun + timedelta(seconds=1))
    holder = LoadIdentity("test", "orders", "k")
    slot = SlotRow("test", "orders", 0, holder, 1, moment, moment, moment, moment, None, None)
    found = replace(shown(CoordinatorState.ONGOING), start_time_ms=int(begun.timestamp() * 1000) + 1)
    for until, can in ((moment, False), (later, True), (None, False)):
        assert may_have_begun(replace(slot, quarantined_until=until), None, found) is can


@pytest.mark.parametrize("state", CoordinatorState)
def test_only_what_is_at_rest_and_known_may_be_there(state: CoordinatorState) -> None:
    known = {"an id": [State(7, 3)]}
    at_rest = state.value in ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
    assert (unaccounted([shown(state)], known) == []) is at_rest
    assert (unaccounted([shown(state)], {}) == []) is (at_rest and state is not CoordinatorState.COMPLETE_COMMIT)


def test_a_commit_of_another_transaction_of_the_id_is_not_known() -> None:
    (found,) = unaccounted([shown(CoordinatorState.COMPLETE_COMMIT)], {"an id": [State(7, 1)], "other": [State(7, 4)]})
    assert "an id was committed as 7:4" in found


@pytest.mark.parametrize("state", CoordinatorState)
def test_a_commit_that_was_seen_is_there_as_long_as_nobody_has_used_its_id(state: CoordinatorState) -> None:
    committed = [PreparedTransaction("an id", State(7, 3))]
    same = state in (CoordinatorState.COMPLETE_COMMIT, CoordinatorState.PREPARE_COMMIT, CoordinatorState.DEAD)
    assert (gone(committed, {"an id": shown(state)}) == []) is same
    assert gone(committed, {"another id": shown(state)}) == [], "its coordinator has forgotten it"
    (found,) = gone(committed, {"an id": shown(CoordinatorState.COMPLETE_COMMIT, State(7, 5))})
    assert "an id was committed as 7:3, and has been used since" in found
