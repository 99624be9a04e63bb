"""Requests to transaction coordinators, on real brokers of two versions (EndTxn v5 and v4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_kafka_eos.errors import BrokerTooOldError, ConfigurationError, UndecidableError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator, init_error, pattern_of, rows_on, state_of
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer.interface import left_ms
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import (
    CoordinatorState,
    PreparedTransaction,
    PreparedTxnState,
    TopicPartition,
)
from tests.kafka.open_transactions import (
    a_prefix,
    an_id,
    begin,
    coordinator_of,
    prepare,
    settings_of,
    wait_ended,
    write,
)

pytestmark = pytest.mark.broker

FOREIGN_LEDGER = "ffffffffff"


@pytest.fixture(scope="module")
def wire(kafka: LocalKafka) -> Iterator[Wire]:
    with Wire(settings_of(kafka.bootstrap_servers)) as wire:
        yield wire


@pytest.fixture(scope="module")
def coordinator(wire: Wire) -> Coordinator:
    return coordinator_of(wire)


def state_of_id(coordinator: Coordinator, transactional_id: str) -> CoordinatorState:
    return coordinator.describe([transactional_id])[transactional_id].coordinator_state


def test_ending_twice_is_safe_and_the_answers_are_told_apart(
    kafka: LocalKafka, coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    name = topic()
    txn, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name), {TopicPartition(name, 0): 3})
    wrong_epoch = PreparedTransaction(
        txn.transactional_id, PreparedTxnState(txn.state.producer_id, txn.state.producer_epoch + 7)
    )
    wrong_producer = PreparedTransaction(
        txn.transactional_id, PreparedTxnState(txn.state.producer_id + 1000, txn.state.producer_epoch)
    )
    assert coordinator.end(wrong_epoch, Verdict.ABORT) is EndAnswer.FENCED
    assert coordinator.end(wrong_producer, Verdict.ABORT) is EndAnswer.FENCED
    assert coordinator.end(txn, Verdict.COMMIT) is EndAnswer.DONE
    assert coordinator.end(txn, Verdict.COMMIT) is EndAnswer.DONE
    assert coordinator.end(txn, Verdict.ABORT) is EndAnswer.WRONG_STATE


def test_an_abort_twice_is_safe_too(
    kafka: LocalKafka, coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    name = topic()
    txn, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name), {TopicPartition(name, 0): 3})
    answers = coordinator.end_many([txn, txn], Verdict.ABORT)
    assert answers == {txn.transactional_id: EndAnswer.DONE}
    assert coordinator.end(txn, Verdict.COMMIT) is EndAnswer.WRONG_STATE


def test_a_transaction_that_the_broker_timed_out_cannot_be_committed(
    kafka: LocalKafka, coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    name = topic()
    txn, _ = prepare(
        coordinator, kafka.bootstrap_servers, an_id(name), {TopicPartition(name, 0): 1}, timeout_ms=1000
    )
    wait_ended(coordinator, txn.transactional_id)
    # by EndTxn v5 it looks like a retry with the opposite verdict; by v4 it is fenced: hints, no evidence
    # (rule: log-is-the-evidence)
    assert coordinator.end(txn, Verdict.COMMIT) is EndAnswer.WRONG_STATE


def test_describe_leaves_out_what_no_coordinator_knows(
    kafka: LocalKafka, coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    name = topic(partitions=3)
    tps = {TopicPartition(name, p): 2 for p in (0, 2)}
    txn, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name), tps)
    unknown = [an_id(name, partition) for partition in range(1, 40)]
    found = coordinator.describe([*unknown, txn.transactional_id])
    assert set(found) == {txn.transactional_id}
    description = found[txn.transactional_id]
    assert (description.state, description.timeout_ms) == (txn.state, 60_000)
    assert description.partitions == set(tps)
    assert description.is_open
    assert 0 < description.time_left_ms(description.start_time_ms + 1) < 60_000
    assert coordinator.describe([]) == {}


def test_listing_shows_open_transactions_of_the_prefix_only(
    kafka: LocalKafka, coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    name = topic()
    tps = {TopicPartition(name, 0): 1}
    servers = kafka.bootstrap_servers
    ours, _ = prepare(coordinator, servers, an_id(name, 1), tps)
    finished, _ = prepare(coordinator, servers, an_id(name, 2), tps)
    prepare(coordinator, servers, an_id(name, 3, ledger_id=FOREIGN_LEDGER), tps)
    prepare(coordinator, servers, an_id(f"x{name}", 4), tps)
    coordinator.init_producer_id(an_id(name, 5), 60_000)  # nothing written: nothing is open
    assert coordinator.end(finished, Verdict.ABORT) is EndAnswer.DONE
    wait_ended(coordinator, finished.transactional_id)
    assert coordinator.list_open(a_prefix(name)) == [ours.transactional_id]


def test_a_prefix_is_no_regular_expression(
    kafka: LocalKafka, coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    name = topic()
    key = f"2026-01-01T00:00 +{name}"  # colon, blank and plus are percent-encoded
    txn, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(key), {TopicPartition(name, 0): 1})
    assert coordinator.list_open(a_prefix(key)) == [txn.transactional_id]
    assert coordinator.list_open(a_prefix(key).replace("-", ".")) == []
    assert pattern_of("a.b-c%2E") == "^a\\.b\\-c%2E.*$"


def test_a_state_filter_that_the_broker_does_not_know_hides_nothing(
    kafka: LocalKafka, wire: Wire, coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    name = topic()
    txn, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name), {TopicPartition(name, 0): 1})
    found = rows_on(wire, wire.broker_ids()[0], a_prefix(name), ["PreparePerhaps"], -1)
    assert found == [(txn.transactional_id, CoordinatorState.ONGOING)]
    assert state_of("PreparePerhaps") is CoordinatorState.UNKNOWN


def test_a_duration_filter_is_never_dropped_where_the_broker_lacks_it(
    kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-994 is ListTransactions v1, Kafka 3.8: a v0 would list everything as running long enough."""
    with Wire(settings_of(kafka.bootstrap_servers)) as wire:
        asked = coordinator_of(wire)
        assert asked.list_open("nobody.", longer_than_ms=10) == []
        monkeypatch.setattr(wire, "api_version", lambda _: 0)
        with pytest.raises(BrokerTooOldError, match="ListTransactions v1"):
            asked.list_open("nobody.", longer_than_ms=0)
        assert asked.list_open("nobody.") == []


