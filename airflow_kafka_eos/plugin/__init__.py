"""The page in Airflow's UI: loads, their transactions, and what a person may do about them (docs/page.md).

Here is where it is in the UI. Nothing of Airflow is imported: the demo, which runs without, names these too.
"""

from __future__ import annotations

from airflow_kafka_eos.operators.links import URL_ROUTE_OF_RUN

__all__ = ["TITLE", "URL_PREFIX", "URL_ROUTE", "URL_ROUTE_OF_RUN"]

TITLE = "Kafka transactions"
URL_PREFIX = "/kafka-eos"
URL_ROUTE = "kafka-transactions"
