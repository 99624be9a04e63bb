"""The first schema: ledger, loads, attempts, decisions, transactions, kafka_transaction_state.

There is no downgrade: it would forget decisions, and a forgotten decision is a lost or doubled load.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _varchar(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), "mysql", "mariadb")


def _text() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(mysql.LONGTEXT(collation="utf8mb4_bin"), "mysql", "mariadb")


def upgrade() -> None:
    row_id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    name, time, word, people, txn = _varchar(215), _varchar(32), _varchar(20), _varchar(500), _varchar(255)
    ledger = op.create_table(
        "kafka_eos_ledger",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("ledger_id", _varchar(10), nullable=False),
        sa.Column("created_at", time, nullable=False),
        sa.CheckConstraint("id = 1", name="ck_kafka_eos_ledger_one_row"),
    )
    op.create_table(
        "kafka_eos_loads",
        sa.Column("id", row_id, primary_key=True),
        sa.Column("namespace", name, nullable=False),
        sa.Column("name", name, nullable=False),
        sa.Column("load_key", name, nullable=False),
        sa.Column("state", word, nullable=False),
        sa.Column("data_interval_start", time),
        sa.Column("data_interval_end", time),
        sa.Column("newest_attempt", sa.Integer, nullable=False),
        sa.Column("reason", _text(), nullable=False),
        sa.Column("created_at", time, nullable=False),
        sa.Column("updated_at", time, nullable=False),
        sa.UniqueConstraint("namespace", "name", "load_key", name="uq_kafka_eos_loads_identity"),
    )
    op.create_table(
        "kafka_eos_attempts",
        sa.Column("id", row_id, primary_key=True),
        sa.Column(
            "load_id",
            row_id,
            sa.ForeignKey("kafka_eos_loads.id", name="fk_kafka_eos_attempts_load"),
            nullable=False,
        ),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("owner", people, nullable=False),
        sa.Column("opened_at", time, nullable=False),
        sa.Column("submitted_at", time),
        sa.Column("submitted_by", people),
        sa.Column("prepared_at", time),
        sa.Column("records", sa.BigInteger),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("manifest_sha256", _varchar(64)),
        sa.Column("closed_at", time),
        sa.UniqueConstraint("load_id", "number", name="uq_kafka_eos_attempts_number"),
    )
    op.create_table(
        "kafka_eos_decisions",
        sa.Column(
            "attempt_id",
            row_id,
            sa.ForeignKey("kafka_eos_attempts.id", name="fk_kafka_eos_decisions_attempt"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column(
            "load_id",
            row_id,
            sa.ForeignKey("kafka_eos_loads.id", name="fk_kafka_eos_decisions_load"),
            nullable=False,
        ),
        sa.Column("verdict", word, nullable=False),
        sa.Column("decided_at", time, nullable=False),
        sa.Column("decided_by", people, nullable=False),
        sa.Column("reason", _text(), nullable=False),
        sa.Column("committed_load_id", row_id),
        sa.UniqueConstraint("committed_load_id", name="uq_kafka_eos_decisions_one_commit"),
        sa.CheckConstraint(
            "(verdict = 'abort' AND committed_load_id IS NULL) OR (verdict = 'commit' AND "
            "committed_load_id IS NOT NULL AND committed_load_id = load_id)",
            name="ck_kafka_eos_decisions_verdict",
        ),
    )
    op.create_table(
        "kafka_eos_transactions",
        sa.Column("transactional_id", txn, primary_key=True),
        sa.Column(
            "attempt_id",
            row_id,
            sa.ForeignKey("kafka_eos_attempts.id", name="fk_kafka_eos_transactions_attempt"),
            nullable=False,
        ),
        sa.Column("prepared_transaction_state", _varchar(255), nullable=False),
        sa.Column("spark_partition", sa.Integer, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("writes", _text(), nullable=False),
        sa.Column("topic_ids", _text(), nullable=False),
        sa.Column("outcome", word),
        sa.Column("outcome_at", time),
    )
    op.create_index("ix_kafka_eos_transactions_attempt", "kafka_eos_transactions", ["attempt_id"])
    op.create_table(
        "kafka_transaction_state",
        sa.Column("transactional_id", txn, primary_key=True),
        sa.Column("prepared_transaction_state", _varchar(255), nullable=False),
    )
    op.bulk_insert(
        ledger,
        [
            {
                "id": 1,
                "ledger_id": secrets.token_hex(5),  # another deployment's ids never parse as ours (rule: only-our-ids)
                "created_at": datetime.now(UTC).isoformat(timespec="microseconds"),
            }
        ],
    )
