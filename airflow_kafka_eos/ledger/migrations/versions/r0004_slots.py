"""Slots of pooled transactional ids; attempts know theirs, and until when their writers may begin something.

An id comes again with another PreparedTxnState, so both together are the key of ``kafka_eos_transactions``.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_KEY = ["transactional_id", "prepared_transaction_state"]


def _varchar(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), "mysql", "mariadb")


def _text() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(mysql.LONGTEXT(collation="utf8mb4_bin"), "mysql", "mariadb")


def upgrade() -> None:
    row_id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    for column in (
        sa.Column("slot", sa.Integer),
        sa.Column("writers_until", _varchar(32)),
        sa.Column("writers_left", sa.Boolean),
    ):
        op.add_column("kafka_eos_attempts", column)
    op.create_table(
        "kafka_eos_slots",
        sa.Column("id", row_id, primary_key=True),
        sa.Column("namespace", _varchar(215), nullable=False),
        sa.Column("load_name", _varchar(215), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column(
            "attempt_id",
            row_id,
            sa.ForeignKey("kafka_eos_attempts.id", name="fk_kafka_eos_slots_attempt"),
            nullable=False,
        ),
        sa.Column("created_at", _varchar(32), nullable=False),
        sa.Column("leased_at", _varchar(32), nullable=False),
        sa.Column("checked_at", _varchar(32)),
        sa.Column("released_at", _varchar(32)),
        sa.Column("quarantined_until", _varchar(32)),
        sa.Column("doubt", _text()),
        sa.UniqueConstraint("namespace", "load_name", "number", name="uq_kafka_eos_slots_number"),
        sa.UniqueConstraint("attempt_id", name="uq_kafka_eos_slots_attempt"),
    )
    name = op.get_bind().dialect.name
    if name == "sqlite":
        # it cannot change a key: the table is copied, whatever columns it has by now
        wanted = sa.Table("kafka_eos_transactions", sa.MetaData(), autoload_with=op.get_bind())
        for column_name in _KEY:
            wanted.c[column_name].primary_key = True
        wanted.append_constraint(sa.PrimaryKeyConstraint(*(wanted.c[n] for n in _KEY)))
        with op.batch_alter_table("kafka_eos_transactions", copy_from=wanted, recreate="always"):
            pass
    elif name == "postgresql":
        op.drop_constraint("kafka_eos_transactions_pkey", "kafka_eos_transactions", type_="primary")
        op.create_primary_key("pk_kafka_eos_transactions", "kafka_eos_transactions", _KEY)
    else:  # MySQL: in one statement, for a table without a key may be refused
        op.execute(f"ALTER TABLE kafka_eos_transactions DROP PRIMARY KEY, ADD PRIMARY KEY ({', '.join(_KEY)})")
