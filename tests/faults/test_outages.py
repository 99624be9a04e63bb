"""A fault from outside counts when it had an effect, and only then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_kafka_eos import naming
from airflow_kafka_eos.errors import LedgerUnavailableError
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.faults import outages
from tests.faults.environment import Environment
from tests.faults.generating import generate
from tests.faults.injecting import Injector
from tests.faults.ledger_server import LedgerServer
from tests.faults.outages import Strike, Targets
from tests.faults.plan import Plan
from tests.faults.proxy import FaultProxy
from tests.faults.scenario import LEDGER_SIDE, SHORT_HOLD_MS, Fault, Kind, LoadPlan
from tests.faults.striking import asleep_file, struck, take
from tests.faults.timeline import Timeline, events


class Cluster:
    """Three brokers, as far as anybody asks."""

    node_ids = (1, 2, 3)
    bootstrap_servers = "127.0.0.1:1"

    def kill(self, node: int | None) -> None:
        raise OSError("there is none")


def targets_of(folder: Path, fault: Fault, **found: object) -> Targets:
    scenario = replace(
        generate(1), loads=(LoadPlan(10, 10, 1),), faults=(fault,), naming="incrementing", hold_ms=SHORT_HOLD_MS
    )
    url = f"sqlite:///{folder}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    plan = Plan(scenario.to_json(), str(folder), "127.0.0.1:1", url, "n", (("t",),))
    return Targets(plan, found.pop("kafka", Cluster()), found.pop("user", lambda fault: None), **found)  # type: ignore[arg-type]


def strike_of(targets: Targets) -> Strike:
    with Ledger.open(targets.plan.ledger_url) as ledger:
        fault = targets.plan.scenario.faults[0]
        return Strike(targets, 0, fault, Timeline(targets.plan.folder, "me"), ledger.ledger_id)


def run_for(targets: Targets, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> bool:
    """Whether its only fault took effect in a run of that length."""
    injector = Injector(targets)
    injector.start()
    meanwhile()
    time.sleep(seconds)
    injector.stop()
    return struck(targets.plan.folder, 0)


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    made = FaultProxy(("127.0.0.1", 1))
    yield made
    made.close()


def test_a_strike_that_fails_has_not_struck(tmp_path: Path) -> None:
    targets = targets_of(tmp_path, Fault(Kind.BROKER_KILL, "all"))
    assert not run_for(targets, 0.1)
    assert "there is none" in str(events(str(tmp_path)))


def test_a_lock_that_nobody_meets_has_not_struck(tmp_path: Path) -> None:
    targets = targets_of(tmp_path, Fault(Kind.LEDGER_LOCKED, "database"))
    assert not run_for(targets, 0.3)


def test_a_lock_is_held_until_somebody_comes_and_then_for_its_time(tmp_path: Path) -> None:
    fault = Fault(Kind.LEDGER_LOCKED, "database", seconds=0.4)
    targets = targets_of(tmp_path, fault)

    def come() -> None:
        time.sleep(0.3)
        take(str(tmp_path), 0, fault, Timeline(str(tmp_path), "somebody"))
        begun = time.monotonic()
        with Ledger.open(targets.plan.ledger_url) as ledger:
            ledger.begin(targets.plan.identity(0), owner="dag/run")
        assert 0.2 < time.monotonic() - begun < 5

    assert run_for(targets, 0.0, come)


def test_an_outage_that_touches_nobody_has_not_struck(tmp_path: Path, proxy: FaultProxy) -> None:
    targets = targets_of(tmp_path, Fault(Kind.NET_CUT, LEDGER_SIDE), proxies=[proxy])
    assert not run_for(targets, 0.2)
    assert proxy.weather.away_until == 0.0


def test_an_outage_waits_for_a_connection(tmp_path: Path, proxy: FaultProxy) -> None:
    targets = targets_of(tmp_path, Fault(Kind.NET_CUT, LEDGER_SIDE), proxies=[proxy])
    soon = threading.Timer(0.3, proxy.weather.touched.set)

    def until_struck() -> None:
        soon.start()
        until = time.monotonic() + 30
        while time.monotonic() < until and not struck(str(tmp_path), 0):
            time.sleep(0.05)

    assert run_for(targets, 0.0, until_struck)
    assert proxy.weather.away_until == 0.0


def test_an_end_txn_has_struck_when_the_proxy_has_done_it(tmp_path: Path, proxy: FaultProxy) -> None:
    targets = targets_of(tmp_path, Fault(Kind.END_TXN_ANSWER_LOST, LEDGER_SIDE), proxies=[proxy])
    assert not run_for(targets, 0.0, lambda: proxy.weather.of_end_txn())
    proxy.weather.did_end_txn()
    assert struck(str(tmp_path), 0)


@pytest.mark.broker
def test_a_coordinator_is_that_of_a_transaction_of_the_load(
    tmp_path: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    targets = targets_of(tmp_path, Fault(Kind.BROKER_KILL, "coordinator"), kafka=kafka)
    strike = strike_of(targets)
    assert outages._coordinator(strike) is None
    name = naming.prefix(targets.plan.identity(0), strike.ledger_id) + "1-0-1"
    held = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name, "log_level": 0})
    held.init_transactions(30)
    held.begin_transaction()
    held.produce(topic(), b"one")
    held.flush(30)
    try:
        assert outages._coordinator(strike) == 1
        (found,) = [e for e in events(str(tmp_path)) if e["event"] == "its coordinator"]
        assert found["transactional_id"] == name
    finally:
        held.abort_transaction(30)


@pytest.mark.broker
@pytest.mark.parametrize("end", ["abort_transaction", "commit_transaction", ""])
def test_a_timeout_has_struck_where_an_open_transaction_was_ended_without_commit(
    end: str, tmp_path: Path, kafka: LocalKafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "outlasting_s", lambda plan: 2.0)
    targets = targets_of(tmp_path, Fault(Kind.TIMEOUT_BEFORE_DECISION, "decide"), kafka=kafka)
    name = naming.prefix(targets.plan.identity(0), strike_of(targets).ledger_id) + f"1-0-{len(end)}"
    held = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name, "log_level": 0})
    held.init_transactions(30)
    held.begin_transaction()
    held.produce(topic(), b"one")
    held.flush(30)

    def sleep() -> None:
        asleep_file(str(tmp_path), 0).touch()
        time.sleep(1)
        if end:
            getattr(held, end)(30)

    try:
        assert run_for(targets, 1.5, sleep) is (end == "abort_transaction")
    finally:
        if not end:
            held.abort_transaction(30)


@pytest.mark.parametrize(
    ("kind", "seconds"),
    # at once: whoever should reap the dead may not have come to it
    [(Kind.LEDGER_KILL, 0.0), (Kind.LEDGER_KILL, 4.0), (Kind.LEDGER_RESTART, 4.0)],
)
def test_a_postgresql_of_a_runs_own_goes_down_and_comes_back(kind: Kind, seconds: float, tmp_path: Path) -> None:
    scenario = replace(generate(1), faults=(Fault(kind, "database", seconds=seconds),), ledger="postgresql")
    with Environment(tmp_path) as environment:
        with environment.of(replace(scenario, faults=())) as same:
            assert same is environment
        with environment.of(scenario) as own:
            assert own is not environment and own.number() == environment.number() - 1
            database = own.ledger("postgresql", "run_1", tmp_path)
            plan = Plan(scenario.to_json(), str(tmp_path), "127.0.0.1:1", database.url, "n", (("t",),))
            server = LedgerServer.of(database.url)
            before = server._postmaster()
            with Ledger.open(database.url) as ledger:
                ledger.begin(plan.identity(0), owner="dag/run")
                targets = Targets(plan, Cluster(), lambda fault: None)  # type: ignore[arg-type]
                injector = Injector(targets)
                injector.start()
                if seconds:  # as long as it is down, and no client's patience outlasts that
                    with pytest.raises(LedgerUnavailableError):
                        while True:
                            ledger.attempts(plan.identity(0))
                assert has_struck(str(tmp_path))
                injector.stop()
                assert ledger.attempts(plan.identity(0))[0].number == 1
            assert server._postmaster().pid != before.pid
            database.drop()
    assert not server._lock.exists()


def has_struck(folder: str) -> bool:
    give_up = time.monotonic() + 30
    while not struck(folder, 0) and time.monotonic() < give_up:
        time.sleep(0.01)
    return struck(folder, 0)
