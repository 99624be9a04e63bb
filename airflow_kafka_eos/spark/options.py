"""The options of ``df.write.format("kafka_eos")``, read and checked. No I/O.

Options show in Spark's UI, plans and event logs. So secrets never travel here: they come in the environment
variable ``AIRFLOW_KAFKA_EOS_KAFKA`` of the Spark driver, as a JSON object of librdkafka's keys.

| option | meaning |
| --- | --- |
| ``topic`` | topic of rows that have none of their own |
| ``topics`` | all topics that rows may go to, separated by commas; with one topic only, it is the default too |
| ``kafka.<key>`` | a librdkafka setting that is no secret (``kafka.bootstrap.servers``); beats the environment |
| ``load.namespace``, ``load.name``, ``load.key`` | the load's identity (namespace defaults to ``airflow``) |
| ``load.attempt``, ``ledger.id`` | the attempt that the ledger opened |
| ``load.slot`` | the slot of pooled transactional ids that it has leased; without, its ids are never used again |
| ``load.repairs`` | ``<Spark partition>=<repair>``, separated by commas: only these are written, under these numbers |
| ``load.claim`` | the claimant under which the application has claimed the attempt; without it, the write claims it |
| ``manifest.dir`` | folder of claims and manifests |
| ``transaction.timeout.ms`` | the hold time: how long the transactions may stay open |
| ``deadline.ms`` | milliseconds since the epoch; no transaction is begun after it (rule: writers-have-a-deadline) |
| ``transaction.scope`` | ``task`` (default) or ``load``: a transaction per task, or one for all (:mod:`.scope`) |
| ``transaction.tasks`` | scope load: how many Spark tasks write; default: as many as the topics have partitions |
| ``transaction.two.phase.commit`` | ``auto`` (default), ``required`` or ``off``: transactions without a timeout |
| ``writer`` | ``auto`` (default), ``arrow`` or ``confluent`` |

The columns that a DataFrame may have, checked before anything is written. No I/O.

What the driver has checked, for the tasks and the manifest. No I/O, and light to import: it travels by pickle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_kafka_eos.errors import ConfigurationError, nearest
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.interface import TopicLimits
from airflow_kafka_eos.load import (
    DEFAULT_NAMESPACE,
    LoadIdentity,
    TransactionScope,
    TwoPhaseCommit,
    WriterName,
)
from airflow_kafka_eos.manifest import AttemptRef, TopicInfo
from airflow_kafka_eos.naming import check_length
from airflow_kafka_eos.spark.spec import SETTINGS_VARIABLE
from airflow_kafka_eos.transaction import TWO_PHASE_TIMEOUT_MS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_REQUIRED = (
    "load.name",
    "load.key",
    "load.attempt",
    "ledger.id",
    "manifest.dir",
    "transaction.timeout.ms",
    "deadline.ms",
)
_KNOWN = (
    *_REQUIRED,
    "topic",
    "topics",
    "load.namespace",
    "load.claim",
    "load.slot",
    "load.repairs",
    "transaction.scope",
    "transaction.tasks",
    "transaction.two.phase.commit",
    "writer",
)
_KAFKA = "kafka."
_SECRET_WORDS = ("password", "secret", "token", "jaas", ".pem", "keystore", "oauthbearer", "username")
_NOT_SECRET = ("sasl.mechanism", "sasl.mechanisms", "sasl.kerberos.service.name", "ssl.keystore.location")


@dataclass(frozen=True)
class WriteOptions:
    """One write: what, where to, as which attempt. ``kafka`` has no secret."""

    attempt: AttemptRef
    topics: tuple[str, ...]
    default_topic: str | None
    kafka: tuple[tuple[str, str], ...]
    manifest_dir: str
    transaction_timeout_ms: int
    deadline_ms: int
    claim: str | None = None
    scope: TransactionScope = TransactionScope.TASK
    tasks: int | None = None
    two_phase_commit: TwoPhaseCommit = TwoPhaseCommit.AUTO
    writer: WriterName = WriterName.AUTO

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Read Spark's options.

        :raises ConfigurationError: an option is missing, unknown, misshapen, or a secret.
        """
        given = {key.lower(): value for key, value in options.items()}
        kafka = {key[len(_KAFKA) :]: value for key, value in given.items() if key.startswith(_KAFKA)}
        _refuse_unknown([key for key in given if not key.startswith(_KAFKA) and key not in _KNOWN])
        _refuse_secrets(kafka)
        for key in _REQUIRED:
            if not given.get(key):
                raise _wrong(key, "is missing", "Set it; the packaged application does so by itself")
        load = LoadIdentity(
            given.get("load.namespace") or DEFAULT_NAMESPACE, given["load.name"], given["load.key"]
        )
        check_length(load, given["ledger.id"])
        topics = [t.strip() for t in given.get("topics", "").split(",") if t.strip()]
        default = given.get("topic", "").strip() or (topics[0] if len(topics) == 1 else None)
        if default is not None and default not in topics:
            topics.append(default)
        if not topics:
            raise _wrong(
                "topic", "is missing, and topics too", "Name the topic, or all topics that rows may go to"
            )
        return cls(
            attempt=AttemptRef(
                load, given["ledger.id"], _positive(given, "load.attempt"), _slot(given), _repairs(given)
            ),
            topics=tuple(topics),
            default_topic=default,
            kafka=tuple(sorted(kafka.items())),
            manifest_dir=given["manifest.dir"],
            transaction_timeout_ms=_timeout(given),
            deadline_ms=_positive(given, "deadline.ms"),
            claim=given.get("load.claim") or None,
            scope=TransactionScope.read(_of("transaction.scope"), given.get("transaction.scope", "task")),
            tasks=_positive(given, "transaction.tasks") if given.get("transaction.tasks") else None,
            two_phase_commit=TwoPhaseCommit.read(
                _of("transaction.two.phase.commit"), given.get("transaction.two.phase.commit", "auto")
            ),
            writer=WriterName.read(_of("writer"), given.get("writer", "auto")),
        )

    def settings(self, secret: str | None) -> KafkaSettings:
        """The Kafka settings: those of the environment, and the options above them.

        :param secret: the content of the environment variable, None when it is not set.
        :raises ConfigurationError: see ``KafkaSettings``; also when there are no settings at all.
        """
        base = dict(KafkaSettings.from_json(secret).for_librdkafka()) if secret else {}
        if not base and not self.kafka:
            raise ConfigurationError(
                f"there are no Kafka settings: {SETTINGS_VARIABLE} is not set in the Spark driver's environment",
                remedy=f"Set {SETTINGS_VARIABLE} to a JSON object of librdkafka's keys, or kafka.bootstrap.servers",
            )
        return KafkaSettings.from_mapping(base | dict(self.kafka))


