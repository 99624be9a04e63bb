"""What is asked of a ledger with years of loads in it finds its rows by an index, and answers with a few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Engine

from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.ledger.queries import MOST_SAME, Owned
from airflow_kafka_eos.load import UNENDED, LoadIdentity, LoadState
from airflow_kafka_eos.transaction import PreparedTxnState
from bench.ledger_rows import NAMESPACE, UNFINISHED, fill, identity, owner
from tests.ledger.ledger_support import LOAD, OTHER, commit, manifest, prepare, ref

LOADS = 300
Work = Callable[[Ledger], Any]
#: What steps of a load, the page and maintenance ask all the time.
ASKED: dict[str, Work] = {
    "a load": lambda ledger: ledger.load(identity(7)),
    "its attempts": lambda ledger: ledger.attempts(identity(7)),
    "its transactions": lambda ledger: ledger.transactions(identity(7), 1),
    "its repairs": lambda ledger: ledger.repairs(identity(7)),
    "loads by state": lambda ledger: ledger.loads(NAMESPACE, states=[LoadState.IN_DOUBT]),
    "the newest loads": lambda ledger: ledger.overview(at_most=5),
    "what changed last": lambda ledger: ledger.owned(at_most=5),
    "what is not through": lambda ledger: ledger.owned(at_most=5, states=UNENDED),
    "a few of them whole": lambda ledger: ledger.overview_of([3, 4]),
    "the loads of a run": lambda ledger: ledger.begun_by(owner(7).partition("#")[0]),
    "loads by their names": lambda ledger: ledger.ids_of([identity(7), identity(8), LOAD]),
    "unfinished attempts": lambda ledger: ledger.unfinished(NAMESPACE),
    "who asked for the same": lambda ledger: ledger.same_arguments(["a" * 64]),
    "when they were submitted": lambda ledger: ledger.submitted_times([identity(7), identity(8)]),
    "whose a transaction is": lambda ledger: ledger.prepared_as([PreparedTxnState(7, 0)]),
    "whether it is decided": lambda ledger: ledger.is_decided_commit(
        ledger.transactions(identity(7), 1)[0].transaction
    ),
    "all topics": lambda ledger: ledger.topics(NAMESPACE),
    "keys of a name": lambda ledger: ledger.keys(NAMESPACE, identity(7).name, 5),
}


@pytest.fixture
def large(ledger: Ledger) -> Ledger:
    fill(ledger, LOADS)
    return ledger


@pytest.fixture
def asked() -> Iterator[list[tuple[str, Any]]]:
    """Every SELECT that is sent, with its values."""
    seen: list[tuple[str, Any]] = []

    def note(_c: object, _cursor: object, statement: str, values: Any, *_: object) -> None:
        if statement.lstrip().upper().startswith("SELECT"):
            seen.append((statement, values))

    event.listen(Engine, "before_cursor_execute", note)
    yield seen
    event.remove(Engine, "before_cursor_execute", note)


def whole_tables(ledger: Ledger, statement: str, values: Any) -> list[str]:
    """Tables that the database would read from end to end; one with an index is read in its order."""
    name = ledger.database.engine.dialect.name
    with ledger.database.engine.connect() as connection:
        if name == "sqlite":
            plan = [str(row[3]) for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)]
            found = [line for line in plan if line.startswith("SCAN") and "USING" not in line]
            # by its rowid, which is the id: in order, and as far as the limit goes
            return [line for line in found if not (line == "SCAN kafka_eos_loads" and "LIMIT" in statement)]
        if name == "postgresql":
            # a table of a few hundred rows is faster read whole: whether an index would do is the question
            connection.execute(text("SET enable_seqscan = off"))
            plan = [str(row[0]) for row in connection.exec_driver_sql(f"EXPLAIN {statement}", values)]
            return [line for line in plan if "Seq Scan on kafka_eos_" in line and "kafka_eos_ledger" not in line]
        return []


def test_what_is_asked_all_the_time_reads_no_table_from_end_to_end(
    large: Ledger, asked: list[tuple[str, Any]]
) -> None:
    read = {}
    for what, work in ASKED.items():
        asked.clear()
        work(large)
        statements = list(asked)
        assert statements, what
        read[what] = [found for of in statements for found in whole_tables(large, *of)]
    assert read == {what: [] for what in ASKED}


def test_a_list_has_the_loads_that_were_begun_last(large: Ledger) -> None:
    newest = large.overview(at_most=3)
    assert [row.load for row, _ in newest] == [identity(n) for n in range(LOADS - 3, LOADS)]
    assert newest == large.overview()[-3:]
    assert large.overview(NAMESPACE, identity(7).name, at_most=1) == large.overview(None, identity(7).name)[-1:]
    assert large.overview(at_most=LOADS + 1) == large.overview()
    in_doubt = large.overview(states=[LoadState.IN_DOUBT])
    assert [row.load for row, _ in in_doubt] == [identity(n) for n in range(LOADS - UNFINISHED, LOADS)]
    assert large.overview(NAMESPACE, states=[LoadState.IN_DOUBT], at_most=2) == in_doubt[-2:]
    assert large.overview(states=[LoadState.ABORTED]) == []
    assert large.loads(states=[]) == []
    assert large.overview_of([2, 1, 2, 10**6]) == large.overview()[:2]


def test_whose_loads_are_is_read_on_from_where_an_answer_ended(large: Ledger) -> None:
    prepare(large)  # of two attempts the newest counts
    large.decide_abort(ref(large, 1), decided_by="x", reason="x")
    large.begin(LOAD, owner="second")
    every = large.owned()
    assert len(every) == LOADS + 1
    assert (every[0].name, every[0].owner, every[0].submitted_by) == (LOAD.name, "second", None)
    assert [one.updated_at for one in every] == sorted((one.updated_at for one in every), reverse=True)
    read: list[Owned] = []
    while some := large.owned(behind=read[-1] if read else None, at_most=70):
        read += some
    assert read == every
    in_doubt = {one.id for one in large.owned(states=[LoadState.IN_DOUBT])}
    assert in_doubt == set(range(LOADS - UNFINISHED + 1, LOADS + 1))


def test_loads_that_changed_at_the_same_moment_are_read_once(ledger: Ledger) -> None:
    for number in range(5):
        ledger.begin(LoadIdentity("team", "same", str(number)), owner="x")
    with ledger.database.engine.begin() as connection:
        connection.execute(text("UPDATE kafka_eos_loads SET updated_at = '2026-01-01T00:00:00.000000+00:00'"))
    first = ledger.owned(at_most=2)
    assert [*first, *ledger.owned(behind=first[-1])] == ledger.owned()


def test_the_loads_of_a_run_are_those_of_its_newest_attempts(ledger: Ledger) -> None:
    owners = ("dag/run#group=a", "dag/run#group=b", "dag/run2#group=a", "DAG/RUN#group=a", "dag_run#")
    for number, by in enumerate(owners):
        ledger.begin(LoadIdentity("team", "l", str(number)), owner=by)

    def keys() -> list[str]:
        return [row.load.key for row, _ in ledger.overview_of(ledger.begun_by("dag/run#"))]

    assert keys() == ["0", "1"]
    ledger.submit(LoadIdentity("team", "l", "2"), owner="dag/run#group=z")
    assert keys() == ["0", "1", "2"]
    first = LoadIdentity("team", "l", "0")
    ledger.make_undecidable(first, up_to=1, decided_by="x", reason="x")
    ledger.begin(first, owner="dag/other#group=a")
    assert keys() == ["1", "2"]


def test_topics_are_noted_once_for_each_namespace(ledger: Ledger) -> None:
    assert ledger.topics("team") == set()
    commit(ledger)
    commit(ledger, OTHER)
    prepare(ledger, LoadIdentity("other", "x", "1"))
    assert (ledger.topics("team"), ledger.topics("other"), ledger.topics("none")) == ({"orders"}, {"orders"}, set())


def test_of_many_who_asked_for_the_same_the_newest_are_told(ledger: Ledger) -> None:
    for number in range(MOST_SAME + 2):
        load = LoadIdentity("team", "load_orders", str(number))
        ledger.begin(load, owner="x")
        ledger.submit(load, owner="x", arguments_sha256="a" * 64)
        ledger.mark_prepared(manifest(ledger, 1, load))
        ledger.decide_commit(manifest(ledger, 1, load), decided_by="x")
    same = ledger.with_same_arguments(LOAD, "a" * 64)
    assert [a.load.key for a in same] == [str(number) for number in range(2, MOST_SAME + 2)]
    assert ledger.same_arguments(["a" * 64, "b" * 64], at_most=2) == {"a" * 64: same[-2:]}


def test_a_new_id_looks_at_undecided_loads_only(large: Ledger, asked: list[tuple[str, Any]]) -> None:
    with large.database.engine.begin() as connection:
        connection.execute(text("UPDATE kafka_eos_loads SET state = 'COMMITTED'"))
    prepare(large)
    asked.clear()
    large.new_id(decided_by="x")
    assert large.attempts(LOAD)[-1].reason == "the ledger got a new id"
    assert len(asked) < 15
