"""The extra link of a load's tasks that leads to the page in Airflow's UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

from airflow_kafka_eos.plugin.addresses import TITLE, URL_ROUTE_OF_RUN

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
        """A path of this Airflow, with a proxy's prefix where it has one."""
        prefix = urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")
        dag_id, run_id = quote(ti_key.dag_id, safe=""), quote(ti_key.run_id, safe="")
        return f"{prefix}/dags/{dag_id}/runs/{run_id}/plugin/{URL_ROUTE_OF_RUN}"
