"""Streaming queries in a real Airflow, with availableNow: each batch is there once, whatever is done to their runs."""

from __future__ import annotations

import json

import pytest

from airflow_kafka_eos.load import LoadState
from tests.airflow.conftest import Place
from tests.airflow.streaming import LINES, Streamed, command

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]


def test_each_run_takes_what_is_there_and_tells_of_it_once(place: Place) -> None:
    query = Streamed(place, "streamed")
    query.feed(3)
    first = query.run("first")
    assert first.wait() == "success", query.log_of(first, "run")
    assert query.count() == query.right()
    done = query.returned(first, "run")
    assert (done["query"], done["batches"], done["records"]) == ("airflow/streamed.load", [0, 2], 3 * LINES)
    log = query.log_of(first, "run")
    for number in range(3):
        assert f"batch {number} of query streamed.load: {LINES} records, in" in log
        assert f"load key {query.batch(number).key}" in log
    (event,) = query.events()
    assert (event["batches"], event["records"], event["query_id"]) == ([0, 2], 3 * LINES, done["query_id"])
    assert {batch: of["records"] for batch, of in event["by_batch"].items()} == dict.fromkeys("012", LINES)
    shown = query.page(first)
    assert {load["key"] for load in shown} == {query.batch(n).key for n in range(3)}
    assert {(load["state"], load["dag_id"], load["run_id"]) for load in shown} == {("COMMITTED", "streamed", "first")}

    # nothing new: the clear of all, and of loaded alone
    first.clear("run", downstream=True)
    assert first.wait() == "success"
    first.clear("loaded")
    assert first.wait() == "success"
    assert query.returned(first, "run")["batches"] is None
    assert (query.count(), len(query.events())) == (query.right(), 1)

    query.feed(2)
    second = query.run("second")
    assert second.wait() == "success"
    assert query.count() == query.right()
    assert [e["batches"] for e in query.events()] == [[0, 2], [3, 4]]
    assert {load["key"] for load in query.page(second)} == {query.batch(n).key for n in (3, 4)}
    assert place.ledger.state(query.batch(4)) is LoadState.COMMITTED

    code, out, _ = command(place, "streams", "list", "-o", "json")
    row = next(row for row in json.loads(out) if row["name"] == "streamed.load")
    assert (code, row["decided"], row["checkpoint"]) == (0, 4, f"{query.folder}/checkpoint")
    code, out, _ = command(place, "loads", "show", "streamed.load", query.batch(4).key, "-o", "json")
    assert (code, json.loads(out)["attempts"][0]["by"]) == (0, "streamed/second#group=load")
