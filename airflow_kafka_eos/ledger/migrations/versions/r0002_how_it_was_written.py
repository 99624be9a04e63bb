"""Attempts know how they were written: transaction scope, two-phase commit, writer, and the hash of the digests.

NULL where an attempt was not prepared, or was so before this revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _varchar(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), "mysql", "mariadb")


def upgrade() -> None:
    for column in (
        sa.Column("scope", _varchar(20)),
        sa.Column("two_phase_commit", sa.Boolean),
        sa.Column("writer", _varchar(500)),
        sa.Column("digest_algorithm", _varchar(500)),
    ):
        op.add_column("kafka_eos_attempts", column)
