"""The schema registry, asked before anything is written: which id has the schema of a topic's values.

By confluent-kafka's client, so any registry with Confluent's REST API does (Apicurio: its address ends in
``/apis/ccompat/v7``). Registering is no part of the load's transaction: a schema that was registered stays, also
when the load is aborted or another topic's schema is refused. It harms nobody.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_kafka_eos.errors import (
    AccessError,
    ConfigurationError,
    KafkaEosError,
    RegistryUnavailableError,
    SchemaRefusedError,
    ToolMissingError,
)
from airflow_kafka_eos.reasons import causes
from airflow_kafka_eos.spark.formats.settings import RegistrySettings, ValueFormat

_NOT_FOUND = (40401, 40402, 40403)  # subject, version, schema
_LATER = (408, 429)
_WORD_LENGTH = 600
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema under its id, as it is in the registry."""

    id: int
    text: str

    @property
    def prefix(self) -> bytes:
        """Magic byte 0 and the id: the five bytes before each payload."""
        return b"\x00" + self.id.to_bytes(4, "big")


def resolve(
    settings: RegistrySettings, value_format: ValueFormat, schema_type: str, text: str, topics: Sequence[str]
) -> Mapping[str, RegisteredSchema]:
    """The schema of each topic's values: registered, found or taken from the registry, as ``registration`` says.

    :param schema_type: ``AVRO`` or ``JSON``.
    :param text: the schema that follows from the columns.
    :raises RegistryUnavailableError: no answer, or one that says "later".
    :raises AccessError: the registry refuses the login.
    :raises SchemaRefusedError: it refuses the schema, or has none where there must be one.
    :raises ConfigurationError: the address is no registry's, or its certificate is not trusted.
    """
    client = _client(settings)
    found: dict[str, RegisteredSchema] = {}
    for topic in topics:
        subject = value_format.subject(topic, value_format.record_name)
        found[topic] = _one(client, settings, value_format.registration, subject, schema_type, text)
    return found


def _client(settings: RegistrySettings) -> Any:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as e:
        raise ToolMissingError(
            f"the schema registry's client needs the package {e.name}, which the Python lacks that runs the job",
            remedy="Install airflow-kafka-eos[formats] there",
        ) from e
    try:
        return SchemaRegistryClient(settings.for_client())
    except (ValueError, TypeError, OSError) as e:  # of the combination, or a file that is not there
        raise ConfigurationError(
            f"the settings of the schema registry at {settings.address} do not work: {settings.scrub(str(e))}",
            remedy="Correct them; the names are those of confluent-kafka's SchemaRegistryClient",
        ) from None


def _one(
    client: Any, settings: RegistrySettings, registration: str, subject: str, schema_type: str, text: str
) -> RegisteredSchema:
    from confluent_kafka.schema_registry import Schema

    mine = Schema(text, schema_type)
    if registration == "register":
        number = _asked(settings, subject, lambda: client.register_schema(subject, mine))
        return _sound(settings, number, text)
    if registration == "lookup":
        return _sound(settings, _asked(settings, subject, lambda: client.lookup_schema(subject, mine)).schema_id, text)
    latest = _asked(settings, subject, lambda: client.get_latest_version(subject))
    found = _sound(settings, latest.schema_id, latest.schema.schema_str if latest.schema else None)
    there = latest.schema.schema_type or "AVRO"  # the API leaves its default out
    if there != schema_type or latest.schema.references:
        raise SchemaRefusedError(
            f"the latest schema of subject {subject!r} at {settings.address} (id {latest.schema_id}) "
            + (f"is of type {there}, not {schema_type}" if there != schema_type else "refers to other subjects"),
            remedy="Use the value_format that fits it"
            if there != schema_type
            else "Register it in one piece, or use registration 'lookup' with columns that make it",
        )
    return found


def _sound(settings: RegistrySettings, number: object, text: object) -> RegisteredSchema:
    # the client reads an answer of another server as one with nothing in it
    if not isinstance(number, int) or not 0 <= number < 2**31 or not isinstance(text, str):
        raise _no_registry(f"the schema registry at {settings.address}", f"its answer has the id {number!r}")
    return RegisteredSchema(number, text)


def _asked(settings: RegistrySettings, subject: str, question: Callable[[], _Answer]) -> _Answer:
    from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

    where = f"the schema registry at {settings.address}"
    try:
        return question()
    except SchemaRegistryError as e:
        word = settings.scrub(" ".join(str(e.error_message).split()))[:_WORD_LENGTH]
        code = f"HTTP {e.http_status_code}" + (f", error code {e.error_code}" if e.error_code else "")
        # without a cause: the client's own text is not scrubbed
        raise _refused(where, subject, e.http_status_code, e.error_code, f"{code}: {word}") from None
    except OAuthTokenError as e:
        raise AccessError(
            f"{where} needs a token, and none could be obtained: {settings.scrub(str(e))}",
            remedy="Look at the bearer.auth.* settings",
        ) from None
    except Exception as e:
        raise _unreached(where, settings, subject, e) from None


def _refused(where: str, subject: str, status: int, code: int | None, said: str) -> KafkaEosError:
    if status in (401, 403):
        return AccessError(
            f"{where} refuses access to subject {subject!r} ({said})",
            remedy="Set basic.auth.user.info or bearer.auth.*, and let that user read and write the subject",
        )
    if status in _LATER or status >= 500:
        return RegistryUnavailableError(f"{where} cannot answer for subject {subject!r} now ({said})",
                                        remedy="Look at the registry, then try again")  # fmt: skip
    if status == 404 and code in _NOT_FOUND:
        return SchemaRefusedError(
            f"{where} has no such schema under subject {subject!r} ({said})",
            remedy="Register it there, correct subject_strategy, or use registration 'register'",
        )
    if status == 409:
        return SchemaRefusedError(
            f"{where} finds the schema incompatible with those of subject {subject!r} ({said})",
            remedy="Change the columns so that they fit, use registration 'latest', "
            "or change the subject's compatibility",
        )
    if status == 422:
        return SchemaRefusedError(
            f"{where} refuses the schema for subject {subject!r} ({said})", remedy="Change the columns or the subject"
        )
    return _no_registry(where, said)


def _no_registry(where: str, said: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where} does not answer as a schema registry does ({said})",
        remedy="Correct url; for Apicurio it ends in /apis/ccompat/v7",
    )


def _unreached(where: str, settings: RegistrySettings, subject: str, e: Exception) -> KafkaEosError:
    from confluent_kafka.schema_registry.common._httpx_compat import httpx

    said = f"{type(e).__name__}: {settings.scrub(' '.join(str(e).split()))[:_WORD_LENGTH]}"
    if any(isinstance(cause, ssl.SSLError) for cause in causes(e, handled_too=True)):
        return ConfigurationError(
            f"{where} cannot be trusted or does not speak TLS ({said})",
            remedy="Set ssl.ca.location to the CA's certificate, or correct url",
        )
    if isinstance(e, httpx.TransportError):
        return RegistryUnavailableError(
            f"{where} did not answer for subject {subject!r} ({said})",
            remedy="Look at url and at the network between the Spark driver and the registry",
        )
    return _no_registry(where, said)
