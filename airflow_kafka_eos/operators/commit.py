"""commit: end the decided transactions, and wait until every commit marker is in the log."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.arguments import Duration, duration
from airflow_kafka_eos.operators.base import (
    FINAL_WHEN_DECIDED,
    LoadOperator,
    check_no_sibling,
    no_retry_of_terminal_errors,
)
from airflow_kafka_eos.operators.decide import counts_of

if TYPE_CHECKING:
    from airflow.sdk import Context


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
        from airflow_kafka_eos.protocol.stages.commit import commit, decided_attempt

        with self.as_step(context) as step:
            with self.open_session(FINAL_WHEN_DECIDED) as session:
                with no_retry_of_terminal_errors():
                    decided = decided_attempt(session, self.load_identity)
                    step.attempt = decided.number
                    check_no_sibling(decided, context)
                row = commit(session, self.load_identity, deadline_s=self.commit_timeout.total_seconds())
                written = session.ledger.summary(row.load, row.number)
            repaired = f", {written.repaired} of them lost and repaired" if written.repaired else ""
            before = "" if decided.closed_at is None else " already, before this task"
            counts = counts_of(row, written.transactions)
            step.done(row.load, f"the load is COMMITTED{before}: {counts}{repaired}")
        return {"load": str(row.load), "attempt": row.number, "records": row.records}
