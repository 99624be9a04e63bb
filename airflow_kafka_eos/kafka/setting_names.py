"""Names of Kafka settings that nobody knows: librdkafka, whose names they are, is asked."""

from __future__ import annotations

from airflow_kafka_eos.errors import ConfigurationError, nearest
from airflow_kafka_eos.kafka.producer_options import READ
from airflow_kafka_eos.kafka.settings import CONNECTION_KEYS, KafkaSettings

#: Names that are right, without the fifth of a second that it takes to load librdkafka.
_RIGHT = {*READ, "acks", "client.id", "enable.idempotence", "linger.ms", "message.max.bytes", "socket.timeout.ms"}


def refuse_unknown_names(settings: KafkaSettings) -> None:
    """Refuse a misspelled name: the arrow writer would not see it, and records might go elsewhere.

    :raises ConfigurationError: naming the key, and the one that may be meant.
    """
    # how the connection is made is checked where it is read; librdkafka would connect, or ask for files
    for key, value in settings.for_librdkafka().items():
        if key not in _RIGHT and not key.startswith(CONNECTION_KEYS) and not _is_known(key, value):
            near = nearest(key, _RIGHT)
            raise ConfigurationError(
                f"the Kafka setting {key} is unknown",
                remedy=f"Did you mean {near}" if near else "Use librdkafka's names, or remove it",
            )


def _is_known(key: str, value: str) -> bool:
    from confluent_kafka import KafkaException, Producer

    try:
        Producer({key: value, "log_level": 0})
    except KafkaException as e:
        # its value is another matter: see setting_values
        return "No such configuration property" not in e.args[0].str()
    return True
