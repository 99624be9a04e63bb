"""When a person has said last that a cursor's own loads read over what was named until then."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_kafka_eos.ledger.tables import cursors

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One column, where it is missing. Of cursors of before nobody has: ranges by name are compared."""
    column = cursors.c.said_at
    if column.name not in {one["name"] for one in sa.inspect(op.get_bind()).get_columns(cursors.name)}:
        op.add_column(cursors.name, sa.Column(column.name, column.type))
