"""commit: end the decided transactions, and wait until every commit marker is in the log."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.arguments import Duration, duration
from airflow_kafka_eos.operators.base import (
    FINAL_WHEN_DECIDED,
    LoadOperator,
    Step,
    check_no_sibling,
    committed_before,
    no_retry_of_terminal_errors,
)
from airflow_kafka_eos.operators.decide import counts_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.ledger.rows import AttemptRow


class CommitLoadOperator(LoadOperator):
    """Roll a decided load forward to COMMITTED. Every rerun is safe.

    ::

        CommitLoadOperator(task_id="commit", load_name="orders", commit_timeout=timedelta(minutes=10))

    :param commit_timeout: a timedelta, or seconds: how long one try waits for the commit markers; the next try goes on
        where it stopped.
    """

    step_name = "commit"

    def __init__(self, *, commit_timeout: Duration = timedelta(minutes=5), **kwargs: Any) -> None:
        wanted = duration("commit_timeout", commit_timeout)
        super().__init__(**kwargs)
        self.commit_timeout = wanted

    def execute(self, context: Context) -> dict[str, Any]:
        """Commit; returns what was committed."""
        with self.as_step(context) as step:
            with self.open_ledger(FINAL_WHEN_DECIDED) as ledger:  # the usual case, without a login to Kafka
                if (row := committed_before(ledger, self.load_identity)) is not None:
                    step.attempt = row.number
                    with no_retry_of_terminal_errors():
                        check_no_sibling(row, context)
                    return _done(step, ledger, row, was_closed=True)

            from airflow_kafka_eos.protocol.stages.commit import commit, decided_attempt

            with self.open_session(FINAL_WHEN_DECIDED) as session:
                with no_retry_of_terminal_errors():
                    decided = decided_attempt(session, self.load_identity)
                    step.attempt = decided.number
                    check_no_sibling(decided, context)
                row = commit(session, self.load_identity, deadline_s=self.commit_timeout.total_seconds())
                return _done(step, session.ledger, row, was_closed=decided.closed_at is not None)


def _done(step: Step, ledger: Ledger, row: AttemptRow, *, was_closed: bool) -> dict[str, Any]:
    written = ledger.summary(row.load, row.number)
    repaired = f", {written.repaired} of them lost and repaired" if written.repaired else ""
    before = " already, before this task" if was_closed else ""
    step.done(row.load, f"the load is COMMITTED{before}: {counts_of(row, written.transactions)}{repaired}")
    return {"load": str(row.load), "attempt": row.number, "records": row.records}
