"""Which attempts have a fence in Kafka: those that a Spark Connect server writes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_kafka_eos.ledger.tables import attempts

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One column, where it is missing. Attempts of before have no fence."""
    column = attempts.c.has_fence
    if column.name not in {one["name"] for one in sa.inspect(op.get_bind()).get_columns(attempts.name)}:
        op.add_column(attempts.name, sa.Column(column.name, column.type))
