"""Links from a task in Airflow's UI to the page of its run; and the one that says that nothing was written.

The plugin is loaded with every Airflow process and imports this: so it imports little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskInstanceKey

#: Airflow wants a route for each view: this one is the tab on the DAG run.
URL_ROUTE_OF_RUN = "kafka-transactions-run"


def run_tab(dag_id: str, run_id: str) -> str:
    """A path of this Airflow, with a proxy's prefix where it has one."""
    from airflow.providers.common.compat.sdk import conf

    prefix = urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")
    return f"{prefix}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}/plugin/{URL_ROUTE_OF_RUN}"


class AlreadyCommittedLink(BaseOperatorLink):
    """A button on begin, there only where the load was committed before: the run is green, and has written nothing.

    A worker may not write notes (Airflow 3.3 gives it no such call), but it may say where a link leads; without one,
    Airflow's UI shows no button.
    """

    @property
    def name(self) -> str:
        return "Already committed: nothing is written again"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        # the API makes null of an empty link; of None, it makes the text "None"
        return run_tab(ti_key.dag_id, ti_key.run_id) if operator.note else ""
