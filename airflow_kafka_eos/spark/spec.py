"""What the packaged application is to do: one JSON document, without secrets, on spark-submit's command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.formats.settings import ValueFormat
from airflow_kafka_eos.spark.options import WriteOptions

SCHEMA_VERSION = 5
#: The function that is called in a job file or module that names none.
DEFAULT_FUNCTION = "load"


@dataclass(frozen=True)
class ApplicationSpec:
    """One prepare, of an attempt or again of what a decided one has lost: where rows come from, how they are written.

    :param job: ``file.py``, ``file.py:function`` or ``module:function``; called as ``function(spark, **job_args)``
        and returns a DataFrame. Exactly one of ``job`` and ``sql`` is set.
    :param sql: a SQL text; ``job_args`` are its named parameters (``:name``).
    :param value_format: how values are made of the DataFrame's columns.
    :param range: of a load with a cursor, ``since`` and ``until``; where ``until`` is None, the job chooses it.
    """

    options: WriteOptions
    job: str | None = None
    sql: str | None = None
    job_args: Mapping[str, Any] = field(default_factory=dict)
    value_format: ValueFormat = field(default_factory=ValueFormat)
    range: Mapping[str, Any] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """All that the job is called with: its own arguments, and the range that it is to read."""
        return {**self.job_args, **(self.range or {})}

    def __post_init__(self) -> None:
        if (self.job is None) == (self.sql is None):
            raise _wrong("job and sql", "are both set" if self.job else "are both missing", "Set exactly one of them")
        for name, value in (("job", self.job), ("sql", self.sql)):
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise _wrong(name, f"is {value!r}", "Set it to a text")
        if not isinstance(self.job_args, Mapping) or not all(isinstance(k, str) for k in self.job_args):
            raise _wrong("job_args", "has a name that is not a text", "Use a dict of keyword arguments")
        if self.range is not None and (not isinstance(self.range, Mapping) or set(self.range) != {"since", "until"}):
            raise _wrong("range", f"is {self.range!r}", "Use a dict with since and until")
        if taken := sorted(set(self.job_args) & set(self.range or ())):
            raise _wrong("job_args", f"has {taken[0]}, which comes of the cursor", "Give the argument another name")

    def to_json(self) -> str:
        """As :meth:`from_json` reads it.

        :raises ConfigurationError: an argument of the job cannot be written as JSON.
        """
        document = {
            "schema_version": SCHEMA_VERSION,
            "options": self.options.to_texts(),
            "job": self.job,
            "sql": self.sql,
            "job_args": dict(self.job_args),
            "value_format": self.value_format.to_mapping(),
        }
        if self.range is not None:
            document["range"] = dict(self.range)
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
            options = WriteOptions.parse(document.pop("options"))
            return cls(options, value_format=ValueFormat.of(document.pop("value_format")), **document)
        except ConfigurationError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise _wrong(
                "document", f"is malformed ({type(e).__name__}: {e})", "Pass what to_json wrote"
            ) from e


def _wrong(field_name: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"the application's {field_name} {problem}", remedy=remedy)
