"""What the Arrow writer takes from the Kafka settings: librdkafka's names, so that both writers read the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_kafka_eos.errors import ConfigurationError, nearest
from airflow_kafka_eos.kafka.settings import KafkaSettings

#: Kafka's codecs, by their numbers in a batch's attributes.
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
#: librdkafka's names of what the arrow writer goes by.
READ = (
    "compression.type",
    "compression.level",
    "partitioner",
    "batch.size",
    "queue.buffering.max.kbytes",
    "message.timeout.ms",
    "request.timeout.ms",
    "max.in.flight.requests.per.connection",
)
#: The first is the default: Java's.
PARTITIONERS = ("murmur2_random", "murmur2", "consistent_random", "consistent", "random")


@dataclass(frozen=True)
class ProducerOptions:
    """How to produce.

    :param batch_bytes: record batches are cut at this size before compression (``batch.size``), or at the topic's
        ``max.message.bytes`` where that is less.
    :param in_flight: requests on their way to one broker (``max.in.flight``); 5 is what a broker can put in order.
    :param buffer_bytes: records that are encoded and not yet acknowledged (``queue.buffering.max.kbytes``).
    :param delivery_timeout_s: a batch that is not acknowledged by then fails the task (``message.timeout.ms``).
    :param request_timeout_s: what a broker may take for one request (``request.timeout.ms``).
    """

    compression: str = "none"
    compression_level: int | None = None
    partitioner: str = "murmur2_random"
    batch_bytes: int = 1_000_000
    in_flight: int = 5
    buffer_bytes: int = 32 * 1024 * 1024
    delivery_timeout_s: float = 120.0
    request_timeout_s: float = 30.0

    @classmethod
    def from_settings(cls, settings: KafkaSettings) -> ProducerOptions:
        """Read the settings.

        :raises ConfigurationError: naming a setting that is misshapen or that the Arrow writer cannot follow.
        """
        given: Mapping[str, str] = settings.for_librdkafka()
        level = _number(given, "compression.level", -1)
        seconds = 1000
        return cls(
            compression=_one_of(given, "compression.type", COMPRESSIONS),
            compression_level=None if level == -1 else level,
            partitioner=_one_of(given, "partitioner", PARTITIONERS),
            batch_bytes=_number(given, "batch.size", cls.batch_bytes, least=1),
            in_flight=_number(given, "max.in.flight.requests.per.connection", cls.in_flight, least=1),
            buffer_bytes=1024 * _number(given, "queue.buffering.max.kbytes", cls.buffer_bytes // 1024, least=1),
            delivery_timeout_s=_number(given, "message.timeout.ms", 120 * seconds, least=1) / seconds,
            request_timeout_s=_number(given, "request.timeout.ms", 30 * seconds, least=1) / seconds,
        )


def _one_of(given: Mapping[str, str], key: str, known: tuple[str, ...]) -> str:
    value = given.get(key, known[0])
    if value not in known:
        near = nearest(value, known)
        meant = f"Did you mean {near}? " if near else ""
        raise ConfigurationError(
            f"the Kafka setting {key} is {value!r}, which the arrow writer does not have",
            remedy=f"{meant}Use one of {', '.join(known)}, or writer=confluent",
        )
    return value


def _number(given: Mapping[str, str], key: str, default: int, *, least: int | None = None) -> int:
    text = given.get(key)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or (least is not None and value < least):
        raise ConfigurationError(
            f"the Kafka setting {key} is {text!r}",
            remedy=f"Use a whole number{'' if least is None else f' from {least} on'}",
        )
    return value
