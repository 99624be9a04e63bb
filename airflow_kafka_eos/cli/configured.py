"""Section ``[kafka_eos]`` for commands; see :mod:`airflow_kafka_eos.config`. Imports Airflow."""

from __future__ import annotations

from typing import Any

from airflow_kafka_eos import config
from airflow_kafka_eos.cli.logs import to_stderr


def setting(key: str, given: Any = None) -> Any:
    """As :func:`airflow_kafka_eos.config.setting`."""
    found = config.setting(key, given)
    to_stderr()
    return found


def optional(key: str, given: Any = None) -> Any:
    """As :func:`airflow_kafka_eos.config.optional`."""
    found = config.optional(key, given)
    to_stderr()
    return found
