"""Two-phase commit is asked for, not guessed: what a broker lacks is named before anything is written (KIP-939)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from airflow_kafka_eos.errors import AccessError, ConfigurationError, KafkaEosError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import TransactionScope, TwoPhaseCommit, WriterName
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.preflight import check_cluster, choose_writer
from airflow_kafka_eos.transaction import TWO_PHASE_TIMEOUT_MS
from tests.secured import Secured

PREFIX = "airflow.0123456789.orders.k."
NOWHERE = KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"})
OFF, AUTO, REQUIRED = TwoPhaseCommit.OFF, TwoPhaseCommit.AUTO, TwoPhaseCommit.REQUIRED


def options(mode: TwoPhaseCommit, **changes: Any) -> WriteOptions:
    given = WriteOptions.parse(
        {
            "topic": "orders", "load.name": "orders", "load.key": "k", "load.attempt": "1",
            "ledger.id": "0123456789", "manifest.dir": "/m", "transaction.timeout.ms": "60000", "deadline.ms": "1",
        }
    )  # fmt: skip
    return replace(given, two_phase_commit=mode, **({"writer": WriterName.ARROW} | changes))


def known_ids(settings: KafkaSettings) -> list[str]:
    """Of the attempt's ids, those that a coordinator knows."""
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace="airflow", ledger_id="0123456789")
        return sorted(coordinator.describe([f"{PREFIX}1-probe", f"{PREFIX}1-load", f"{PREFIX}1-0-0"]))


@pytest.fixture(
    scope="module",
    params=[
        ("4.4.0", {"transaction.two.phase.commit.enable": "false"},
         r"switched off on broker 1 \(transaction.two.phase.commit.enable=false\).*on every broker"),
        ("4.4.0", {"unstable.api.versions.enable": "false"},
         r"do not offer InitProducerId v6.*unstable.api.versions.enable=true"),
        ("4.1.2", {"unstable.api.versions.enable": "false"},
         r"do not offer InitProducerId v6.*unstable.api.versions.enable=true"),
        ("4.0.2", {}, r"do not offer InitProducerId v6.*Use Kafka 4.1 or newer"),
        ("3.9.2", {}, r"do not offer InitProducerId v6.*Use Kafka 4.1 or newer"),
    ],
    ids=["switched off", "unstable versions off", "4.1.2 without them", "4.0.2", "3.9.2"],
)  # fmt: skip
def lacking(request: pytest.FixtureRequest) -> Iterator[tuple[KafkaSettings, str]]:
    """A broker without two-phase commit, and what is to be said of it."""
    version, settings, says = request.param
    with LocalKafka(version=version, broker_settings=settings) as running:
        running.create_topic("orders")
        yield KafkaSettings.from_mapping({"bootstrap.servers": running.bootstrap_servers}), says


@pytest.mark.broker
def test_required_fails_before_anything_is_written_and_says_what_to_set(lacking: tuple[KafkaSettings, str]) -> None:
    settings, says = lacking
    with pytest.raises(KafkaEosError, match=says):
        check_cluster(settings, options(REQUIRED))
    assert known_ids(settings) == []


@pytest.mark.broker
def test_auto_falls_back_to_the_hold_time_and_says_why(
    lacking: tuple[KafkaSettings, str], caplog: pytest.LogCaptureFixture
) -> None:
    settings, says = lacking
    with caplog.at_level(logging.WARNING):
        checked = check_cluster(settings, options(AUTO))
    assert (checked.two_phase_commit, checked.timeout_ms) == (False, 60_000)
    assert re.search(rf"no two-phase commit.*60 s.*{says}", caplog.text)
    # and so the hold time must be one that the broker grants
    with pytest.raises(ConfigurationError, match=r"transaction\.max\.timeout\.ms=900000 at most"):
        check_cluster(settings, options(AUTO, transaction_timeout_ms=10**7))


def test_where_it_is_granted_the_hold_time_is_no_limit(kafka: LocalKafka, topic: Callable[..., str]) -> None:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    name = topic(1)
    for mode in (AUTO, REQUIRED):
        checked = check_cluster(settings, options(mode, topics=(name,), transaction_timeout_ms=10**7))
        assert (checked.two_phase_commit, checked.timeout_ms) == (True, TWO_PHASE_TIMEOUT_MS)
    assert known_ids(settings) == [f"{PREFIX}1-probe"]  # initialised, never written with


def test_off_never_asks(kafka: LocalKafka, topic: Callable[..., str], caplog: pytest.LogCaptureFixture) -> None:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    of_its_own = replace(options(OFF).attempt, attempt=2)
    checked = check_cluster(settings, options(OFF, topics=(topic(1),), attempt=of_its_own))
    assert not checked.two_phase_commit
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace="airflow", ledger_id="0123456789")
        assert coordinator.describe([f"{PREFIX}2-probe"]) == {}
    assert "two-phase" not in caplog.text


