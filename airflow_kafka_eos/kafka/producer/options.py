"""What the Arrow writer takes from the Kafka settings: librdkafka's names, so that both writers read the same.

A name that nobody knows, or a value that nobody takes, is refused: librdkafka, whose settings they are, is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_kafka_eos.errors import ConfigurationError, nearest, setting_error
from airflow_kafka_eos.kafka.client.librdkafka import LIBRDKAFKA_NUMBERS, Range, only_librdkafka
from airflow_kafka_eos.kafka.client.settings import CONNECTION_KEYS, KafkaSettings
from airflow_kafka_eos.kafka.records.batch import COMPRESSIONS

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
#: Names that are right, without the fifth of a second that it takes to load librdkafka.
SETTING_NAMES = {
    *READ, "acks", "client.id", "enable.idempotence", "linger.ms", "message.max.bytes", "socket.timeout.ms",
}  # fmt: skip
#: What looks at these is ``ProducerOptions`` and ``KafkaSettings``; a client id may be any text.
_ELSEWHERE = {*READ, "acks", "client.id", "enable.idempotence", "retries"}
#: what librdkafka says of a name; its value is another matter
_UNKNOWN = "No such configuration property"
_LINGER = "linger.ms"
_LINGER_MOST_MS = 900_000
#: The first is the default: Java's.
PARTITIONERS = ("murmur2_random", "murmur2", "consistent_random", "consistent", "random")
#: Those that librdkafka has, and the arrow writer has not.
LIBRDKAFKA_PARTITIONERS = ("fnv1a", "fnv1a_random")


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
        given: Mapping[str, str] = settings.texts
        level = _number(given, "compression.level", -1, Range(-1, 22))  # zstd's; compressor knows each codec's
        seconds = 1000
        longest = LIBRDKAFKA_NUMBERS["message.timeout.ms"].most
        return cls(
            compression=_one_of(given, "compression.type", COMPRESSIONS),
            compression_level=None if level == -1 else level,
            partitioner=_one_of(given, "partitioner", PARTITIONERS, LIBRDKAFKA_PARTITIONERS),
            batch_bytes=_number(given, "batch.size", cls.batch_bytes),
            in_flight=_number(given, "max.in.flight.requests.per.connection", cls.in_flight, Range(1, 5)),
            buffer_bytes=1024 * _number(given, "queue.buffering.max.kbytes", cls.buffer_bytes // 1024),
            delivery_timeout_s=_number(given, "message.timeout.ms", 120 * seconds, Range(1, longest)) / seconds,
            request_timeout_s=_number(given, "request.timeout.ms", 30 * seconds) / seconds,
        )


def whole_number(key: str, text: str, allowed: Range) -> int:
    """Read a number as a whole: librdkafka takes ``1k`` for 1.

    :raises ConfigurationError: it is none of the allowed.
    """
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or int(text) not in allowed:
        raise setting_error(key, f"is {text!r}", f"Use a whole number {allowed}, in digits")
    return int(text)


def _one_of(
    given: Mapping[str, str], key: str, known: tuple[str, ...], only_there: tuple[str, ...] = ()
) -> str:
    value = given.get(key, known[0])
    # librdkafka takes a codec in capitals, and a partitioner not
    if value in known or (key == "compression.type" and value.lower() in known):
        return value.lower()
    problem, choice = f"the Kafka setting {key} is {value!r}", f"Use one of {', '.join(known)}"
    if value in only_there:
        raise only_librdkafka(problem, choice)
    near = nearest(value, (*known, *only_there))
    meant = f"Did you mean {near}? " if near else ""
    more = f"; with writer=confluent {', '.join(only_there)} too" if only_there else ""
    raise ConfigurationError(f"{problem}, which does not exist", remedy=f"{meant}{choice}{more}")


def _number(given: Mapping[str, str], key: str, default: int, arrow: Range | None = None) -> int:
    """
    :param arrow: what the arrow writer takes, where that is not the same as librdkafka.
    """
    text = given.get(key)
    if text is None:
        return default
    allowed = LIBRDKAFKA_NUMBERS.get(key, arrow)
    arrow = arrow or allowed
    assert allowed is not None and arrow is not None
    value = whole_number(key, text, Range(min(allowed.least, arrow.least), max(allowed.most, arrow.most)))
    if value not in arrow:
        raise only_librdkafka(f"the Kafka setting {key} is {text!r}", f"Use a whole number {arrow}")
    return value


def check_setting_names(settings: KafkaSettings) -> None:
    """Refuse a misspelled name: the arrow writer would not see it, and records might go elsewhere.

    :raises ConfigurationError: naming the key, and the one that may be meant.
    """
    # how the connection is made is checked where it is read; librdkafka would connect, or ask for files
    for key, value in settings.texts.items():
        if key not in SETTING_NAMES and not key.startswith(CONNECTION_KEYS) and _UNKNOWN in _answer(key, value):
            near = nearest(key, SETTING_NAMES)
            remedy = f"Did you mean {near}" if near else "Use librdkafka's names, or remove it"
            raise setting_error(key, "is unknown", remedy)


def check_setting_values(settings: KafkaSettings) -> None:
    """Refuse a slip of the hand in what the arrow writer does not read, and so would not see.

    :param settings: with names that are known.
    :raises ConfigurationError: naming the key, its value, and what it may be.
    """
    for key, value in settings.texts.items():
        # how the connection is made is checked where it is read; librdkafka would look for files
        if key in _ELSEWHERE or key.startswith(CONNECTION_KEYS):
            continue
        if key in LIBRDKAFKA_NUMBERS:
            whole_number(key, value, LIBRDKAFKA_NUMBERS[key])
        elif key == _LINGER:
            _check_linger(value)
        elif answer := _answer(key, value) or (_answer(key, "x") if _is_half_a_number(value) else ""):
            raise setting_error(key, f"is {value!r}", f"Correct it, or remove it. librdkafka says: {answer}")


def _check_linger(value: str) -> None:
    """The one number with a fraction. librdkafka need not be loaded for it, which takes a fifth of a second."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]*)?", value) or float(value) > _LINGER_MOST_MS:
        raise setting_error(_LINGER, f"is {value!r}", f"Use a number from 0 to {_LINGER_MOST_MS}")


def _is_half_a_number(value: str) -> bool:
    """Such as 1k, which librdkafka takes for 1 where it wants a number. Where it wants a text it takes any."""
    return bool(re.match(r"[-+]?[0-9]", value) and not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value))


def _answer(key: str, value: str) -> str:
    """What librdkafka has against a setting; empty: nothing."""
    from confluent_kafka import KafkaException, Producer

    try:
        Producer({key: value, "log_level": 0})
    except KafkaException as e:
        return str(e.args[0].str()).strip()
    return ""
