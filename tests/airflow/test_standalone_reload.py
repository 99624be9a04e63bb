"""on_committed="reload" under a real scheduler: a person clears tasks, and setup and teardown come along."""

from __future__ import annotations

from collections import Counter

from airflow_kafka_eos.load import LoadIdentity, LoadState
from tests.airflow.conftest import Place
from tests.airflow.test_standalone import clear, open_ids, read, rows, start, states, wait

DAG = "reloaded"


def copies(place: Place) -> Counter[int]:
    found = read(place, DAG)
    assert found.keys() == rows(DAG, "one").keys()
    return Counter(found.values())


def generations(place: Place) -> dict[str, LoadState]:
    return {row.load.key: row.state for row in place.ledger.loads("airflow", f"{DAG}.load")}


def test_only_clearing_the_whole_group_reloads_and_makes_one_copy_more(place: Place) -> None:
    start(place, DAG, "one")
    assert wait(place, DAG, "one") == "success", states(place, DAG, "one")
    assert copies(place) == {1: 200}
    for task in ("commit", "prepare"):  # begin, their setup, runs again
        tries = states(place, DAG, "one")
        clear(place, DAG, "one", task, downstream=False)
        assert wait(place, DAG, "one") == "success", states(place, DAG, "one")
        for again in ("begin", task):
            assert states(place, DAG, "one")[again][1] > tries[again][1]
        assert generations(place) == {"one": LoadState.COMMITTED}
    clear(place, DAG, "one", "begin", downstream=True)
    assert wait(place, DAG, "one") == "success", states(place, DAG, "one")
    assert copies(place) == {2: 200}
    clear(place, DAG, "one", "loaded", downstream=False)
    assert wait(place, DAG, "one") == "success", states(place, DAG, "one")
    assert generations(place) == {"one": LoadState.COMMITTED, "one~reload-2": LoadState.COMMITTED}
    assert copies(place) == {2: 200} and open_ids(place, DAG) == []
    assert len(place.ledger.attempts(LoadIdentity("airflow", f"{DAG}.load", "one~reload-2"))) == 1
