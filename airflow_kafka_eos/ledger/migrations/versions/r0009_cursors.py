"""Cursors, and the ranges that attempts read."""

from __future__ import annotations

from alembic import op

from airflow_kafka_eos.ledger.tables import cursors, ranges

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two tables; one that is there already was made before this was cut off."""
    for table in (cursors, ranges):
        table.create(op.get_bind(), checkfirst=True)
