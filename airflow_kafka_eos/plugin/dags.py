"""What the page asks of Airflow: a DAG's load tasks, its runs, the user's permissions, and the audit log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance as TI
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_kafka_eos.config import optional, setting
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.micro_batch import is_driver
from airflow_kafka_eos.operators.base import (
    MAX_OWNER_PART,
    dag_and_run_of,
    dag_of,
    group_of,
    group_of_task,
    index_of,
)
from airflow_kafka_eos.plugin.views import RunSeen, Try

#: Runs in one query: databases have a limit of values.
_AT_ONCE = 200
_FIELDS = ("load_name", "load_key", "namespace", "kafka_conn_id", "ledger_conn_id")


@dataclass(frozen=True)
class Place:
    """Where a load is written, and where it is noted.

    :param kafka_conn_id: None where it is not known.
    :param ledger_conn_id: None for the embedded SQLite file; a template, as it stands, where it is not known.
    """

    kafka_conn_id: str | None
    ledger_conn_id: str | None


@dataclass(frozen=True)
class LoadTask:
    """A task of a load, as the serialized DAG has it."""

    task_id: str
    load_name: str
    place: Place

    @property
    def group(self) -> str:
        return group_of_task(self.task_id)


def configured() -> Place:
    """What operators use that name no connections: ``[kafka_eos]`` of Airflow's configuration, else the defaults."""
    return Place(setting("kafka_conn_id"), optional("ledger_conn_id"))


def load_tasks(dag_id: str, run_id: str | None = None) -> list[LoadTask]:
    """The tasks of a DAG that belong to loads, of the version that a run has; none for a DAG that is deleted.

    :param run_id: None, or a deleted run: the newest version.
    """
    with create_session() as session:
        bag = _dag_bag()
        run = DagRun.find(dag_id=dag_id, run_id=run_id, session=session) if run_id else None
        dag = bag.get_dag_for_run(run[0], session) if run else None
        dag = dag or bag.get_latest_version_of_dag(dag_id, session=session)
    if dag is None:
        return []
    return [read for task in dag.task_dict.values() if (read := _read(task)) is not None]


def place_of(owner: str) -> Place | None:
    """The connections of an attempt's own task group; None where they are not known for sure.

    :param owner: of the attempt.
    """
    named = dag_and_run_of(owner)
    tasks = [] if named is None else load_tasks(*named)
    group = group_of(owner)
    # a group that was renamed since then: all loads of the DAG must agree
    places = {t.place for t in tasks if t.group == group} or {t.place for t in tasks}
    return places.pop() if len(places) == 1 else None


def begun_loads(dag_id: str, run_id: str, tasks: Iterable[LoadTask]) -> set[str]:
    """The loads that a run's tasks name in XCom: also one that another run has committed before."""
    task_ids = sorted({t.task_id for t in tasks})
    if not task_ids:
        return set()
    query = XComModel.get_many(run_id=run_id, dag_ids=dag_id, task_ids=task_ids, key="return_value")
    with create_session() as session:
        entries: Iterable[Any] = session.scalars(query)
        return {load for entry in entries if (load := load_named_by(entry.value)) is not None}


def load_named_by(stored: Any) -> str | None:
    """The load in what a step has returned, as XCom stores it; None for what another XCom backend keeps there instead.

    Nothing of what a DAG's author may have put there is made into an object.
    """
    try:
        value = json.loads(stored) if isinstance(stored, str) else stored
    except ValueError:
        return None
    load = value.get("load") if isinstance(value, dict) else None
    return load if isinstance(load, str) else None


def paused_dags() -> set[str]:
    """All that are paused now: of them, no run goes on with what it has prepared."""
    with create_session() as session:
        return {dag_id for (dag_id,) in session.query(DagModel.dag_id).filter(DagModel.is_paused)}


def runs_seen(owners: Iterable[str]) -> dict[str, RunSeen | None]:
    """What Airflow has of the runs that owners of attempts name, and of the tasks of their groups.

    None for an owner that names no run, or whose run's id was cut off: another run might begin like it.
    """
    named: dict[str, tuple[str, str]] = {}
    found: dict[str, RunSeen | None] = {}
    for owner in owners:
        found[owner] = None
        of = dag_and_run_of(owner)
        if of is not None and len(owner.partition("#")[0]) < MAX_OWNER_PART:
            named[owner] = of
    pairs = sorted(set(named.values()))
    with create_session() as session:
        for at in range(0, len(pairs), _AT_ONCE):
            _look_up(session, named, set(pairs[at : at + _AT_ONCE]), found)
    return found


