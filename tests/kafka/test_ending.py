"""Ending many transactions at a time, on real brokers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from kafka.net import connection

from airflow_kafka_eos.errors import AccessError, BrokerUnavailableError, ConfigurationError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer, end_all, end_txn, patience_s
from airflow_kafka_eos.kafka.client import pool, retry
from airflow_kafka_eos.kafka.client.connections import Manager
from airflow_kafka_eos.kafka.client.pool import Reply
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import (
    CoordinatorState,
    PreparedTransaction,
    PreparedTxnState,
    TopicPartition,
)
from tests.kafka.open_transactions import an_id, coordinator_of, open_one, settings_of, wait_until
from tests.secured import Secured, secured_broker

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def wire(kafka: LocalKafka) -> Iterator[Wire]:
    with Wire(settings_of(kafka.bootstrap_servers)) as wire:
        yield wire


def open_many(wire: Wire, key: str, count: int, topic: str) -> list[PreparedTransaction]:
    return [open_one(wire, an_id(key, n), TopicPartition(topic, 0)) for n in range(count)]


def states(coordinator: Coordinator, transactions: list[PreparedTransaction]) -> set[CoordinatorState]:
    found = coordinator.describe(t.transactional_id for t in transactions)
    assert len(found) == len(transactions)
    return {d.coordinator_state for d in found.values()}


def wait_for_states(
    coordinator: Coordinator, transactions: list[PreparedTransaction], wanted: set[CoordinatorState]
) -> None:
    wait_until(lambda: states(coordinator, transactions) <= wanted, f"{wanted}")


@dataclass
class Opened:
    """Connections beyond the first that were opened meanwhile, and how many there were at a time."""

    count: int = 0
    living: list[object] = field(default_factory=list)
    most: int = 0
    before_the_first: int = 0


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    seen = Opened()
    real = Manager.another_connection

    def counted(self: Manager, node_id: int) -> object:
        seen.before_the_first += node_id not in self._conns or not self._conns[node_id].connected
        connection = real(self, node_id)
        seen.count += 1
        seen.living.append(connection)
        seen.most = max(seen.most, sum(not c.closed for c in seen.living))  # type: ignore[attr-defined]
        return connection

    with monkeypatch.context() as patched:
        patched.setattr(Manager, "another_connection", counted)
        yield seen


def test_hundreds_are_ended_each_by_its_own_identity(
    wire: Wire, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, coordinator = topic(), coordinator_of(wire)
    every = open_many(wire, name, 300, name)
    fenced = PreparedTransaction(
        every[7].transactional_id, PreparedTxnState(every[7].state.producer_id, every[7].state.producer_epoch + 5)
    )
    to_commit, to_abort, left = [*every[:7], fenced, *every[8:200]], every[200:299], [every[7], every[299]]
    with counting(monkeypatch) as seen:
        answers = coordinator.end_many(to_commit, Verdict.COMMIT)
    assert answers == {t.transactional_id: EndAnswer.DONE for t in to_commit} | {
        fenced.transactional_id: EndAnswer.FENCED
    }
    assert list(answers) == [t.transactional_id for t in to_commit]
    # several connections, a bounded number, and none is left open
    assert 1 <= seen.most <= seen.count < pool.MAX_PER_BROKER
    assert all(c.closed for c in seen.living)  # type: ignore[attr-defined]
    assert set(coordinator.end_many(to_abort, Verdict.ABORT).values()) == {EndAnswer.DONE}
    wait_for_states(coordinator, [*every[:7], *every[8:200]], {CoordinatorState.COMPLETE_COMMIT})
    wait_for_states(coordinator, to_abort, {CoordinatorState.COMPLETE_ABORT})
    assert states(coordinator, left) == {CoordinatorState.ONGOING}
    # again, with the same verdict and with the other one
    assert set(coordinator.end_many(every[8:200], Verdict.COMMIT).values()) == {EndAnswer.DONE}
    assert set(coordinator.end_many(to_abort, Verdict.COMMIT).values()) == {EndAnswer.WRONG_STATE}


def test_a_foreign_id_among_many_and_nothing_is_sent(wire: Wire, topic: Callable[..., str]) -> None:
    name, coordinator = topic(), coordinator_of(wire)
    every = open_many(wire, name, 20, name)
    foreign = PreparedTransaction(an_id(name, 99, ledger_id="ffffffffff"), every[0].state)
    with pytest.raises(ConfigurationError, match="never ended or initialised") as caught:
        coordinator.end_many([*every, foreign], Verdict.ABORT)
    assert caught.value.transactional_id == foreign.transactional_id
    nameless = PreparedTransaction(an_id(name, 98), PreparedTxnState.EMPTY)
    with pytest.raises(ConfigurationError, match="without producer id and epoch"):
        coordinator.end_many([*every, nameless], Verdict.ABORT)
    assert states(coordinator, every) == {CoordinatorState.ONGOING}
    coordinator.end_many(every, Verdict.ABORT)


def test_a_few_take_no_further_connection(
    wire: Wire, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, coordinator = topic(), coordinator_of(wire)
    few = open_many(wire, name, 8, name)
    with counting(monkeypatch) as seen:
        assert set(coordinator.end_many([*few, *few], Verdict.ABORT).values()) == {EndAnswer.DONE}
    assert seen.count == 0
    assert coordinator.end_many([], Verdict.ABORT) == {}


def test_how_many_connections_and_how_much_patience() -> None:
    wanted = [pool.connections_for(n) for n in (0, 1, 16, 17, 64, 128, 10_000)]
    assert wanted == [1, 1, 1, 2, 4, 8, 8]
    assert [patience_s(n, 30) for n in (0, 1, 2, 3, 4, 5000)] == [2, 4, 8, 16, 30, 30]


def test_a_missing_permission_is_that_transactions_alone(secured: Secured) -> None:
    """alice may do nothing here: each id is refused by name, at once, and nothing is tried until the deadline."""
    ids = [an_id("denied", n) for n in range(3)]
    transactions = [PreparedTransaction(i, PreparedTxnState(1, 0)) for i in ids]
    with Wire(secured.login(), timeout_s=60) as wire:
        endings = end_all(wire, transactions, Verdict.ABORT, timeout_s=60)
        with pytest.raises(AccessError, match=ids[1]):
            coordinator_of(wire).end_many(transactions[1:], Verdict.ABORT)
    assert endings.answers == {}
    assert [(e.transactional_id, type(e)) for e in endings.errors.values()] == [(i, AccessError) for i in ids]


#: so long a login is good for there, s
SESSION_S = 2


def test_further_connections_log_in_again_when_a_session_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-368. What is sent in the middle of a login would wait on that one connection, however much it is."""
    real, at_login = pool.ConnectionPool._send, []

    def noted(self: object, broker: object, to: object, request: object) -> None:
        at_login.append(to._reauth.is_reauthenticating)  # type: ignore[attr-defined]
        real(self, broker, to, request)  # type: ignore[arg-type]

    monkeypatch.setattr(pool.ConnectionPool, "_send", noted)
    # at half of a session, not in its last 0.1 s: who stalls for so long sends before he looks whether a login is due
    monkeypatch.setattr(connection, "random", SimpleNamespace(uniform=lambda *_: 0.5))
    transaction = PreparedTransaction(an_id("again"), PreparedTxnState(1, 0))
    with (
        secured_broker(tmp_path, more={"connections.max.reauth.ms": str(SESSION_S * 1000)}) as secured,
        Wire(secured.login()) as wire,
        counting(monkeypatch) as seen,
        closing(wire.pool()) as open_pool,
    ):
        (node,) = wire.broker_ids()
        for number in range(40):
            open_pool.submit(node, end_txn(transaction, Verdict.ABORT), number, timeout_s=20)
        until = time.monotonic() + 3 * SESSION_S
        while time.monotonic() < until:
            for reply in open_pool.wait(20):
                assert reply.error is None
                open_pool.submit(node, end_txn(transaction, Verdict.ABORT), reply.tag, timeout_s=20)
        assert [c.closed for c in seen.living] == [False, False]  # type: ignore[attr-defined]
    assert len(at_login) > 40 and not any(at_login)


