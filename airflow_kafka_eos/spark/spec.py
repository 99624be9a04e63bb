"""What the packaged application is to do: one JSON document, without secrets, on spark-submit's command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import LoadIdentity, TransactionScope, TwoPhaseCommit, WriterName
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.spark.formats.settings import ValueFormat
from airflow_kafka_eos.transaction import TWO_PHASE_TIMEOUT_MS

SCHEMA_VERSION = 4
#: The environment variable of the Spark driver with the Kafka settings and their secrets (``KafkaSettings.to_json``).
SETTINGS_VARIABLE = "AIRFLOW_KAFKA_EOS_KAFKA"
#: The function that is called in a job file or module that names none.
DEFAULT_FUNCTION = "load"


@dataclass(frozen=True)
class ApplicationSpec:
    """One prepare: of an attempt, or again of what a decided one has lost.

    :param topics: all topics that rows may go to; a single one is the default topic too.
    :param job: ``file.py``, ``file.py:function`` or ``module:function``; called as ``function(spark, **job_args)``
        and returns a DataFrame. Exactly one of ``job`` and ``sql`` is set.
    :param sql: a SQL text; ``job_args`` are its named parameters (``:name``).
    :param transaction_timeout_ms: the hold time of the transactions.
    :param deadline_ms: milliseconds since the epoch; no transaction is begun after it (rule: writers-have-a-deadline).
    :param scope: ``task`` or ``load``: one transaction per Spark task attempt, or one for all.
    :param two_phase_commit: ``auto``, ``required`` or ``off``.
    :param writer: ``auto``, ``arrow`` or ``confluent``.
    :param value_format: how values are made of the DataFrame's columns.
    """

    attempt: AttemptRef
    manifest_dir: str
    topics: tuple[str, ...]
    transaction_timeout_ms: int
    deadline_ms: int
    job: str | None = None
    sql: str | None = None
    job_args: Mapping[str, Any] = field(default_factory=dict)
    scope: str = TransactionScope.TASK.value
    two_phase_commit: str = TwoPhaseCommit.AUTO.value
    writer: str = WriterName.AUTO.value
    value_format: ValueFormat = field(default_factory=ValueFormat)

    def __post_init__(self) -> None:
        if (self.job is None) == (self.sql is None):
            raise _wrong(
                "job and sql", "are both set" if self.job else "are both missing", "Set exactly one of them"
            )
        for name in ("job", "sql", "manifest_dir"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise _wrong(name, f"is {value!r}", "Set it to a text")
        if not self.topics or not all(isinstance(t, str) and t.strip() and "," not in t for t in self.topics):
            raise _wrong("topics", f"are {list(self.topics)!r}", "Name one or more topics")
        for name in ("transaction_timeout_ms", "deadline_ms"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise _wrong(name, f"is {value!r}", "Set it to a whole number from 1 on")
        if self.transaction_timeout_ms >= TWO_PHASE_TIMEOUT_MS:  # what a coordinator shows for "none"
            raise _wrong(
                "transaction_timeout_ms",
                f"is {self.transaction_timeout_ms}",
                f"Ask for a hold time of less than {TWO_PHASE_TIMEOUT_MS} ms (24 days); two-phase commit has no limit",
            )
        scope = TransactionScope.read("the application's scope", self.scope)
        if self.attempt.repairs and scope is TransactionScope.LOAD:
            raise _wrong("scope", "is 'load', and it has repairs", "Prepare single Spark partitions in scope task")
        TwoPhaseCommit.read("the application's two_phase_commit", self.two_phase_commit)
        WriterName.read("the application's writer", self.writer)
        if not all(isinstance(k, str) for k in self.job_args):
            raise _wrong("job_args", "has a name that is not a text", "Use a dict of keyword arguments")

    @property
    def default_topic(self) -> str | None:
        """Where rows without a topic go: the only topic, if there is only one."""
        return self.topics[0] if len(self.topics) == 1 else None

    def to_json(self) -> str:
        """As :meth:`from_json` reads it.

        :raises ConfigurationError: an argument of the job cannot be written as JSON.
        """
        document = asdict(self) | {"schema_version": SCHEMA_VERSION, "job_args": dict(self.job_args)}
        try:
            return json.dumps(document, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as e:
            raise _wrong(
                "job_args", f"cannot be written as JSON ({e})", "Use texts, numbers, lists and dicts"
            ) from e

    @classmethod
    def from_json(cls, text: str) -> ApplicationSpec:
        """Read a specification.

        :raises ConfigurationError: naming what is missing, unknown or misshapen.
        """
        try:
            document = json.loads(text)
        except ValueError as e:
            raise _wrong("document", f"is not JSON ({e})", "Pass what ApplicationSpec.to_json wrote") from e
        if not isinstance(document, dict) or document.pop("schema_version", None) != SCHEMA_VERSION:
            raise _wrong(
                "schema_version",
                f"is not {SCHEMA_VERSION}",
                "Install the same version of airflow-kafka-eos in Spark and in Airflow",
            )
        try:
            attempt = document.pop("attempt")
            load, slot = LoadIdentity(**attempt["load"]), attempt["slot"]
            repairs = tuple((int(partition), int(number)) for partition, number in attempt["repairs"])
            ref = AttemptRef(
                load, attempt["ledger_id"], int(attempt["attempt"]), None if slot is None else int(slot), repairs
            )
            topics = document.pop("topics")
            if not isinstance(topics, list) or not isinstance(document.get("job_args", {}), dict):
                raise TypeError("topics must be a list and job_args an object")
            value_format = ValueFormat.of(document.pop("value_format", {}))
            return cls(attempt=ref, topics=tuple(topics), value_format=value_format, **document)
        except ConfigurationError:
            raise
        except (KeyError, TypeError, ValueError) as e:
            raise _wrong(
                "document", f"is malformed ({type(e).__name__}: {e})", "Pass what to_json wrote"
            ) from e


def _wrong(field_name: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"the application's {field_name} {problem}", remedy=remedy)
