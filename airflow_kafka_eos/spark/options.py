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

Which columns a DataFrame may have is checked here, too. All of it is light to import: DAG files are parsed with it, and
tasks are sent it by pickle.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.errors import ConfigurationError, nearest
from airflow_kafka_eos.load import (
    DEFAULT_NAMESPACE,
    LoadIdentity,
    TransactionScope,
    TwoPhaseCommit,
    WriterName,
)
from airflow_kafka_eos.naming import AnyId, AttemptRef, check_length
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE, kafka_handed_over
from airflow_kafka_eos.transaction import TWO_PHASE_TIMEOUT_MS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.kafka.producer.interface import TopicLimits, WriteTarget
    from airflow_kafka_eos.manifest import Manifest, TopicInfo

_REQUIRED = (
    "load.name",
    "load.key",
    "load.attempt",
    "ledger.id",
    "manifest.dir",
    "transaction.timeout.ms",
    "deadline.ms",
)
KNOWN = (
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
    """One write: what, where to, as which attempt. Has no secret.

    :param topics: all topics that rows may go to; a single one is the default topic too.
    :param transaction_timeout_ms: the hold time of the transactions.
    :param deadline_ms: milliseconds since the epoch; no transaction is begun after it.
    :param kafka: librdkafka's settings that are no secret.
    :raises ConfigurationError: naming the option that is wrong.
    """

    attempt: AttemptRef
    manifest_dir: str
    topics: tuple[str, ...]
    transaction_timeout_ms: int
    deadline_ms: int
    default_topic: str | None = None
    kafka: tuple[tuple[str, str], ...] = ()
    claim: str | None = None
    scope: TransactionScope = TransactionScope.TASK
    tasks: int | None = None
    two_phase_commit: TwoPhaseCommit = TwoPhaseCommit.AUTO
    writer: WriterName = WriterName.AUTO

    def __post_init__(self) -> None:
        check_length(self.attempt.load, self.attempt.ledger_id)
        if not self.topics:
            raise _wrong("topic", "is missing, and topics too", "Name the topic, or all topics that rows may go to")
        if not all(isinstance(name, str) and name.strip() and "," not in name for name in self.topics):
            raise _wrong("topics", f"is {list(self.topics)!r}", "Name one or more topics")
        if len(self.topics) == 1:
            object.__setattr__(self, "default_topic", self.topics[0])
        if not isinstance(self.manifest_dir, str) or not self.manifest_dir.strip():
            raise _wrong("manifest.dir", f"is {self.manifest_dir!r}", "Set it to a folder")
        for key, number in (
            ("load.attempt", self.attempt.attempt),
            ("transaction.timeout.ms", self.transaction_timeout_ms),
            ("deadline.ms", self.deadline_ms),
            ("transaction.tasks", 1 if self.tasks is None else self.tasks),
        ):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise _wrong(key, f"is {number!r}", "Set it to a whole number from 1 on")
        if self.transaction_timeout_ms >= TWO_PHASE_TIMEOUT_MS:  # what a coordinator shows for "none"
            raise _wrong(
                "transaction.timeout.ms",
                f"is {self.transaction_timeout_ms}",
                f"Hold transactions for less than {TWO_PHASE_TIMEOUT_MS} ms (24 days); two-phase commit has no limit",
            )
        for name, kind, key in (
            ("scope", TransactionScope, "transaction.scope"),
            ("two_phase_commit", TwoPhaseCommit, "transaction.two.phase.commit"),
            ("writer", WriterName, "writer"),
        ):
            object.__setattr__(self, name, kind.read(_of(key), getattr(self, name)))
        if self.attempt.repairs and self.scope is TransactionScope.LOAD:
            raise _wrong(
                "transaction.scope", "is 'load', and it has repairs", "Prepare single Spark partitions in scope task"
            )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Read Spark's options.

        :raises ConfigurationError: an option is missing, unknown, misshapen, or a secret.
        """
        given = {key.lower(): value for key, value in options.items()}
        kafka = {key[len(_KAFKA) :]: value for key, value in given.items() if key.startswith(_KAFKA)}
        check_known(given, KNOWN)
        _check_no_secrets(kafka)
        for key in _REQUIRED:
            if not given.get(key):
                raise _wrong(key, "is missing", "Set it; the packaged application does so by itself")
        load = LoadIdentity(
            given.get("load.namespace") or DEFAULT_NAMESPACE, given["load.name"], given["load.key"]
        )
        slot = given.get("load.slot")
        if slot and not _is_whole(slot):
            raise _wrong("load.slot", f"is {slot!r}", "Set it to the slot that the ledger has leased, or leave it out")
        topics = [t.strip() for t in given.get("topics", "").split(",") if t.strip()]
        default = given.get("topic", "").strip() or None
        if default is not None and default not in topics:
            topics.append(default)
        return cls(
            attempt=AttemptRef(
                load,
                given["ledger.id"],
                _number(given, "load.attempt"),
                int(slot) if slot else None,
                _repairs(given.get("load.repairs", "")),
            ),
            manifest_dir=given["manifest.dir"],
            topics=tuple(topics),
            transaction_timeout_ms=_number(given, "transaction.timeout.ms"),
            deadline_ms=_number(given, "deadline.ms"),
            default_topic=default,
            kafka=tuple(sorted(kafka.items())),
            claim=given.get("load.claim") or None,
            scope=given.get("transaction.scope", TransactionScope.TASK),  # type: ignore[arg-type]  # texts are read
            tasks=_number(given, "transaction.tasks") if given.get("transaction.tasks") else None,
            two_phase_commit=given.get("transaction.two.phase.commit", TwoPhaseCommit.AUTO),  # type: ignore[arg-type]
            writer=given.get("writer", WriterName.AUTO),  # type: ignore[arg-type]
        )

    def to_texts(self) -> dict[str, str]:
        """As :meth:`parse` reads them; an option that is not set is left out."""
        ref = self.attempt
        given: dict[str, object] = {
            "topic": self.default_topic,
            "topics": ",".join(self.topics),
            "load.namespace": ref.load.namespace,
            "load.name": ref.load.name,
            "load.key": ref.load.key,
            "load.attempt": ref.attempt,
            "load.slot": ref.slot,
            "load.repairs": ",".join(f"{partition}={number}" for partition, number in ref.repairs) or None,
            "load.claim": self.claim,
            "ledger.id": ref.ledger_id,
            "manifest.dir": self.manifest_dir,
            "transaction.timeout.ms": self.transaction_timeout_ms,
            "deadline.ms": self.deadline_ms,
            "transaction.scope": self.scope.value,
            "transaction.tasks": self.tasks,
            "transaction.two.phase.commit": self.two_phase_commit.value,
            "writer": self.writer.value,
        }
        texts = {key: str(value) for key, value in given.items() if value is not None}
        return texts | {f"{_KAFKA}{key}": value for key, value in self.kafka}

    def settings(self, environ: Mapping[str, str]) -> KafkaSettings:
        """The Kafka settings: those of the driver's environment, and the options above them.

        :raises ConfigurationError: see ``KafkaSettings`` and ``kafka_handed_over``; also when there are no settings.
        """
        from airflow_kafka_eos.kafka.client.settings import KafkaSettings

        found = kafka_handed_over(environ)
        base = {} if found is None else found.texts
        if not base and not self.kafka:
            raise ConfigurationError(
                f"there are no Kafka settings: {SETTINGS_VARIABLE} is not set in the Spark driver's environment",
                remedy=f"Set {SETTINGS_VARIABLE} to a JSON object of librdkafka's keys, or kafka.bootstrap.servers",
            )
        return KafkaSettings.from_mapping(base | dict(self.kafka))

    def target(self, transactional_id: AnyId, limits: Mapping[str, TopicLimits], **more: Any) -> WriteTarget:
        """What a writer is told of the load.

        :param more: further fields of ``WriteTarget``.
        """
        from airflow_kafka_eos.kafka.producer.interface import WriteTarget

        return WriteTarget(
            transactional_id, limits, self.default_topic, self.transaction_timeout_ms, self.deadline_ms, **more
        )


def not_as_asked(manifest: Manifest, asked: WriteOptions) -> str:
    """What an application has done otherwise than its specification says, as far as a decision rests on it; or an empty
    text. A prepare of somebody else's may go by a part of it.
    """
    if manifest.scope is not asked.scope:
        return f"transaction.scope={asked.scope.value} was asked for, and it has prepared with {manifest.scope.value}"
    refused = {TwoPhaseCommit.REQUIRED: False, TwoPhaseCommit.OFF: True}
    if refused.get(asked.two_phase_commit) is manifest.two_phase_commit:
        how = "with it" if manifest.two_phase_commit else "without"
        return f"transaction.two.phase.commit={asked.two_phase_commit.value} was asked for, and it has prepared {how}"
    others = sorted({w.topic for entry in manifest.entries for w in entry.writes} - {*asked.topics})
    if others:
        return f"topics={','.join(asked.topics)} was asked for, and it has written to {', '.join(others)}"
    return ""


def _of(key: str) -> str:
    return f"the option {key} of kafka_eos"


def _wrong(key: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"{_of(key)} {problem}", remedy=remedy)


def check_known(given: Iterable[str], known: Collection[str]) -> None:
    """
    :param given: keys in lower case.
    :param known: those that there are, beside ``kafka.*``.
    :raises ConfigurationError: one is none of them.
    """
    names = {key.lower() for key in known}
    for key in sorted(given):
        if not key.startswith(_KAFKA) and key not in names:
            near = nearest(key, [*known, "kafka.bootstrap.servers"])
            meant = f"Did you mean {near}" if near else f"Known are {', '.join(known)}, kafka.*"
            raise _wrong(key, "is unknown", meant)


def _check_no_secrets(kafka: Mapping[str, str]) -> None:
    for key in sorted(kafka):
        if key not in _NOT_SECRET and (key.startswith("sasl.") or any(word in key for word in _SECRET_WORDS)):
            raise _wrong(
                f"kafka.{key}",
                "may be a secret, and options show in Spark's UI and event log",
                f"Put it into the environment variable {SETTINGS_VARIABLE} of the Spark driver instead",
            )


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _number(given: Mapping[str, str], key: str) -> int:
    if not _is_whole(given[key]):
        raise _wrong(key, f"is {given[key]!r}", "Set it to a whole number from 1 on")
    return int(given[key])


def _repairs(text: str) -> tuple[tuple[int, int], ...]:
    found = re.findall(r"(?:^|,)([0-9]{1,9})=([0-9]{1,9})(?=,|$)", text, re.ASCII)
    if len(found) != (text.count(",") + 1 if text else 0):
        raise _wrong(
            "load.repairs",
            f"is {text!r}",
            "Set it to <Spark partition>=<repair>, separated by commas, as the packaged application does",
        )
    return tuple((int(partition), int(number)) for partition, number in found)


HEADERS = "array<struct<key:string,value:binary>>"
#: Allowed types by column, as Spark writes them; those of Spark's own Kafka sink.
ALLOWED = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": (HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
COLUMNS = tuple(ALLOWED)


def check_schema(schema: StructType, *, has_default_topic: bool) -> None:
    """Refuse a DataFrame that cannot be written.

    :raises ConfigurationError: naming the column, its type, and the types that are allowed.
    """
    columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    check_columns(columns, has_default_topic=has_default_topic)


def check_columns(
    columns: Sequence[tuple[str, str]], *, has_default_topic: bool, of: str = "the DataFrame"
) -> None:
    """Refuse columns that cannot be written.

    :param columns: names and types, as Spark writes them.
    :param of: what has them, for people.
    :raises ConfigurationError: naming the column, its type, and the types that are allowed.
    """
    names = [name for name, _ in columns]
    found = ", ".join(names) or "none"
    for name, kind in columns:
        if name not in ALLOWED:
            near = nearest(name, COLUMNS)
            raise ConfigurationError(
                f"{of} has a column {name!r}, kafka_eos takes only {', '.join(COLUMNS)}",
                remedy=f"Rename it to {near}"
                if near
                else "Drop it, or make it part of key or value (to_json)",
            )
        if names.count(name) > 1:
            raise ConfigurationError(f"{of} has column {name!r} twice", remedy="Keep one of them")
        if kind not in ALLOWED[name]:
            raise ConfigurationError(
                f"column {name!r} has type {kind}, allowed is {' or '.join(ALLOWED[name])}",
                remedy="Cast it, or use to_json(struct(...)) for a column of several fields",
            )
    if "key" not in names and "value" not in names:
        raise ConfigurationError(
            f"{of} has neither a value nor a key column (its columns: {found})",
            remedy="Select what to send as value, such as to_json(struct('*')).alias('value')",
        )
    if not has_default_topic and "topic" not in names:
        raise ConfigurationError(
            f"{of} has no topic column (its columns: {found}), and there is no default topic",
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