@pytest.mark.broker
def test_the_missing_acl_is_told_from_the_missing_setting(secured: Secured) -> None:
    settings = secured.login()
    admin = AdminClient({"bootstrap.servers": secured.plain.bootstrap_servers})

    def grant(kind: ResourceType, name: str, operation: AclOperation) -> None:
        binding = AclBinding(
            kind, name, ResourcePatternType.PREFIXED, "User:alice", "*", operation, AclPermissionType.ALLOW
        )
        for done in admin.create_acls([binding]).values():
            done.result(30)

    try:
        grant(ResourceType.TOPIC, "orders", AclOperation.DESCRIBE)
        grant(ResourceType.TRANSACTIONAL_ID, PREFIX, AclOperation.DESCRIBE)
        with pytest.raises(AccessError, match=f"WRITE on TransactionalId {PREFIX}1-probe"):
            check_cluster(settings, options(REQUIRED))
        grant(ResourceType.TRANSACTIONAL_ID, PREFIX, AclOperation.WRITE)
        with pytest.raises(AccessError, match=r"the ACL TWO_PHASE_COMMIT is missing.*Grant the principal"):
            check_cluster(settings, options(REQUIRED))
        assert not check_cluster(settings, options(AUTO)).two_phase_commit
        grant(ResourceType.TRANSACTIONAL_ID, PREFIX, AclOperation.ALL)
        assert check_cluster(settings, options(REQUIRED)).two_phase_commit
    finally:  # the broker is that of all tests
        pattern, allow = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
        for kind in (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID):
            every = AclBindingFilter(kind, None, pattern, "User:alice", None, AclOperation.ANY, allow)  # type: ignore[arg-type]
            for done in admin.delete_acls([every]).values():
                done.result(30)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"two_phase_commit": REQUIRED}, r"writer=confluent cannot do transaction\.two\.phase\.commit=required"),
        ({"scope": TransactionScope.LOAD}, r"writer=confluent cannot do transaction\.scope=load"),
    ],
)
def test_the_plain_writer_refuses_what_it_cannot_do(changes: dict[str, Any], says: str) -> None:
    wanted = replace(options(AUTO, writer=WriterName.CONFLUENT), **changes)
    with pytest.raises(ConfigurationError, match=says):
        check_cluster(NOWHERE, wanted)  # before it is asked
    assert choose_writer(NOWHERE, replace(wanted, writer=WriterName.AUTO)) == (WriterName.ARROW, None)


def test_the_plain_writer_says_that_it_has_no_two_phase_commit(
    kafka: LocalKafka, topic: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    checked = check_cluster(settings, options(AUTO, writer=WriterName.CONFLUENT, topics=(topic(1),)))
    assert not checked.two_phase_commit
    assert "no two-phase commit" in caplog.text
    assert "writer=confluent has none" in caplog.text


def with_setting(settings: KafkaSettings, **given: str) -> KafkaSettings:
    named = {key.replace("_", "."): value for key, value in given.items()}
    return KafkaSettings.from_mapping(dict(settings.for_librdkafka()) | named)


def test_a_setting_never_drops_two_phase_commit_without_a_word(
    kafka: LocalKafka, topic: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """Only librdkafka has this partitioner, and librdkafka has no two-phase commit: somebody must say so."""
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    fnv1a = with_setting(settings, partitioner="fnv1a")
    wanted = options(AUTO, writer=WriterName.AUTO, topics=(topic(1),))
    with pytest.raises(ConfigurationError, match=r"grants two-phase commit.*partitioner is 'fnv1a'.*='off'"):
        check_cluster(fnv1a, wanted)
    for said in (replace(wanted, two_phase_commit=OFF), replace(wanted, writer=WriterName.CONFLUENT)):
        checked = check_cluster(fnv1a, said)
        assert (checked.writer, checked.two_phase_commit) == (WriterName.CONFLUENT, False)
    assert "writing with confluent-kafka" in caplog.text
    # a slip of the hand is no setting that librdkafka has
    for slip in ({"compression_type": "zsdt"}, {"partitioner": "fnv1b"}, {"batch_size": "1k"}, {"linger_ms": "soon"}):
        for said in (wanted, replace(wanted, two_phase_commit=OFF), replace(wanted, writer=WriterName.CONFLUENT)):
            with pytest.raises(ConfigurationError, match=r"the Kafka setting \S+ is '"):
                check_cluster(with_setting(settings, **slip), said)


@pytest.mark.broker
def test_where_there_is_none_to_drop_the_writer_is_chosen_by_the_settings(
    lacking: tuple[KafkaSettings, str], caplog: pytest.LogCaptureFixture
) -> None:
    settings, says = lacking
    with caplog.at_level(logging.WARNING):
        checked = check_cluster(with_setting(settings, partitioner="fnv1a"), options(AUTO, writer=WriterName.AUTO))
    assert (checked.writer, checked.two_phase_commit) == (WriterName.CONFLUENT, False)
    assert re.search(rf"writing with confluent-kafka.*fnv1a[\s\S]*no two-phase commit.*{says}", caplog.text)


def test_settings_that_librdkafka_does_not_take_together_are_refused_before_a_task(
    kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    longer = with_setting(settings, partitioner="fnv1a", message_timeout_ms="90000")
    with pytest.raises(ConfigurationError, match=r"`message.timeout.ms` must be set <= `transaction.timeout.ms`"):
        check_cluster(longer, options(OFF, writer=WriterName.AUTO, topics=(topic(1),)))
