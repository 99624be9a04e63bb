"""The extra link of a load's tasks that leads to the page in Airflow's UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperatorLink

from airflow_kafka_eos.operators.links import run_tab
from airflow_kafka_eos.plugin.addresses import TITLE

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class _Operators:
    """The operators of a load, imported when Airflow reads a DAG with links: no scheduler does."""

    def __get__(self, instance: object, owner: type) -> list[type[BaseOperator]]:
        from airflow_kafka_eos.operators.begin import BeginLoadOperator
        from airflow_kafka_eos.operators.commit import CommitLoadOperator
        from airflow_kafka_eos.operators.decide import DecideLoadOperator
        from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
        from airflow_kafka_eos.sensors.cleanup import CleanupLoadSensor
        from airflow_kafka_eos.sensors.loaded import LoadedSensor

        return [
            BeginLoadOperator,
            PrepareLoadOperator,
            DecideLoadOperator,
            CommitLoadOperator,
            CleanupLoadSensor,
            LoadedSensor,
        ]


class KafkaTransactionsLink(BaseOperatorLink):
    """From a task to its run's tab. The api-server makes it, so it is there while a task runs, or waits deferred."""

    operators: ClassVar[Any] = _Operators()

    @property
    def name(self) -> str:
        return TITLE

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """A path of this Airflow."""
        return run_tab(ti_key.dag_id, ti_key.run_id)
