"""Repairs of transactions that were lost after the decision to commit (rule: repair-replaces-lost-row)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def _varchar(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), "mysql", "mariadb")


def upgrade() -> None:
    row_id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "kafka_eos_repairs",
        sa.Column("id", row_id, primary_key=True),
        sa.Column(
            "attempt_id",
            row_id,
            sa.ForeignKey("kafka_eos_attempts.id", name="fk_kafka_eos_repairs_attempt"),
            nullable=False,
        ),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("lost_transactional_id", _varchar(255), nullable=False),
        sa.Column("transactional_id", _varchar(255), nullable=False),
        sa.Column("state", _varchar(20), nullable=False),
        sa.Column("opened_at", _varchar(32), nullable=False),
        sa.Column("opened_by", _varchar(500), nullable=False),
        sa.Column("ended_at", _varchar(32)),
        sa.Column(
            "reason",
            sa.Text().with_variant(mysql.LONGTEXT(collation="utf8mb4_bin"), "mysql", "mariadb"),
            nullable=False,
        ),
        sa.Column("closed_at", _varchar(32)),
        sa.UniqueConstraint("attempt_id", "number", name="uq_kafka_eos_repairs_number"),
    )