def _look_up(
    session: Any, named: Mapping[str, tuple[str, str]], pairs: set[tuple[str, str]], found: dict[str, RunSeen | None]
) -> None:
    """Of these (DAG, run) pairs. The two lists of a query may meet other pairs too: scheduled runs share their ids."""
    dag_ids, run_ids = {dag_id for dag_id, _ in pairs}, {run_id for _, run_id in pairs}
    of_dags = select(DagModel.dag_id, DagModel.is_paused, DagModel.is_stale).where(DagModel.dag_id.in_(dag_ids))
    dags = {row.dag_id: row for row in session.execute(of_dags)}
    of_runs = select(DagRun.dag_id, DagRun.run_id, DagRun._state.label("state"))
    of_runs = of_runs.where(DagRun.dag_id.in_(dag_ids), DagRun.run_id.in_(run_ids))
    runs = {(row.dag_id, row.run_id): row.state for row in session.execute(of_runs)}
    of_tries = select(TI.dag_id, TI.run_id, TI.task_id, TI.map_index, TI.state, TI.try_number, TI.max_tries)
    tries: dict[tuple[str, str], list[Any]] = {}
    for row in session.execute(of_tries.where(TI.dag_id.in_(dag_ids), TI.run_id.in_(run_ids))):
        tries.setdefault((row.dag_id, row.run_id), []).append(row)
    for owner, of in named.items():
        if of not in pairs:
            continue
        dag, group, index = dags.get(of[0]), group_of(owner), index_of(owner)
        mine = [
            row
            for row in tries.get(of, ())
            if group_of_task(row.task_id) == group and (index is None or row.map_index == index)
        ]
        found[owner] = RunSeen(
            *of,
            has_dag=dag is not None,
            is_paused=dag is not None and bool(dag.is_paused),
            is_stale=dag is not None and bool(dag.is_stale),
            state=runs.get(of),
            tries=tuple(
                Try(row.task_id, None if row.state is None else str(row.state), row.try_number, row.max_tries + 1)
                for row in sorted(mine, key=lambda row: (row.task_id, row.map_index))
            ),
        )


def note_action(event: str, *, by: str, owner: str, extra: dict[str, Any]) -> None:
    """Into Airflow's audit log, before it is done.

    :param owner: of the load's newest attempt: the entry is shown with its run.
    """
    dag_id, run_id = dag_and_run_of(owner) or (None, None)
    with create_session() as session:
        entry = Log(
            event=f"kafka_eos.{event}",
            owner=by,
            owner_display_name=by,
            extra=json.dumps(extra),
            dag_id=dag_id,
            run_id=run_id,
        )
        session.add(entry)


@cache
def _dag_bag() -> DBDagBag:
    # without extra links: they are not asked for here
    return DBDagBag(load_op_links=False)


def _read(task: Any) -> LoadTask | None:
    if not set(_FIELDS) <= set(task.template_fields):
        return None
    given = getattr(task, "partial_kwargs", None)  # a mapped task has its arguments there
    values = {f: given.get(f) if given is not None else getattr(task, f, None) for f in _FIELDS}
    default = configured()
    place = Place(
        _literal(values["kafka_conn_id"] or default.kafka_conn_id),
        values["ledger_conn_id"] or default.ledger_conn_id,
    )
    return LoadTask(task.task_id, str(values["load_name"]), place)


def is_template(text: str) -> bool:
    """What it was rendered to is not kept for long, and a guess may lead to another cluster or ledger."""
    return "{{" in text or "{%" in text


def _literal(text: str | None) -> str | None:
    """None for a template."""
    return None if text is None or is_template(text) else text


Method = Literal["GET", "PUT"]


class Access:
    """What one user may see and do, in one request: Airflow's permissions on the DAGs of a load's attempts.

    Reading takes GET, acting takes GET and PUT, on the runs of the DAG. An attempt that names no DAG (of another
    program, or with a DAG id too long for the ledger) is for those who may do it for all DAGs. It asks Airflow's auth
    manager, which may ask a database: not in an event loop.

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

    def may_see_owned(self, owner: str | None, submitted_by: str | None) -> bool:
        """The same, of the attempt's owner and of who submitted it; None for both: a load without any attempt."""
        return all(self.may("GET", dag_id) for dag_id in _dags_of(owner, submitted_by))

    def may_act(self, attempts: Iterable[AttemptRow]) -> bool:
        """What is done to a load is done to all of its attempts."""
        dags = {dag_id for attempt in attempts for dag_id in dags_of(attempt)} or {None}
        return all(self.may("GET", dag_id) and self.may("PUT", dag_id) for dag_id in dags)


def dags_of(attempt: AttemptRow | None) -> set[str | None]:
    """The DAGs that an attempt names, those of who opened it and of who submitted it; None in it: one is not known."""
    return {None} if attempt is None else _dags_of(attempt.owner, attempt.submitted_by)


def _dags_of(owner: str | None, submitted_by: str | None) -> set[str | None]:
    if owner is None:
        return {None}
    # the driver of a query names no DAG: where Airflow has started it, the owner does
    named = (owner, None if is_driver(submitted_by) else submitted_by)
    return {dag_of(one) for one in named if one}
