"""What Airflow's plugins manager is told. Schedulers and workers import it too: it imports little."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_kafka_eos.plugin.addresses import TITLE, URL_PREFIX, URL_ROUTE, URL_ROUTE_OF_RUN
from airflow_kafka_eos.plugin.lazy import LazyApp
from airflow_kafka_eos.plugin.links import KafkaTransactionsLink


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
