"""Streaming queries: what their names are bound to, their runs, and the batches that were decided."""

from __future__ import annotations

from alembic import op

from airflow_kafka_eos.ledger.tables import stream_batches, stream_queries, stream_runs, streams

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Four tables, each where it is missing: MySQL commits each by itself, and this may have been cut off."""
    for table in (streams, stream_queries, stream_runs, stream_batches):
        table.create(op.get_bind(), checkfirst=True)
