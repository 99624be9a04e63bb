"""Other applications' traffic tells the truth about itself, also where brokers are killed and its id is taken."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from airflow_kafka_eos.kafka.admin.end_transactions import end_all
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState
from tests.faults import traffic
from tests.faults.checkers import judge
from tests.faults.facts import Fate, Observation
from tests.faults.observing import Observers, _admin
from tests.faults.traffic import Applications, HeldTransaction, totals, transactional
from tests.faults.visible import FOREIGN, PLAIN, Visible

PARTITIONS = 3


def observed(servers: str, topic: str, applications: Applications, meanwhile: Callable[[], None]) -> Observation:
    with Observers(servers, {topic: PARTITIONS}) as observers:
        applications.start()
        meanwhile()
        foreign, plain = applications.stop()
        return observers.observe([], foreign, plain, settle_s=20)


def test_undisturbed(kafka: LocalKafka, topic: Callable[..., str]) -> None:
    name = topic(partitions=PARTITIONS)
    applications = Applications(kafka.bootstrap_servers, [name], f"eos.{name}.1-0-1x", seed=1)
    seen = observed(kafka.bootstrap_servers, name, applications, lambda: applications.wait_for(40, 400))
    assert judge(seen) == []
    assert applications.events == []
    fates = Counter(fact.fate for fact in seen.foreign)
    assert fates.keys() == {Fate.COMMITTED, Fate.ABORTED}
    assert 5 < fates[Fate.ABORTED] < fates[Fate.COMMITTED]
    assert [fact.unit for fact in seen.foreign] == list(range(1, len(seen.foreign) + 1))
    assert {5 <= fact.records <= 50 for fact in seen.foreign} == {True}
    there = Visible(seen.final)
    for fact in seen.foreign:
        found = there.unit(FOREIGN, fact.producer, fact.unit)
        assert len(found) == (fact.records if fact.fate is Fate.COMMITTED else 0)
    (plain,) = seen.plain
    assert list(plain.acked) == list(range(len(there.all_of(PLAIN, plain.producer))))
    assert len(plain.acked) >= 400
    assert totals(seen.foreign, seen.plain) == (fates[Fate.COMMITTED], len(plain.acked))


def test_a_seed_makes_the_same_transactions(kafka: LocalKafka, topic: Callable[..., str]) -> None:
    name = topic(partitions=PARTITIONS)
    made = []
    for n in range(2):
        one = Applications(kafka.bootstrap_servers, [name], f"eos.{name}.{n}", seed=5)
        one.start()
        one.wait_for(8, 0)
        foreign, _ = one.stop()
        made.append([(fact.topic, fact.records, fact.fate) for fact in foreign])
    same = min(map(len, made))
    assert same >= 8 and made[0][:same] == made[1][:same]


def test_somebody_takes_its_id(kafka: LocalKafka, topic: Callable[..., str]) -> None:
    """A stranger's transaction is ended: the checkers must hear of it, whatever the client did at that moment."""
    name = topic(partitions=PARTITIONS)
    applications = Applications(kafka.bootstrap_servers, [name], f"eos.{name}.1-0-1x", seed=2, pause_s=0.005)

    def take() -> None:
        for _ in range(6):
            time.sleep(0.3)
            transactional(kafka.bootstrap_servers, f"eos.{name}.1-0-1x")

    seen = observed(kafka.bootstrap_servers, name, applications, take)
    assert {v.kind for v in judge(seen)} == {"foreign_touched"}
    assert any("was touched" in text for _, text in applications.events)


@pytest.mark.parametrize("verdict", Verdict)
def test_somebody_ends_its_transaction(kafka: LocalKafka, topic: Callable[..., str], verdict: Verdict) -> None:
    """Ended as a product would that takes an id for its own: by EndTxn, in the identity that brokers list."""
    servers, name = kafka.bootstrap_servers, topic(partitions=PARTITIONS)
    held = HeldTransaction(servers, name, f"ns.0123456789.orders.{name}.1-0-2")
    with Observers(servers, {name: PARTITIONS}) as observers:
        with closing(_admin(servers)) as admin:
            described = admin.describe_transactions([held.fact.transactional_id])[held.fact.transactional_id]
        state = PreparedTxnState(described.producer_id, described.producer_epoch)
        theirs = PreparedTransaction(held.fact.transactional_id, state)
        with Wire(KafkaSettings.from_mapping({"bootstrap.servers": servers})) as wire:
            endings = end_all(wire, [theirs], verdict, timeout_s=20)
        assert endings.errors == {}
        fact = held.commit()
        seen = observers.observe([], [fact], [], settle_s=20)
    found = judge(seen)
    assert {v.kind for v in found} == {"foreign_touched"}, held.events
    assert fact.was_ended and len(found) == (1 if verdict is Verdict.COMMIT else 2)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    """Brokers to kill."""
    with LocalKafka(brokers=request.param) as running:
        yield running


@pytest.mark.broker
@pytest.mark.parametrize("cluster", [1, 3], indirect=True)
def test_brokers_are_killed(cluster: LocalKafka) -> None:
    """Observers and traffic both go on behind it, miss nothing and double nothing; one transaction is held over it."""
    name = "killed"
    cluster.create_topic(name, partitions=PARTITIONS)
    servers = cluster.bootstrap_servers
    held = HeldTransaction(servers, name, f"eos.{name}.held")
    applications = Applications(servers, [name], f"eos.{name}.1-0-1x", seed=3)
    with Observers(servers, {name: PARTITIONS}) as observers:
        applications.start()
        before = threading.active_count()
        applications.wait_for(10, 100)
        cluster.kill(1)
        time.sleep(1)
        cluster.restart(1)
        applications.wait_for(25, 200)
        fact = held.commit()
        applications.wait_for(40, 300)
        foreign, plain = applications.stop()
        seen = observers.observe([], [fact, *foreign], plain, settle_s=60)
    assert judge(seen) == [], applications.events
    assert fact.fate is Fate.COMMITTED
    assert threading.active_count() < before
    units = {value.unit for value, _ in Visible(seen.final).all_of(FOREIGN, "app")}
    assert len(units) > 20


@pytest.mark.broker
@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_a_client_that_cannot_tell(cluster: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives up while no broker is there, and comes again under its id: all of a transaction is there, or nothing."""
    monkeypatch.setattr(traffic, "PATIENCE_S", 1.0)
    monkeypatch.setattr(traffic, "_CALL_S", 0.5)
    name = "silent"
    cluster.create_topic(name, partitions=PARTITIONS)
    applications = Applications(cluster.bootstrap_servers, [name], f"eos.{name}.1-0-1x", seed=4, pause_s=0.001)

    def silence() -> None:
        for _ in range(8):  # not every one hits a commit
            applications.wait_for(applications.transactional.ended + 3, 0)
            cluster.kill()
            time.sleep(3)
            cluster.restart()
            if any(fact.fate is Fate.UNKNOWN for fact in applications.transactional._facts):
                break
        applications.wait_for(applications.transactional.ended + 3, 0)

    seen = observed(cluster.bootstrap_servers, name, applications, silence)
    assert judge(seen) == [], applications.events
    fates = Counter(fact.fate for fact in seen.foreign)
    assert fates[Fate.UNKNOWN] > 0, applications.events
    assert seen.foreign[-1].fate is not Fate.UNKNOWN
