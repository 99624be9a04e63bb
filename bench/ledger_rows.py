"""A ledger with many loads: what a deployment has after years, written past the protocol, for that takes years."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, insert, text

from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.transaction import Outcome

NAMESPACE = "bench"
NAMES = 20
#: Of each load; and Kafka partitions of each of them.
TRANSACTIONS, PARTITIONS = 2, 2
#: One load in so many had an attempt that was aborted.
_ABORTED = 25
#: The newest loads, which are not through.
UNFINISHED = 10
_CHUNK = 2_000
_APART = timedelta(minutes=15)
Rows = dict[Any, list[dict[str, Any]]]


def fill(ledger: Ledger, loads: int, *, topic: str = "orders") -> None:
    """Fill an empty ledger: all loads are committed but for the last :data:`UNFINISHED`, which are in doubt."""
    newest = datetime.now(UTC) - timedelta(hours=1)
    for at in range(0, loads, _CHUNK):
        numbers = range(at, min(loads, at + _CHUNK))
        rows: Rows = {table: [] for table in (t.loads, t.attempts, t.decisions, t.transactions)}
        for number in numbers:
            moment = newest - (loads - number) * _APART
            for table, row in _load(ledger.ledger_id, number, moment, loads - number <= UNFINISHED, topic):
                rows[table].append(row)
        ledger.database.write(partial(_insert, rows=rows))
    ledger.database.write(lambda c: c.execute(insert(t.topics).values(namespace=NAMESPACE, topic=topic)))
    ledger.database.write(_go_on_behind)


def _insert(connection: Connection, rows: Rows) -> None:
    for table, found in rows.items():
        connection.execute(insert(table), found)


def _go_on_behind(connection: Connection) -> None:
    """PostgreSQL numbers rows by itself, whatever was given before. And it plans by what it knows of the tables."""
    if connection.dialect.name != "postgresql":
        return
    for table in (t.loads.name, t.attempts.name):
        connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), max(id)) FROM {table}"))
    connection.execute(text("ANALYZE"))


def identity(number: int) -> LoadIdentity:
    """Of the load with that number."""
    moment = datetime(2020, 1, 1, tzinfo=UTC) + number // NAMES * _APART
    return LoadIdentity(NAMESPACE, f"dag_{number % NAMES:02}.load", moment.isoformat())


def owner(number: int) -> str:
    """Of its attempts."""
    load = identity(number)
    return f"{load.name.partition('.')[0]}/scheduled__{load.key}#group=load"


def _load(ledger_id: str, number: int, at: datetime, is_open: bool, topic: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    load, by = identity(number), owner(number)
    attempts = 2 if number % _ABORTED == 0 else 1
    times = [(at + timedelta(seconds=n)).isoformat(timespec="microseconds") for n in range(6)]
    state = LoadState.IN_DOUBT if is_open else LoadState.COMMITTED
    yield t.loads, {
        "id": number + 1, "namespace": load.namespace, "name": load.name, "load_key": load.key, "state": state.value,
        "data_interval_start": times[0], "data_interval_end": times[0], "newest_attempt": attempts, "reason": "",
        "created_at": times[0], "updated_at": times[5],
    }  # fmt: skip
    for attempt in range(1, attempts + 1):
        is_last = attempt == attempts
        id = (number + 1) * 2 + attempt - 1
        yield t.attempts, {
            "id": id, "load_id": number + 1, "number": attempt, "owner": by, "opened_at": times[0],
            "submitted_at": times[1], "submitted_by": by, "prepared_at": times[2], "records": 1_000, "bytes": 140_000,
            "manifest_sha256": sha256(str(id).encode()).hexdigest(), "scope": "task", "two_phase_commit": False,
            "closed_at": None if is_open and is_last else times[5], "writer": "arrow", "digest_algorithm": "columns",
            "writers_until": times[5], "writers_left": False,
            "arguments_sha256": sha256(load.key.encode()).hexdigest(),
        }  # fmt: skip
        verdict = Verdict.COMMIT if is_last else Verdict.ABORT
        yield t.decisions, {
            "attempt_id": id, "load_id": number + 1, "verdict": verdict.value, "decided_at": times[3], "decided_by": by,
            "reason": "" if is_last else "superseded by attempt 2",
            "committed_load_id": number + 1 if is_last else None,
        }  # fmt: skip
        for partition in range(TRANSACTIONS):
            producer = id * TRANSACTIONS + partition
            writes = [
                {
                    "topic": topic, "partition": p, "records": 250, "bytes": 35_000, "first_offset": number * 252,
                    "last_offset": number * 252 + 249, "digest": f"{producer:032x}",
                    "oldest_timestamp_ms": 1_700_000_000_000,
                }
                for p in range(PARTITIONS)
            ]  # fmt: skip
            name = TransactionalId(load, ledger_id, attempt, partition, partition)
            yield t.transactions, {
                "transactional_id": str(name), "attempt_id": id, "prepared_transaction_state": f"{producer}:0",
                "spark_partition": partition, "records": 500, "bytes": 70_000, "writes": json.dumps(writes),
                "topic_ids": json.dumps({topic: "AAAAAAAAAAAAAAAAAAAAAA"}),
                "outcome": Outcome.COMMITTED.value if is_last and not is_open else None, "outcome_at": times[5],
            }  # fmt: skip
