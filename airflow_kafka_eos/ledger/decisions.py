"""Deciding, once per attempt and one commit per load, and what then became of the decided transactions.

Rules: one-decision-per-load, log-is-the-evidence, committed-is-verified.

Each function is one database transaction's work, with the load's row locked. What went wrong last with a load that is
not through is only noted, in its row's reason; the attempt's abort takes the note into that decision's reason.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, assert_never

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from airflow_kafka_eos.errors import ConfigurationError, InDoubtError, NotFinishedError, UndecidableError
from airflow_kafka_eos.ledger import cursors
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.queries import Locked, lock, move, must_lock, now, slices
from airflow_kafka_eos.ledger.repairs import end_open
from airflow_kafka_eos.ledger.rows import UNFINISHED, AttemptRow
from airflow_kafka_eos.ledger.slots import release
from airflow_kafka_eos.ledger.tables import for_people, for_reason
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.transaction import DONE, FINAL, Outcome, TopicPartition

#: Values in one IN (...): databases have a limit.
_AT_ONCE = 500


def decide_commit(
    connection: Connection,
    ref: AttemptRef,
    sha256: str,
    decided_by: str,
    not_after: float | None,
    dual_write: Callable[[Connection], None] | None,
    end_offsets: Mapping[TopicPartition, int] | None = None,
    *,
    beside: Callable[[Connection], None] | None = None,
    reason: str = "",
    moves_cursor: bool = True,
    check_stop: Callable[[], object] = lambda: None,
) -> AttemptRow:
    """Decide to commit the attempt: the point of no return. The same answer when it is decided so before.

    :param sha256: of the very manifest that was marked prepared; one that was swapped since then is never decided.
        Computed before the lock is taken.
    :param not_after: epoch seconds; past them, with the load's row locked, nothing is decided.
    :param dual_write: runs in the same database transaction, last, and once for a decision that stands (it may run
        again after a rollback). What it raises undoes the decision and is passed on; only lost connections
        and locks are tried again. A decision that it commits on its own, by SQL that does so, stays UNFINISHED.
    :param end_offsets: see :func:`.queries.end_offsets`; None: not known.
    :param beside: the ledger's own work in the same database transaction; what it raises undoes the decision.
    :param reason: why, where a person says so.
    :param moves_cursor: False: the caller puts it in doubt.
    :param check_stop: asked last, with the load's row locked, and behind ``dual_write``: what it raises undoes the
        decision and is passed on.
    :raises UndecidableError: aborted, superseded, not prepared, prepared with another manifest, or another
        attempt is decided.
    :raises NotFinishedError: the lock came after ``not_after``; decide anew.
    :raises UndecidableError: and where its range is not what the cursor says by now: :func:`.cursors.advance`.
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
    _check_in_time(ref, not_after, "the ledger's lock")  # waiting for it may have taken the time that was left
    check_stop()
    taken = False
    try:
        why = reason if dual_write is None else UNFINISHED
        decided = _decide(connection, locked, attempt, Verdict.COMMIT, decided_by, why, end_offsets)
        _fill_mapping(connection, locked.attempt_id(ref.attempt))
    except IntegrityError:
        taken = True
    if taken:
        # the unique indexes are the second line behind the lock; raised here, so that the driver's error stays out
        raise _undecidable(
            ref, "the load is decided already, or kafka_transaction_state holds one of its transactional ids"
        )
    # rule: cursor-moves-with-the-decision
    if moves_cursor:
        cursors.advance(connection, locked, attempt, decided_by)
    move(connection, locked, LoadState.COMMITTING, reason="")
    if beside is not None:
        beside(connection)  # which may lock a row, too
        _check_in_time(ref, not_after, "a lock of the ledger's")
    if dual_write is not None:
        dual_write(connection)
        _check_in_time(ref, not_after, "the end of the author's SQL")
        check_stop()
        its = t.decisions.c.attempt_id == locked.attempt_id(ref.attempt)
        connection.execute(update(t.decisions).where(its).values(reason=for_reason(reason)))
        decided = replace(decided, reason=for_reason(reason))
    return decided


