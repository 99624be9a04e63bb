"""begin: open an attempt in the ledger, make older ones undecidable, sweep what they left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.operators.base import LoadOperator, owner_of, refuse_siblings

if TYPE_CHECKING:
    from airflow.sdk import Context


class BeginLoadOperator(LoadOperator):
    """The setup task of a load. Its teardown is the cleanup sensor."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Open or keep an attempt; returns its number and verdict for the UI."""
        from airflow_kafka_eos.protocol.opening import begin

        owner = owner_of(context)
        with self.open_session() as session:
            row = begin(session, self.load_identity, owner=owner, data_interval=_data_interval(context))
            refuse_siblings(row, context)
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
