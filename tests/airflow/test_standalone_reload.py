"""on_committed="reload" under a real scheduler: a person clears tasks, and setup and teardown come along."""

from __future__ import annotations

from airflow_kafka_eos.load import LoadIdentity, LoadState
from tests.airflow.conftest import Place
from tests.airflow.counting import Count, count
from tests.airflow.rest import Run

DAG = "reloaded"
RECORDS = 200


def counted(place: Place, copies: int) -> Count:
    expected = [f"{DAG} one {n}" for n in range(RECORDS)] * copies
    return count(place.bootstrap, DAG, expected, ids=f".{DAG}%2Eload.")


def right(copies: int) -> Count:
    return Count(RECORDS * copies, 0, 0, 0, ())


def generations(place: Place) -> dict[str, LoadState]:
    return {row.load.key: row.state for row in place.ledger.loads("airflow", f"{DAG}.load")}


def test_only_clearing_the_whole_group_reloads_and_makes_one_copy_more(place: Place) -> None:
    run = Run(place.airflow, DAG, "one")
    run.start()
    assert run.wait() == "success", run.tasks()
    assert counted(place, 1) == right(1)
    for task in ("commit", "prepare"):  # begin, their setup, runs again
        tries = run.tasks()
        run.clear(task)
        assert run.wait() == "success", run.tasks()
        for again in ("begin", task):
            assert run.tasks()[again][1] > tries[again][1]
        assert generations(place) == {"one": LoadState.COMMITTED}
    run.clear("begin", downstream=True)
    assert run.wait() == "success", run.tasks()
    assert counted(place, 2) == right(2)
    run.clear("loaded")
    assert run.wait() == "success", run.tasks()
    assert generations(place) == {"one": LoadState.COMMITTED, "one~reload-2": LoadState.COMMITTED}
    assert counted(place, 2) == right(2)
    assert len(place.ledger.attempts(LoadIdentity("airflow", f"{DAG}.load", "one~reload-2"))) == 1
