"""The sweep for runs that are gone: what it ends, what it rolls forward, what it leaves alone, what it says."""

from __future__ import annotations

import re
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_eos.errors import AccessError, ConfigurationError, InDoubtError
from airflow_kafka_eos.kafka.admin.open_producers import OpenProducer
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.hanging import HangingTransaction, Whose
from airflow_kafka_eos.protocol.metrics import Metrics
from airflow_kafka_eos.protocol.repair.recover import recover
from airflow_kafka_eos.protocol.stages.decide import Conditions, decide
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.stats import COUNTERS, GAUGES, TIMERS
from airflow_kafka_eos.transaction import TopicPartition
from tests.airflow.steps import CONTEXT, OWNER
from tests.protocol.lost import delete_records, lose
from tests.protocol.world import World, foreign_transaction

#: by which the ledger is made to look older
TWO_DAYS = timedelta(days=2)


class TaskInstance(SimpleNamespace):
    """As far as the operator asks it."""

    def __init__(self) -> None:
        super().__init__(dag_id="kafka_eos_maintenance", run_id="hourly", pushed={})

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def sweep(namespace: str, **arguments: Any) -> Any:
    from airflow_kafka_eos.operators.maintenance import SweepLeftoversOperator

    defaults: dict[str, Any] = {"namespaces": [namespace], "quiet_period": timedelta(seconds=0)}
    ti = TaskInstance()
    operator = SweepLeftoversOperator(task_id="sweep", **defaults | arguments)
    return operator, ti, {"ti": ti}


def found_by(namespace: str, **arguments: Any) -> dict[str, Any]:
    operator, _, context = sweep(namespace, **arguments)
    found: dict[str, Any] = operator.execute(context)[namespace]
    return found


@pytest.fixture
def left(home: Path, kafka: LocalKafka, topic: Callable[..., str]) -> Iterator[Callable[[str], World]]:
    """A factory of loads in the embedded ledger, as runs would leave them; each test has a namespace of its own."""
    from airflow_kafka_eos.hooks import KafkaEosHook

    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    name = topic(partitions=2)
    with KafkaEosHook().resolve().session(name, timeout_s=20) as own:
        yield lambda key: World(own, settings, name, LoadIdentity(name, "a.load", key))


def two_days_ago(home: Path, load: LoadIdentity) -> None:
    """Its attempts have shown no life since."""
    then = (datetime.now(UTC) - TWO_DAYS).isoformat(timespec="microseconds")
    with sqlite3.connect(home / "kafka_eos_ledger.db") as db:
        changed = db.execute(
            "UPDATE kafka_eos_attempts SET opened_at = :then, submitted_at = :then, prepared_at = :then WHERE load_id ="
            " (SELECT id FROM kafka_eos_loads WHERE load_key = :key AND namespace = :namespace)",
            {"then": then, "key": load.key, "namespace": load.namespace},
        )
        assert changed.rowcount == 1


def closed_two_days_ago(home: Path) -> None:
    then = (datetime.now(UTC) - TWO_DAYS).isoformat(timespec="microseconds")
    with sqlite3.connect(home / "kafka_eos_ledger.db") as db:
        db.execute("UPDATE kafka_eos_attempts SET closed_at = ?", (then,))


def state(world: World) -> LoadState:
    row = world.session.ledger.load(world.load)
    assert row is not None
    return row.state


def test_what_deleted_runs_left_is_ended_or_rolled_forward_and_nothing_else_is_touched(
    home: Path, left: Callable[[str], World]
) -> None:
    """Undecided and abandoned is aborted, decided is committed, the living and strangers stay."""
    deleted, decided, running = left("deleted"), left("decided"), left("running")
    gone = deleted.prepare(["never"]).transactions[0].transactional_id
    two_days_ago(home, deleted.load)
    decided.decide(decided.prepare(["decided"]))
    living = running.prepare(["running"])
    stranger = foreign_transaction(running, f"a-service-{running.topic}")
    found = found_by(deleted.load.namespace)
    assert {s["load"]: (s["aborted"], s["error"]) for s in found["swept"]} == {
        str(deleted.load): ([gone], None),
        str(decided.load): ([], None),
    }
    assert (state(deleted), state(decided)) == (LoadState.ABORTED, LoadState.COMMITTED)
    assert running.open_ids() == sorted(
        [living.transactions[0].transactional_id, f"a-service-{running.topic}"]
    )
    stranger.abort_transaction(30)
    running.decide(living)
    running.commit()
    assert running.visible() == ["decided", "running"]
    again = found_by(deleted.load.namespace)
    assert (again["swept"], again["problems"], again["numbers"]["open_transactions"]) == ([], [], 0)


