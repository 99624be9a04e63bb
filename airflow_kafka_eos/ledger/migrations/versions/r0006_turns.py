"""Turns with what only one task at a time may make in Airflow."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def _varchar(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "kafka_eos_turns",
        sa.Column("what_sha256", _varchar(64), primary_key=True),
        sa.Column("taken_by", _varchar(500), nullable=False),
        sa.Column("taken_at", _varchar(32), nullable=False),
    )
