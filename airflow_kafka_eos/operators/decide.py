"""decide: record one decision for all prepared transactions of a load.

Rule: decide-at-once. A DAG that is paused schedules no further task of its running runs, and what is prepared and
undecided holds back all readers of its partitions, in two-phase commit without end (docs/adr/0023). So prepare, as soon
as it has prepared, runs what the task decide would run: its checks, its dual write with rendered templates, the
decision, one commit pass. The task decide comes behind it all the same, and returns what was decided.

Whatever goes wrong in prepare is left to that task: it meets the same again, fails with it, and is retried as its
author wants it. prepare has succeeded by then; failing it would have Spark write everything once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.arguments import (
    Duration,
    check_callable,
    check_text,
    check_whole_number,
    duration,
    is_filled_in_later,
)
from airflow_kafka_eos.config import optional, setting
from airflow_kafka_eos.dual_write import DualWrite
from airflow_kafka_eos.errors import (
    CheckFailedError,
    ConfigurationError,
    KafkaEosError,
    StoppedError,
    UndecidableError,
)
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.operators.base import (
    FINAL_WHEN_DECIDED,
    LoadOperator,
    Step,
    check_no_sibling,
    committed_before,
    owner_of,
)
from airflow_kafka_eos.operators.submitting import manifest_store

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.manifest import AttemptRef, Manifest
    from airflow_kafka_eos.protocol.session import Session

log = logging.getLogger(__name__)

#: XCom has no limit of its own; the ledger is the truth, so a large load's XCom names no more than these
MAX_STATES_IN_XCOM = 500


class DecideLoadOperator(LoadOperator):
    """Check what prepare wrote, then decide: commit all of it, or abort and fail.

    Where nothing of the author's stands between, prepare has decided already (:func:`decide_at_once`); then this task
    returns what was decided, or fails with what was refused.

    ::

        DecideLoadOperator(task_id="decide", load_name="orders", min_records=1_000,
                           check=lambda manifest: manifest.bytes < 10**9 or "more than a day can have")
    """

    template_fields: Sequence[str] = (*LoadOperator.template_fields, "manifest_dir", "dual_write_sql")
    step_name = "decide"
    #: the task whose process it runs in: prepare's where that decides at once, else None
    _runs_in: LoadOperator | None = None

    def __init__(
        self,
        *,
        min_records: int | None = 1,
        max_records: int | None = None,
        check: Callable[..., Any] | None = None,
        margin: Duration | None = None,
        manifest_dir: str | None = None,
        dual_write_sql: Any = None,
        dual_write: Callable[[Any, Any], object] | None = None,
        **kwargs: Any,
    ) -> None:
        # half of it may pass while waiting for the ledger
        harm = "leave no time to record the decision"
        wanted = duration("margin", setting("margin", margin), none_would=harm)
        check_whole_number("min_records", min_records)
        check_whole_number("max_records", max_records)
        if min_records is not None and max_records is not None and min_records > max_records:
            raise ConfigurationError(
                f"min_records={min_records} is more than max_records={max_records}: every load would be refused",
                remedy="Set max_records to min_records or more",
            )
        check_callable("check", check, "the manifest")
        check_callable("dual_write", dual_write, "the connection", "the manifest")
        check_text("manifest_dir", manifest_dir)
        super().__init__(**kwargs)
        later = is_filled_in_later(dual_write_sql) and not isinstance(dual_write_sql, str)  # looked at when it is there
        beside = later or DualWrite.of(dual_write_sql, dual_write) is not None
        if beside and self.ledger_conn_id is None:
            raise ConfigurationError(
                "dual_write_sql or dual_write is given, and ledger_conn_id is not: its rows would go into the embedded "
                "ledger file",
                remedy="Set ledger_conn_id to the database with your tables, and run `airflow-kafka-eos ledger upgrade "
                "--conn-id …` once: the ledger must live there, for one transaction to hold both",
            )
        self.min_records = min_records
        self.max_records = max_records
        self.check = check
        self.margin = wanted
        self.manifest_dir = optional("manifest_dir", manifest_dir)
        self.dual_write_sql = dual_write_sql
        self.dual_write = dual_write

    def execute(self, context: Context) -> dict[str, Any]:
        """Decide once; a rerun returns what was decided."""
        owner = owner_of(context)
        with self.as_step(context) as step:
            with self.open_ledger() as ledger:  # the usual case, without a login to Kafka and its imports
                if (row := committed_before(ledger, self.load_identity)) is not None:
                    step.attempt = row.number
                    check_no_sibling(row, context)
                    return _done(step, ledger, row, _decided_before(row))

            from airflow_kafka_eos.protocol.stages.begin import reference
            from airflow_kafka_eos.protocol.stages.decide import undecided_attempt

            with self.open_session() as session:
                row = undecided_attempt(session, self.load_identity, owner=owner)
                step.attempt = row.number
                by = _decided_before(row)
                if row.verdict is not Verdict.COMMIT:
                    row = self.decide(session, manifest_store(self.manifest_dir).read(reference(session, row)), owner)
                    by = "decided: commit"
                check_no_sibling(row, context)
                self.roll_forward(session, row)
                return _done(step, session.ledger, row, by)

    def decide(self, session: Session, manifest: Manifest, owner: str) -> AttemptRow:
        """Check, then record the decision for what the manifest names. What is refused is ended at once.

        :raises StoppedError: Airflow has told the task to end; nothing is decided.
        :raises KafkaEosError: see :func:`airflow_kafka_eos.protocol.stages.decide.decide`.
        """
        from airflow_kafka_eos.protocol.stages.decide import Conditions, decide

        checks = Conditions(self.min_records, self.max_records, self.check)
        dual_write = DualWrite.of(self.dual_write_sql, self.dual_write)
        try:
            return decide(
                session, manifest, checks, owner=owner, margin_s=self.margin.total_seconds(), dual_write=dual_write,
                check_stop=(self._runs_in or self)._check_stop,
            )  # fmt: skip
        except (CheckFailedError, UndecidableError):
            self._end_refused(session, manifest.attempt, owner)
            raise

    def _end_refused(self, session: Session, ref: AttemptRef, owner: str) -> None:
        """Not left to cleanup alone: a paused DAG does not come to it, and what is refused holds readers back."""
        from airflow_kafka_eos.protocol.cleanup.sweep import sweep

        try:
            row = session.ledger.attempt(ref.load, ref.attempt)
            if row is not None and row.verdict is Verdict.ABORT:
                sweep(session, ref.load, up_to=ref.attempt, by=owner)
        except KafkaEosError as e:
            self.log.warning("what %s has open is left to cleanup: %s", ref, e)

    def roll_forward(self, session: Session, row: AttemptRow) -> None:
        """Tell Kafka at once: until commit is scheduled, a paused DAG or a full pool may eat the time that is left."""
        from airflow_kafka_eos.protocol.stages.commit import commit_pass

        try:
            commit_pass(session, row.load, row.number)
        except FINAL_WHEN_DECIDED:
            raise
        except KafkaEosError as e:
            self.log.warning("the decision is recorded, commit will finish it: %s", e)


def counts_of(row: AttemptRow, transactions: int) -> str:
    """How much it is, for people."""
    return f"{row.records or 0:,} records, {row.bytes or 0:,} bytes, {transactions:,} transactions"


def _decided_before(row: AttemptRow) -> str:
    return f"was decided before, by {row.decided_by} at {row.decided_at}: commit"


def _done(step: Step, ledger: Ledger, row: AttemptRow, by: str) -> dict[str, Any]:
    summary = _summary(ledger, row)
    known = ledger.load(row.load)
    state = "" if known is None else f"; the load is {known.state.value}"
    step.done(row.load, f"{by} {counts_of(row, summary['transactions'])}{state}")
    return summary


def _summary(ledger: Ledger, row: AttemptRow) -> dict[str, Any]:
    transactions = ledger.transactions(row.load, row.number)
    states = {
        t.transaction.transactional_id: str(t.transaction.state) for t in transactions[:MAX_STATES_IN_XCOM]
    }
    return {
        "load": str(row.load),
        "attempt": row.number,
        "verdict": Verdict.COMMIT.value,
        "records": row.records,
        "transactions": len(transactions) or ledger.summary(row.load, row.number).transactions,
        "prepared_transaction_states": states,
    }


def decide_at_once(
    found: DecideLoadOperator,
    prepare: LoadOperator,
    context: Any,
    session: Session,
    manifest: Manifest,
    result: dict[str, Any],
) -> Verdict | None:
    """Decide what was just prepared; None where that is left to the task decide, with the reason in the log.

    Templates are rendered in prepare's task: ``ti`` is its own.

    :param found: the task decide, as :func:`.preparing.decide_behind` finds it.
    :param prepare: the task that this runs in.
    :param result: what it returns; decide's templates may ask XCom for it.
    :raises StoppedError: Airflow has told prepare's task to end; nothing is decided.
    """
    try:
        context["ti"].xcom_push("return_value", result)
        decide = found.prepare_for_execution()  # a copy, as Airflow's task runner makes one
        decide._runs_in = prepare
        of_decide: Any = {**context, "task": decide}
        decide.render_template_fields(of_decide)
        if _aim(decide) != _aim(prepare):
            log.warning("%s belongs to another load, or uses other connections: it decides by itself", decide.task_id)
            return None
        row = decide.decide(session, manifest, owner_of(context))
        decide.roll_forward(session, row)
    except StoppedError:
        raise
    except CheckFailedError as e:
        log.warning("the load is refused and ended; the task %s fails with the reason: %s", found.task_id, e)
        return Verdict.ABORT
    except Exception as e:  # the author's check or SQL too, whatever it raises: a skip is decide's own, not prepare's
        log.warning("not decided here, but by the task %s: %s: %s", found.task_id, type(e).__name__, e)
        return None
    return row.verdict


def _aim(task: LoadOperator) -> tuple[Any, ...]:
    return task.load_identity, task.kafka_conn_id, task.ledger_conn_id
