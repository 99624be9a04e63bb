"""Connection settings: one set of librdkafka-style keys, for every client that we use.

The Airflow Kafka provider keeps librdkafka's keys in the extra of a ``kafka`` connection. Spark's writers hand
them to confluent-kafka (librdkafka), the coordinator requests to kafka-python. Nothing that guards the
connection is dropped on the way: what a client cannot do is refused.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.errors import NOT_FOLLOWED, ConfigurationError, setting_error
from airflow_kafka_eos.kafka.client.certificates import IN_CONTEXT, context_of

if TYPE_CHECKING:
    from airflow_kafka_eos.kafka.client.token_sources import TokenSource

_log = logging.getLogger(__name__)

#: Keys whose values may be shown. Everything else is masked: a new secret key must not need a new line here.
_SHOWN = frozenset({
    "bootstrap.servers", "client.id", "security.protocol", "sasl.mechanism",
    "ssl.endpoint.identification.algorithm", "socket.timeout.ms", "acks", "compression.type", "linger.ms",
    "batch.size", "message.max.bytes", "oauth_cb",
})  # fmt: skip

_SECRET_WORDS = ("password", "passphrase", "secret", "token", "jaas", "user.info", "pem")
#: How keys end that are named like a secret's, and have none.
_OPEN_NOTHING = (".url", ".ca.pem", ".certificate.pem")

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
_CONSUMER_ONLY = frozenset({
    "group.id", "group.instance.id", "group.protocol", "group.protocol.type", "group.remote.assignor",
    "partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms",
    "coordinator.query.interval.ms", "max.poll.interval.ms", "enable.auto.commit", "auto.commit.enable",
    "auto.commit.interval.ms", "enable.auto.offset.store", "queued.min.messages",
    "queued.max.messages.kbytes", "max.partition.fetch.bytes", "isolation.level", "enable.partition.eof",
    "check.crcs", "auto.offset.reset", "offset.store.method", "offset.store.path",
    "offset.store.sync.interval.ms", "consume.callback.max.messages",
})  # fmt: skip

#: How the settings begin that say how to connect, to whom, and as whom: a client that gets none of them stays offline.
CONNECTION_KEYS = ("bootstrap.", "sasl.", "ssl.", "security.", "https.", "enable.s", "plugin.", "oauth_")

#: Names a function that gives tokens; a text, for it travels to Spark (docs/adr/0032).
TOKEN_CALLBACK = "oauth_cb"

_VERIFICATION = "enable.ssl.certificate.verification"
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

#: librdkafka has no such mechanism, and would say so only on an executor.
_JAVAS_FOR_MSK = "AWS_MSK_IAM"
_FOR_MSK = (
    "Use OAUTHBEARER with oauth_cb=msk, which MSK's brokers take at the same port; an Airflow connection with MSK's "
    "own bootstrap.servers needs no oauth_cb (docs/logins.md)"
)

#: librdkafka key -> kafka-python argument, for values that both read alike.
_TEXT = {
    "client.id": "client_id",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
}
_NUMBER = {
    "socket.timeout.ms": "request_timeout_ms",
    "socket.connection.setup.timeout.ms": "socket_connection_setup_timeout_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
    "connections.max.idle.ms": "connections_max_idle_ms",
}
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, repr=False)
class KafkaSettings:
    """Checked connection settings. ``repr`` and ``str`` never show a secret."""

    _items: tuple[tuple[str, str], ...]
    _callback: Callable[[str], Any] | None = field(default=None, compare=False)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> KafkaSettings:
        """Check the extra of a ``kafka`` connection.

        Keys that only consumers read are dropped. So are callbacks, which are logged; ``oauth_cb`` is kept where it is
        what makes tokens.

        :raises ConfigurationError: naming the key, for a missing ``bootstrap.servers`` and for settings that
            exactly-once cannot live with.
        """
        values: dict[str, str] = {}
        not_called: list[str] = []
        for key, value in mapping.items():
            if not isinstance(key, str):
                raise setting_error(repr(key), "is not a text", "Use librdkafka's names, such as bootstrap.servers")
            name = _ALIASES.get(key, key)
            if value is None or name in _CONSUMER_ONLY or name.startswith("fetch."):
                continue
            if _is_callback(name):
                not_called.append(name)
            else:
                values[name] = _token_callback(value) if name == TOKEN_CALLBACK else _text(key, value)
        if TOKEN_CALLBACK in values and values.get("sasl.mechanism") != "OAUTHBEARER":
            not_called.append(TOKEN_CALLBACK)
            del values[TOKEN_CALLBACK]
        if not_called:
            _log.warning("Kafka settings: %s", _told(not_called))
        _check_exactly_once(values)
        _check_bootstrap(values.get("bootstrap.servers", ""))
        protocol = values.get("security.protocol")
        if protocol is not None:
            if protocol.upper() not in _PROTOCOLS:
                raise setting_error("security.protocol", f"is {protocol!r}", f"Use one of {', '.join(_PROTOCOLS)}")
            values["security.protocol"] = protocol.upper()
            if protocol.upper().startswith("SASL") and values.get("sasl.mechanism", "").upper() == _JAVAS_FOR_MSK:
                raise setting_error("sasl.mechanism", f"is {_JAVAS_FOR_MSK}, which only Java's clients have", _FOR_MSK)
        return cls(tuple(sorted(values.items())))

    @classmethod
    def from_json(cls, text: str) -> KafkaSettings:
        """Read what :meth:`to_json` wrote.

        :raises ConfigurationError: when it is no JSON object; the text itself is not shown.
        """
        if (document := json_object(text)) is None:
            raise ConfigurationError(
                "the Kafka settings are not a JSON object",
                remedy='Write them as {"bootstrap.servers": "host:9092"}',
            )
        return cls.from_mapping(document)

    def to_json(self) -> str:
        """All settings as a JSON object. Holds the secrets: hand it over where only the job can read it."""
        return json.dumps(dict(self._items), sort_keys=True)

    def with_token_callback(self, name: str, config: str | None, callback: Callable[[str], Any]) -> KafkaSettings:
        """The same, with tokens by a function that this process has: name and config travel, the function does not.

        :param name: what the function is called where it is looked for by its name: on Spark's hosts.
        :param config: ``sasl.oauthbearer.config``; None: as it is.
        """
        more = {TOKEN_CALLBACK: name} | ({"sasl.oauthbearer.config": config} if config is not None else {})
        return replace(self, _items=tuple(sorted((dict(self._items) | more).items())), _callback=callback)

    def __reduce__(self) -> tuple[Any, ...]:
        return KafkaSettings, (self._items,)

    @property
    def texts(self) -> dict[str, str]:
        """All settings, in librdkafka's names. Holds the secrets."""
        return dict(self._items)

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
        """The configuration of a confluent-kafka client.

        :raises ConfigurationError: see :meth:`token_source`.
        """
        configuration: dict[str, Any] = dict(self._items)
        if (tokens := self.token_source()) is not None:
            configuration[TOKEN_CALLBACK] = tokens.for_librdkafka
        return configuration

    def for_kafka_python(self) -> dict[str, Any]:
        """The keyword arguments of a kafka-python client.

        :raises ConfigurationError: for a setting that guards the connection and that kafka-python cannot follow; and
            see :meth:`token_source`.
        """
        arguments = _kafka_python_arguments(dict(self._items))
        if (tokens := self.token_source()) is not None:
            arguments["sasl_oauth_token_provider"] = tokens
        return arguments

    def token_source(self) -> TokenSource | None:
        """Where the tokens of ``oauth_cb`` come from; None where no login needs them. Nobody is asked for one yet.

        :raises ConfigurationError: there is no such function here, or it lacks a library.
        """
        values = dict(self._items)
        if TOKEN_CALLBACK not in values or self.sasl_mechanism != "OAUTHBEARER":
            return None
        # all of kafka-python comes with it: not for reading settings
        from airflow_kafka_eos.kafka.client.token_sources import source_of

        return source_of(values, self._callback, self.secrets)

    @property
    def secrets(self) -> list[str]:
        """Values to mask in texts of others. Of a key that is not known, too, but for a plain word or a number: they
        occur in any text."""
        return [value for key, value in self._items if _is_secret(key, value)]

    @property
    def passwords(self) -> list[str]:
        """Of the secrets those that open something. Ids, regions, addresses and certificates may stand elsewhere too,
        in arguments that have nothing to do with Kafka."""
        return [value for key, value in self._items if is_secret_name(key) and not key.endswith(_OPEN_NOTHING)]

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value if key in _SHOWN else '***'}" for key, value in self._items)
        return f"KafkaSettings({shown})"

    __str__ = __repr__