def set_finished(connection: Connection, load: LoadIdentity, *, by: str, reason: str) -> AttemptRow:
    """Note that a person has added the rows that a dual write has not got to.

    A decision that bears no such mark stays as it is.

    :raises UndecidableError: the load has no decision to commit.
    """
    locked = must_lock(connection, load)
    decided = locked.committed
    if decided is None:
        raise UndecidableError(
            "the load is not decided to be committed: none of its dual write's rows is there",
            remedy="Clear prepare with what is downstream: its decide runs the dual write",
            load=str(load),
        )
    if not decided.is_unfinished:
        return decided
    why = for_reason(f"its dual write was finished by hand, by {by}: {reason}")
    its = t.decisions.c.attempt_id == locked.attempt_id(decided.number)
    connection.execute(update(t.decisions).where(its).values(reason=why))
    return replace(decided, reason=why)


def _check_in_time(ref: AttemptRef, not_after: float | None, what: str) -> None:
    if not_after is not None and time.time() > not_after:
        raise NotFinishedError(
            f"{what} came so late that the transactions may have too little time left: nothing is decided",
            remedy="Run decide again: it asks the brokers anew. If this comes often, see who holds the ledger's locks, "
            "or raise the margin",
            load=str(ref.load),
            attempt=ref.attempt,
        )


def _undecidable(ref: AttemptRef, problem: str) -> UndecidableError:
    return UndecidableError(
        f"the attempt cannot be committed: {problem}",
        remedy="Clear prepare to open a new attempt, unless the load is decided already",
        load=str(ref.load),
        attempt=ref.attempt,
    )


def decide_abort(connection: Connection, ref: AttemptRef, decided_by: str, reason: str) -> bool:
    """False, and nothing changed, when it is decided to be committed."""
    locked = must_lock(connection, ref.load)
    attempt = locked.attempt(ref.attempt)
    match attempt.verdict:
        case Verdict.COMMIT:
            return False
        case Verdict.ABORT:
            return True
        case None:
            _decide(connection, locked, attempt, Verdict.ABORT, decided_by, reason)
            if locked.newest == attempt:
                move(connection, locked, LoadState.ABORTING, reason="")
            return True
    assert_never(attempt.verdict)


