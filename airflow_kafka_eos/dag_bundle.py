"""The maintenance DAG as a bundle that Airflow's configuration names: no DAG file has to be deployed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle


class MaintenanceDagBundle(LocalDagBundle):
    """For ``[dag_processor] dag_bundle_config_list``; holds the DAG ``kafka_eos_maintenance``, unpaused.

    On each host the folder is that of the installed package, so the configuration names no path. DAG processor and
    workers need the package, and the same list. Any further ``kwargs`` are those of Airflow's own bundles.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(path=str(Path(__file__).with_name("bundled_dags")), **kwargs)
