"""Alembic runs this file. The connection, its transaction and its lock are ``ledger.migrate``'s."""

from __future__ import annotations

from alembic import context

from airflow_kafka_eos.ledger.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
