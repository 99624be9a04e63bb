"""What an author writes, run by Airflow's own ``dag.test()`` through real Spark and a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.airflow.dag_test import Author, author
from tests.reading import committed_values

# three Sparks, one after the other, on a machine that may be busy
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
Read = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def place(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Author]:
    for topic in ("mapped-one", "mapped-two", "mapped-three", "mapped-xcom", "decorated", "closures",
                  "on_committed_skip", "on_committed_reload", "own-one", "own-two"):  # fmt: skip
        kafka.create_topic(topic, partitions=1)
    yield author(tmp_path_factory.mktemp("author"), kafka.bootstrap_servers)


@pytest.fixture
def read(kafka: LocalKafka) -> Read:
    return lambda topic: committed_values(kafka.bootstrap_servers, topic, 1)


def keys(place: Author, name: str) -> dict[str, LoadState]:
    with Ledger.open(f"sqlite:///{place.home}/kafka_eos_ledger.db") as ledger:
        return {row.load.key: row.state for row in ledger.loads("airflow", name)}


def test_mapped_loads_are_known_by_their_items_and_each_is_loaded(place: Author, read: Read) -> None:
    """A load's identity never contains the position of a map index."""
    run = place.test("mapped_topics")
    assert run["run"] == "success", run["log"]
    assert len(run["tasks"]) == 18 and set(run["tasks"].values()) == {"success"}
    for topic in ("mapped-one", "mapped-two", "mapped-three"):
        assert read(topic) == [f"2026-01-01 {n}" for n in range(5)]
    day = "2026-01-01T00:00:00+00:00"
    assert keys(place, "mapped_topics.tables.load") == {
        f"{day}/mapped-{n}": LoadState.COMMITTED for n in ("one", "two", "three")
    }


def test_items_of_an_earlier_task_bring_their_arguments_along(place: Author, read: Read) -> None:
    run = place.test("mapped_xcom")
    assert run["run"] == "success", run["log"]
    assert read("mapped-xcom") == ["one 0", "three 0", "three 1", "three 2", "two 0", "two 1"]


def test_a_decorated_function_of_the_dag_file_is_loaded(place: Author, read: Read) -> None:
    run = place.test("decorated")
    assert run["run"] == "success", run["log"]
    assert read("decorated") == [f"2026-01-01 {n}" for n in (0, 3, 6, 9)]


def test_each_decorated_function_is_called_with_the_variables_around_it(place: Author, read: Read) -> None:
    run = place.test("decorated_closures")
    assert run["run"] == "success", run["log"]
    assert read("closures") == ["blue 0", "blue 1", "red 0", "red 1"]


@pytest.mark.parametrize(("dag_id", "copies"), [("on_committed_skip", 1), ("on_committed_reload", 2)])
def test_a_committed_load_is_written_again_only_by_name(
    place: Author, read: Read, dag_id: str, copies: int
) -> None:
    """Reprocessing a completed date clears its run: skip writes nothing, reload exactly one more copy."""
    for seen in (1, copies):
        run = place.test(dag_id)
        assert run["run"] == "success", run["log"]
        assert read(dag_id) == sorted([str(n) for n in range(3)] * seen)
    day = "2026-01-01T00:00:00+00:00"
    expected = [day, f"{day}~reload-2"][:copies]
    assert keys(place, f"{dag_id}.load") == dict.fromkeys(expected, LoadState.COMMITTED)
    # no other date of the name is touched by it
    assert place.test(dag_id, "2026-01-02")["run"] == "success"
    assert len(read(dag_id)) == 3 * (copies + 1)


def test_mapped_loads_are_submitted_by_an_operator_of_the_authors_that_defers(place: Author, read: Read) -> None:
    run = place.test("own_deferring")
    assert run["run"] == "success", run["log"]
    of_load = {name.rpartition(".")[2] for name in run["tasks"] if name.startswith("tables__1.load.")}
    assert of_load >= {"submit[0]", "submit[1]", "collect[0]", "collect[1]"} and "prepare[0]" not in of_load
    for name in ("one", "two"):
        assert read(f"own-{name}") == [f"{name} {n}" for n in range(3)]
