"""Every form in which an author may write a load, as a real scheduler and a real supervisor run it.

``dag.test()`` (test_authored.py) is not enough: it runs tasks without Airflow's supervisor, which gives a task another
environment, and so the Spark driver that the task starts.
"""

from __future__ import annotations

import json

import httpx
import pytest

from airflow_kafka_eos.load import LoadState
from tests.airflow.conftest import Place
from tests.airflow.counting import Count, count
from tests.airflow.rest import Run

ROWS = 20
#: the topics of each form, and what stands in front of the number in their values, behind the run id
FORMS: dict[str, dict[str, list[str]]] = {
    "forms_class": {"forms_class": [""]},
    "forms_decorated": {"forms_decorated": [""]},
    "forms_override": {"forms_override": [""]},
    "forms_expand": {"forms_expand_one": [""], "forms_expand_two": [""]},
    "forms_expand_kwargs": {"forms_expand_kwargs": [" one", " two"]},
    "forms_by_hand": {"forms_by_hand": [""]},
}
#: a file that asks Airflow for a variable outside of functions
ASKS = "forms_asks"
pytestmark = pytest.mark.timeout(900)


class Runs:
    """One run of each form. Two at a time: this Airflow takes a task for dead that a busy machine keeps from its beat.
    """

    def __init__(self, place: Place, dags: list[str]) -> None:
        self._place, self._waiting = place, dags
        self._started: dict[str, Run] = {}

    def ended(self, dag: str) -> tuple[Run, str]:
        """The run and its state; the next one is on its way meanwhile."""
        while self._waiting and (dag not in self._started or len(self._started) < 2):
            self._start(self._waiting.pop(0))
        run = self._started.pop(dag)
        return run, run.wait()

    def _start(self, dag: str) -> None:
        self._started[dag] = Run(self._place.airflow, dag, "one")
        self._started[dag].start()


@pytest.fixture(scope="module")
def runs(place: Place, request: pytest.FixtureRequest) -> Runs:
    for topics in (*FORMS.values(), [ASKS]):
        for topic in topics:
            place.kafka.create_topic(topic, partitions=2)
    extra = json.dumps({"bootstrap.servers": place.bootstrap})
    place.airflow.post("/connections", {"connection_id": "forms_kafka", "conn_type": "kafka", "extra": extra})
    place.airflow.post("/variables", {"key": "forms_factor", "value": "7"})
    ours = [item for item in request.session.items if item.path == request.path]
    return Runs(place, [item.callspec.params["form"] if hasattr(item, "callspec") else ASKS for item in ours])


@pytest.mark.parametrize("form", FORMS)
def test_each_form_loads_each_record_once(place: Place, runs: Runs, form: str) -> None:
    run, ended = runs.ended(form)
    assert ended == "success", run.tasks()
    for topic, words in FORMS[form].items():
        expected = [f"one{word} {n}" for word in words for n in range(ROWS)]
        assert count(place.bootstrap, topic, expected, ids=f".{form}") == Count(len(expected), 0, 0, 0, ())
    if form == "forms_by_hand":  # whose connection only Airflow's database has: the page asks for it by itself
        url = f"{place.airflow.url}/kafka-eos/api/transactions"
        (look,) = httpx.get(url, params={"dag_id": form, "run_id": "one"}, timeout=60).json()["clusters"]
        assert (look["kafka_conn_id"], look["problem"]) == ("forms_kafka", None)


def test_a_dag_file_that_asks_airflow_for_a_variable_is_refused_and_never_given_a_default(
    place: Place, runs: Runs
) -> None:
    """The driver has no way to Airflow: the default would be loaded in place of what the worker sees, in green."""
    run, ended = runs.ended(ASKS)
    assert ended == "failed", run.tasks()
    tasks = {name.rpartition(".")[2]: found for name, found in run.tasks().items()}
    state, tries = tasks["prepare"]
    assert (state, tries < 4) == ("failed", True), "trying again cannot help"
    assert tasks["cleanup"][0] == "success"
    log = str(place.airflow.get(f"/dags/{ASKS}/dagRuns/one/taskInstances/load_numbers.prepare/logs/{tries}"))
    assert "asks Airflow for the variable 'forms_factor'" in log, log[-5000:]
    assert "{{ var.value.forms_factor }}" in log
    assert count(place.bootstrap, ASKS, [], ids=f".{ASKS}") == Count(0, 0, 0, 0, ())
    (row,) = place.ledger.loads("airflow", f"{ASKS}.load_numbers")
    assert row.state is LoadState.ABORTED
