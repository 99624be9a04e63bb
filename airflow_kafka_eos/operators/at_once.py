"""Decide in prepare's own task, as soon as it has prepared: no scheduling lies between.

Rule: decide-at-once.

A DAG that is paused schedules no further task of its running runs, and what is prepared and undecided holds back all
readers of its partitions, in two-phase commit without end (docs/adr/0023). So prepare runs what the task decide would
run: its checks, its dual write with rendered templates, the decision, one commit pass. The task decide comes behind it
all the same, and returns what was decided.

Whatever goes wrong here is left to that task: it meets the same again, fails with it, and is retried as its author
wants it. prepare has succeeded by then; failing it would have Spark write everything once more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.errors import CheckFailedError
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.operators.base import LoadOperator, owner_of
from airflow_kafka_eos.operators.decide import DecideLoadOperator
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator

if TYPE_CHECKING:
    from airflow_kafka_eos.manifest import Manifest
    from airflow_kafka_eos.protocol.session import Session

log = logging.getLogger(__name__)


def decide_at_once(
    prepare: PrepareLoadOperator, context: Any, session: Session, manifest: Manifest, result: dict[str, Any]
) -> Verdict | None:
    """Decide what was just prepared; None where that is left to the task decide, with the reason in the log.

    Templates are rendered in prepare's task: ``ti`` is its own.

    :param result: what prepare returns; decide's templates may ask XCom for it.
    """
    found = decide_behind(prepare)
    if isinstance(found, str):
        log.info("%s is decided in a task of its own: %s", manifest.attempt, found)
        return None
    try:
        context["ti"].xcom_push("return_value", result)
        decide = found.prepare_for_execution()  # a copy, as Airflow's task runner makes one
        of_decide: Any = {**context, "task": decide}
        decide.render_template_fields(of_decide)
        if _aim(decide) != _aim(prepare):
            log.warning("%s is of another load, or of other connections: it decides by itself", decide.task_id)
            return None
        row = decide.decide(session, manifest, owner_of(context))
        decide.roll_forward(session, row)
    except CheckFailedError as e:
        log.warning("refused, and ended; the task %s fails with it: %s", found.task_id, e)
        return Verdict.ABORT
    except Exception as e:  # the author's check or SQL too, whatever it raises: a skip is decide's own, not prepare's
        log.warning("not decided here, the task %s has it: %s: %s", found.task_id, type(e).__name__, e)
        return None
    return row.verdict


def decide_behind(prepare: PrepareLoadOperator) -> DecideLoadOperator | str:
    """The task that decides what this one prepares; a text says why it has to wait for its turn. No I/O.

    Asked when it runs, not when the DAG is parsed: what an author puts between is wired behind the group.
    """
    if not prepare.decide_at_once:
        return "decide_at_once=False"
    if not prepare.has_dag():  # type: ignore[no-untyped-call]
        return "prepare is in no DAG"
    behind = [task for task in prepare.downstream_list if isinstance(task, DecideLoadOperator)]
    if len(behind) != 1:
        return f"{len(behind)} tasks behind {prepare.task_id} decide"
    (decide,) = behind
    return _what_decide_waits_for(prepare, decide) or decide


def _what_decide_waits_for(prepare: PrepareLoadOperator, decide: DecideLoadOperator) -> str:
    """What of the author's stands between the two, and may keep the load from being decided; else an empty text."""
    others = sorted(decide.upstream_task_ids - {prepare.task_id})
    if others:
        return f"it waits for {', '.join(others)}"
    if decide.trigger_rule != "all_success":
        return f"its trigger rule is {decide.trigger_rule.value}"
    if decide.depends_on_past or decide.wait_for_downstream:
        return "it waits for the run before"
    if decide._pre_execute_hook is not None or prepare._post_execute_hook is not None:
        return "a pre_execute or post_execute stands before it"
    for task, kind, methods in (
        (prepare, PrepareLoadOperator, ("execute", "post_execute")),
        (decide, DecideLoadOperator, ("pre_execute", "execute", "decide")),
    ):
        for method in methods:
            if getattr(type(task), method) is not getattr(kind, method):
                return f"{type(task).__name__} overrides {method}"
    return ""


def _aim(task: LoadOperator) -> tuple[Any, ...]:
    return task.load_identity, task.kafka_conn_id, task.ledger_conn_id