def make_undecidable(
    connection: Connection, load: LoadIdentity, *, up_to: int, decided_by: str, reason: str
) -> list[AttemptRow]:
    """Abort every undecided attempt up to a number, none beyond it; all up to there as they are then.

    Rules: decide-before-kafka, up-to-its-own-attempt.

    None for a load that the ledger does not know.
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
    by = f"by {attempt.decided_by} at {attempt.decided_at}"
    match attempt.verdict:
        case Verdict.ABORT:
            return f"it was aborted {by}: {attempt.reason}"
        case Verdict.COMMIT:
            return f"it is decided to be committed already, with another manifest, {by}"
        case None:
            if newest is not None and newest.number != attempt.number:
                return f"attempt {newest.number}, opened by {newest.owner} at {newest.opened_at}, is newer"
            return ""
    assert_never(attempt.verdict)


def _decide(
    connection: Connection,
    locked: Locked,
    attempt: AttemptRow,
    verdict: Verdict,
    decided_by: str,
    reason: str,
    end_offsets: Mapping[TopicPartition, int] | None = None,
) -> AttemptRow:
    ends: dict[str, dict[int, int]] = {}
    for tp, end in (end_offsets or {}).items():
        ends.setdefault(tp.topic, {})[tp.partition] = end
    moment, person, why = now(), for_people(decided_by), for_reason(reason)
    connection.execute(
        insert(t.decisions).values(
            attempt_id=locked.attempt_id(attempt.number),
            load_id=locked.id,
            verdict=verdict.value,
            decided_at=moment,
            decided_by=person,
            reason=why,
            committed_load_id=locked.id if verdict.is_commit else None,
            end_offsets=json.dumps(ends) if ends else None,
        )
    )
    return replace(attempt, verdict=verdict, decided_at=moment, decided_by=person, reason=why)


def _fill_mapping(connection: Connection, attempt_id: int) -> None:
    # from what was prepared: KIP-939's mapping cannot name anything else
    of, state = t.transactions.c, t.kafka_transaction_state
    columns = ["transactional_id", "prepared_transaction_state"]
    rows = select(*(of[name] for name in columns)).where(of.attempt_id == attempt_id)
    connection.execute(insert(state).from_select(columns, rows))


def _empty_mapping(connection: Connection, attempt_id: int) -> None:
    ids = select(t.transactions.c.transactional_id).where(t.transactions.c.attempt_id == attempt_id)
    state = t.kafka_transaction_state
    connection.execute(delete(state).where(state.c.transactional_id.in_(ids)))


def record_outcomes(
    connection: Connection, load: LoadIdentity, number: int, outcomes: Mapping[str, Outcome]
) -> dict[str, Outcome]:
    """Record what the log showed, by transactional id; what is recorded then. What the markers said is final.

    :raises UndecidableError: the attempt is not decided to be committed.
    """
    committing = _committing(connection, load, number)
    return _note_outcomes(connection, committing, _outcomes(connection, committing.attempt_id), outcomes)


def record_committed(connection: Connection, load: LoadIdentity, number: int) -> AttemptRow:
    """The load is COMMITTED and its attempt closed. Empties its part of ``kafka_transaction_state``.

    :raises NotFinishedError: a transaction's outcome is open or not recorded (rule: committed-is-verified).
    :raises InDoubtError: a transaction is aborted or in doubt.
    :raises UndecidableError: the attempt is not decided to be committed.
    """
    committing = _committing(connection, load, number)
    return _close(connection, committing, _outcomes(connection, committing.attempt_id))


def record_and_close(
    connection: Connection, load: LoadIdentity, number: int, outcomes: Mapping[str, Outcome]
) -> tuple[dict[str, Outcome], AttemptRow | None]:
    """:func:`record_outcomes`, and :func:`record_committed` with it where all is verified then: one durable commit.

    What was seen is kept in any case: retention may take the evidence. So a load that was given up meanwhile, or is not
    through, is left to :func:`record_committed`, which says so.

    :returns: what is recorded; and the attempt, None where its load is not COMMITTED.
    :raises UndecidableError: the attempt is not decided to be committed.
    """
    committing = _committing(connection, load, number)
    known = _outcomes(connection, committing.attempt_id)
    recorded = _note_outcomes(connection, committing, known, outcomes)
    is_verified = all(outcome in DONE for outcome in known.values())
    if not is_verified or committing.locked.row.state is LoadState.GIVEN_UP:
        return recorded, None
    return recorded, _close(connection, committing, known)


def _note_outcomes(
    connection: Connection,
    committing: _Committing,
    known: dict[str, Outcome | None],
    outcomes: Mapping[str, Outcome],
) -> dict[str, Outcome]:
    """
    :param known: what is recorded of all transactions of the attempt; it is brought up to date.
    """
    load, number = committing.locked.row.load, committing.attempt.number
    unknown = sorted(set(outcomes) - set(known))
    if unknown:
        raise ConfigurationError(
            "the ledger has no such transaction in this attempt",
            remedy="Take transactional ids from the ledger's own transactions",
            load=str(load),
            attempt=number,
            transactional_id=unknown[0],
        )
    if Outcome.SUPERSEDED in outcomes.values():
        raise ConfigurationError(
            "a transaction is superseded only by the repair that replaces it",
            remedy="Adopt the repair",
            load=str(load),
            attempt=number,
        )
    result: dict[str, Outcome] = {}
    changed: dict[Outcome, list[str]] = {}
    for transactional_id, outcome in outcomes.items():
        old = known[transactional_id]
        # the marker was seen; that the log was cut off or the topic deleted since then takes nothing back
        if old not in FINAL and old is not outcome:
            changed.setdefault(outcome, []).append(transactional_id)
            old = outcome
        known[transactional_id] = result[transactional_id] = old
    c, moment = t.transactions.c, now()
    for outcome, names in changed.items():
        for some in slices(names, _AT_ONCE):  # there may be thousands
            # a pooled id is of many attempts
            ours = (c.attempt_id == committing.attempt_id, c.transactional_id.in_(some))
            values = {"outcome": outcome.value, "outcome_at": moment}
            connection.execute(update(t.transactions).where(*ours).values(values))
    return result


def _close(connection: Connection, committing: _Committing, known: Mapping[str, Outcome | None]) -> AttemptRow:
    locked, attempt_id, attempt = committing
    missing = sorted(i for i, outcome in known.items() if outcome not in DONE)
    if missing:
        broken = [i for i in missing if known[i] not in (None, Outcome.OPEN)]
        kind = InDoubtError if broken else NotFinishedError
        first = (broken or missing)[0]
        raise kind(
            f"{len(missing)} of {len(known)} transactions are not verified as committed, "
            f"{len(broken)} of them are lost or in doubt",
            remedy="Run commit again: it rolls forward and judges by the log",
            load=str(locked.row.load),
            attempt=attempt.number,
            transactional_id=first,
        )
    if locked.row.state is LoadState.COMMITTED:
        return attempt
    move(connection, locked, LoadState.COMMITTED, reason="")
    cursors.note_over(connection, locked)
    moment = now()
    connection.execute(update(t.attempts).where(t.attempts.c.id == attempt_id).values(closed_at=moment))
    _empty_mapping(connection, attempt_id)
    end_open(connection, attempt_id, "the load is committed without it")
    # every marker was seen; of writers that nobody has heard of, only the quarantine knows
    release(connection, attempt_id, quarantine=attempt.writers_left is not False)
    return replace(attempt, closed_at=moment)


def record_repairing(
    connection: Connection, load: LoadIdentity, number: int, reason: str, *, newer: bool = False
) -> bool:
    """The load is REPAIRING: transactions of it are lost, none is in doubt. False: it is COMMITTED, and stays so.

    IN_DOUBT stays with its reason: cleanup looks too, and only :func:`.repairs.open_repair` takes the load back from
    the person who is asked.

    :param newer: take the reason also when it is REPAIRING already.
    :raises UndecidableError: the attempt is not decided to be committed, or the load is GIVEN_UP.
    """
    locked, _, _ = _committing(connection, load, number)
    state = locked.row.state
    match state:
        case LoadState.COMMITTED:
            return False
        case LoadState.IN_DOUBT:
            return True
        case LoadState.REPAIRING:
            if newer:
                _renew_reason(connection, locked, reason)
            return True
        case LoadState.COMMITTING | LoadState.GIVEN_UP:
            move(connection, locked, LoadState.REPAIRING, reason=for_reason(reason))
            return True
        case LoadState.PREPARING | LoadState.PREPARED | LoadState.ABORTING | LoadState.ABORTED:
            raise AssertionError("such a load has no commit decision")
    assert_never(state)


def record_in_doubt(connection: Connection, load: LoadIdentity, number: int, reason: str) -> bool:
    """The load is IN_DOUBT: a person decides (rule: doubt-stops-for-a-person). Saying it again changes the reason.

    False: it is COMMITTED, so every marker was seen since the look that left a doubt, and nothing changes.

    :raises UndecidableError: the attempt is not decided to be committed, or the load is GIVEN_UP.
    """
    locked, _, _ = _committing(connection, load, number)
    if locked.row.state is LoadState.COMMITTED:
        return False
    if locked.row.state is LoadState.IN_DOUBT:
        _renew_reason(connection, locked, reason)
    else:
        move(connection, locked, LoadState.IN_DOUBT, reason=for_reason(reason))
    return True


def _renew_reason(connection: Connection, locked: Locked, reason: str) -> None:
    values = {"reason": for_reason(reason), "updated_at": now()}
    connection.execute(update(t.loads).where(t.loads.c.id == locked.id).values(values))


def record_given_up(connection: Connection, load: LoadIdentity, *, by: str, reason: str) -> None:
    """A person leaves a decided, unfinished load as it is: GIVEN_UP. Nothing happens the second time.

    Empties its part of ``kafka_transaction_state``, and makes its repairs undecidable.

    :raises UndecidableError: it is not decided to be committed, or it is COMMITTED.
    """
    locked = must_lock(connection, load)
    if locked.row.state is LoadState.GIVEN_UP:
        return
    move(connection, locked, LoadState.GIVEN_UP, reason=for_reason(f"given up by {by}: {reason}"))
    assert locked.committed is not None  # such a state has a commit decision
    attempt_id = locked.attempt_id(locked.committed.number)
    # whoever completes what stands in KIP-939's table must not complete this
    _empty_mapping(connection, attempt_id)
    end_open(connection, attempt_id, "the load is given up")
    cursors.give_up(connection, locked, by)


class _Committing(NamedTuple):
    """A locked load's attempt that is decided to be committed."""

    locked: Locked
    attempt_id: int
    attempt: AttemptRow


