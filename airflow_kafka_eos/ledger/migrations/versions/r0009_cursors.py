"""Cursors, and the ranges that attempts read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_kafka_eos.ledger.tables import cursors, ledger, ranges

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two tables and a column; what is there already was made before this was cut off."""
    for table in (cursors, ranges):
        table.create(op.get_bind(), checkfirst=True)
    column = ledger.c.id_changed_at
    if column.name not in {one["name"] for one in sa.inspect(op.get_bind()).get_columns(ledger.name)}:
        op.add_column(ledger.name, sa.Column(column.name, column.type))
