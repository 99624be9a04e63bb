"""Deciding: commit or abort, once per attempt, one commit per load, with the load's row locked.

Rule: one-decision-per-load.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from airflow_kafka_eos.errors import NotFinishedError, UndecidableError
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.failures import with_failure
from airflow_kafka_eos.ledger.queries import Locked, lock, move, must_lock, now
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.ledger.text import for_people, for_reason
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.manifest import AttemptRef

Also = Callable[[Connection], None]


def decide_commit(
    connection: Connection,
    ref: AttemptRef,
    sha256: str,
    decided_by: str,
    not_after: float | None,
    also: Also | None,
) -> AttemptRow:
    """Decide to commit the newest attempt, prepared with this manifest and undecided; with KIP-939's mapping.

    :param sha256: the manifest's; computed before the lock is taken.
    """
    locked = must_lock(connection, ref.load)
    attempt = locked.attempt(ref.attempt)
    same = attempt.manifest_sha256 == sha256
    if attempt.verdict is Verdict.COMMIT and same:
        return attempt
    problem = why_undecidable(locked, attempt)
    if not problem and not attempt.is_prepared:
        problem = "it is not prepared"
    if not problem and not same:
        problem = f"this manifest (sha256 {sha256}) is not the one that prepare reported ({attempt.manifest_sha256})"
    if problem:
        raise _undecidable(ref, problem)
    _refuse_too_late(ref, not_after, "the ledger's lock")  # waiting for it may have taken the time that was left
    taken = False
    try:
        decided = _decide(connection, locked, attempt, Verdict.COMMIT, decided_by, "")
        _fill_mapping(connection, locked.attempt_id(ref.attempt))
    except IntegrityError:
        taken = True
    if taken:
        # the unique indexes are the second line behind the lock; raised here, so that the driver's error stays out
        raise _undecidable(
            ref, "the load is decided already, or kafka_transaction_state holds one of its transactional ids"
        )
    move(connection, locked, LoadState.COMMITTING, reason="")
    if also is not None:
        also(connection)
        _refuse_too_late(ref, not_after, "the end of the author's SQL")
    return decided


def decide_abort(connection: Connection, ref: AttemptRef, decided_by: str, reason: str) -> bool:
    """Decide to abort; False, and nothing changed, when it is decided to be committed."""
    locked = must_lock(connection, ref.load)
    attempt = locked.attempt(ref.attempt)
    if attempt.is_undecided:
        _decide(connection, locked, attempt, Verdict.ABORT, decided_by, reason)
        if locked.newest == attempt:
            move(connection, locked, LoadState.ABORTING, reason="")
        return True
    return attempt.verdict is Verdict.ABORT


def make_undecidable(
    connection: Connection, load: LoadIdentity, up_to: int, decided_by: str, reason: str
) -> list[AttemptRow]:
    """Abort every undecided attempt up to a number, none beyond it; all as they are then.

    Rules: decide-before-kafka, up-to-its-own-attempt.
    """
    locked = lock(connection, load)
    if locked is None:
        return []
    done = abort_undecided(connection, locked, up_to=up_to, decided_by=decided_by, reason=reason)
    if locked.newest is not None and locked.newest.number in done:
        move(connection, locked, LoadState.ABORTING, reason="")
    return [done.get(a.number, a) for a in locked.attempts if a.number <= up_to]


def abort_undecided(
    connection: Connection, locked: Locked, *, up_to: int, decided_by: str, reason: str
) -> dict[int, AttemptRow]:
    """Abort every undecided attempt up to a number; the load's state is left to the caller.

    What had gone wrong with the newest becomes part of its reason.
    """
    return {
        a.number: _decide(
            connection, locked, a, Verdict.ABORT, decided_by, with_failure(locked, a.number, reason)
        )
        for a in locked.attempts
        if a.is_undecided and a.number <= up_to
    }


def why_undecidable(locked: Locked, attempt: AttemptRow) -> str:
    """Why the attempt can be decided no more (nor prepared), or an empty text.

    Asked of a commit-decided attempt only for another manifest than the decided one.
    """
    committed, newest = locked.committed, locked.newest
    if committed is not None and committed.number != attempt.number:
        return f"attempt {committed.number} is decided to be committed, by {committed.decided_by}"
    if attempt.verdict is Verdict.ABORT:
        return f"it was aborted by {attempt.decided_by} at {attempt.decided_at}: {attempt.reason}"
    if attempt.verdict is Verdict.COMMIT:
        by = f"by {attempt.decided_by} at {attempt.decided_at}"
        return f"it is decided to be committed already, with another manifest, {by}"
    if newest is not None and newest.number != attempt.number:
        return f"attempt {newest.number}, opened by {newest.owner} at {newest.opened_at}, is newer"
    return ""


def _refuse_too_late(ref: AttemptRef, not_after: float | None, what: str) -> None:
    if not_after is not None and time.time() > not_after:
        raise NotFinishedError(
            f"{what} came so late that the transactions may have too little time left: nothing is decided",
            remedy="Run decide again: it asks the brokers anew. If this comes often, see who holds the ledger's locks, "
            "or raise the margin",
            load=str(ref.load),
            attempt=ref.attempt,
        )


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


def _fill_mapping(connection: Connection, attempt_id: int) -> None:
    # from what was prepared: KIP-939's mapping cannot name anything else
    of, state = t.transactions.c, t.kafka_transaction_state
    columns = ["transactional_id", "prepared_transaction_state"]
    rows = select(*(of[name] for name in columns)).where(of.attempt_id == attempt_id)
    connection.execute(insert(state).from_select(columns, rows))


def _undecidable(ref: AttemptRef, problem: str) -> UndecidableError:
    return UndecidableError(
        f"the attempt cannot be committed: {problem}",
        remedy="Clear prepare to open a new attempt, unless the load is decided already",
        load=str(ref.load),
        attempt=ref.attempt,
    )
