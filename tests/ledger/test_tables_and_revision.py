"""A change of the tables is a new revision: else an existing ledger says that it is up to date, and lacks a column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

from sqlalchemy import CheckConstraint, Column, Table
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.sql.schema import ColumnCollectionConstraint, ForeignKeyConstraint

from airflow_kafka_eos.ledger.tables import REVISION, metadata

DIALECTS = tuple(kind.dialect() for kind in (sqlite, postgresql, mysql))
#: Of the tables at each revision. That of a released version stands for good.
TABLES = {
    "0008": "dd7ea76bfffe10affb993a763cd401b09f464dc16b0f5949cfd6376a242d2ce1",
    "0009": "84400508b4a718023ea46d7e6c71ab15a739973bfa5aa2cadc0acda278219703",
    "0010": "23c16437085b97d30b3e11da82677b7ca96a2e7ead93bf6bfb2ba780752d988e",
    "0011": "fd099672c5ed91abd55109dc210d0e44c9574c99e726ab83a5af5b768316f1f6",
    "0012": "b952a608c001ff46c02a5ae1477baa0b92208881c8cfc542ff768350db7fabbe",
}


def said(table: Table) -> Iterator[str]:
    """All that a ledger's tables have, in one order, whatever words SQLAlchemy makes of it."""
    for column in table.columns:
        types = [column.type.compile(dialect) for dialect in DIALECTS]
        yield f"{table.name}.{column.name}: {types}, {column.nullable}, {column.server_default}"
    for index in table.indexes:
        yield f"{index.name}: {names(index.columns)}, {index.unique}"
    for constraint in table.constraints:
        of = names(constraint.columns) if isinstance(constraint, ColumnCollectionConstraint) else ""
        if isinstance(constraint, CheckConstraint):
            of = str(constraint.sqltext)
        if isinstance(constraint, ForeignKeyConstraint):
            of += " -> " + ", ".join(key.target_fullname for key in constraint.elements)
        yield f"{table.name} {type(constraint).__name__} {constraint.name}: {of}"


def names(columns: Iterable[Column[Any]]) -> str:
    return ", ".join(column.name for column in columns)


def test_tables_that_have_changed_are_of_a_new_revision() -> None:
    """Write the revision first (CONTRIBUTING.md, "Changing the ledger"), then its digest here."""
    lines = sorted(line for table in metadata.sorted_tables for line in said(table))
    assert sha256("\n".join(lines).encode()).hexdigest() == TABLES.get(REVISION), "tables changed: a new revision?"