def test_only_what_runs_longer_is_listed(
    kafka: LocalKafka, coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    name = topic()
    txn, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name), {TopicPartition(name, 0): 1})
    assert coordinator.list_open(a_prefix(name), longer_than_ms=600_000) == []
    assert coordinator.list_open(a_prefix(name), longer_than_ms=0) == [txn.transactional_id]


def test_what_is_committed_is_listed_by_name_and_aborted_is_not(
    kafka: LocalKafka, coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    name = topic()
    tps = {TopicPartition(name, 0): 1}
    done, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name, 1), tps)
    taken_back, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name, 2), tps)
    open_, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name, 3), tps)
    coordinator.end(done, Verdict.COMMIT)
    coordinator.end(taken_back, Verdict.ABORT)
    wait_ended(coordinator, taken_back.transactional_id)
    assert coordinator.list_committed(a_prefix(name)) == [done.transactional_id]
    every = sorted(t.transactional_id for t in (done, taken_back, open_))
    assert coordinator.list_known(a_prefix(name)) == every


def test_the_coordinators_places_name_each_partition_of_the_transaction_log(coordinator: Coordinator) -> None:
    places = coordinator.epochs()
    assert places is not None and places == coordinator.epochs()
    assert sorted(partition for partition, _, _ in places) == list(range(len(places)))
    assert {leader for _, leader, _ in places} == set(coordinator._wire.broker_ids())