def _committing(connection: Connection, load: LoadIdentity, number: int) -> _Committing:
    """:raises UndecidableError: the attempt is not decided to be committed."""
    locked = must_lock(connection, load)
    attempt = locked.attempt(number)
    match attempt.verdict:
        case Verdict.COMMIT:
            return _Committing(locked, locked.attempt_id(number), attempt)
        case Verdict.ABORT:
            what = "decided to be aborted"
        case None:
            what = "undecided"
        case _:
            assert_never(attempt.verdict)
    raise UndecidableError(
        f"the attempt is {what}, so it has no commit to record",
        remedy="Decide first; outcomes belong to a commit decision",
        load=str(load),
        attempt=number,
    )


def _outcomes(connection: Connection, attempt_id: int) -> dict[str, Outcome | None]:
    c = t.transactions.c
    rows = connection.execute(select(c.transactional_id, c.outcome).where(c.attempt_id == attempt_id))
    return {row.transactional_id: None if row.outcome is None else Outcome(row.outcome) for row in rows}


def note_failure(
    connection: Connection,
    load: LoadIdentity,
    *,
    by: str,
    reason: str,
    number: int | None = None,
    sweeping: bool = False,
) -> bool:
    """Note why a step has failed, in the load's ``reason``, until the load goes on. Decides nothing.

    With the abort of its newest attempt it becomes part of that decision's reason.

    :param by: who has failed: whoever answers for the newest attempt; a failure of others says nothing of it.
    :param number: the attempt that it failed with; None: whichever is the newest.
    :param sweeping: it was to end what an aborted attempt has open.
    :returns: False, and nothing is noted, where the load has gone on without it.
    """
    locked = lock(connection, load)
    if locked is None or locked.newest is None:
        return False
    newest = locked.newest
    if newest.responsible != for_people(by) or number not in (None, newest.number):
        return False
    if not _is_noted(locked.row.state, sweeping):
        return False
    values = {"reason": for_reason(reason), "updated_at": now()}
    connection.execute(update(t.loads).where(t.loads.c.id == locked.id).values(values))
    return True


def _is_noted(state: LoadState, sweeping: bool) -> bool:
    match state:
        case LoadState.PREPARING | LoadState.PREPARED | LoadState.COMMITTING:
            return True
        case LoadState.ABORTING:
            return sweeping
        case LoadState.REPAIRING | LoadState.IN_DOUBT | LoadState.GIVEN_UP:
            return False  # their reasons say more
        case LoadState.COMMITTED | LoadState.ABORTED:
            return False  # they want none
    assert_never(state)


def with_failure(locked: Locked, number: int, reason: str) -> str:
    """Why an attempt is aborted, with what had gone wrong before with it."""
    failed = locked.row.reason if locked.newest is not None and locked.newest.number == number else ""
    return f"{reason}: {failed}" if failed and failed not in reason else reason
