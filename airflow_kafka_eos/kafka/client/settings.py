"""Connection settings: one set of librdkafka-style keys, for every client that we use.

The Airflow Kafka provider keeps librdkafka's keys in the extra of a ``kafka`` connection. Spark's writers hand
them to confluent-kafka (librdkafka), the coordinator requests to kafka-python. Nothing that guards the
connection is dropped on the way: what a client cannot do is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.login import kafka_python_arguments, number, refuse

#: Keys whose values may be shown. Everything else is masked: a new secret key must not need a new line here.
_SHOWN = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "security.protocol",
        "sasl.mechanism",
        "ssl.endpoint.identification.algorithm",
        "socket.timeout.ms",
        "acks",
        "compression.type",
        "linger.ms",
        "batch.size",
        "message.max.bytes",
    }
)

#: librdkafka names one setting twice; the first name is kept.
_ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
    "request.required.acks": "acks",
    "compression.codec": "compression.type",
    "message.send.max.retries": "retries",
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
}

_OURS = {
    "transactional.id": "Remove it: every Spark task attempt gets a transactional id of its own",
    "transaction.timeout.ms": "Remove it and set the hold time of the load instead",
}

#: What only consumers read. A connection that serves both kinds of client may carry it.
_CONSUMER_ONLY = frozenset(
    {
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.protocol.type",
        "group.remote.assignor",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "coordinator.query.interval.ms",
        "max.poll.interval.ms",
        "enable.auto.commit",
        "auto.commit.enable",
        "auto.commit.interval.ms",
        "enable.auto.offset.store",
        "queued.min.messages",
        "queued.max.messages.kbytes",
        "max.partition.fetch.bytes",
        "isolation.level",
        "enable.partition.eof",
        "check.crcs",
        "auto.offset.reset",
        "offset.store.method",
        "offset.store.path",
        "offset.store.sync.interval.ms",
        "consume.callback.max.messages",
    }
)

#: How the settings begin that say how to connect, to whom, and as whom: a client that gets none of them stays offline.
CONNECTION_KEYS = ("bootstrap.", "sasl.", "ssl.", "security.", "https.", "enable.s", "plugin.")

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, repr=False)
class KafkaSettings:
    """Checked connection settings. ``repr`` and ``str`` never show a secret."""

    _items: tuple[tuple[str, str], ...]

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> KafkaSettings:
        """Check the extra of a ``kafka`` connection.

        Keys that only consumers read and callbacks are dropped.

        :raises ConfigurationError: naming the key, for a missing ``bootstrap.servers`` and for settings that
            exactly-once cannot live with.
        """
        values: dict[str, str] = {}
        for key, value in mapping.items():
            if not isinstance(key, str):
                raise refuse(repr(key), "is not a text", "Use librdkafka's names, such as bootstrap.servers")
            name = _ALIASES.get(key, key)
            if value is None or name.endswith("_cb") or name in _CONSUMER_ONLY or name.startswith("fetch."):
                continue
            values[name] = _text(key, value)
        _check_exactly_once(values)
        _check_bootstrap(values.get("bootstrap.servers", ""))
        protocol = values.get("security.protocol")
        if protocol is not None:
            if protocol.upper() not in _PROTOCOLS:
                raise refuse("security.protocol", f"is {protocol!r}", f"Use one of {', '.join(_PROTOCOLS)}")
            values["security.protocol"] = protocol.upper()
        return cls(tuple(sorted(values.items())))

    @classmethod
    def from_json(cls, text: str) -> KafkaSettings:
        """Read what :meth:`to_json` wrote.

        :raises ConfigurationError: when it is no JSON object; the text itself is not shown.
        """
        if (document := json_object(text)) is None:
            raise ConfigurationError(
                "the Kafka settings are not a JSON object",
                remedy="Pass the text that KafkaSettings.to_json wrote, unchanged",
            )
        return cls.from_mapping(document)

    def to_json(self) -> str:
        """All settings as a JSON object. Holds the secrets: hand it over where only the job can read it."""
        return json.dumps(dict(self._items), sort_keys=True)

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of the brokers, ``host:port`` separated by commas."""
        return dict(self._items)["bootstrap.servers"]

    @property
    def security_protocol(self) -> str:
        """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        return dict(self._items).get("security.protocol", "PLAINTEXT")

    @property
    def sasl_mechanism(self) -> str | None:
        """PLAIN, SCRAM-SHA-512, ...; None where there is no SASL."""
        values = dict(self._items)
        return values.get("sasl.mechanism") if self.security_protocol.startswith("SASL") else None

    def for_librdkafka(self) -> dict[str, Any]:
        """The configuration of a confluent-kafka client."""
        return dict(self._items)

    def for_kafka_python(self) -> dict[str, Any]:
        """The keyword arguments of a kafka-python client.

        :raises ConfigurationError: for a setting that guards the connection and that kafka-python cannot follow.
        """
        return kafka_python_arguments(dict(self._items))

    @property
    def secrets(self) -> list[str]:
        """Values to mask in texts of others. Of a key that is not known, too, but for a plain word or a number: they
        occur in any text."""
        return [value for key, value in self._items if _is_secret(key, value)]

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value if key in _SHOWN else '***'}" for key, value in self._items)
        return f"KafkaSettings({shown})"

    __str__ = __repr__


def is_secret_name(key: str) -> bool:
    """Whether a client's setting of that name, Kafka's or the registry's, has a value that nobody may read."""
    return any(word in key for word in ("password", "secret", "token", "jaas", "user.info", "pem"))


def _is_secret(key: str, value: str) -> bool:
    if is_secret_name(key):
        return True
    if key in _SHOWN or key.endswith((".location", ".username")):
        return False
    return len(value) >= 8 and not value.isalpha() and not value.replace(".", "").isdigit()


def json_object(text: str) -> dict[str, Any] | None:
    """What a text says as JSON; None when it is no JSON object. Raises nothing: its text may be a secret."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value) if key.endswith((".password", ".secret")) else str(value).strip()
    raise refuse(key, f"is a {type(value).__name__}", "Write it as a text, a number or a boolean")


def _check_exactly_once(values: Mapping[str, str]) -> None:
    for key, remedy in _OURS.items():
        if key in values:
            raise refuse(key, "is set by airflow-kafka-eos itself", remedy)
    if values.get("enable.idempotence", "true").lower() != "true":
        raise refuse("enable.idempotence", "is not true", "Remove it: exactly-once needs an idempotent producer")
    if values.get("acks", "all").lower() not in ("all", "-1"):
        raise refuse("acks", f"is {values['acks']!r}", "Remove it or set it to all: exactly-once needs every replica")
    if number("retries", values.get("retries", "1")) < 1:
        raise refuse("retries", "is 0", "Remove it: an idempotent producer must be able to send again")
    in_flight = "max.in.flight.requests.per.connection"
    if not 1 <= number(in_flight, values.get(in_flight, "5")) <= 5:
        raise refuse(in_flight, "is not in 1..5", "Remove it: an idempotent producer keeps order with 5 at most")


def _check_bootstrap(servers: str) -> None:
    for server in servers.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not (host and colon and port.isdigit()):
            raise refuse(
                "bootstrap.servers", f"is {servers!r}", "Set it to one or more host:port, separated by commas"
            )
