"""Deciding: commit or abort, once per attempt, one commit per load (rule 2), with the load's row locked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace

from sqlalchemy import Connection, insert
from sqlalchemy.exc import IntegrityError

from airflow_kafka_eos.errors import UndecidableError
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.queries import Locked, lock, move, must_lock, now
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.ledger.text import for_people, for_reason
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest

Also = Callable[[Connection], None]


def decide_commit(
    connection: Connection, manifest: Manifest, decided_by: str, also: Also | None
) -> AttemptRow:
    """Decide to commit the newest attempt, prepared and undecided; with its transactions and KIP-939's mapping."""
    ref = manifest.attempt
    locked = must_lock(connection, ref.load)
    attempt = locked.attempt(ref.attempt)
    if attempt.verdict is Verdict.COMMIT:
        return attempt
    problem = why_undecidable(locked, attempt)
    if not problem and not attempt.is_prepared:
        problem = "it is not prepared"
    if problem:
        raise _undecidable(ref, problem)
    taken = False
    try:
        decided = _decide(connection, locked, attempt, Verdict.COMMIT, decided_by, "")
        _insert_transactions(connection, locked.attempt_id(ref.attempt), manifest)
    except IntegrityError:
        taken = True
    if taken:
        # the unique indexes are the second line behind the lock; raised here, so that the driver's error stays out
        raise _undecidable(
            ref, "the load is decided already, or a transactional id belongs to another attempt"
        )
    move(connection, locked, LoadState.COMMITTING)
    if also is not None:
        also(connection)
    return decided


def decide_abort(connection: Connection, ref: AttemptRef, decided_by: str, reason: str) -> bool:
    """Decide to abort; False, and nothing changed, when it is decided to be committed."""
    locked = must_lock(connection, ref.load)
    attempt = locked.attempt(ref.attempt)
    if attempt.is_undecided:
        _decide(connection, locked, attempt, Verdict.ABORT, decided_by, reason)
        if locked.newest == attempt:
            move(connection, locked, LoadState.ABORTING)
        return True
    return attempt.verdict is Verdict.ABORT


def make_undecidable(
    connection: Connection, load: LoadIdentity, up_to: int, decided_by: str, reason: str
) -> list[AttemptRow]:
    """Abort every undecided attempt up to a number, none beyond it (rules 1, 11); all as they are then."""
    locked = lock(connection, load)
    if locked is None:
        return []
    done = abort_undecided(connection, locked, up_to=up_to, decided_by=decided_by, reason=reason)
    if locked.newest is not None and locked.newest.number in done:
        move(connection, locked, LoadState.ABORTING)
    return [done.get(a.number, a) for a in locked.attempts if a.number <= up_to]


def abort_undecided(
    connection: Connection, locked: Locked, *, up_to: int, decided_by: str, reason: str
) -> dict[int, AttemptRow]:
    """Abort every undecided attempt up to a number; the load's state is left to the caller."""
    return {
        a.number: _decide(connection, locked, a, Verdict.ABORT, decided_by, reason)
        for a in locked.attempts
        if a.is_undecided and a.number <= up_to
    }


def why_undecidable(locked: Locked, attempt: AttemptRow) -> str:
    """Why the attempt can be decided no more, or an empty text."""
    committed, newest = locked.committed, locked.newest
    if committed is not None and committed.number != attempt.number:
        return f"attempt {committed.number} is decided to be committed, by {committed.decided_by}"
    if attempt.verdict is Verdict.ABORT:
        return f"it was aborted by {attempt.decided_by} at {attempt.decided_at}: {attempt.reason}"
    if attempt.verdict is Verdict.COMMIT:
        return f"it is decided to be committed already, by {attempt.decided_by} at {attempt.decided_at}"
    if newest is not None and newest.number != attempt.number:
        return f"attempt {newest.number}, opened by {newest.owner} at {newest.opened_at}, is newer"
    return ""


def _decide(
    connection: Connection,
    locked: Locked,
    attempt: AttemptRow,
    verdict: Verdict,
    decided_by: str,
    reason: str,
) -> AttemptRow:
    moment, person, why = now(), for_people(decided_by), for_reason(reason)
    connection.execute(
        insert(t.decisions).values(
            attempt_id=locked.attempt_id(attempt.number),
            load_id=locked.id,
            verdict=verdict.value,
            decided_at=moment,
            decided_by=person,
            reason=why,
            committed_load_id=locked.id if verdict is Verdict.COMMIT else None,
        )
    )
    return replace(attempt, verdict=verdict, decided_at=moment, decided_by=person, reason=why)


def _insert_transactions(connection: Connection, attempt_id: int, manifest: Manifest) -> None:
    rows, states = [], []
    for entry in manifest.entries:
        if entry.transaction is None:
            continue
        state = {
            "transactional_id": entry.transaction.transactional_id,
            "prepared_transaction_state": str(entry.transaction.state),
        }
        topics = sorted({w.topic for w in entry.writes})
        states.append(state)
        rows.append(
            state
            | {
                "attempt_id": attempt_id,
                "spark_partition": entry.spark_partition,
                "records": entry.records,
                "bytes": sum(w.bytes for w in entry.writes),
                "writes": json.dumps([asdict(w) for w in entry.writes]),
                "topic_ids": json.dumps({topic: manifest.topics[topic].topic_id for topic in topics}),
            }
        )
    if rows:
        connection.execute(insert(t.transactions), rows)
        connection.execute(insert(t.kafka_transaction_state), states)


def _undecidable(ref: AttemptRef, problem: str) -> UndecidableError:
    return UndecidableError(
        f"the attempt cannot be committed: {problem}",
        remedy="Clear prepare to open a new attempt, unless the load is decided already",
        load=str(ref.load),
        attempt=ref.attempt,
    )
