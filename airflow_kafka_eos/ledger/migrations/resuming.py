"""Migrations that can be run again where they stopped: for MySQL, which commits each change of a schema by itself.

There an upgrade that was killed leaves a revision half done, and the version table without it. Each statement is done
whole or not at all (InnoDB's atomic DDL: MySQL 8, MariaDB 10.6), so what is there already is passed over. PostgreSQL
and SQLite roll back all of it, and need none of this.
"""

from __future__ import annotations

import logging
from typing import Any

from alembic.ddl.impl import DefaultImpl
from sqlalchemy import Column, Connection, Index, Table, inspect

log = logging.getLogger(__name__)


def make_resumable(impl: DefaultImpl, connection: Connection) -> None:
    """Let this upgrade's operations pass over what an interrupted one has done; of this one object, not of Alembic.

    Statements that are run as text must be such that they can be repeated. Rows are committed together with the version
    that stands behind them.
    """
    add_column, create_table, create_index = impl.add_column, impl.create_table, impl.create_index

    def adds_column(table_name: str, column: Column[Any], **more: Any) -> None:
        known = {found["name"] for found in inspect(connection).get_columns(table_name)}
        if not _is_there(column.name in known, f"column {table_name}.{column.name}"):
            add_column(table_name, column, **more)

    def creates_table(table: Table, **more: Any) -> None:
        if not _is_there(inspect(connection).has_table(table.name), f"table {table.name}"):
            create_table(table, **more)

    def creates_index(index: Index, **more: Any) -> None:
        assert index.table is not None
        known = {found["name"] for found in inspect(connection).get_indexes(index.table.name)}
        if not _is_there(index.name in known, f"index {index.name}"):
            create_index(index, **more)

    own = {"add_column": adds_column, "create_table": creates_table, "create_index": creates_index}
    for name, operation in own.items():
        setattr(impl, name, operation)


def _is_there(found: bool, what: str) -> bool:
    if found:
        log.warning("an upgrade of the ledger was interrupted: %s is there already", what)
    return found