def test_what_hangs_in_the_ledgers_topics_is_ended_once_no_coordinator_can_and_named_where_it_may_not(
    left: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it ends is tests/protocol/test_forgotten_edges.py's; here is that it looks, and where, and what it says."""
    from airflow_kafka_eos.protocol import hanging

    world = left("hanging")
    name = world.prepare(["never"]).transactions[0].transactional_id
    producer = OpenProducer(TopicPartition(world.topic, 0), 7, 0, 0, 0, 0)
    hangs = HangingTransaction(producer, name, "its coordinator shows CompleteAbort", 0, Whose.OURS)
    asked: list[Any] = []

    def end(session: Any, partitions: Any, *, longer_than_ms: Any, ended: list[Any]) -> None:
        asked.append((sorted(partitions), longer_than_ms))
        ended.append(hangs)

    monkeypatch.setattr(hanging, "end_ours", end)
    assert found_by(world.load.namespace)["hanging"] == [f"{name}: {hangs}"]
    assert asked == [([TopicPartition(world.topic, 0), TopicPartition(world.topic, 1)], None)]

    def refused(*_: Any, **__: Any) -> None:
        raise AccessError("the broker refused ALTER on Cluster")

    monkeypatch.setattr(hanging, "end_ours", refused)
    found = found_by(world.load.namespace, fail_on_problems=False)
    assert (found["hanging"], found["problems"]) == ([], ["the broker refused ALTER on Cluster."])
    assert found["numbers"]["problems"] == 1


def test_a_leader_that_is_away_keeps_nothing_else_from_being_found(
    home: Path, left: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

    from airflow_kafka_eos.errors import BrokerUnavailableError
    from airflow_kafka_eos.protocol import hanging

    world = left("old")
    world.load_all(["a"])
    closed_two_days_ago(home)
    namespace = world.load.namespace
    forgotten = str(TransactionalId(LoadIdentity(namespace, "lost", "1"), world.session.ledger.ledger_id, 1, 0, 0))
    producer = foreign_transaction(world, forgotten)

    def away(*_: Any, **__: Any) -> None:
        raise BrokerUnavailableError("no leader for orders-3")

    monkeypatch.setattr(hanging, "end_ours", away)
    operator, ti, context = sweep(namespace, prune_after=timedelta(days=1), fail_on_problems=False)
    with pytest.raises(AirflowException, match="no leader for orders-3") as caught:
        operator.execute(context)
    assert not isinstance(caught.value, AirflowFailException), "it is tried again"
    found = ti.pushed["return_value"][namespace]
    assert (found["unknown"], found["pruned"]) == ([forgotten], 1)
    assert (found["numbers"]["problems"], found["numbers"]["undecided_attempts"]) == (1, 0)
    producer.abort_transaction(30)


def test_what_is_of_another_cluster_is_passed_over_and_named_once_it_is_abandoned(
    home: Path, left: Callable[[str], World]
) -> None:
    moved, deleted = left("moved"), left("deleted")
    for world in (moved, deleted):
        world.prepare(["never"])
    with sqlite3.connect(home / "kafka_eos_ledger.db") as db:
        there = "UPDATE kafka_eos_attempts SET cluster_id = 'there' WHERE load_id = (SELECT id FROM kafka_eos_loads "
        assert db.execute(there + "WHERE load_key = 'moved' AND namespace = ?)", [moved.load.namespace]).rowcount == 1
    two_days_ago(home, deleted.load)
    found = found_by(moved.load.namespace)
    assert ([s["load"] for s in found["swept"]], found["other_cluster"]) == ([str(deleted.load)], [])
    two_days_ago(home, moved.load)
    found = found_by(moved.load.namespace, fail_on_problems=False)
    assert found["other_cluster"] == [{"load": str(moved.load), "attempt": 1, "cluster_id": "there"}]
    (problem,) = found["problems"]
    assert "attempt 1" in problem and f"leads to {moved.session.cluster_id}" in problem
    assert (state(moved), len(moved.open_ids())) == (LoadState.PREPARED, 1)


def test_what_only_a_person_can_judge_fails_it_without_retries_and_is_in_xcom(left: Callable[[str], World]) -> None:
    from airflow.providers.common.compat.sdk import AirflowFailException

    world, other = left("doubtful"), left("other")
    other.prepare(["never"])
    namespace = world.load.namespace
    forgotten = str(TransactionalId(LoadIdentity(namespace, "lost", "1"), world.session.ledger.ledger_id, 1, 0, 0))
    dead = str(TransactionalId(LoadIdentity(namespace, "dead", "1"), "0123456789", 1, 0, 0))
    producers = [foreign_transaction(world, name) for name in (forgotten, dead)]
    moment = {"abandoned_after": timedelta(milliseconds=1)}
    operator, ti, context = sweep(namespace, **moment)
    with pytest.raises(AirflowFailException, match="2 things need a person"):
        operator.execute(context)
    found = ti.pushed["return_value"][namespace]
    assert (found["unknown"], found["other_ledgers"]) == ([forgotten], [dead])
    assert [s["load"] for s in found["swept"]] == [str(other.load)], "one finding keeps no other from being swept"
    assert world.open_ids() == sorted([forgotten, dead]), "it ends neither"
    warned = found_by(namespace, fail_on_problems=False, **moment)
    assert len(warned["problems"]) == 2 and warned["numbers"]["unknown_transactions"] == 1
    for producer in producers:
        producer.abort_transaction(30)


def test_a_stranger_that_is_young_may_be_another_deployments_work(left: Callable[[str], World]) -> None:
    world = left("none")
    theirs = str(TransactionalId(world.load, "0123456789", 1, 0, 0))
    producer = foreign_transaction(world, theirs)
    assert found_by(world.load.namespace)["other_ledgers"] == []
    producer.abort_transaction(30)


def test_what_is_lost_and_what_is_in_doubt_is_named(left: Callable[[str], World]) -> None:
    """Decided and aborted by a hand: commit, or a person, repairs it; without its records only prepare can."""
    from airflow.providers.common.compat.sdk import AirflowFailException

    world = left("lost")
    manifest = world.prepare(["a", "b", "c"])
    world.decide(manifest)
    lose(world, manifest.transactions[0])
    operator, ti, context = sweep(world.load.namespace)
    with pytest.raises(AirflowFailException, match=r"were lost.*loads recover"):
        operator.execute(context)
    assert ti.pushed["return_value"][world.load.namespace]["in_doubt"] == []
    for partition in range(2):
        delete_records(world, partition, -1)
    with pytest.raises(InDoubtError):
        recover(world.session, world.load, by="a person", deadline_s=30)
    number = world.session.ledger.attempts(world.load)[-1].number
    assert world.session.ledger.record_in_doubt(world.load, number, "prepared again from a source that has changed")
    found = found_by(world.load.namespace, fail_on_problems=False)
    assert (found["in_doubt"], found["numbers"]["in_doubt_loads"]) == ([str(world.load)], 1)
    assert len(found["problems"]) == 1 and str(world.load) in found["problems"][0]
    assert (found["swept"], state(world)) == ([], LoadState.IN_DOUBT), "it stays what a person has to judge"


def test_a_namespace_whose_brokers_do_not_answer_keeps_no_other_and_is_tried_again(
    left: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

    from airflow_kafka_eos.errors import BrokerUnavailableError
    from airflow_kafka_eos.hooks import Resolved

    world = left("decided")
    world.decide(world.prepare(["a"]))
    real = Resolved.session

    def away(self: Resolved, namespace: str, **arguments: Any) -> Any:
        if namespace == "away":
            raise BrokerUnavailableError("no broker answers", remedy="wait")
        return real(self, namespace, **arguments)

    monkeypatch.setattr(Resolved, "session", away)
    operator, ti, context = sweep("away", namespaces=["away", world.load.namespace])
    with pytest.raises(AirflowException, match="no broker answers") as caught:
        operator.execute(context)
    assert not isinstance(caught.value, AirflowFailException)
    assert len(ti.pushed["return_value"][world.load.namespace]["swept"]) == 1
    assert state(world) is LoadState.COMMITTED


@contextmanager
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[set[str]], set[str]]]:
    """A listener that Airflow's Stats send to, as a task's process sets them up.

    What it gives waits for datagrams that begin so, and returns the numbers of all that came.
    """
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener, monkeypatch.context() as settings:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(10)
        port = str(listener.getsockname()[1])
        for name, value in {"ON": "True", "HOST": "127.0.0.1", "PORT": port, "INFLUXDB_ENABLED": "True"}.items():
            settings.setenv(f"AIRFLOW__METRICS__STATSD_{name}", value)
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)

        def wait_for(wanted: set[str]) -> set[str]:
            heard: set[str] = set()
            while not all(any(one.startswith(text) for one in heard) for text in wanted):
                heard.add(listener.recv(4096).decode())
            return {found[1] for one in heard if (found := re.match(r"airflow\.kafka_eos\.(\w+),", one))}

        yield wait_for
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)


