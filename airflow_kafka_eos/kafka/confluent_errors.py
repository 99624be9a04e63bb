"""What librdkafka's error codes mean for a writer, as this package's errors."""

from __future__ import annotations

from confluent_kafka import KafkaError

from airflow_kafka_eos.errors import (
    AccessError,
    BrokerTooOldError,
    BrokerUnavailableError,
    ConfigurationError,
    KafkaEosError,
    ProducerFencedError,
    RecordError,
    TerminalError,
    TopicError,
)

_FENCED = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.INVALID_TXN_STATE,
}
_LOGIN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}
_ACCESS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_TOPIC = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION}
_RECORD = {KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG, KafkaError.INVALID_TIMESTAMP}
_TOO_OLD = {KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE}
_UNAVAILABLE = {
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
}


def translate(error: KafkaError, doing: str, transactional_id: str, *, topic: str = "") -> KafkaEosError:
    """The error to raise.

    :param doing: what was going on, such as ``writing to topic 'orders' partition 3``.
    :param topic: where a record was to go; empty where no record was.
    """
    code = error.code()
    kind: type[KafkaEosError]
    if code in _FENCED:
        kind = ProducerFencedError
        remedy = "Someone ended this transaction or took its id over (a newer attempt does so); clear prepare"
    elif code in _LOGIN:
        kind, remedy = AccessError, "Check security.protocol, sasl.mechanism and the login of the Kafka connection"
    elif code in _ACCESS:
        right = _right(code, topic, transactional_id)
        kind, remedy = AccessError, f"Grant the principal of the Kafka connection {right}"
    elif code in _TOPIC:
        kind, remedy = (
            TopicError,
            "Check the topic's name and number of partitions; a topic may have been deleted",
        )
    elif code in _RECORD:
        kind, remedy = RecordError, "Correct the record; a compacted topic takes no record without a key"
    elif code in _TOO_OLD:
        kind, remedy = BrokerTooOldError, "Kafka 3.9 or newer is needed"
    elif code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        kind, remedy = (
            ConfigurationError,
            "Lower the hold time, or raise the broker's transaction.max.timeout.ms",
        )
    elif code in _UNAVAILABLE or error.retriable():
        kind, remedy = (
            BrokerUnavailableError,
            "Check that the brokers are up and reachable from Spark's executors",
        )
    else:
        kind, remedy = TerminalError, "Look at the broker's log; clear prepare to write again"
    return kind(
        f"{doing} failed: {error.name()} ({error.str()})", remedy=remedy, transactional_id=transactional_id
    )


def _right(code: int, topic: str, transactional_id: str) -> str:
    if code == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        # the next attempt has other ids
        return f"WRITE (which includes DESCRIBE) on TransactionalIds prefixed {transactional_id.partition('.')[0]}."
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"WRITE on Topic {topic or 'that was written to'}"
    return "IDEMPOTENT_WRITE on Cluster"
