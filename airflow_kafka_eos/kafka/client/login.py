"""How kafka-python logs in with librdkafka's settings. What guards a connection and cannot be followed is refused."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.certificates import IN_CONTEXT, context_of

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

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


def kafka_python_arguments(values: Mapping[str, str]) -> dict[str, Any]:
    """The keyword arguments of a kafka-python client, from checked settings.

    :raises ConfigurationError: see :meth:`KafkaSettings.for_kafka_python
        <airflow_kafka_eos.kafka.client.settings.KafkaSettings.for_kafka_python>`.
    """
    protocol = values.get("security.protocol", "PLAINTEXT")
    arguments: dict[str, Any] = {
        "bootstrap_servers": [s.strip() for s in values["bootstrap.servers"].split(",")],
        "security_protocol": protocol,
    }
    for key, value in values.items():
        if key in _TEXT and not key.startswith(("ssl.", "sasl.")):
            arguments[_TEXT[key]] = value
        elif key in _NUMBER:
            arguments[_NUMBER[key]] = number(key, value)
    if protocol.endswith("SSL"):
        arguments |= _tls_arguments(values)
    if protocol.startswith("SASL"):
        arguments |= _sasl_arguments(values)
    return arguments


def number(key: str, value: str) -> int:
    """A whole number.

    :raises ConfigurationError: it is none.
    """
    if not re.fullmatch(r"[-+]?[0-9]{1,19}", value):  # int() takes 5_0, and librdkafka 5x for 5
        raise refuse(key, "is not a whole number", "Write it as a whole number")
    return int(value)


def refuse(key: str, problem: str, remedy: str) -> ConfigurationError:
    """The error for one key. Never shows a value that may be a secret."""
    return ConfigurationError(f"the Kafka setting {key} {problem}", remedy=remedy)


def _tls_arguments(values: Mapping[str, str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if (key.startswith("ssl.") and key not in IN_CONTEXT) or key == "enable.ssl.certificate.verification":
            arguments |= _ssl(key, value)
    if IN_CONTEXT & values.keys():
        return {"ssl_context": context_of(values)}
    return arguments


def _ssl(key: str, value: str) -> dict[str, Any]:
    if key in _TEXT:
        return {_TEXT[key]: value}
    if key == "ssl.endpoint.identification.algorithm":
        if value.lower() not in ("https", "none", ""):
            raise refuse(key, f"is {value!r}", "Use https or none")
        return {"ssl_check_hostname": value.lower() == "https"}
    if key == "enable.ssl.certificate.verification" and value.lower() == "true":
        return {}
    remedy = "Use PEM files: ssl.ca.location, ssl.certificate.location, ssl.key.location, ssl.key.password"
    raise refuse(key, "cannot be followed by kafka-python, which sends the coordinator requests", remedy)


def _sasl_arguments(values: Mapping[str, str]) -> dict[str, Any]:
    mechanism = values.get("sasl.mechanism")
    if mechanism not in _MECHANISMS:
        raise refuse("sasl.mechanism", f"is {mechanism!r}", f"Use one of {', '.join(_MECHANISMS)}")
    arguments: dict[str, Any] = {"sasl_mechanism": mechanism}
    for key, value in values.items():
        if key in _TEXT and key.startswith("sasl."):
            arguments[_TEXT[key]] = value
        elif key.startswith("sasl.") and key != "sasl.mechanism":
            _check_sasl_key(key, mechanism)
    if mechanism == "OAUTHBEARER":
        # all of kafka-python comes with it: not for reading settings
        from airflow_kafka_eos.kafka.client.oauth import token_provider

        arguments["sasl_oauth_token_provider"] = token_provider(values)
    elif mechanism == "GSSAPI":
        _check_gssapi()
    else:
        for key in ("sasl.username", "sasl.password"):
            if not values.get(key):
                raise refuse(key, "is missing", f"Set it: mechanism {mechanism} needs it")
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
    raise refuse(key, "cannot be followed by kafka-python, which sends the coordinator requests", remedy)


def _check_gssapi() -> None:
    if importlib.util.find_spec("gssapi") is None:
        remedy = "Install it beside the system's Kerberos libraries, or use another mechanism"
        raise refuse("sasl.mechanism", "is GSSAPI, which needs the Python package gssapi", remedy)
