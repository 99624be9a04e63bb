"""Attempts know what their job was asked for, as a digest: two keys that ask for the same are told of.

NULL where an attempt was not submitted, or was so before this revision, or its job's arguments do not follow from
the run.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    digest = sa.String(64).with_variant(mysql.VARCHAR(64, collation="utf8mb4_bin"), "mysql", "mariadb")
    op.add_column("kafka_eos_attempts", sa.Column("arguments_sha256", digest))