def test_the_numbers_of_a_namespace_reach_a_statsd(
    left: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = left("open")
    world.prepare(["open"])
    namespace = world.load.namespace
    with statsd(monkeypatch) as wait_for:
        found_by(namespace)
        sent = wait_for(
            {
                *(f"airflow.kafka_eos.{number},namespace={namespace}:0|g" for number in GAUGES),
                f"airflow.kafka_eos.open_transactions,namespace={namespace}:1|g",
                f"airflow.kafka_eos.{namespace}.open_transactions:1|g",
            }
        )
    assert sent <= {*GAUGES, *(field.name for field in fields(Metrics))}


def test_a_load_that_a_run_has_written_is_counted_by_that_run(
    left: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_kafka_eos.sensors import LoadedSensor

    world = left("counted")
    manifest = world.prepare(["a", "b"], owner=OWNER)
    decide(world.session, manifest, Conditions(), owner=OWNER, margin_s=20)
    world.commit()
    load = world.load
    sensor = LoadedSensor(
        task_id="loaded", load_name=load.name, load_key=load.key, namespace=load.namespace, deferrable=False
    )
    with statsd(monkeypatch) as wait_for:
        assert sensor.execute(CONTEXT)["records"] == 2
        sent = wait_for(
            {
                f"airflow.kafka_eos.decided_to_visible,namespace={load.namespace}:",
                f"airflow.kafka_eos.loads,namespace={load.namespace}:1|c",
                f"airflow.kafka_eos.{load.namespace}.records:2|c",
                f"airflow.kafka_eos.attempts,namespace={load.namespace}:1|c",
            }
        )
    assert sent <= {*COUNTERS, *TIMERS}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"namespaces": "airflow"}, r"namespaces='airflow' is a text"),
        ({"abandoned_after": timedelta(0)}, "would end the attempts of runs that are at work"),
    ],
)
def test_what_would_sweep_the_living_is_refused_at_parse(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        sweep("airflow", **wrong)


def test_it_forgets_transactions_only_where_it_is_asked_to(home: Path, left: Callable[[str], World]) -> None:
    world = left("old")
    world.load_all(["a"])
    closed_two_days_ago(home)
    namespace = world.load.namespace
    for arguments in ({}, {"prune_after": timedelta(days=3)}):
        assert found_by(namespace, **arguments)["pruned"] == 0
    assert len(world.session.ledger.transactions(world.load, 1)) == 1
    assert found_by(namespace, prune_after=timedelta(days=1))["pruned"] == 1
    assert world.session.ledger.transactions(world.load, 1) == []
    assert (state(world), world.visible()) == (LoadState.COMMITTED, ["a"])
