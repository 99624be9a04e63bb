"""What the page's buttons do: what ``airflow-kafka-eos`` does under the same names, with the same guards."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, assert_never

from pydantic import BaseModel, ConfigDict, Field

from airflow_kafka_eos.config import setting
from airflow_kafka_eos.errors import ConfigurationError, UndecidableError
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.plugin import dags, views
from airflow_kafka_eos.plugin.dags import Access
from airflow_kafka_eos.plugin.reads import (
    Found,
    Selection,
    find_load,
    open_ledger,
    open_session,
    place_to_act,
)
from airflow_kafka_eos.protocol.cleanup.namespace import clean
from airflow_kafka_eos.protocol.repair.recover import give_up, recover

log = logging.getLogger(__name__)

#: Seconds that a button tries; whatever is not done by then is safe to try again.
DEADLINE_S = 40.0


class NotAllowedError(Exception):
    """The user may see the load, and may not do this to it."""


class Asked(BaseModel):
    """What a button sends.

    :param attempt: the newest one that the user saw: what came after it is not meant.
    :param confirm: the load's name, typed, where the action asks for it.
    :param reason: for the ledger; needed to give up. Without NUL, which PostgreSQL refuses in every text.
    """

    model_config = ConfigDict(extra="forbid")

    namespace: str = Field(min_length=1)
    name: str = Field(min_length=1)
    key: str = Field(min_length=1)
    attempt: int = Field(ge=1)
    confirm: str = ""
    reason: str = Field("", max_length=500, pattern="^[^\\x00]*$")
    dag_id: str | None = None
    run_id: str | None = None

    @property
    def load(self) -> LoadIdentity:
        """
        :raises InvalidNameError: no load can have that name.
        """
        return LoadIdentity(self.namespace, self.name, self.key)


def act(
    access: Access, selection: Selection, action: views.ActionName, asked: Asked
) -> dict[str, Any] | None:
    """Do it; the answer for the user. None: there is no such load that the user may see.

    :raises NotAllowedError: the user may not edit the runs of all DAGs that the load's attempts belong to.
    :raises UndecidableError: the load is not as the user saw it.
    :raises ConfigurationError: it is not confirmed, or the load's connections are not known.
    :raises KafkaEosError: see :mod:`airflow_kafka_eos.protocol.repair.recover` and :mod:`~.protocol.cleanup.namespace`.
    """
    found = find_load(access, selection, asked.load)
    if found is None:
        return None
    _check(access, found, action, asked)
    place = place_to_act(found, action)
    assert found.newest is not None  # place_to_act has refused a load without attempts
    by = f"{access.name} (Airflow UI)"
    note = {"load": str(asked.load), "attempt": asked.attempt, "reason": asked.reason}
    dags.note_action(action.value, by=access.name, owner=found.newest.responsible, extra=note)
    log.warning("%s: %s of load %s up to attempt %d", by, action.value, asked.load, asked.attempt)
    with open_session(place, asked.load.namespace) as session:
        match action:
            case views.ActionName.RECOVER:
                row = recover(session, asked.load, by=by, deadline_s=DEADLINE_S)
                return {"done": f"the load is {row.state.value}"}
            case views.ActionName.GIVE_UP:
                row = give_up(session, asked.load, by=by, reason=asked.reason)
                return {"done": f"the load is {row.state.value}"}
            case views.ActionName.CLEANUP:
                quiet_period: timedelta = setting("quiet_period")
                (swept,) = clean(
                    session,
                    {asked.load: asked.attempt},
                    by=by,
                    quiet_s=quiet_period.total_seconds(),
                    deadline_s=DEADLINE_S,
                )
                if swept.error is not None:
                    raise swept.error
                return {"done": f"clean up to attempt {swept.up_to}", "aborted": list(swept.aborted)}
            case _:
                assert_never(action)


def _check(access: Access, found: Found, wanted: views.ActionName, asked: Asked) -> None:
    """Before anything is opened for writing: by what the ledger says now, not by what the page showed."""
    with open_ledger(found.ledger_conn_id) as ledger:
        row, attempts = ledger.load(asked.load) or found.row, ledger.attempts(asked.load)
    if not access.may_act(attempts):
        raise NotAllowedError
    if row.newest_attempt != asked.attempt:
        raise UndecidableError(
            f"attempt {row.newest_attempt} is the newest now, you have seen attempt {asked.attempt}",
            remedy="Look at the load again",
            load=str(asked.load),
            attempt=asked.attempt,
        )
    action = next((a for a in views.actions(row, attempts) if a.name is wanted), None)
    if action is None:
        raise UndecidableError(
            f"{wanted.value} cannot be done for a load that is {row.state.value}",
            remedy="Look at the load again",
            load=str(asked.load),
        )
    if action.wants_name and asked.confirm != asked.load.name:
        raise ConfigurationError(
            f"confirm is {asked.confirm!r}, it must be the load's name: {action.warning}",
            remedy=f"Type {asked.load.name} if you are sure",
            load=str(asked.load),
        )
