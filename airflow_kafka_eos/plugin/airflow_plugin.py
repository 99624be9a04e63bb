"""The plugin as Airflow's plugins manager reads it: the page's app, its places in the UI, and the link of each task.

Schedulers and workers import it too, so it imports little: the app is made with the first request, which only
api-servers get. A process that tasks are forked from imports for them, as Airflow loads it (:mod:`.pre_import`).
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.plugins_manager import AirflowPlugin
from airflow.sdk import BaseOperatorLink

from airflow_kafka_eos.operators.links import run_tab
from airflow_kafka_eos.plugin import TITLE, URL_PREFIX, URL_ROUTE, URL_ROUTE_OF_RUN
from airflow_kafka_eos.plugin.pre_import import forks_tasks, pre_import

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskInstanceKey
    from airflow.sdk import BaseOperator


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class LazyApp:
    """An ASGI app that imports FastAPI, and all that the page needs, with its first request."""

    def __init__(self) -> None:
        self._app: Any = None
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or await asyncio.to_thread(self._made)
        await app(scope, receive, send)

    def _made(self) -> Any:
        with self._lock:
            if self._app is None:
                from airflow_kafka_eos.plugin.api import make_app

                self._app = make_app()
            return self._app


class _Operators:
    """The operators of a load, imported when Airflow reads a DAG with links: no scheduler does."""

    def __get__(self, instance: object, owner: type) -> list[type[BaseOperator]]:
        from airflow_kafka_eos.operators.begin import BeginLoadOperator
        from airflow_kafka_eos.operators.collect import CollectLoadOperator
        from airflow_kafka_eos.operators.commit import CommitLoadOperator
        from airflow_kafka_eos.operators.decide import DecideLoadOperator
        from airflow_kafka_eos.operators.own_submitter import OwnSubmitter
        from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
        from airflow_kafka_eos.sensors import CleanupLoadSensor, LoadedSensor

        return [
            BeginLoadOperator,
            PrepareLoadOperator,
            OwnSubmitter,
            CollectLoadOperator,
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


class KafkaEosPlugin(AirflowPlugin):
    """A page of its own, a tab on the DAG run, and a link on each task of a load."""

    name = "kafka_eos"
    fastapi_apps = [  # noqa: RUF012
        {"name": "kafka-eos", "app": LazyApp(), "url_prefix": URL_PREFIX},
    ]
    # relative to the page's <base>: so they stand behind a proxy's prefix too
    external_views = [  # noqa: RUF012
        {
            "name": TITLE,
            "href": f"{URL_PREFIX.lstrip('/')}/",
            "destination": "nav",
            "category": "browse",
            "url_route": URL_ROUTE,
        },
        {
            "name": TITLE,
            "href": f"{URL_PREFIX.lstrip('/')}/?dag_id={{DAG_ID}}&run_id={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": URL_ROUTE_OF_RUN,
        },
    ]
    operator_extra_links: list[Any] = [KafkaTransactionsLink()]  # noqa: RUF012

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Airflow's own, in each of its processes."""
        if forks_tasks(sys.argv):
            pre_import()