@pytest.mark.parametrize(
    "foreign",
    [
        {"ledger_id": FOREIGN_LEDGER},
        {"namespace": "other"},
    ],
)
def test_another_deployments_transaction_is_never_ended_or_initialised(
    kafka: LocalKafka, coordinator: Coordinator, topic: Callable[..., str], foreign: dict[str, Any]
) -> None:
    name = topic()
    tps = {TopicPartition(name, 0): 1}
    ours, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name), tps)
    txn, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name, **foreign), tps)
    with pytest.raises(ConfigurationError, match="never ended or initialised from here") as caught:
        coordinator.end(txn, Verdict.ABORT)
    assert caught.value.transactional_id == txn.transactional_id
    with pytest.raises(ConfigurationError, match="never ended or initialised"):
        coordinator.end_many([ours, txn], Verdict.ABORT)
    with pytest.raises(ConfigurationError, match="never ended or initialised"):
        coordinator.init_producer_id(txn.transactional_id, 60_000)
    for one in (ours, txn):
        assert state_of_id(coordinator, one.transactional_id) is CoordinatorState.ONGOING


def test_another_applications_transaction_is_never_ended_or_initialised(
    kafka: LocalKafka, coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    name = topic()
    transactional_id = f"someone-elses-{name}"
    txn, _ = prepare(coordinator, kafka.bootstrap_servers, transactional_id, {TopicPartition(name, 0): 1})
    with pytest.raises(ConfigurationError, match="never ended or initialised"):
        coordinator.end(txn, Verdict.ABORT)
    with pytest.raises(ConfigurationError, match="never ended or initialised"):
        coordinator.init_producer_id(transactional_id, 60_000)
    assert state_of_id(coordinator, transactional_id) is CoordinatorState.ONGOING


def test_a_transaction_without_identity_is_not_ended(coordinator: Coordinator) -> None:
    with pytest.raises(ConfigurationError, match="without producer id and epoch"):
        coordinator.end(PreparedTransaction(an_id("none"), PreparedTxnState.EMPTY), Verdict.ABORT)


def test_initialising_answers_the_identity_of_the_transaction(
    kafka: LocalKafka, coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    name = topic()
    first = coordinator.init_producer_id(an_id(name), 60_000)
    second = coordinator.init_producer_id(an_id(name), 60_000)
    assert first != second
    assert coordinator.describe([an_id(name)])[an_id(name)].state == second


def test_past_the_deadline_nothing_is_initialised_however_long_it_took_to_get_there(
    coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    name = topic()
    with pytest.raises(UndecidableError, match="passed 1 ms ago"):
        coordinator.init_producer_id(an_id(name), 60_000, before_sending=lambda: left_ms(20, 21, an_id(name)))
    assert coordinator.describe([an_id(name)]) == {}
    assert left_ms(20, 10, an_id(name)) == 10


def test_initialising_aborts_what_is_open(
    kafka: LocalKafka, coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    """The broker answers CONCURRENT_TRANSACTIONS first: asked again."""
    name = topic()
    txn, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name), {TopicPartition(name, 0): 1})
    assert coordinator.init_producer_id(txn.transactional_id, 60_000) != txn.state
    assert coordinator.end(txn, Verdict.COMMIT) is EndAnswer.FENCED


def test_two_phase_commit_has_no_timeout(coordinator: Coordinator, topic: Callable[..., str]) -> None:
    transactional_id = an_id(topic())
    state = coordinator.init_producer_id(transactional_id, 60_000, enable_2pc=True)
    description = coordinator.describe([transactional_id])[transactional_id]
    assert (description.state, description.timeout_ms) == (state, 2_147_483_647)


def test_keep_prepared_is_refused_by_the_broker(coordinator: Coordinator, topic: Callable[..., str]) -> None:
    with pytest.raises(BrokerTooOldError, match="KeepPreparedTxn"):
        coordinator.init_producer_id(an_id(topic()), 60_000, enable_2pc=True, keep_prepared=True)


def test_a_timeout_above_the_brokers_limit_names_the_setting(
    coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    with pytest.raises(ConfigurationError, match=r"86400000 ms.*transaction\.max\.timeout\.ms"):
        coordinator.init_producer_id(an_id(topic()), 86_400_000)


def test_a_refused_two_phase_commit_names_setting_and_acl() -> None:
    text = str(init_error(53, "an.id", 60_000, enable_2pc=True))
    assert "transaction.two.phase.commit.enable=true" in text
    assert "TWO_PHASE_COMMIT" in text
    assert init_error(53, "an.id", 60_000, enable_2pc=False) is None


@pytest.fixture(scope="module")
def old_kafka() -> Iterator[LocalKafka]:
    with LocalKafka(version="3.9.2") as running:
        running.create_topic("orders", partitions=2)
        yield running


@pytest.fixture
def old(old_kafka: LocalKafka) -> Iterator[Coordinator]:
    with Wire(settings_of(old_kafka.bootstrap_servers)) as wire:
        yield coordinator_of(wire)


class TestOn392:
    """The core again where EndTxn is v4, an end bumps no epoch, and there is no two-phase commit."""

    def test_ends_lists_and_describes(self, old_kafka: LocalKafka, old: Coordinator) -> None:
        tps = {TopicPartition("orders", p): 2 for p in (0, 1)}
        servers = old_kafka.bootstrap_servers
        txn, _ = prepare(old, servers, an_id("old", 1), tps)
        other, _ = prepare(old, servers, an_id("old", 2, ledger_id=FOREIGN_LEDGER), tps)
        wrong = PreparedTransaction(
            txn.transactional_id, PreparedTxnState(txn.state.producer_id, txn.state.producer_epoch + 7)
        )
        assert old.list_open(a_prefix("old")) == [txn.transactional_id]
        assert set(old.describe([txn.transactional_id, an_id("never")])) == {txn.transactional_id}
        assert old.end(wrong, Verdict.COMMIT) is EndAnswer.FENCED
        assert old.end(txn, Verdict.COMMIT) is EndAnswer.DONE
        wait_ended(old, txn.transactional_id)
        assert old.end(txn, Verdict.COMMIT) is EndAnswer.DONE
        assert old.end(txn, Verdict.ABORT) is EndAnswer.WRONG_STATE
        with pytest.raises(ConfigurationError, match="never ended or initialised"):
            old.end(other, Verdict.ABORT)
        assert old.list_open(a_prefix("old")) == []

    def test_two_phase_commit_says_what_to_set(self, old: Coordinator) -> None:
        with pytest.raises(BrokerTooOldError, match=r"unstable\.api\.versions\.enable=true"):
            old.init_producer_id(an_id("old", 3), 60_000, enable_2pc=True)

    def test_a_timed_out_transaction_is_fenced(self, old_kafka: LocalKafka, old: Coordinator) -> None:
        tps = {TopicPartition("orders", 0): 1}
        txn, _ = prepare(old, old_kafka.bootstrap_servers, an_id("late"), tps, timeout_ms=1000)
        wait_ended(old, txn.transactional_id)
        assert old.end(txn, Verdict.COMMIT) is EndAnswer.FENCED

    def test_a_zombie_of_the_same_epoch_begins_anew(self, old_kafka: LocalKafka, old: Coordinator) -> None:
        """Transaction version 1: why identities come from the writer, and ids are quarantined.

        Rules: recorded-identity, verified-end-before-reuse.
        """
        producer = begin(old_kafka.bootstrap_servers, an_id("zombie"))
        write(producer, {TopicPartition("orders", 0): 1})
        state = old.describe([an_id("zombie")])[an_id("zombie")].state
        txn = PreparedTransaction(an_id("zombie"), state)
        assert old.end(txn, Verdict.ABORT) is EndAnswer.DONE
        wait_ended(old, an_id("zombie"))
        assert old.describe([an_id("zombie")])[an_id("zombie")].state == state
        assert old.init_producer_id(an_id("zombie"), 60_000) != state
