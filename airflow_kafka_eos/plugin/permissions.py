"""What a user may see and do: Airflow's own permissions on the DAGs that a load's attempts belong to.

Reading wants GET, acting wants PUT, both on the runs of the DAG. An attempt that names no DAG (another program's, or a
DAG id too long for the ledger) is for those who may do it for all DAGs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel

from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.operators.base import dag_of

Method = Literal["GET", "PUT"]


class Access:
    """One user's, for one request. Asks Airflow's auth manager, and through it maybe a database: not in an event loop.

    :param user: as Airflow's ``get_user`` answered.
    """

    def __init__(self, user: Any) -> None:
        self._user = user
        self._known: dict[tuple[Method, str | None], bool] = {}

    @property
    def name(self) -> str:
        """For ledger and audit log."""
        return str(self._user.get_name())

    def may(self, method: Method, dag_id: str | None) -> bool:
        """On the runs of a DAG; None: of all DAGs."""
        key = (method, dag_id)
        if key not in self._known:
            team = DagModel.get_team_name(dag_id) if dag_id else None
            self._known[key] = get_auth_manager().is_authorized_dag(
                method=method,
                access_entity=DagAccessEntity.RUN,
                details=DagDetails(id=dag_id, team_name=team),
                user=self._user,
            )
        return self._known[key]

    def may_see(self, attempt: AttemptRow | None) -> bool:
        """A load is shown by its newest attempt, an attempt by itself; None: a load without any."""
        return all(self.may("GET", dag_id) for dag_id in dags_of(attempt))

    def may_act(self, attempts: Iterable[AttemptRow]) -> bool:
        """What is done to a load is done to all of its attempts."""
        dags = {dag_id for attempt in attempts for dag_id in dags_of(attempt)} or {None}
        return all(self.may("GET", dag_id) and self.may("PUT", dag_id) for dag_id in dags)


def dags_of(attempt: AttemptRow | None) -> set[str | None]:
    """The DAGs that an attempt names, those of who opened it and of who submitted it; None in it: one is not known."""
    if attempt is None:
        return {None}
    return {dag_of(owner) for owner in (attempt.owner, attempt.submitted_by) if owner}