def is_secret_name(key: str) -> bool:
    """Whether a client's setting of that name, Kafka's or the registry's, has a value that nobody may read."""
    return any(word in key for word in _SECRET_WORDS)


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


def _is_callback(name: str) -> bool:
    """Whether it is a function for librdkafka to call, and not the one that makes tokens."""
    return (name.endswith("_cb") and name != TOKEN_CALLBACK) or name == "on_commit"


def _told(not_called: list[str]) -> str:
    names = ", ".join(sorted(not_called))
    text = f"{names} {'is' if len(not_called) == 1 else 'are'} not called by airflow-kafka-eos"
    if not_called != [TOKEN_CALLBACK]:
        text += ", which tells by itself what its clients report"
    return text + ("; oauth_cb is for sasl.mechanism OAUTHBEARER" if TOKEN_CALLBACK in not_called else "")


def _token_callback(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise setting_error(
            TOKEN_CALLBACK,
            f"is a {type(value).__name__}" if not isinstance(value, str) else "is empty",
            "Name the function: its dotted path, or an entry point of the group airflow_kafka_eos.token_providers. "
            "Settings travel to Spark as texts",
        )
    return value.strip()


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value) if key.endswith((".password", ".secret")) else str(value).strip()
    raise setting_error(key, f"is a {type(value).__name__}", "Write it as a text, a number or a boolean")


