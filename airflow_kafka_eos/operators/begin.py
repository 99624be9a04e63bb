"""begin: open an attempt in the ledger, make older ones undecidable, sweep what they left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.operators.base import LoadOperator, are_siblings, owner_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_eos.ledger.rows import AttemptRow


class BeginLoadOperator(LoadOperator):
    """The setup task of a load. Its teardown is the cleanup sensor."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Open or keep an attempt; returns its number and verdict for the UI."""
        from airflow_kafka_eos.protocol.opening import begin

        with self.open_session() as session:
            row = begin(
                session, self.load_identity, owner=owner_of(context), data_interval=_data_interval(context)
            )
            refuse_siblings_key(row, owner_of(context))
        self.log.info("load %s: attempt %d", row.load, row.number)
        return {
            "load": str(row.load),
            "attempt": row.number,
            "verdict": row.verdict.value if row.verdict else None,
        }


def _data_interval(context: Any) -> tuple[str, str] | None:
    run = context["dag_run"]
    start, end = run.data_interval_start, run.data_interval_end
    # a manual run has no logical date, and its interval says nothing about the data
    if run.logical_date is None or start is None or end is None:
        return None
    return start.isoformat(), end.isoformat()


def refuse_siblings_key(row: AttemptRow, owner: str) -> None:
    """Another map index of the same run has decided this load: its data is not ours, and must not pass for it.

    :raises ConfigurationError: two mapped loads of one run have the same ``load_key``.
    """
    other = row.submitted_by or row.owner
    if row.verdict is Verdict.COMMIT and are_siblings(owner, other):
        raise ConfigurationError(
            f"the load was committed by {other}, another map index of this run",
            remedy="Set load_key to what tells the mapped loads apart",
            load=str(row.load),
            attempt=row.number,
        )
