"""What a run makes of its own failures, and of other applications that did nothing."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.naming import PooledId, TransactionalId, name_prefix, parse
from tests.faults import running
from tests.faults.checkers import TORN_S
from tests.faults.conducting import Conductor
from tests.faults.environment import delete_topics
from tests.faults.facts import Fate, ForeignFact, PlainFact
from tests.faults.generating import generate
from tests.faults.hands import Hands
from tests.faults.plan import Ended, Order, Plan
from tests.faults.result import Result
from tests.faults.scenario import Fault, Kind, LoadPlan
from tests.faults.striking import take
from tests.faults.timeline import Timeline, told
from tests.faults.traffic import OTHER_LEDGER, their_prefix

LEDGER = "abcdef0123"


def test_a_thread_that_fails_fails_the_run() -> None:
    """A load that nobody played is one that nobody judged."""
    hands = Hands()
    hands.begin(lambda: None)
    hands.begin(lambda: dict[str, object]()["gone"])
    hands.join()
    (found,) = hands.violations
    assert found.kind == "harness" and found.text.startswith("KeyError: 'gone'") and "Traceback" in found.text


COMMITTED, ABORTED = (ForeignFact("app", 1, "t", 5, fate, "id") for fate in (Fate.COMMITTED, Fate.ABORTED))


@pytest.mark.parametrize(
    ("foreign", "acked", "seconds", "is_enough"),
    [
        ((COMMITTED, ABORTED), (1,), 60.0, True),
        ((ABORTED,), (1,), 60.0, False),
        ((COMMITTED,), (), 60.0, False),
        ((), (), 1.0, True),
    ],
)
def test_other_applications_that_did_nothing_prove_nothing(
    foreign: tuple[ForeignFact, ...], acked: tuple[int, ...], seconds: float, is_enough: bool
) -> None:
    result = Result(generate(1))
    result.judge_others(foreign, [PlainFact("clicks", "t", acked)], seconds)
    assert [v.kind for v in result.violations] == ([] if is_enough else ["harness"])
    assert (result.foreign_committed, result.plain_acked) == (foreign.count(COMMITTED), len(acked))


@pytest.mark.parametrize(("naming", "kind"), [("pooling", PooledId), ("incrementing", TransactionalId)])
def test_ids_of_other_applications_are_of_our_kind(naming: str, kind: type) -> None:
    """One that looks like nobody's would be spared by any product."""
    found = parse(their_prefix(name_prefix("ns", LEDGER, "orders"), LEDGER, naming, "ns-0") + "1")
    assert isinstance(found, kind) and found is not None
    assert found.ledger_id == OTHER_LEDGER and parse(str(found).replace(OTHER_LEDGER, LEDGER)) is not None


def test_a_cluster_that_is_slow_to_delete_fails_no_run(tmp_path: Path) -> None:
    delete_topics("127.0.0.1:1", ["t"], Timeline(str(tmp_path), "runner"), longest_s=0.2)
    assert "topics are not deleted error=TimeoutError" in told(str(tmp_path))


class FakeLedger:
    """Of two loads: the first is decided and lost, the second is committed."""

    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    def open(cls, url: str) -> FakeLedger:
        return cls(url)

    def __enter__(self) -> FakeLedger:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def load(self, load: LoadIdentity) -> SimpleNamespace:
        return SimpleNamespace(state=LoadState.REPAIRING if load.key.endswith("-0") else LoadState.COMMITTED)

    def attempts(self, load: LoadIdentity) -> list[SimpleNamespace]:
        return [SimpleNamespace(verdict=Verdict.COMMIT, number=1)]


@pytest.mark.parametrize("failing", [1, running.MOST_SWEEPS])
def test_what_maintenance_cannot_finish(failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person clears commit where it complains; where it never stops, the run was not as it must be."""
    asked: list[tuple[str, int]] = []

    def ask(address: str, order: Order) -> Ended:
        asked.append((order.role, order.load))
        sweeps = [role for role, _ in asked].count("maintenance")
        answer = {"swept": {"k": [f"id-{sweeps}"]}, "errors": ["lost"] if sweeps <= failing else [], "unknown": []}
        return Ended(answer=answer)

    monkeypatch.setattr(running, "ask", ask)
    monkeypatch.setattr(running, "Ledger", FakeLedger)
    scenario = replace(generate(1), loads=(LoadPlan(1, 1, 1), LoadPlan(1, 1, 1)))
    run = object.__new__(running._Run)
    run.scenario, run.plan = scenario, Plan(scenario.to_json(), str(tmp_path), "", "", "n", (("t",), ("t",)))
    run.environment, run.database = SimpleNamespace(zygote=""), SimpleNamespace(url="")  # type: ignore[assignment]
    run.targets = SimpleNamespace(recreated={}, restored=threading.Event())  # type: ignore[assignment]
    run._hands, run._ended, run._lock = Hands(), {}, threading.Lock()
    run._settle()
    rounds = min(failing + 1, running.MOST_SWEEPS)
    assert asked == [("maintenance", 0), ("commit", 0)] * failing + [("maintenance", 0)] * (rounds - failing)
    assert run._ended == {"k": [f"id-{n + 1}" for n in range(rounds)]}
    assert [v.kind for v in run._hands.violations] == ([] if failing == 1 else ["harness"])


@pytest.mark.parametrize(
    ("shares", "others", "is_there", "sweeps"),
    [(True, 1, False, True), (True, 1, True, False), (True, 0, False, False), (False, 1, False, False)],
)
def test_maintenance_comes_at_once_where_others_wait_for_it(
    shares: bool, others: int, is_there: bool, sweeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 321361683: decide and cleanup of a load that nobody clears were killed, and its neighbour in the topic was
    never told of. It comes for that load alone: its neighbours are at work."""
    asked: list[Order] = []

    def ask(address: str, order: Order) -> Ended:
        asked.append(order)
        return Ended(answer={"swept": {"k": ["id"]}})

    monkeypatch.setattr(running, "ask", ask)
    monkeypatch.setattr(Conductor, "play", lambda self: is_there)
    loads = (LoadPlan(1, 1, 1),) * (others + 1)
    scenario = replace(generate(1), loads=loads, shares_topic=shares, faults=())
    run = object.__new__(running._Run)
    run.scenario, run.plan = scenario, Plan(scenario.to_json(), str(tmp_path), "", "", "n", (("t",), ("t",)))
    run.environment, run.timeline = SimpleNamespace(zygote=""), Timeline(str(tmp_path), "runner")  # type: ignore[assignment]
    run._acked, run._ended, run._lock = set(), {}, threading.Lock()
    run._load(others)
    assert [(o.role, o.load, dict(o.details)) for o in asked] == [("maintenance", others, {"of_one": True})] * sweeps
    assert (run._acked, run._ended) == ({others} if is_there else set(), {"k": ["id"]} if sweeps else {})


def test_a_broker_that_was_not_struck_excuses_nothing(tmp_path: Path) -> None:
    scenario = replace(generate(1), faults=(Fault(Kind.BROKER_KILL, "any", seconds=3.0),))
    run = object.__new__(running._Run)
    run.scenario, run.plan = scenario, Plan(scenario.to_json(), str(tmp_path), "", "", "n", ())
    assert run._torn_s() == TORN_S and run._is_undisturbed()
    assert take(str(tmp_path), 0, scenario.faults[0], Timeline(str(tmp_path), "injector"))
    assert run._torn_s() == TORN_S + 13 and not run._is_undisturbed()
