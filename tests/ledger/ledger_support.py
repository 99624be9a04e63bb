"""Loads, manifests and a door for raw SQL: what the ledger's tests share."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from airflow_kafka_eos.ledger import AttemptRow, Ledger, migrate
from airflow_kafka_eos.ledger.database import Database
from airflow_kafka_eos.load import LoadIdentity, TransactionScope
from airflow_kafka_eos.manifest import AttemptRef, Manifest, ManifestEntry, PartitionWrites, TopicInfo
from airflow_kafka_eos.naming import IdRole, TransactionalId
from airflow_kafka_eos.transaction import TWO_PHASE_TIMEOUT_MS, Outcome, PreparedTransaction, PreparedTxnState

LOAD = LoadIdentity("team", "load_orders", "2026-01-01T00:00:00+00:00")
OTHER = LoadIdentity("team", "load_orders", "2026-01-02T00:00:00+00:00")


def ref(ledger: Ledger, number: int, load: LoadIdentity = LOAD) -> AttemptRef:
    return AttemptRef(load, ledger.ledger_id, number)


def transaction(
    ledger: Ledger, number: int, partition: int, load: LoadIdentity = LOAD
) -> PreparedTransaction:
    name = TransactionalId(load, ledger.ledger_id, number, partition, 100 + partition)
    return PreparedTransaction(str(name), PreparedTxnState(1000 + partition, number % 30000))


def manifest(ledger: Ledger, number: int, load: LoadIdentity = LOAD, *, full: int = 2) -> Manifest:
    """``full`` Spark partitions with one transaction each, and an empty one behind them."""
    entries = [
        ManifestEntry(
            p,
            transaction(ledger, number, p, load),
            (PartitionWrites("orders", p, 10, 400, 5, 14, f"{p:032x}", 1_700_000_000_000),),
        )
        for p in range(full)
    ]
    return Manifest(
        attempt=ref(ledger, number, load),
        created_at="2026-01-01T00:00:00+00:00",
        writer="test",
        scope=TransactionScope.TASK,
        two_phase_commit=False,
        digest_algorithm="test",
        transaction_timeout_ms=900_000,
        topics={"orders": TopicInfo("id-of-orders", 8)},
        entries=(*entries, ManifestEntry(full, None, ())),
    )


def shared_manifest(ledger: Ledger, number: int) -> Manifest:
    """Scope load: one transaction of two Spark partitions, with two-phase commit."""
    name = TransactionalId(LOAD, ledger.ledger_id, number, role=IdRole.LOAD)
    whole = PreparedTransaction(str(name), PreparedTxnState(1000, 0))
    document = manifest(ledger, number)
    return replace(
        document,
        scope=TransactionScope.LOAD,
        two_phase_commit=True,
        transaction_timeout_ms=TWO_PHASE_TIMEOUT_MS,
        entries=tuple(replace(e, transaction=whole) if e.transaction else e for e in document.entries),
    )


def prepare(ledger: Ledger, load: LoadIdentity = LOAD, *, full: int = 2) -> AttemptRow:
    """The load's next attempt, prepared; with ``full`` transactions."""
    ledger.begin(load, owner="begin")
    row = ledger.submit(load, owner="prepare")
    return ledger.mark_prepared(manifest(ledger, row.number, load, full=full))


def commit(ledger: Ledger, load: LoadIdentity = LOAD) -> AttemptRow:
    """The load's next attempt, decided to be committed."""
    return ledger.decide_commit(manifest(ledger, prepare(ledger, load).number, load), decided_by="decide")


def verify(ledger: Ledger, load: LoadIdentity = LOAD, number: int = 1) -> AttemptRow:
    """Every marker of a decided attempt was seen: the load is COMMITTED."""
    outcomes = {t.transaction.transactional_id: Outcome.COMMITTED for t in ledger.transactions(load, number)}
    ledger.record_outcomes(load, number, outcomes)
    return ledger.record_committed(load, number)


def sql(url: str, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    """Raw SQL past all compare-and-sets, in a write transaction."""
    database = Database(url)
    try:
        with database.engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []
    finally:
        database.close()


NEXT = """\
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "0013", "0012", None, None


def upgrade() -> None:
    op.add_column("kafka_eos_loads", sa.Column("colour", sa.String(20)))
"""


def next_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the package is a version that has one revision more."""
    there = folder / "100% ours"
    shutil.copytree(Path(migrate.__file__).parent / "migrations", there / "migrations")
    (there / "migrations" / "versions" / "r0013_colour.py").write_text(NEXT)
    monkeypatch.setattr(migrate, "__file__", str(there / "migrate.py"))
    monkeypatch.setattr(migrate, "REVISION", "0013")