def test_no_broker_at_all_is_named_for_each(topic: Callable[..., str]) -> None:
    transactions = [PreparedTransaction(an_id("nobody", n), PreparedTxnState(1, 0)) for n in range(3)]
    with Wire(settings_of("127.0.0.1:9"), timeout_s=1) as wire:
        endings = end_all(wire, transactions, Verdict.ABORT, timeout_s=1)
    assert {type(e) for e in endings.errors.values()} == {BrokerUnavailableError}


# -- three brokers ------------------------------------------------------------------------------------------------


@contextmanager
def stopped(kafka: LocalKafka, node: int) -> Iterator[None]:
    """A broker that takes connections and answers nothing."""
    kafka.pause(node)
    try:
        yield
    finally:
        kafka.resume(node)


@pytest.fixture(scope="module")
def three() -> Iterator[LocalKafka]:
    # one copy of the transaction log: a coordinator that hangs is not replaced, and holds back no other one
    settings = {
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        # a prime: ids that differ by one number, written twice, would meet only every other one of twelve
        "transaction.state.log.num.partitions": "11",
        # one that is stopped for some seconds keeps what it leads: else the others would see it come and go for a while
        "broker.session.timeout.ms": "60000",
    }
    with LocalKafka(brokers=3, broker_settings=settings) as running:
        running.create_topic("orders", partitions=12, replication=1, config={"min.insync.replicas": "1"})
        yield running


def led_by(wire: Wire, node: int) -> TopicPartition:
    leaders = wire.leaders([TopicPartition("orders", p) for p in range(12)])
    return next(tp for tp, leader in leaders.items() if leader == node)


def all_lead(wire: Wire) -> bool:
    wire.forget_leaders(TopicPartition("orders", p) for p in range(12))
    ids = [f"a-{n}" for n in range(100)]
    wire.forget_coordinators(ids)
    try:
        leaders = wire.leaders([TopicPartition("orders", p) for p in range(12)])
        return len(set(leaders.values())) == len(set(wire.coordinators(ids).values())) == 3
    except (retry.Retry, BrokerUnavailableError):
        return False