def _of(key: str) -> str:
    return f"the option {key} of kafka_eos"


def _wrong(key: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"{_of(key)} {problem}", remedy=remedy)


def _timeout(given: Mapping[str, str]) -> int:
    found = _positive(given, "transaction.timeout.ms")
    if found >= TWO_PHASE_TIMEOUT_MS:  # what a coordinator shows for "none"; Kafka has no longer one either
        raise _wrong("transaction.timeout.ms", f"is {found}", f"Set it to less than {TWO_PHASE_TIMEOUT_MS}")
    return found


def _refuse_unknown(keys: list[str]) -> None:
    for key in sorted(keys):
        near = nearest(key, [*_KNOWN, "kafka.bootstrap.servers"])
        raise _wrong(
            key,
            "is unknown",
            f"Did you mean {near}" if near else f"Known are {', '.join(_KNOWN)}, kafka.*",
        )


def _refuse_secrets(kafka: Mapping[str, str]) -> None:
    for key in sorted(kafka):
        if key not in _NOT_SECRET and (key.startswith("sasl.") or any(word in key for word in _SECRET_WORDS)):
            raise _wrong(
                f"kafka.{key}",
                "may be a secret, and options show in Spark's UI and event log",
                f"Put it into the environment variable {SETTINGS_VARIABLE} of the Spark driver instead",
            )


def _slot(given: Mapping[str, str]) -> int | None:
    text = given.get("load.slot", "")
    if text and not (text.isascii() and text.isdigit()):
        raise _wrong("load.slot", f"is {text!r}", "Set it to the slot that the ledger has leased, or leave it out")
    return int(text) if text else None


def _repairs(given: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
    text = given.get("load.repairs", "")
    found = re.findall(r"(?:^|,)([0-9]{1,9})=([0-9]{1,9})(?=,|$)", text, re.ASCII)
    if len(found) != (text.count(",") + 1 if text else 0):
        raise _wrong(
            "load.repairs",
            f"is {text!r}",
            "Set it to <Spark partition>=<repair>, separated by commas, as the packaged application does",
        )
    return tuple((int(partition), int(number)) for partition, number in found)


def _positive(given: Mapping[str, str], key: str) -> int:
    text = given[key]
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise _wrong(key, f"is {text!r}", "Set it to a whole number from 1 on")
    return int(text)


_HEADERS = "array<struct<key:string,value:binary>>"
#: Allowed types by column, as Spark writes them; those of Spark's own Kafka sink.
ALLOWED = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
COLUMNS = tuple(ALLOWED)


def check_schema(schema: StructType, *, has_default_topic: bool) -> None:
    """Refuse a DataFrame that cannot be written.

    :raises ConfigurationError: naming the column, its type, and the types that are allowed.
    """
    names = [field.name for field in schema.fields]
    found = ", ".join(names) or "none"
    for field in schema.fields:
        if field.name not in ALLOWED:
            near = nearest(field.name, COLUMNS)
            raise ConfigurationError(
                f"the DataFrame has a column {field.name!r}, kafka_eos takes only {', '.join(COLUMNS)}",
                remedy=f"Rename it to {near}"
                if near
                else "Drop it, or make it part of key or value (to_json)",
            )
        if names.count(field.name) > 1:
            raise ConfigurationError(
                f"the DataFrame has column {field.name!r} twice", remedy="Keep one of them"
            )
        kind = field.dataType.simpleString()
        if kind not in ALLOWED[field.name]:
            raise ConfigurationError(
                f"column {field.name!r} has type {kind}, allowed is {' or '.join(ALLOWED[field.name])}",
                remedy="Cast it, or use to_json(struct(...)) for a column of several fields",
            )
    if "key" not in names and "value" not in names:
        raise ConfigurationError(
            f"the DataFrame has neither a value nor a key column (its columns: {found})",
            remedy="Select what to send as value, such as to_json(struct('*')).alias('value')",
        )
    if not has_default_topic and "topic" not in names:
        raise ConfigurationError(
            f"the DataFrame has no topic column (its columns: {found}), and there is no default topic",
            remedy="Set the option topic, or add a topic column",
        )


@dataclass(frozen=True)
class Checked:
    """The topics as prepare saw them, what they take, by name, and how the attempt is written: decided once for it.

    ``timeout_ms`` is what coordinators will show of its transactions.
    """

    topics: Mapping[str, TopicInfo]
    limits: Mapping[str, TopicLimits]
    writer: WriterName
    two_phase_commit: bool
    timeout_ms: int

    @property
    def partitions(self) -> dict[str, int]:
        """How many each topic has."""
        return {name: info.partitions for name, info in self.topics.items()}
