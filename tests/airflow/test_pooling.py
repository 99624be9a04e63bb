"""Pooled ids from prepare to cleanup, by the operators and the packaged application."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.naming import name_prefix
from tests.airflow.steps import LOAD, refused, run, session, state

ROWS = "select cast(id as string) key, 'v' value from range(0, 90, 1, 2)"


@pytest.mark.spark
def test_two_loads_of_a_name_are_written_with_the_same_ids(home: Path, topic: Callable[..., str]) -> None:
    name = topic(2)
    ids = []
    for key in ("one", "two"):
        run("begin", key)
        made = run("prepare", key, topics=[name], sql=ROWS, transaction_naming="pooling")
        assert (made["slot"], made["transactions"], made["records"]) == (0, 2, 90)
        ids.append(set(run("decide", key)["prepared_transaction_states"]))
        run("commit", key)
        run("cleanup", key)
        assert state(key) is LoadState.COMMITTED
    assert ids[0] == ids[1]
    with session() as opened:
        known = opened.coordinator.list_known(name_prefix("airflow", opened.ledger.ledger_id, LOAD))
        assert {i for i in known if not i.endswith("-probe")} == ids[0]
        # nothing ran twice, and the application said so: no quarantine
        (slot,) = opened.ledger.slots()
        assert (slot.is_leased, slot.quarantined_until) == (False, None)
        (row,) = opened.ledger.attempts(LoadIdentity("airflow", LOAD, "two"))
        assert (row.slot, row.writers_left) == (0, False)
    # the cap counts them: those of the slot and its probe
    run("begin", "three")
    text = refused("prepare", "three", sql=ROWS, topics=[name], max_transactional_ids=3)
    assert "the cap is 3" in text
    assert "max_transactional_ids" in text