def of_each_coordinator(wire: Wire, key: str, count: int) -> dict[int, list[PreparedTransaction]]:
    """So many open transactions of each coordinator, on a partition that the coordinator leads itself."""
    # one that hung in the test before is let in again after a while
    wait_until(lambda: all_lead(wire), "every broker leading", 60)
    found: dict[int, list[PreparedTransaction]] = {node: [] for node in wire.broker_ids()}
    ids = [an_id(key, n) for n in range(30 * count)]
    for transactional_id, node in wire.coordinators(ids).items():
        if len(found[node]) < count:
            found[node].append(open_one(wire, transactional_id, led_by(wire, node)))
    assert {len(each) for each in found.values()} == {count}
    return found


def test_a_coordinator_that_hangs_keeps_no_other_waiting(three: LocalKafka) -> None:
    """Six of its transactions come first; each would have cost a sequential loop a request's timeout."""
    with Wire(settings_of(three.bootstrap_servers)) as wire, Wire(settings_of(three.bootstrap_servers)) as watching:
        found = of_each_coordinator(wire, "hangs", 6)
        coordinator = coordinator_of(watching)
        hung = wire.coordinators([an_id("hangs", 0)])[an_id("hangs", 0)]
        others = [t for node, each in found.items() if node != hung for t in each]
        result: list[object] = []

        def end() -> None:
            try:
                result.append(coordinator_of(wire).end_many([*found[hung], *others], Verdict.COMMIT))
            except Exception as error:
                result.append(error)

        ending = threading.Thread(target=end)
        coordinator.describe(t.transactional_id for t in others)  # connected, before anything hangs
        with stopped(three, hung):
            ending.start()
            closed = {CoordinatorState.PREPARE_COMMIT, CoordinatorState.COMPLETE_COMMIT}
            wait_for_states(coordinator, others, closed)
            assert ending.is_alive()
            assert not result
        ending.join(60)
        assert result == [{t.transactional_id: EndAnswer.DONE for t in [*found[hung], *others]}]
        wait_for_states(coordinator, found[hung], {CoordinatorState.COMPLETE_COMMIT})


def test_what_hangs_until_the_end_is_an_error_after_all_others_were_ended(three: LocalKafka) -> None:
    with Wire(settings_of(three.bootstrap_servers), timeout_s=6) as wire:
        found = of_each_coordinator(wire, "stays", 3)
        coordinator = coordinator_of(wire)
        hung = random.choice(list(found))
        others = [t for node, each in found.items() if node != hung for t in each]
        with (
            stopped(three, hung),
            pytest.raises(BrokerUnavailableError, match=r"did not succeed within 6 s") as caught,
        ):
            coordinator.end_many([*found[hung], *others], Verdict.ABORT)
        assert caught.value.transactional_id == found[hung][0].transactional_id
    with Wire(settings_of(three.bootstrap_servers)) as wire:
        coordinator = coordinator_of(wire)
        wait_for_states(coordinator, others, {CoordinatorState.COMPLETE_ABORT})
        assert set(coordinator.end_many(found[hung], Verdict.ABORT).values()) == {EndAnswer.DONE}


def test_further_connections_wait_for_the_first_login_and_are_bounded(
    three: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong password is tried once, not eight times: brokers and directories lock accounts."""
    monkeypatch.setattr(pool, "MAX_EXTRA", 3)
    with Wire(settings_of(three.bootstrap_servers)) as wire:
        found = of_each_coordinator(wire, "bounded", 40)
        every = [t for each in found.values() for t in each]
        where = wire.coordinators(t.transactional_id for t in every)
    with Wire(settings_of(three.bootstrap_servers)) as wire, counting(monkeypatch) as seen:
        for transactional_id, node in where.items():
            wire.remember_coordinator(transactional_id, node)  # so that EndTxn is the first request to each
        assert set(coordinator_of(wire).end_many(every, Verdict.ABORT).values()) == {EndAnswer.DONE}
    assert (seen.before_the_first, seen.most) == (0, 3)


def test_an_answer_that_is_overdue_on_a_further_connection_is_given_up(three: LocalKafka) -> None:
    with Wire(settings_of(three.bootstrap_servers)) as wire:
        node, ended = next(iter(of_each_coordinator(wire, "overdue", 40).items()))
        coordinator_of(wire).end_many(ended, Verdict.ABORT)
        with closing(wire.pool()) as open_pool:

            def replies(timeout_s: float) -> list[Reply[int]]:
                for number, transaction in enumerate(ended):
                    open_pool.submit(node, end_txn(transaction, Verdict.ABORT), number, timeout_s=timeout_s)
                came: list[Reply[int]] = []
                wait_until(lambda: bool(came.extend(open_pool.wait(1))) or len(came) == 40, "40 replies")  # type: ignore[func-returns-value]
                return came

            assert {type(reply.error) for reply in replies(20)} == {type(None)}
            with stopped(three, node):
                overdue = replies(1)
            assert {reply.tag for reply in overdue} == set(range(40))
            assert {type(reply.error) for reply in overdue} == {BrokerUnavailableError}