def _check_exactly_once(values: Mapping[str, str]) -> None:
    for key, remedy in _OURS.items():
        if key in values:
            raise setting_error(key, "is set by airflow-kafka-eos itself", remedy)
    if values.get("enable.idempotence", "true").lower() != "true":
        raise setting_error("enable.idempotence", "is not true", "Remove it: exactly-once needs an idempotent producer")
    if values.get("acks", "all").lower() not in ("all", "-1"):
        remedy = "Remove it or set it to all: exactly-once needs every replica"
        raise setting_error("acks", f"is {values['acks']!r}", remedy)
    if _number("retries", values.get("retries", "1")) < 1:
        raise setting_error("retries", "is 0", "Remove it: an idempotent producer must be able to send again")
    in_flight = "max.in.flight.requests.per.connection"
    if not 1 <= _number(in_flight, values.get(in_flight, "5")) <= 5:
        raise setting_error(in_flight, "is not in 1..5", "Remove it: an idempotent producer keeps order with 5 at most")


def _check_bootstrap(servers: str) -> None:
    for server in servers.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not (host and colon and port.isdigit()):
            raise setting_error(
                "bootstrap.servers", f"is {servers!r}", "Set it to one or more host:port, separated by commas"
            )


# -- kafka-python's arguments -----------------------------------------------------------------------------------------


def _kafka_python_arguments(values: Mapping[str, str]) -> dict[str, Any]:
    protocol = values.get("security.protocol", "PLAINTEXT")
    arguments: dict[str, Any] = {
        "bootstrap_servers": [s.strip() for s in values["bootstrap.servers"].split(",")],
        "security_protocol": protocol,
    }
    for key, value in values.items():
        if key in _TEXT and not key.startswith(("ssl.", "sasl.")):
            arguments[_TEXT[key]] = value
        elif key in _NUMBER:
            arguments[_NUMBER[key]] = _number(key, value)
    if protocol.endswith("SSL"):
        arguments |= _tls_arguments(values)
    if protocol.startswith("SASL"):
        arguments |= _sasl_arguments(values)
    return arguments


def _number(key: str, value: str) -> int:
    """A whole number.

    :raises ConfigurationError: it is none.
    """
    if not re.fullmatch(r"[-+]?[0-9]{1,19}", value):  # int() takes 5_0, and librdkafka 5x for 5
        raise setting_error(key, "is not a whole number", "Write it as a whole number")
    return int(value)


def _tls_arguments(values: Mapping[str, str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key in IN_CONTEXT or not key.startswith(("ssl.", _VERIFICATION)):
            continue
        if key in _TEXT:
            arguments[_TEXT[key]] = value
        elif key == "ssl.endpoint.identification.algorithm":
            if value.lower() not in ("https", "none", ""):
                raise setting_error(key, f"is {value!r}", "Use https or none")
            arguments["ssl_check_hostname"] = value.lower() == "https"
        elif key != _VERIFICATION or value.lower() != "true":
            remedy = "Use PEM files: ssl.ca.location, ssl.certificate.location, ssl.key.location, ssl.key.password"
            raise setting_error(key, NOT_FOLLOWED, remedy)
    return {"ssl_context": context_of(values)} if IN_CONTEXT & values.keys() else arguments


def _sasl_arguments(values: Mapping[str, str]) -> dict[str, Any]:
    mechanism = values.get("sasl.mechanism")
    if mechanism not in _MECHANISMS:
        raise setting_error("sasl.mechanism", f"is {mechanism!r}", f"Use one of {', '.join(_MECHANISMS)}")
    arguments: dict[str, Any] = {"sasl_mechanism": mechanism}
    for key, value in values.items():
        if key in _TEXT and key.startswith("sasl."):
            arguments[_TEXT[key]] = value
        elif key.startswith("sasl.") and key != "sasl.mechanism":
            _check_sasl_key(key, mechanism)
    if mechanism == "OAUTHBEARER" and TOKEN_CALLBACK not in values:
        # all of kafka-python comes with it: not for reading settings
        from airflow_kafka_eos.kafka.client.oauth import token_provider

        arguments["sasl_oauth_token_provider"] = token_provider(values)
    elif mechanism == "GSSAPI":
        _check_gssapi()
    elif mechanism != "OAUTHBEARER":
        for key in ("sasl.username", "sasl.password"):
            if not values.get(key):
                raise setting_error(key, "is missing", f"Set it: mechanism {mechanism} needs it")
    return arguments


def _check_sasl_key(key: str, mechanism: str) -> None:
    if key.startswith("sasl.oauthbearer."):
        if mechanism == "OAUTHBEARER":
            return  # token_provider knows them
        remedy = "Remove it, or set sasl.mechanism to OAUTHBEARER"
    elif key.startswith("sasl.kerberos."):
        remedy = "Remove it and keep a Kerberos ticket in the credential cache of the process (kinit)"
    else:
        remedy = f"Use one of the mechanisms {', '.join(_MECHANISMS)}"
    raise setting_error(key, NOT_FOLLOWED, remedy)


def _check_gssapi() -> None:
    if importlib.util.find_spec("gssapi") is None:
        remedy = "Install it beside the system's Kerberos libraries, or use another mechanism"
        raise setting_error("sasl.mechanism", "is GSSAPI, which needs the Python package gssapi", remedy)
