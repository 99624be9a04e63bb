"""The wire itself: brokers that are away, logins and permissions that are refused, secrets in logs."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest

from airflow_kafka_eos.errors import AccessError, BrokerTooOldError, BrokerUnavailableError
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client import wire as wires
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import PipelinedWire, Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import TopicPartition
from tests.kafka.open_transactions import an_id, coordinator_of, prepare, settings_of, wait_until
from tests.secured import PASSWORD, Secured, free_port

pytestmark = pytest.mark.broker

# -- a plain broker ----------------------------------------------------------------------------------------------


def test_a_broker_that_is_not_there_is_named() -> None:
    where = f"127.0.0.1:{free_port()}"
    settings = KafkaSettings.from_mapping({"bootstrap.servers": where, "sasl.password": PASSWORD})
    with Wire(settings, timeout_s=1) as wire, pytest.raises(BrokerUnavailableError, match=where) as caught:
        wire.broker_ids()
    assert "security.protocol" in str(caught.value)
    assert PASSWORD not in str(caught.value)
    with (
        Wire(settings, timeout_s=1) as wire,
        pytest.raises(BrokerUnavailableError, match=rf"describing.*{where}"),
    ):
        coordinator_of(wire).describe([an_id("any")])


def test_who_waits_for_brokers_is_told_so_before_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where nobody has set up logging, as in a Spark driver: Python shows warnings by itself."""
    monkeypatch.setattr(wires, "SAYS_SO_AFTER_S", 0.2)
    where = f"127.0.0.1:{free_port()}"
    settings = KafkaSettings.from_mapping({"bootstrap.servers": where, "sasl.password": PASSWORD})
    with Wire(settings, timeout_s=1) as wire, pytest.raises(BrokerUnavailableError):
        wire.broker_ids()
    (said,) = [r.getMessage() for r in caplog.records if r.name == wires.__name__ and r.levelname == "WARNING"]
    assert said.startswith(f"the Kafka brokers at {where} do not answer yet (") and PASSWORD not in said


def test_a_closed_wire_says_so(kafka: LocalKafka) -> None:
    wire = Wire(settings_of(kafka.bootstrap_servers))
    with wire:
        assert wire.broker_ids() == kafka.node_ids
    wire.close()
    with pytest.raises(BrokerUnavailableError, match="closed"):
        wire.broker_ids()


def test_versions_are_those_that_both_sides_speak(kafka: LocalKafka) -> None:
    with Wire(settings_of(kafka.bootstrap_servers)) as wire:
        assert wire.api_version(EndTxnRequest) == 5
        assert wire.api_version(InitProducerIdRequest) == 6
        with pytest.raises(BrokerTooOldError):
            # the client's own highest version is 1, the broker's highest is 0
            wire.send_to_broker(wire.broker_ids()[0], DescribeTransactionsRequest(min_version=1))
        with pytest.raises(BrokerUnavailableError):
            wire.send_to_broker(4711, ListTransactionsRequest(state_filters=[], producer_id_filters=[]))


def test_a_broker_is_reached_where_a_request_would_not_wait_for_its_connection() -> None:
    with (
        LocalKafka(version="4.4", heap="256m") as kafka,
        PipelinedWire(settings_of(kafka.bootstrap_servers), timeout_s=60, request_timeout_s=60) as wire,
    ):
        (node,) = wire.broker_ids()
        wire._manager.close(node)
        kafka.pause()
        try:
            assert not wire.is_reached(node)
        finally:
            kafka.resume()
        wait_until(lambda: wire.is_reached(node), "its connection")
        assert not wire.is_reached(4711), "nobody has told of that one"


def test_several_requests_find_the_way_by_themselves(kafka: LocalKafka) -> None:
    with Wire(settings_of(kafka.bootstrap_servers)) as wire:
        answer = wire.send_to_coordinator("x", DescribeTransactionsRequest(transactional_ids=["x"]))
        assert [row.error_code for row in answer.transaction_states] == [105]


# -- three brokers: coordinators and leaders move ----------------------------------------------------------------


def test_one_wire_outlives_the_death_of_a_coordinator_and_leader() -> None:
    with LocalKafka(brokers=3) as three:
        three.create_topic("orders", partitions=3)
        tps = {TopicPartition("orders", p): 2 for p in range(3)}
        with Wire(settings_of(three.bootstrap_servers)) as wire:
            coordinator, partitions = coordinator_of(wire), Partitions(wire)
            assert wire.broker_ids() == [1, 2, 3]
            ids = {n: i.topic_id for n, i in partitions.topic_info(["orders"]).items()}
            txn, last = prepare(coordinator, three.bootstrap_servers, an_id("moves"), tps, timeout_ms=600_000)
            assert partitions.end_offsets(tps) == dict.fromkeys(tps, 2)
            three.kill(wire.coordinators([txn.transactional_id])[txn.transactional_id])
            assert coordinator.end(txn, Verdict.COMMIT) is EndAnswer.DONE
            assert coordinator.end(txn, Verdict.COMMIT) is EndAnswer.DONE
            assert coordinator.describe([txn.transactional_id])[txn.transactional_id].state.producer_id == (
                txn.state.producer_id
            )
            found = partitions.markers(txn.state.producer_id, last, ids)
            assert set(found) == set(tps)
            assert set(partitions.last_stable_offsets(tps)) == set(tps)


