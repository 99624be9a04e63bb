"""Where the page is in Airflow's UI. Imports nothing: the demo names them, too, and needs no Airflow in its process."""

from __future__ import annotations

TITLE = "Kafka transactions"
URL_PREFIX = "/kafka-eos"
URL_ROUTE = "kafka-transactions"
#: Airflow wants another one for each view
URL_ROUTE_OF_RUN = "kafka-transactions-run"
