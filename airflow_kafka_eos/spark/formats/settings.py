"""``value_format`` and what belongs to it, and the settings of the schema registry. No I/O, no Spark.

| ``value_format`` | a record's value |
| --- | --- |
| ``raw`` | the column ``value`` (binary or string) as it is; null is a tombstone |
| ``string`` | the one column that is left, cast to a string; null is a tombstone |
| ``json`` | one JSON object of all columns that are left |
| ``confluent-json`` | Confluent's wire format around the same JSON: byte 0, schema id (4 bytes, big-endian), payload |
| ``confluent-avro`` | Confluent's wire format around Avro |

"Left" are the columns that Kafka has no name for: all but key, headers, topic, partition and timestamp.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict, get_args
from urllib.parse import quote, unquote, urlsplit

from airflow_kafka_eos.errors import ConfigurationError, nearest
from airflow_kafka_eos.kafka.client.settings import json_object
from airflow_kafka_eos.spark.driver_secrets import handed_over

FormatText = Literal["raw", "string", "json", "confluent-avro", "confluent-json"]
#: Confluent's ``auto.register.schemas=true``; ``auto.register.schemas=false``; ``use.latest.version=true``.
RegistrationText = Literal["register", "lookup", "latest"]
#: Confluent's TopicNameStrategy, RecordNameStrategy, TopicRecordNameStrategy.
StrategyText = Literal["topic-name", "record-name", "topic-record-name"]

#: The environment variable of the Spark driver with the registry's settings and their secrets
#: (``RegistrySettings.to_json``).
REGISTRY_VARIABLE = "AIRFLOW_KAFKA_EOS_REGISTRY"

FORMATS: tuple[FormatText, ...] = get_args(FormatText)
#: Those whose value is a column as it stands.
_OF_ONE_COLUMN = ("raw", "string")
REGISTRATIONS: tuple[RegistrationText, ...] = get_args(RegistrationText)
STRATEGIES: tuple[StrategyText, ...] = get_args(StrategyText)
DEFAULT_RECORD_NAME = "airflow_kafka_eos.Value"

#: What confluent-kafka's SchemaRegistryClient takes, and how each is read.
_TEXT = (
    "url",
    "basic.auth.user.info",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "proxy",
    "bearer.auth.credentials.source",
    "bearer.auth.token",
    "bearer.auth.logical.cluster",
    "bearer.auth.identity.pool.id",
    "bearer.auth.client.id",
    "bearer.auth.client.secret",
    "bearer.auth.scope",
    "bearer.auth.issuer.endpoint.url",
)
_NUMBERS = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms")
#: Without a timeout, the client waits for a silent registry forever.
_DEFAULTS = {"timeout": 10.0, "max.retries": 2.0}


class ValueFormatArguments(TypedDict, total=False):
    """``value_format`` as a dict: the parameters of :class:`ValueFormat`; ``format`` may stand for ``name``."""

    format: FormatText
    name: FormatText
    registration: RegistrationText
    subject_strategy: StrategyText
    record_name: str


@dataclass(frozen=True)
class ValueFormat:
    """How values are made. Has no secrets.

    :param name: one of ``FORMATS``.
    :param registration: ``register`` the schema that follows from the columns, ``lookup`` (it must be there
        already), or ``latest`` (write what the subject's latest schema says; the columns must fit it).
    :param subject_strategy: ``topic-name`` (subject ``<topic>-value``), ``record-name`` (the record's full name),
        ``topic-record-name`` (``<topic>-<full name>``).
    :param record_name: full name of the record in a schema that follows from the columns (JSON: its title).
    """

    name: str = "raw"
    registration: str = "register"
    subject_strategy: str = "topic-name"
    record_name: str = DEFAULT_RECORD_NAME

    def __post_init__(self) -> None:
        _one_of("value_format", self.name, FORMATS)
        _one_of("the registration of value_format", self.registration, REGISTRATIONS)
        _one_of("the subject_strategy of value_format", self.subject_strategy, STRATEGIES)
        if not isinstance(self.record_name, str) or not all(is_name(p) for p in self.record_name.split(".")):
            raise ConfigurationError(
                f"the record_name of value_format is {self.record_name!r}",
                remedy="Use letters, digits and _, with dots between the parts, such as com.example.Order",
            )

    @classmethod
    def of(cls, value: ValueFormat | Mapping[str, Any] | str) -> ValueFormat:
        """From a name, or from a mapping of this class's parameters (``format`` may stand for ``name``).

        :raises ConfigurationError: a name or value is unknown.
        """
        if isinstance(value, ValueFormat):
            return value
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping):
            raise ConfigurationError(
                f"value_format is {value!r}", remedy=f"Use one of {', '.join(FORMATS)}, or a mapping"
            )
        given = {("name" if key == "format" else key): v for key, v in value.items()}
        for key in given:
            _one_of("a key of value_format", key, tuple(asdict(cls())))
        return cls(**given)

    def to_mapping(self) -> dict[str, str]:
        """As :meth:`of` reads it; JSON values."""
        return asdict(self)

    @property
    def is_of_one_column(self) -> bool:
        """Whether the value is a single column as it stands, and no record of several."""
        return self.name in _OF_ONE_COLUMN

    def subject(self, topic: str, record_name: str) -> str:
        """The subject under which the schema of a topic's values is kept."""
        if self.subject_strategy == "topic-name":
            return f"{topic}-value"
        return record_name if self.subject_strategy == "record-name" else f"{topic}-{record_name}"


@dataclass(frozen=True, repr=False)
class RegistrySettings:
    """Checked settings of confluent-kafka's ``SchemaRegistryClient``. ``repr`` and ``str`` never show a secret."""

    _items: tuple[tuple[str, str | float], ...]

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> RegistrySettings:
        """Check settings under confluent-kafka's names (``url``, ``basic.auth.user.info`` …).

        :raises ConfigurationError: naming the key, never a value that may be secret.
        """
        values: dict[str, str | float] = dict(_DEFAULTS)
        for key, value in mapping.items():
            _one_of("a setting of the schema registry", key, _TEXT + _NUMBERS)
            if value is not None:
                values[key] = _number(key, value) if key in _NUMBERS else _text(key, value)
        if not str(values.get("url", "")).strip():
            raise ConfigurationError(
                "the schema registry has no url", remedy="Set url, such as http://localhost:8081"
            )
        for url in str(values["url"]).split(","):
            _check_url(url.strip())
        _take_login(values)
        return cls(tuple(sorted(values.items())))

    @classmethod
    def from_connection(
        cls,
        *,
        host: str | None,
        schema: str | None = None,
        port: int | None = None,
        login: str | None = None,
        password: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> RegistrySettings:
        """From the parts of an Airflow connection of type ``http``; its extra may hold further settings.

        :raises ConfigurationError: see :meth:`from_mapping`.
        """
        values = dict(extra or {})
        if "url" not in values and host:
            values["url"] = host if "://" in host else f"{schema or 'http'}://{host}"
            if port and urlsplit(values["url"]).port is None:
                parts = urlsplit(values["url"])
                values["url"] = f"{parts.scheme}://{parts.netloc}:{port}{parts.path}"
        if login and "basic.auth.user.info" not in values:
            values["basic.auth.user.info"] = f"{login}:{password or ''}"
        return cls.from_mapping(values)

    @classmethod
    def from_json(cls, text: str) -> RegistrySettings:
        """Read what :meth:`to_json` wrote.

        :raises ConfigurationError: when it is no JSON object; the text itself is not shown.
        """
        if (document := json_object(text)) is None:
            raise ConfigurationError(
                "the schema registry's settings are not a JSON object",
                remedy=f"Set {REGISTRY_VARIABLE} to a JSON object such as {{\"url\": \"http://localhost:8081\"}}",
            )
        return cls.from_mapping(document)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> RegistrySettings | None:
        """What ``REGISTRY_VARIABLE`` of the Spark driver says, or the file that it names; None when it is not set.

        :raises ConfigurationError: see :meth:`from_json` and :func:`handed_over`.
        """
        text = handed_over(environ, REGISTRY_VARIABLE)
        return cls.from_json(text) if text else None

    def to_json(self) -> str:
        """All settings as a JSON object. Holds the secrets: hand it over where only the job can read it."""
        return json.dumps(dict(self._items), sort_keys=True)

    def for_client(self) -> dict[str, Any]:
        """The configuration of confluent-kafka's client."""
        values: dict[str, Any] = dict(self._items)
        for key in _NUMBERS[1:]:
            if key in values:
                values[key] = int(values[key])
        return values

    @property
    def address(self) -> str:
        """The URL, or URLs; they have no user name and password."""
        return str(dict(self._items)["url"])

    @property
    def passwords(self) -> list[str]:
        """What opens the registry, or a proxy before it."""
        found = []
        for key, value in self._items:
            if key == "proxy":
                found.append(urlsplit(str(value)).password or "")
            elif key == "basic.auth.user.info":
                found.append(str(value).partition(":")[2])
            elif key not in ("url", *_NUMBERS) and any(w in key for w in ("password", "token", "secret")):
                found.append(str(value))
        return [secret for secret in found if secret]

    def scrub(self, text: str) -> str:
        """A foreign text without any of our secrets."""
        for secret in self.passwords:
            for form in (secret, quote(secret, safe="")):
                text = text.replace(form, "***")
        return text

    def __repr__(self) -> str:
        return f"RegistrySettings({self.address}, {', '.join(k for k, _ in self._items if k != 'url')})"


def is_name(text: str) -> bool:
    """Whether Avro takes it as a name: ``[A-Za-z_][A-Za-z0-9_]*``."""
    return text.isascii() and text.isidentifier()


def _one_of(what: str, value: Any, known: Iterable[str]) -> None:
    names = tuple(known)
    if isinstance(value, str) and value in names:
        return
    text = str(value).lower()
    near = nearest(text, names) or next((name for name in names if text and text in name), None)
    raise ConfigurationError(
        f"{what} is {value!r}, known are {', '.join(names)}",
        remedy=f"Did you mean {near}" if near else "Use one of them",
    )


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(
            f"the setting {key} of the schema registry is a {type(value).__name__}", remedy="Set it to a text"
        )
    return value


def _number(key: str, value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 1e9 or (key == "timeout" and number == 0):
        raise ConfigurationError(
            f"the setting {key} of the schema registry is {value!r}", remedy="Set it to a positive number"
        )
    return number


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ConfigurationError(
            "the url of the schema registry is not http://host:port or https://host:port",  # it may hold a password
            remedy="Correct url, such as http://localhost:8081 (several with commas between them)",
        )


def _take_login(values: dict[str, str | float]) -> None:
    """Move user name and password out of the URLs: the client's HTTP library logs those (seen)."""
    urls = [url.strip() for url in str(values["url"]).split(",")]
    logins = {unquote(parts.netloc.rpartition("@")[0]) for url in urls if (parts := urlsplit(url)).username}
    if not logins:
        values["url"] = ",".join(map(_without_user, urls))
        return
    if len(logins) > 1 or "basic.auth.user.info" in values:
        raise ConfigurationError(
            "the schema registry has several logins, in url or in basic.auth.user.info",
            remedy="Keep one, as basic.auth.user.info (user:password), for all urls",
        )
    values["basic.auth.user.info"] = logins.pop()
    values["url"] = ",".join(map(_without_user, urls))


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
