"""Attempts know which Kafka cluster they were submitted to.

NULL where an attempt was not submitted, or was so before this revision, or the brokers told no cluster id.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    cluster_id = sa.String(255).with_variant(mysql.VARCHAR(255, collation="utf8mb4_bin"), "mysql", "mariadb")
    op.add_column("kafka_eos_attempts", sa.Column("cluster_id", cluster_id))
