"""What the command line and maintenance ask of the ledger: few questions, however many loads there are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.transaction import PreparedTxnState
from tests.ledger.ledger_support import LOAD, OTHER, commit, prepare, ref, verify


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """Every SELECT that is sent, by whatever engine."""
    seen: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.lstrip().upper().startswith("SELECT"):
            seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield seen
    event.remove(Engine, "before_cursor_execute", note)


def test_an_overview_asks_as_often_for_many_loads_as_for_one(ledger: Ledger, statements: list[str]) -> None:
    prepare(ledger)
    statements.clear()
    ledger.overview()
    for_one = len(statements)
    for number in range(20):
        prepare(ledger, LoadIdentity("team", "many", str(number)))
    statements.clear()
    assert len(ledger.overview()) == 21
    assert len(statements) == for_one


def test_an_overview_has_each_load_with_its_newest_attempt(ledger: Ledger) -> None:
    prepare(ledger)
    ledger.decide_abort(ref(ledger, 1), decided_by="decide", reason="refused")
    commit(ledger)
    prepare(ledger, OTHER)
    prepare(ledger, LoadIdentity("other", "x", "1"))
    for narrowed in ((), ("team",), ("team", "load_orders"), ("other", None), ("team", "x")):
        found = ledger.overview(*narrowed)
        assert found == [
            (row, ledger.attempt(row.load, row.newest_attempt)) for row in ledger.loads(*narrowed)
        ]
    assert [(row.newest_attempt, a and a.verdict) for row, a in ledger.overview("team")] == [
        (2, Verdict.COMMIT),
        (1, None),
    ]


def test_unfinished_are_the_attempts_that_nobody_has_closed(ledger: Ledger) -> None:
    prepare(ledger)
    ledger.decide_abort(ref(ledger, 1), decided_by="decide", reason="refused")
    commit(ledger)
    prepare(ledger, OTHER)
    prepare(ledger, LoadIdentity("other", "x", "1"))

    def found() -> list[tuple[LoadIdentity, int, Verdict | None]]:
        return [(a.load, a.number, a.verdict) for a in ledger.unfinished("team")]

    assert found() == [(LOAD, 1, Verdict.ABORT), (LOAD, 2, Verdict.COMMIT), (OTHER, 1, None)]
    assert ledger.unfinished("team")[1] == ledger.attempt(LOAD, 2)
    ledger.record_swept(LOAD, 1)
    verify(ledger, LOAD, 2)
    assert found() == [(OTHER, 1, None)]


def test_holders_are_found_by_producer_id_and_epoch(ledger: Ledger) -> None:
    commit(ledger)
    prepare(ledger, OTHER)
    states = [PreparedTxnState(1000, 1), PreparedTxnState(1001, 1), PreparedTxnState(1000, 2)]
    found = ledger.prepared_as([*states, *(PreparedTxnState(n, 0) for n in range(2000, 3300))])
    by_load = {(a.load, t.transaction.state) for a, t in found}
    assert by_load == {(load, state) for load in (LOAD, OTHER) for state in states[:2]}
    (attempt, transaction) = next((a, t) for a, t in found if a.load == LOAD and t.spark_partition == 0)
    assert attempt == ledger.attempt(LOAD, 1)
    assert transaction == ledger.transactions(LOAD, 1)[0]
    assert ledger.prepared_as([]) == []
