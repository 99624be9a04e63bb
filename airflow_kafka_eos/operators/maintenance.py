"""Maintenance: sweep what no run is left to sweep, and what waits for a paused DAG; say what needs a person."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_kafka_eos.amounts import duration_text
from airflow_kafka_eos.arguments import Duration, a_day_or_more, check_bool, check_text, check_texts, duration
from airflow_kafka_eos.config import optional, setting
from airflow_kafka_eos.errors import KafkaEosError, TransientError
from airflow_kafka_eos.hooks import KafkaEosHook, Resolved
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.naming import counted
from airflow_kafka_eos.operators.base import (
    MAX_OWNER_PART,
    dag_and_run_of,
    group_of,
    group_of_task,
    index_of,
    no_retry_of_terminal_errors,
)
from airflow_kafka_eos.stats import count, send_gauges

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.protocol.cleanup.namespace import Swept
    from airflow_kafka_eos.protocol.session import Session

    IsStopped = Callable[[AttemptRow], bool]

log = logging.getLogger(__name__)

#: What is found beside the sweep, and how its count is told.
_COUNTED = {
    "paused": "attempts of paused DAGs ended",
    "hanging": "hanging transactions ended",
    "in_doubt": "loads in doubt",
    "unknown": "open ids that the ledger does not know",
    "other_ledgers": "open ids of another ledger",
    "other_cluster": "attempts of another cluster",
    "problems": "things need a person",
}
#: A worker has the task, or is about to have it. Deferred is none of them: it waits for the scheduler.
_AT_WORK = frozenset({"running", "queued", "restarting"})
#: the tasks of a group that may wait for a driver in the triggerer
_PREPARE = ("prepare", "submit")


class SweepLeftoversOperator(BaseOperator):
    """What cleanup does for a run, for the runs that are gone: deleted, skipped whole, or of a DAG that is no more.

    Per namespace: undecided attempts without a sign of life, and those that wait for a paused DAG, are made
    undecidable and what they have open is ended; decided loads are rolled forward; what hangs of aborted ones is
    ended. Attempts and repairs at work or of another Kafka cluster, loads in doubt and transactions of others are left
    alone. What hangs is looked for last, for a partition whose leader is away keeps nothing else from being found. Then
    it measures, and sends the numbers to Airflow's Stats. Running it twice, or beside runs, is safe.

    Where an argument is None, Airflow's section ``[kafka_eos]`` says it, as it does for the loads: in another ledger
    than theirs all that they have open would be a stranger's. Connections and ``quiet_period`` are those of
    :class:`~airflow_kafka_eos.task_group.ExactlyOnceLoad`.

    :param namespaces: of the loads; None: the one of the section. (templated)
    :param abandoned_after: a timedelta, or seconds: an undecided attempt with no sign of life for so long is abandoned.
        More than any run of a load takes from begin to decide, retries included: it cannot be committed any more. A
        load with a younger repair that is not done is left alone.
    :param paused_after: the same for an attempt whose DAG is paused, where no task of its group runs: nobody goes on
        with it, and it holds back all readers of its partitions (docs/adr/0023). Unpaused later, its decide fails;
        clearing prepare starts over.
    :param sweep_timeout: how long one namespace may take.
    :param prune_after: a day or more: the transactions of attempts that were closed before that are forgotten, as
        `airflow-kafka-eos ledger prune` does it (docs/adr/0030). None, and not in the section either: nothing is.
    :param fail_on_problems: fail, without retries, when something needs a person; False: warn, and succeed.
    """

    template_fields: Sequence[str] = ("namespaces",)

    def __init__(
        self,
        *,
        namespaces: Sequence[str] | None = None,
        kafka_conn_id: str | None = None,
        ledger_conn_id: str | None = None,
        abandoned_after: Duration | None = None,
        paused_after: Duration | None = None,
        quiet_period: Duration | None = None,
        sweep_timeout: Duration | None = None,
        prune_after: Duration | None = None,
        fail_on_problems: bool = True,
        **kwargs: Any,
    ) -> None:
        if namespaces is not None:
            check_texts("namespaces", namespaces)  # and again when rendered
        harm = "end the attempts of runs that are at work"
        abandoned = duration("abandoned_after", setting("abandoned_after", abandoned_after), none_would=harm)
        paused = duration("paused_after", setting("paused_after", paused_after), none_would=harm)
        quiet = duration("quiet_period", setting("quiet_period", quiet_period), zero=True)
        timeout = duration("sweep_timeout", setting("sweep_timeout", sweep_timeout))
        prune = setting("prune_after", prune_after)
        check_bool("fail_on_problems", fail_on_problems)
        check_text("kafka_conn_id", kafka_conn_id)
        check_text("ledger_conn_id", ledger_conn_id)
        super().__init__(**kwargs)
        self.namespaces: Sequence[str] = [setting("namespace")] if namespaces is None else namespaces
        self.kafka_conn_id = setting("kafka_conn_id", kafka_conn_id)
        self.ledger_conn_id = optional("ledger_conn_id", ledger_conn_id)
        self.abandoned_after, self.paused_after = abandoned, paused
        self.quiet_period, self.sweep_timeout = quiet, timeout
        self.prune_after = None if prune is None else a_day_or_more("prune_after", prune)
        self.fail_on_problems = fail_on_problems

    def execute(self, context: Context) -> dict[str, Any]:
        """Sweep and measure each namespace; returns what was found, by namespace.

        ``swept``: ``load``, ``up_to_attempt``, ``aborted`` ids, ``error``. ``paused``: those of them that waited for a
        paused DAG: ``load``, ``attempt``, ``by``. ``hanging``: what no coordinator would have
        ended in the topics of the ledger's loads, and is ended now, as texts. ``unknown``: open ids of this ledger that
        it does not know. ``other_ledgers``: open ids of another ledger, older than ``abandoned_after``. ``hidden``: why
        there may be more of all these that brokers do not show, as texts. ``other_cluster``: attempts of another Kafka
        cluster, not closed, twice as old: ``load``, ``attempt``, ``cluster_id``. ``in_doubt``: loads. ``pruned``: how
        many transactions the ledger has forgotten. ``numbers``: what went to Stats. ``problems``: what needs a person,
        as texts.

        :raises AirflowFailException: something needs a person.
        :raises AirflowSkipException: there is no embedded ledger; an empty one would make all look clean.
        :raises AirflowException: a broker or the ledger did not answer, or a wait passed its deadline: try again.
        """
        from airflow_kafka_eos.ledger.location import redacted

        with no_retry_of_terminal_errors():
            check_texts("namespaces", self.namespaces, rendered=True)
        ti = context["ti"]
        by = f"{ti.dag_id}/{ti.run_id}"
        resolved = KafkaEosHook(self.kafka_conn_id, self.ledger_conn_id).resolve()
        paused = PausedDags(ti, self.paused_after)
        if resolved.has_no_ledger_file:
            raise AirflowSkipException(
                f"there is no ledger {redacted(resolved.ledger_url)}: no load has run yet, or loads use another "
                "ledger; set ledger_conn_id as they have it"
            )
        found: dict[str, Any] = {}
        passing: list[str] = []
        for namespace in self.namespaces:
            began = time.monotonic()
            found[namespace] = self._namespace(resolved, namespace, by, passing, paused.hold_up)
            took = duration_text(time.monotonic() - began)
            self.log.info("namespace %s: %s, in %s", namespace, said_of(found[namespace]), took)
        problems = [text for of in found.values() for text in of["problems"]]
        for text in problems:
            self.log.warning("NEEDS A PERSON: %s", text)
        if problems and self.fail_on_problems:
            ti.xcom_push("return_value", found)  # a task that fails returns nothing
            raise AirflowFailException(f"{len(problems)} things need a person: {'; '.join(problems[:5])}")
        if passing:
            ti.xcom_push("return_value", found)
            raise AirflowException(f"not done, try again: {'; '.join(passing[:5])}")
        return found

    def _namespace(
        self, resolved: Resolved, namespace: str, by: str, passing: list[str], is_stopped: IsStopped
    ) -> dict[str, Any]:
        """One namespace; an error in it keeps no other from being swept."""
        found: dict[str, Any] = {name: [] for name in (*_COUNTED, "swept", "hidden")} | {"pruned": 0, "numbers": {}}
        try:
            with resolved.session(namespace) as session:
                self._sweep(session, by, found, passing, is_stopped)
                self._end_hanging(session, found, passing)
                self._measure(session, found)
                self._prune(session, found)
        except TransientError as e:
            passing.append(f"namespace {namespace}: {type(e).__name__}: {e}")
        except KafkaEosError as e:
            found["problems"].append(f"namespace {namespace}: {type(e).__name__}: {e}")
        return found

    def _sweep(
        self, session: Session, by: str, found: dict[str, Any], passing: list[str], is_stopped: IsStopped
    ) -> None:
        from airflow_kafka_eos.protocol.cleanup.namespace import (
            clean,
            find,
            open_of_other_ledgers,
            other_ledgers_hidden,
            why_unknown,
        )

        in_doubt = _in_doubt(session)
        left = find(session, abandoned_after=self.abandoned_after, is_stopped=is_stopped)
        paused = f"undecided for more than {self.paused_after}, and its DAG is paused"
        for row in left.stopped:
            found["paused"].append({"load": str(row.load), "attempt": row.number, "by": row.responsible})
            self.log.warning(
                "attempt %d of load %s has been %s (%s): it is aborted", row.number, row.load, paused, row.responsible
            )
        swept = clean(
            session,
            # a person has it (rule: doubt-stops-for-a-person): another look would only hide why
            {load: up_to for load, up_to in left.loads.items() if load not in in_doubt},
            by=by,
            quiet_s=self.quiet_period.total_seconds(),
            deadline_s=self.sweep_timeout.total_seconds(),
            reasons={row.load: paused for row in left.stopped},
        )
        problems = found["problems"]
        for one in swept:
            found["swept"].append(_row(one))
            if one.aborted:
                self.log.info("load %s up to attempt %d: aborted %s", one.load, one.up_to, counted(one.aborted))
            if isinstance(one.error, TransientError):
                passing.append(str(one.error))
            elif one.error is not None:
                problems.append(str(one.error))
        told = {s.load for s in swept if s.error is not None}
        in_doubt |= _in_doubt(session)
        found["in_doubt"] = sorted(map(str, in_doubt))
        problems += [
            f"load {load} is IN_DOUBT: `airflow-kafka-eos loads show` says why"
            for load in sorted(in_doubt - told, key=str)
        ]
        found["unknown"] = list(left.unknown)
        problems += [
            f"{name} is open under this ledger's id, and {why_unknown(name)}" for name in left.unknown
        ]
        for row in left.other_cluster:
            found["other_cluster"].append({"load": str(row.load), "attempt": row.number, "cluster_id": row.cluster_id})
            problems.append(
                f"attempt {row.number} of load {row.load} was written to Kafka cluster {row.cluster_id}, and is not "
                f"closed: sweep it with a kafka_conn_id that leads there, {self.kafka_conn_id} leads to "
                f"{session.cluster_id}"
            )
        found["other_ledgers"] = open_of_other_ledgers(session, longer_than=self.abandoned_after)
        problems += [
            f"{name} is open for more than {self.abandoned_after}, and belongs to another ledger (of a deployment "
            "that does not exist any more?)"
            for name in found["other_ledgers"]
        ]
        found["hidden"] = [str(why) for why in (left.hidden, other_ledgers_hidden(session)) if why is not None]
        for text in found["hidden"]:
            self.log.warning("THIS MAY NOT BE ALL: %s", text)
        count(session.namespace, "swept_transactions", sum(len(s.aborted) for s in swept))

    def _end_hanging(self, session: Session, found: dict[str, Any], passing: list[str]) -> None:
        """What a broker forgot to end while no cleanup looked; young ones may still be ended by their coordinators.

        Leaders are asked, and each of them may be away: behind all else that is found, and before it is counted.
        """
        from airflow_kafka_eos.protocol.hanging import HangingTransaction, end_ours, of_the_ledger

        ended: list[HangingTransaction] = []
        try:
            end_ours(session, of_the_ledger(session), longer_than_ms=None, ended=ended)
        except TransientError as e:
            passing.append(f"what hangs in namespace {session.namespace}: {e}")
        except KafkaEosError as e:
            found["problems"].append(str(e))
        found["hanging"] = [f"{one.transactional_id}: {one}" for one in ended]

    def _measure(self, session: Session, found: dict[str, Any]) -> None:
        from airflow_kafka_eos.protocol.metrics import measure

        numbers = {
            "in_doubt_loads": len(found["in_doubt"]),
            "unknown_transactions": len(found["unknown"]),
            "other_ledgers_transactions": len(found["other_ledgers"]),
            "problems": len(found["problems"]),
        }
        # sent first: what needs a person is known, whatever measuring meets
        send_gauges(session.namespace, numbers)
        measured = measure(session).numbers()
        send_gauges(session.namespace, measured)
        found["numbers"] = numbers | measured


    def _prune(self, session: Session, found: dict[str, Any]) -> None:
        if self.prune_after is None:
            return
        until = time.monotonic() + self.sweep_timeout.total_seconds()
        for done in session.ledger.prune(self.prune_after, namespace=session.namespace):
            found["pruned"] += done.transactions
            if time.monotonic() >= until:
                break  # the next run goes on


class PausedDags:
    """Whether an undecided attempt waits for nothing but a paused DAG: nobody goes on with it until a person unpauses.

    Rule: decide-at-once.

    A paused DAG schedules no further task of a running run, and resumes no deferred one; a task that runs, runs on, and
    so does an application that a deferred prepare waits for, until its trigger has fired.
    Airflow is asked by a task's own way (the execution API), for tasks cannot read its database; once per sweep.

    :param ti: the sweep's own task instance.
    :param paused_after: how long an attempt must have shown no life.
    """

    def __init__(self, ti: Any, paused_after: timedelta) -> None:
        self._ti = ti
        self._paused_after = paused_after
        self._is_paused: dict[str, bool] = {}
        self._states: dict[tuple[str, str], dict[str, str | None]] = {}

    def hold_up(self, attempt: AttemptRow) -> bool:
        """False too where it is not known: a run or DAG of a name too long for the ledger, or one that is gone."""
        from airflow_kafka_eos.protocol.cleanup.namespace import last_sign

        run_part = attempt.responsible.partition("#")[0]
        named = dag_and_run_of(attempt.responsible)
        if named is None or len(run_part) >= MAX_OWNER_PART or not attempt.is_submitted:
            return False
        if datetime.now().astimezone() - last_sign(attempt) < self._paused_after:
            return False
        dag_id, run_id = named
        return self._paused(dag_id) and not self._is_at_work(dag_id, run_id, attempt)

    def _paused(self, dag_id: str) -> bool:
        if dag_id not in self._is_paused:
            try:
                self._is_paused[dag_id] = bool(self._ti.get_dag(dag_id).is_paused)
            except AirflowRuntimeError as e:
                log.info("whether DAG %s is paused is not known: %s", dag_id, e)
                self._is_paused[dag_id] = False
        return self._is_paused[dag_id]

    def _is_at_work(self, dag_id: str, run_id: str, attempt: AttemptRow) -> bool:
        if (dag_id, run_id) not in self._states:
            found = self._ti.get_task_states(dag_id=dag_id, run_ids=[run_id])
            self._states[dag_id, run_id] = found.get(run_id, {})
        group = group_of(attempt.responsible)
        index = index_of(attempt.responsible)
        # others that have deferred, siblings of a mapped group too, may wait for this very attempt's end
        waits = set() if attempt.is_prepared else {step if index is None else f"{step}_{index}" for step in _PREPARE}
        return any(
            state in _AT_WORK or (state == "deferred" and task.rpartition(".")[2] in waits)
            for task, state in self._states[dag_id, run_id].items()
            if group_of_task(task) == group
        )


def said_of(found: Mapping[str, Any]) -> str:
    """One namespace in a line: what was swept, and what else was found. No I/O."""
    swept = found["swept"]
    ended = sum(len(one["aborted"]) for one in swept)
    parts = [f"{len(swept)} loads were swept, {ended} transactions aborted" if swept else "nothing to sweep"]
    unclean = sum(one["error"] is not None for one in swept)
    parts += [f"{unclean} of these loads are not clean"] if unclean else []
    parts += [f"{len(found[key])} {what}" for key, what in _COUNTED.items() if found[key]]
    return "; ".join([*parts, *([f"{found['pruned']} transactions pruned"] if found.get("pruned") else [])])


def _in_doubt(session: Session) -> set[LoadIdentity]:
    return {row.load for row in session.ledger.loads(session.namespace, states=[LoadState.IN_DOUBT])}


def _row(swept: Swept) -> dict[str, Any]:
    return {
        "load": str(swept.load),
        "up_to_attempt": swept.up_to,
        "aborted": list(swept.aborted),
        "error": None if swept.error is None else str(swept.error),
    }
