"""Where a run's tab of the plugin's page is. Imports nothing, as plugin/addresses.py."""

from __future__ import annotations

#: Airflow wants a route for each view: this one is the tab on the DAG run.
URL_ROUTE_OF_RUN = "kafka-transactions-run"
