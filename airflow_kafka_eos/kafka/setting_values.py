"""Values of Kafka settings that nobody takes: librdkafka, whose settings they are, is asked."""

from __future__ import annotations

import re

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.producer_options import LIBRDKAFKA_NUMBERS, READ, whole_number
from airflow_kafka_eos.kafka.settings import CONNECTION_KEYS, KafkaSettings

#: What looks at these is ``ProducerOptions`` and ``KafkaSettings``; a client id may be any text.
_ELSEWHERE = {*READ, "acks", "client.id", "enable.idempotence", "retries"}
_LINGER = "linger.ms"
_LINGER_MOST_MS = 900_000


def refuse_wrong_values(settings: KafkaSettings) -> None:
    """Refuse a slip of the hand in what the arrow writer does not read, and so would not see.

    :param settings: with names that are known.
    :raises ConfigurationError: naming the key, its value, and what it may be.
    """
    for key, value in settings.for_librdkafka().items():
        # how the connection is made is checked where it is read; librdkafka would look for files
        if key in _ELSEWHERE or key.startswith(CONNECTION_KEYS):
            continue
        if key in LIBRDKAFKA_NUMBERS:
            whole_number(key, value, LIBRDKAFKA_NUMBERS[key])
        elif key == _LINGER:
            _check_linger(value)
        elif answer := _answer(key, value):
            raise ConfigurationError(
                f"the Kafka setting {key} is {value!r}", remedy=f"Correct it, or remove it. librdkafka says: {answer}"
            )


def _check_linger(value: str) -> None:
    """The one number with a fraction. librdkafka need not be loaded for it, which takes a fifth of a second."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]*)?", value) or float(value) > _LINGER_MOST_MS:
        raise ConfigurationError(
            f"the Kafka setting {_LINGER} is {value!r}", remedy=f"Use a number from 0 to {_LINGER_MOST_MS}"
        )


def _answer(key: str, value: str) -> str:
    """What librdkafka has against a value; empty: nothing.

    Where it wants a number it takes 1k for 1, so that is asked about as a text. Where it wants a text it takes any.
    """
    from confluent_kafka import KafkaException, Producer

    half_a_number = re.match(r"[-+]?[0-9]", value) and not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value)
    for one in (value, "x") if half_a_number else (value,):
        try:
            Producer({key: one, "log_level": 0})
        except KafkaException as e:
            return str(e.args[0].str()).strip()
    return ""
