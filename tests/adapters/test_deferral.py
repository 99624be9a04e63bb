"""What comes back from the triggerer is believed in the try that was deferred, and in no other.

Airflow sets a task that is cleared while it runs to RESTARTING, and keeps ``next_method``: its next try comes back with
the event of before the clear. A timeout, and ``airflow dags test``, come back without what was deferred beside.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_kafka_eos.errors import TopicError
from airflow_kafka_eos.operators.stream_loaded import StreamLoadedSensor
from airflow_kafka_eos.sensors import CleanupLoadSensor, LoadedSensor, PollingLoadSensor
from airflow_kafka_eos.triggers import OTHER_LEDGER, CleanupTrigger
from tests.airflow.steps import in_try

EVENT = ("execute_complete", {"event": {"status": "done", "summary": {}}})
TIMEOUT = ("__fail__", {"error": "Trigger timeout"})


@pytest.fixture(params=[CleanupLoadSensor, LoadedSensor, StreamLoadedSensor])
def sensor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PollingLoadSensor:
    """One that has to wait, and asks nobody."""
    kind: Any = request.param
    monkeypatch.setattr(kind, "before_polling", lambda self, owner: None)
    monkeypatch.setattr(kind, "_wait", lambda self, poll, give_up, *, may_defer: False)
    monkeypatch.setattr(kind, "_look", lambda self, poll: "it waits")
    monkeypatch.setattr(kind, "execute_complete", lambda self, context, event: event)
    key = {} if kind is StreamLoadedSensor else {"load_key": "k"}
    found: PollingLoadSensor = kind(task_id="sensor", load_name="l", deferrable=True, **key)
    return found


@pytest.fixture
def xcoms(sensor: PollingLoadSensor) -> dict[tuple[str, str], Any]:
    """Airflow keeps those of a task that comes back: here from try 1."""
    kept: dict[tuple[str, str], Any] = {}
    with pytest.raises(TaskDeferred):
        sensor.execute(in_try(1, kept))
    return kept


def test_it_is_believed_in_the_same_try(sensor: PollingLoadSensor, xcoms: dict[tuple[str, str], Any]) -> None:
    assert sensor.resume_execution(*EVENT, in_try(1, xcoms)) == EVENT[1]["event"]
    with pytest.raises(AirflowException, match="it waits") as caught:
        sensor.resume_execution(*TIMEOUT, in_try(1, xcoms))
    assert type(caught.value) is AirflowException, "by what Airflow's sensors raise, a task has no retries"


def test_what_is_final_stays_so_at_the_timeout(
    sensor: PollingLoadSensor, xcoms: dict[tuple[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(self: PollingLoadSensor, poll: Any) -> str | None:
        raise ends[0]("given up")

    ends: list[type[Exception]] = [AirflowFailException]
    monkeypatch.setattr(type(sensor), "_look", look)
    with pytest.raises(AirflowFailException, match=r"after 3600 s: given up"):
        sensor.resume_execution(*TIMEOUT, in_try(1, xcoms))
    ends[0] = TopicError
    with pytest.raises(AirflowException, match=r"after 3600 s: given up") as caught:
        sensor.resume_execution(*TIMEOUT, in_try(1, xcoms))
    assert type(caught.value) is AirflowException


@pytest.mark.parametrize("came_back", [EVENT, TIMEOUT], ids=["event", "timeout"])
def test_behind_a_clear_it_looks_anew(
    sensor: PollingLoadSensor, xcoms: dict[tuple[str, str], Any], came_back: tuple[str, dict[str, Any]]
) -> None:
    """Rule: event-of-its-own-try."""
    with pytest.raises(TaskDeferred):
        sensor.resume_execution(*came_back, in_try(2, xcoms))
    with pytest.raises(AirflowException, match="it waits"):
        sensor.resume_execution(*TIMEOUT, in_try(2, xcoms))


@pytest.mark.parametrize("came_back", [EVENT, TIMEOUT], ids=["event", "timeout"])
def test_what_a_version_before_has_deferred_is_looked_at_anew(
    sensor: PollingLoadSensor, came_back: tuple[str, dict[str, Any]]
) -> None:
    with pytest.raises(TaskDeferred):
        sensor.resume_execution(*came_back, in_try(1))


@pytest.mark.parametrize(("kind", "ends"), [(LoadedSensor, AirflowFailException), (CleanupLoadSensor, TopicError)])
def test_a_topic_that_is_gone_is_for_loaded_alone_the_end(
    kind: type[PollingLoadSensor], ends: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No retry of loaded finds the load in it. Cleanup has something to end, here or elsewhere, and is tried again."""

    def poll(session: Any) -> str | None:
        raise TopicError("topic orders was deleted and created again")

    opened = SimpleNamespace(ledger=SimpleNamespace(ledger_id="one"))
    place = SimpleNamespace(session=lambda namespace: nullcontext(opened))
    monkeypatch.setattr(kind, "_resolve", lambda self: place)
    monkeypatch.setattr(kind, "has_looked", lambda self, ledger: None)
    looks: Any = kind(task_id="sensor", load_name="l", load_key="k")
    with pytest.raises(ends):
        looks._look(poll)
    assert (TopicError in kind.trigger_class.final) == (kind is LoadedSensor)


def test_cleanup_that_waits_in_the_triggerers_place_tells_the_applications_of_its_own_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule: writers-have-a-deadline. A task that comes back has looked up nothing itself."""
    told: list[int] = []
    monkeypatch.setattr(CleanupLoadSensor, "_tell_superseded", lambda self, ledger, up_to: told.append(up_to))
    monkeypatch.setattr(CleanupLoadSensor, "_wait", lambda self, poll, give_up, *, may_defer: self.has_looked(None))
    monkeypatch.setattr(CleanupLoadSensor, "done", lambda self, summary, context, step: summary)
    fields: dict[str, Any] = {
        "namespace": "airflow", "load_name": "l", "load_key": "k", "kafka_conn_id": "kafka_default",
        "ledger_conn_id": None, "poll_s": 2.0, "owner": "dag/run#group=load", "up_to": 3, "quiet_s": 0.0,
    }  # fmt: skip
    sensor = CleanupLoadSensor(task_id="cleanup", load_name="l", load_key="k")
    event = {"status": OTHER_LEDGER, "error": "…", "fields": CleanupTrigger(**fields).fields()}
    assert sensor.execute_complete(in_try(1), event)["load"] == "airflow/l/k"
    assert told == [3]
