"""What the packaged application of a streaming query is to do: one JSON document, without secrets. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError

SCHEMA_VERSION = 1
#: Of the lease of a query's name: who has not renewed it for so long is dead, as far as others can tell.
LEASE_TTL = timedelta(seconds=60)


@dataclass(frozen=True)
class StreamSpec:
    """One run of a query with the trigger ``availableNow``.

    :param job: ``file.py``, ``file.py:function`` or ``module:function``; called as ``function(spark, **job_args)`` and
        returns a streaming DataFrame.
    :param options: of the sink, as :class:`~airflow_kafka_eos.streams.options.StreamOptions` reads them.
    :param lease: what the Airflow task has leased in the ledger, and in whose name.
    """

    job: str
    options: Mapping[str, str]
    job_args: Mapping[str, Any] = field(default_factory=dict)
    lease: tuple[str, str] = ("", "")

    def to_json(self) -> str:
        """As :meth:`from_json` reads it.

        :raises ConfigurationError: an argument of the job cannot be written as JSON.
        """
        document = {
            "schema_version": SCHEMA_VERSION,
            "job": self.job,
            "options": dict(self.options),
            "job_args": dict(self.job_args),
            "lease": list(self.lease),
        }
        try:
            return json.dumps(document, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as e:
            raise ConfigurationError(
                f"the query's job_args cannot be written as JSON ({e})", remedy="Use texts, numbers, lists and dicts"
            ) from e

    @classmethod
    def from_json(cls, text: str) -> StreamSpec:
        """Read a specification.

        :raises ConfigurationError: it is of another version of this package, or none.
        """
        try:
            document = json.loads(text)
            if document.pop("schema_version") != SCHEMA_VERSION:
                raise ValueError("another schema_version")
            return cls(**document)
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise ConfigurationError(
                f"the query's specification cannot be read ({type(e).__name__}: {e})",
                remedy="Install the same version of airflow-kafka-eos in Spark and in Airflow",
            ) from e
