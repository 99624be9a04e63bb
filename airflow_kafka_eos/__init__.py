"""Load Spark DataFrames into Kafka exactly once, from Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_kafka_eos.argument_groups import Checks, Transactions
    from airflow_kafka_eos.decorator import exactly_once_load
    from airflow_kafka_eos.task_group import ExactlyOnceLoad

__version__ = "0.1.0.dev0"
__all__ = ["Checks", "ExactlyOnceLoad", "Transactions", "__version__", "exactly_once_load"]


def __getattr__(name: str) -> Any:
    # lazily: Spark's drivers and executors import this package where no Airflow is installed
    if name == "ExactlyOnceLoad":
        from airflow_kafka_eos.task_group import ExactlyOnceLoad

        return ExactlyOnceLoad
    if name == "exactly_once_load":
        from airflow_kafka_eos.decorator import exactly_once_load

        return exactly_once_load
    if name in ("Checks", "Transactions"):
        from airflow_kafka_eos import argument_groups

        return getattr(argument_groups, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
