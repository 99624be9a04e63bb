"""Load Spark DataFrames into Kafka exactly once, from Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_kafka_eos.argument_groups import Checks, Transactions
    from airflow_kafka_eos.cursor import Cursor
    from airflow_kafka_eos.decorator import exactly_once_load
    from airflow_kafka_eos.operators.own_submitter import Submit
    from airflow_kafka_eos.sources import DeltaVersions, KafkaOffsets, Watermark
    from airflow_kafka_eos.stream_group import ExactlyOnceStream
    from airflow_kafka_eos.task_group import ExactlyOnceLoad

__version__ = "0.1.0.dev0"
__all__ = [
    "Checks",
    "Cursor",
    "DeltaVersions",
    "ExactlyOnceLoad",
    "ExactlyOnceStream",
    "KafkaOffsets",
    "Submit",
    "Transactions",
    "Watermark",
    "__version__",
    "exactly_once_load",
]
_MODULES = {
    "Checks": "argument_groups",
    "Cursor": "cursor",
    "DeltaVersions": "sources",
    "ExactlyOnceLoad": "task_group",
    "ExactlyOnceStream": "stream_group",
    "KafkaOffsets": "sources",
    "Submit": "operators.own_submitter",
    "Transactions": "argument_groups",
    "Watermark": "sources",
    "exactly_once_load": "decorator",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # lazily: Spark's drivers and executors import this package where no Airflow is installed
    from importlib import import_module

    from airflow_kafka_eos.errors import ConfigurationError
    from airflow_kafka_eos.extras import needed

    try:
        with needed(name):
            return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ConfigurationError as e:
        raise ImportError(str(e)) from e  # what whoever imports expects