# -- a secured broker --------------------------------------------------------------------------------------------


def test_a_right_password_logs_in_and_never_reaches_a_log(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "kafka"), Wire(secured.login()) as wire:
        assert wire.broker_ids() == [1]
    assert caplog.records
    assert PASSWORD not in caplog.text


def test_a_wrong_password_is_refused_at_once(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        caplog.at_level(logging.DEBUG, "kafka"),
        Wire(secured.login(sasl_password=PASSWORD + "-wrong"), timeout_s=20) as wire,
        pytest.raises(AccessError, match=r"refused the login.*sasl\.password") as caught,
    ):
        wire.broker_ids()
    assert secured.address in str(caught.value)
    assert PASSWORD not in str(caught.value) + repr(caught.value) + caplog.text


def test_a_mechanism_that_the_broker_does_not_have_is_refused(secured: Secured) -> None:
    settings = secured.login(sasl_mechanism="SCRAM-SHA-256")
    with Wire(settings, timeout_s=20) as wire, pytest.raises(AccessError, match=r"sasl\.mechanism"):
        wire.broker_ids()


def test_no_login_where_one_is_needed_names_the_protocol(secured: Secured) -> None:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": secured.address})
    with Wire(settings, timeout_s=2) as wire, pytest.raises((AccessError, BrokerUnavailableError)) as caught:
        wire.broker_ids()
    assert "security.protocol" in str(caught.value)


def test_a_missing_permission_is_named(secured: Secured) -> None:
    plain = secured.plain
    tp = TopicPartition("orders", 0)
    with Wire(settings_of(plain.bootstrap_servers)) as wire:
        txn, last = prepare(coordinator_of(wire), plain.bootstrap_servers, an_id("acl"), {tp: 1})
        ids = {n: i.topic_id for n, i in Partitions(wire).topic_info(["orders"]).items()}
    with Wire(secured.login(), timeout_s=20) as wire:
        coordinator, partitions = coordinator_of(wire), Partitions(wire)
        with pytest.raises(AccessError, match=f"DESCRIBE on TransactionalId {txn.transactional_id}"):
            coordinator.describe([txn.transactional_id])
        with pytest.raises(AccessError, match="DESCRIBE on Topic orders"):
            partitions.topic_info(["orders"])
        with pytest.raises(AccessError, match="DESCRIBE on Topic orders"):
            partitions.last_stable_offsets([tp])
        with pytest.raises(AccessError, match="DESCRIBE on Topic orders"):
            partitions.markers(txn.state.producer_id, last, ids)
        assert partitions.topic_config(["orders"], ["retention.ms"]) == {"orders": {}}
        assert partitions.broker_configs(["transaction.max.timeout.ms"]) == {1: {}}
        assert coordinator.list_open("airflow.") == []  # the broker leaves them out without a word
        brokers = frozenset((-1, node_id, -1) for node_id in wire.broker_ids())
        assert coordinator.epochs() == brokers  # without DESCRIBE on __transaction_state

        grant(plain, ResourceType.TOPIC, "orders", AclOperation.DESCRIBE)
        grant(plain, ResourceType.TRANSACTIONAL_ID, txn.transactional_id, AclOperation.DESCRIBE)
        assert coordinator.describe([txn.transactional_id])[txn.transactional_id].is_open
        assert partitions.topic_info(["orders"])["orders"].topic_id == ids["orders"]
        with pytest.raises(AccessError, match="READ on Topic orders"):
            partitions.markers(txn.state.producer_id, last, ids)
        with pytest.raises(AccessError, match="READ on Topic orders"):
            partitions.producers([tp])
        with pytest.raises(AccessError, match=f"WRITE on TransactionalId {txn.transactional_id}"):
            coordinator.end(txn, Verdict.ABORT)
        with pytest.raises(AccessError, match="TWO_PHASE_COMMIT"):
            coordinator.init_producer_id(txn.transactional_id, 60_000, enable_2pc=True)

        grant(plain, ResourceType.TRANSACTIONAL_ID, txn.transactional_id, AclOperation.WRITE)
        assert coordinator.end(txn, Verdict.ABORT) is EndAnswer.DONE
        with pytest.raises(AccessError, match="TWO_PHASE_COMMIT"):
            coordinator.init_producer_id(txn.transactional_id, 60_000, enable_2pc=True)


def grant(plain: LocalKafka, kind: ResourceType, name: str, operation: AclOperation) -> None:
    binding = AclBinding(
        kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW
    )
    admin = AdminClient({"bootstrap.servers": plain.bootstrap_servers})
    for done in admin.create_acls([binding]).values():
        done.result(30)
