"""Who makes first, in Airflow, what is made once (docs/adr/0022)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.definitions.asset import AssetUniqueKey
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import comms, context, task_runner
from airflow.sdk.execution_time.comms import (
    AssetEventsResult,
    AssetResult,
    AssetsByAliasResult,
    ErrorResponse,
)
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_kafka_eos import lineage
from airflow_kafka_eos.errors import ConfigurationError, LedgerUnavailableError
from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.lineage import LEASE_TTL, PATIENCE, Told, _look, acquire_lease, announce, to_be_made
from airflow_kafka_eos.operators.base import Step
from airflow_kafka_eos.sensors import LoadedSensor

LEASE_S = LEASE_TTL.total_seconds()
URI = "kafka://events/t"
ALIAS = AssetAlias("days")
NO_ANSWER = ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 500})
ARRIVAL: dict[str, Any] = {
    "load": "airflow/days/k",
    "attempt": 1,
    "by": "d/r",
    "decided_at": "2026-01-01T00:00:00+00:00",
    "records": 3,
    "topics": {"t": {"records": 3, "bytes": 70, "offsets": {"0": [5, 7]}}},
}


def test_what_an_event_makes_is_the_asset_and_that_its_alias_has_it() -> None:
    """Of both Airflow makes one row, and fails whoever makes it second."""
    both = to_be_made(URI, "days", is_made=False)
    (of_alias,) = to_be_made(URI, "days", is_made=True)
    assert set(both) == {URI, of_alias}
    assert set(both) & set(to_be_made(URI, "shop", is_made=False)) == {URI}, "of several names, one makes the asset"
    assert to_be_made(URI, "shop", is_made=True) != [of_alias], "which each name then has by itself"


class Tasks:
    """In a time that passes by sleeping; each task's success makes what it had the lease for, a while later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.leases: dict[str, tuple[str, float]] = {}
        self.made: dict[str, float] = {}
        self.ledger_is_down = False
        monkeypatch.setattr(lineage, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def take(self, by: str) -> Callable[[Collection[str]], str | None]:
        def take(what: Collection[str]) -> str | None:
            assert what
            if self.ledger_is_down:
                raise LedgerUnavailableError("the ledger is away", remedy="wait")
            for one in sorted(what):
                holder, since = self.leases.get(one, (by, self.now))
                if holder != by and self.now < since + LEASE_S:
                    return holder
                self.leases[one] = (by, self.now)
            return None

        return take

    def left(self, what: Iterable[str]) -> Callable[[], list[str]]:
        return lambda: [one for one in what if self.now < self.made.get(one, float("inf"))]

    def goes(self, by: str, *what: str, since: float = 0.0) -> float:
        """The second at which a task goes that comes at ``since``."""
        self.now = since
        acquire_lease(self.left(what), self.take(by))
        return self.now

    def tells(self, by: str, *what: str, since: float = 0.0, takes_s: float = 2.0) -> float:
        gone = self.goes(by, *what, since=since)
        self.made |= {one: gone + takes_s for one in what if one not in self.made}
        return gone


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    return Tasks(monkeypatch)


def test_where_nothing_is_to_be_made_nobody_is_asked(tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    tasks.ledger_is_down = True
    assert tasks.goes("a") == 0
    assert caplog.messages == []


def test_one_goes_and_the_others_when_airflow_has_its_success(
    tasks: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert tasks.tells("a", "t") == 0
    assert caplog.messages == []
    assert [tasks.tells(by, "t") for by in "bcd"] == [2, 2, 2], "a further event makes nothing"
    assert caplog.messages == ["waits for its lease to create t in Airflow (a has the lease)"] * 3


def test_nobody_waits_for_a_task_with_a_topic_of_its_own(tasks: Tasks) -> None:
    """Loads of one name, each to a topic of its own: none makes another's asset, and each waited two minutes."""
    assert [tasks.tells(by, by) for by in "abcdef"] == [0] * 6


def test_a_task_of_several_topics_goes_once_with_all_of_them(tasks: Tasks) -> None:
    tasks.tells("a", "u", takes_s=20)
    assert tasks.tells("b", "t", "u") == 20
    assert tasks.leases["t"] == ("b", 20), "held from when it goes: its lease of t did not pass while it waited for u"
    assert tasks.tells("c", "t", since=20) == 22


def test_one_that_died_with_its_lease_costs_one_lease(tasks: Tasks) -> None:
    assert tasks.goes("dead", "t") == 0
    assert tasks.tells("b", "t", since=10) == LEASE_S
    assert tasks.tells("c", "t", since=10) == LEASE_S + 2
    assert tasks.goes("dead", "another") == tasks.goes("dead", "another", since=1) - 1 == 0, "its own next try goes on"


def test_patience_ends_and_says_what_may_come_of_it(tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    tasks.ledger_is_down = True
    assert tasks.goes("a", "t") == PATIENCE.total_seconds()
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "and goes on without it" in said and "to create t in Airflow" in said and "LedgerUnavailableError: " in said


def test_a_ledger_that_comes_back_is_asked_again(tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    """A load that readers see is not failed for it, nor told of at any moment."""
    caplog.set_level("INFO")

    def take(what: Collection[str]) -> str | None:
        tasks.ledger_is_down = tasks.now < 30
        return tasks.take("a")(what)

    acquire_lease(tasks.left(["t"]), take)
    assert tasks.now == 30
    assert len(caplog.messages) == 1


def test_a_ledger_that_refuses_leases_is_not_waited_for(tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    """A grant that an upgrade has forgotten: the load is visible, and its readers want to be told."""

    def take(_: Collection[str]) -> None:
        raise ConfigurationError("no right to kafka_eos_turns", remedy="grant it")

    acquire_lease(tasks.left(["t"]), take)
    assert tasks.now == 0
    (said,) = caplog.messages
    assert "and goes on without it" in said and "(ConfigurationError: no right to kafka_eos_turns" in said


class Airflow:
    """What Airflow's API answers the task; a list is of answers one after the other, of which the last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[Any]] = {}
        self.asked: list[str] = []
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", self, raising=False)
        monkeypatch.setattr(OutletEventAccessors, "_asset_ref_cache", {})  # of a process, which a task has to itself
        self.answer("GetAssetByUri", ErrorResponse(error=ErrorType.ASSET_NOT_FOUND))
        self.answer("GetAssetEventByAsset", AssetEventsResult(asset_events=[]))
        self.answer("GetAssetsByAlias", AssetsByAliasResult(assets=[]))

    def answer(self, question: str, *answers: Any) -> None:
        self.answers[question] = list(answers)

    def send(self, question: Any) -> Any:
        kind = type(question).__name__
        self.asked.append(kind)
        answers = self.answers[kind]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, ErrorResponse):
            raise AirflowRuntimeError(answer)
        return answer


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return Airflow(monkeypatch)


def tell(take: Callable[[Collection[str]], str | None], *outlets: Any) -> tuple[Told, list[str]]:
    """What is told of, and the names of the assets that the alias' events go to."""
    accessors = OutletEventAccessors()
    context: Any = {"outlet_events": accessors}
    told = announce(context, [*outlets, ALIAS], ARRIVAL, alias=ALIAS, topics=["t"], server="events", acquire=take)
    return told, [event.dest_asset_key.name for event in accessors[ALIAS].asset_alias_events]


def test_what_is_told_is_what_the_lease_was_acquired_for(tasks: Tasks, airflow: Airflow) -> None:
    """A reader's DAG gives the asset a name while the task waits: events go there; no look is behind the lease."""
    named = AssetResult(name="of a reader", uri=URI, group="")
    airflow.answer("GetAssetByUri", ErrorResponse(error=ErrorType.ASSET_NOT_FOUND), named)
    taken: list[list[str]] = []

    def take(what: Collection[str]) -> str | None:
        taken.append(sorted(what))
        airflow.asked.clear()
        return "another" if len(taken) == 1 else None

    assert tell(take) == (Told(outlets=[ALIAS], events=[URI]), ["of a reader"])
    assert taken == [sorted(to_be_made(URI, "days", is_made=made)) for made in (False, True)]
    assert airflow.asked == []


def events_of(load: str) -> AssetEventsResult:
    asset = {"name": URI, "uri": URI, "group": ""}
    event = {"id": 1, "timestamp": "2026-01-01T00:00:00Z", "extra": {"load": load}, "asset": asset}
    return AssetEventsResult(asset_events=[event | {"created_dagruns": []}])  # type: ignore[list-item]


def test_an_asset_that_has_events_is_made_though_no_dag_knows_it(airflow: Airflow) -> None:
    """That the alias has it is not, where another load's alias told."""
    airflow.answer("GetAssetEventByAsset", events_of("airflow/another/k"))
    taken: list[str] = []
    assert tell(taken.extend) == (Told(outlets=[ALIAS], events=[URI]), [URI])
    assert taken == to_be_made(URI, "days", is_made=True)


def test_a_load_that_was_told_of_by_another_name_acquires_no_lease(airflow: Airflow) -> None:
    """Those behind it would wait for nothing."""
    airflow.answer("GetAssetEventByAsset", events_of(ARRIVAL["load"]))
    assert tell(lambda what: pytest.fail(f"took {what}")) == (Told(outlets=[ALIAS], before=[URI]), [])


def test_before_airflow_3_3_the_alias_has_what_its_events_were_of(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(comms, "GetAssetsByAlias", raising=False)
    airflow.answer("GetAssetEventByAsset", events_of("airflow/another/k"))
    airflow.answer("GetAssetEventByAssetAlias", AssetEventsResult(asset_events=[]))
    taken: list[str] = []
    assert tell(taken.extend) == (Told(outlets=[ALIAS], events=[URI]), [URI])
    assert taken == to_be_made(URI, "days", is_made=True)
    airflow.answer("GetAssetEventByAssetAlias", events_of("airflow/another/k"))
    assert tell(lambda what: pytest.fail(f"took {what}")) == (Told(outlets=[ALIAS], events=[URI]), [URI])
    airflow.answer("GetAssetEventByAssetAlias", NO_ANSWER)
    assert tell(taken.extend) and len(taken) == 2, "where Airflow does not say, a lease is acquired"


def test_airflow_3_1_gives_all_events_and_they_are_looked_through(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no filters: its answer is a list, of years maybe."""
    given: list[Any] = []
    monkeypatch.setattr(context.InletEventsAccessors, "__getitem__", lambda *_: given)
    decided = datetime.fromisoformat(ARRIVAL["decided_at"])
    given += [SimpleNamespace(timestamp=decided - timedelta(days=1), extra={"load": ARRIVAL["load"]})]
    assert tell(lambda _: None)[0].before == [], "of an earlier attempt, before the decision"
    given += [SimpleNamespace(timestamp=decided, extra=None)] * 3
    given += [SimpleNamespace(timestamp=decided, extra={"load": ARRIVAL["load"]})]
    assert tell(lambda _: None)[0].before == [URI]


def test_an_outlet_that_is_told_of_while_its_task_waits_is_not_told_of_again(tasks: Tasks, airflow: Airflow) -> None:
    """By another run of the same load, which had the lease of a topic."""
    report = Asset("file:///report")

    def take(_: Collection[str]) -> str | None:
        airflow.answer("GetAssetEventByAsset", events_of(ARRIVAL["load"]))
        return "the other run"

    assert tell(take, report) == (Told(outlets=[ALIAS], before=[report.uri, URI]), [])


def test_where_the_author_names_the_asset_nothing_is_asked_of_the_alias(airflow: Airflow) -> None:
    own = Asset(name="own", uri=URI)
    assert tell(lambda what: pytest.fail(f"took {what}"), own) == (Told(outlets=[own, ALIAS], events=[URI]), [])
    assert "GetAssetsByAlias" not in airflow.asked


@pytest.mark.parametrize("answer", [NO_ANSWER, ErrorResponse(error=ErrorType.ASSET_NOT_FOUND)])
def test_an_outlet_that_airflow_does_not_find_stays_one(airflow: Airflow, answer: ErrorResponse) -> None:
    """It went without an event for one error of the API; and of what is no asset Airflow warns if it has it."""
    airflow.answer("GetAssetByName", answer)
    report = Asset.ref(name="report")
    assert tell(lambda _: None, report) == (Told(outlets=[report, ALIAS], events=[URI]), [URI])


@pytest.mark.parametrize("error", [AirflowNotFoundException("no connection"), AirflowRuntimeError(NO_ANSWER)])
def test_a_connection_that_cannot_be_read_fails_no_visible_load(
    tasks: Tasks, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Where nothing is to be made it is not even read; else it is asked for again."""
    asked: list[float] = []

    def resolve(_: LoadedSensor) -> Any:
        asked.append(tasks.now)
        raise error

    monkeypatch.setattr(LoadedSensor, "_resolve", resolve)
    run = SimpleNamespace(dag_id="d", run_id="r", task_id="loaded", map_index=-1)
    for events in ("airflow/another/k", ARRIVAL["load"]):
        with DAG("d"):
            loaded = LoadedSensor(
                task_id="loaded", load_name="days", load_key="k", topics=["t"], asset_server="events"
            )
        airflow.answer("GetAssetEventByAsset", events_of(events))
        asked.clear()
        context: Any = {"ti": run, "outlet_events": OutletEventAccessors()}
        loaded.done(dict(ARRIVAL), context, Step(loaded, context))
        assert len(asked) == (PATIENCE.total_seconds() + 1 if events != ARRIVAL["load"] else 0)


def test_the_ledger_keeps_the_leases_of_each_task(
    tasks: Tasks, airflow: Airflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two in one run without a group, too: their owner is one. The connections are read once, not each second."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    place = SimpleNamespace(
        ledger=lambda: Ledger.open(url), settings=SimpleNamespace(bootstrap_servers="broker:9092")
    )
    resolved: list[str] = []
    monkeypatch.setattr(LoadedSensor, "_resolve", lambda self: resolved.append(self.task_id) or place)  # type: ignore[func-returns-value]
    monkeypatch.setattr(lineage, "PATIENCE", timedelta(seconds=3))
    for task, index in (("a", 0), ("a", 1), ("b", -1), ("a", 0)):
        with DAG("d"):
            loaded = LoadedSensor(task_id=task, load_name="days", load_key="k", topics=["t"])
        run = SimpleNamespace(dag_id="d", run_id="r", task_id=task, map_index=index)
        context: Any = {"ti": run, "outlet_events": OutletEventAccessors()}
        loaded.done(dict(ARRIVAL), context, Step(loaded, context))
    assert resolved == [task for task in "aaba" for _ in ("its server", "its ledger")]
    said = [m for m in caplog.messages if "and goes on without it" in m]
    assert len(said) == 2 and all("(d/r task a#map_index=0 has the lease)" in m for m in said)


@pytest.mark.parametrize("is_raised", [True, False])
def test_where_airflow_does_not_say_what_an_alias_has_leases_are_acquired(
    monkeypatch: pytest.MonkeyPatch, is_raised: bool
) -> None:
    """One answer of 500 failed loaded of a visible load."""

    def send(_: Any) -> Any:
        if is_raised:
            raise AirflowRuntimeError(NO_ANSWER)
        return NO_ANSWER

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=send), raising=False)
    monkeypatch.setattr(lineage, "_known", lambda accessors, uri: AssetUniqueKey("of a reader", uri))
    monkeypatch.setattr(lineage, "_was_told", lambda key, arrival: False)
    assert _look({}, [], [URI], ALIAS, ARRIVAL).to_be_made == to_be_made(URI, "days", is_made=True)
    answer = AssetsByAliasResult(assets=[{"id": 1, "name": "of a reader", "uri": URI, "group": ""}])  # type: ignore[list-item]
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=lambda _: answer), raising=False)
    assert _look({}, [], [URI], ALIAS, ARRIVAL).to_be_made == []
