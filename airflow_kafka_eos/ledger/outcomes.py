"""What really happened to decided transactions, as the log showed it.

Rules: log-is-the-evidence, committed-is-verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import Connection, delete, select, update

from airflow_kafka_eos.errors import ConfigurationError, InDoubtError, NotFinishedError, UndecidableError
from airflow_kafka_eos.evidence import DONE, FINAL, Outcome
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.queries import Locked, move, must_lock, now
from airflow_kafka_eos.ledger.repairs import end_open
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.ledger.slots import release
from airflow_kafka_eos.ledger.text import for_reason
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict


def record_outcomes(
    connection: Connection, load: LoadIdentity, number: int, outcomes: Mapping[str, Outcome]
) -> dict[str, Outcome]:
    """Note outcomes by transactional id, but for those that are final. What is recorded then, for the ids asked for."""
    _, attempt_id, _ = _committing(connection, load, number)
    recorded = _outcomes(connection, attempt_id)
    unknown = sorted(set(outcomes) - set(recorded))
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
    moment = now()
    result = {}
    for transactional_id, outcome in outcomes.items():
        old = recorded[transactional_id]
        # the marker was seen; that the log was cut off or the topic deleted since then takes nothing back
        if old not in FINAL and old is not outcome:
            connection.execute(
                update(t.transactions)
                .where(
                    t.transactions.c.attempt_id == attempt_id,  # a pooled id is of many attempts
                    t.transactions.c.transactional_id == transactional_id,
                )
                .values(outcome=outcome.value, outcome_at=moment)
            )
            old = outcome
        result[transactional_id] = old
    return result


def record_committed(connection: Connection, load: LoadIdentity, number: int) -> AttemptRow:
    """The load is COMMITTED; only when every transaction is, or its replacement (rule: committed-is-verified)."""
    locked, attempt_id, attempt = _committing(connection, load, number)
    recorded = _outcomes(connection, attempt_id)
    missing = sorted(i for i, outcome in recorded.items() if outcome not in DONE)
    if missing:
        broken = [i for i in missing if recorded[i] in (Outcome.ABORTED, Outcome.LOST, Outcome.IN_DOUBT)]
        kind = InDoubtError if broken else NotFinishedError
        first = (broken or missing)[0]
        raise kind(
            f"{len(missing)} of {len(recorded)} transactions are not verified as committed, "
            f"{len(broken)} of them are lost or in doubt",
            remedy="Run commit again: it rolls forward and judges by the log",
            load=str(load),
            attempt=number,
            transactional_id=first,
        )
    if locked.row.state is LoadState.COMMITTED:
        return attempt
    move(connection, locked, LoadState.COMMITTED, reason="")
    moment = now()
    connection.execute(update(t.attempts).where(t.attempts.c.id == attempt_id).values(closed_at=moment))
    _empty_mapping(connection, attempt_id)
    end_open(connection, attempt_id, "the load is committed without it")
    # every marker was seen; of writers that nobody has heard of, only the quarantine knows
    release(connection, attempt_id, quarantine=attempt.writers_left is not False)
    return replace(attempt, closed_at=moment)


def record_repairing(
    connection: Connection, load: LoadIdentity, number: int, reason: str, newer: bool = False
) -> bool:
    """Transactions of it are lost, and the others tell one story: it is to be repaired.

    Nothing changes when it is, unless the reason is a newer one. IN_DOUBT stays, with its reason: cleanup looks too,
    and only who opens a repair takes the load back from a person. False, and nothing changes, when somebody else has
    repaired all of it since the look: COMMITTED is final.
    """
    locked, _, _ = _committing(connection, load, number)
    state = locked.row.state
    if state is LoadState.COMMITTED:
        return False
    if state is LoadState.REPAIRING:
        if newer:
            _renew_reason(connection, locked, reason)
    elif state is not LoadState.IN_DOUBT:
        move(connection, locked, LoadState.REPAIRING, reason=for_reason(reason))
    return True


def record_given_up(connection: Connection, load: LoadIdentity, by: str, reason: str) -> None:
    """A person leaves a decided load as it is; the first one's word stays."""
    locked = must_lock(connection, load)
    if locked.row.state is LoadState.GIVEN_UP:
        return
    move(connection, locked, LoadState.GIVEN_UP, reason=for_reason(f"given up by {by}: {reason}"))
    assert locked.committed is not None  # such a state has a commit decision
    attempt_id = locked.attempt_id(locked.committed.number)
    # whoever completes what stands in KIP-939's table must not complete this
    _empty_mapping(connection, attempt_id)
    end_open(connection, attempt_id, "the load is given up")


def record_in_doubt(connection: Connection, load: LoadIdentity, number: int, reason: str) -> bool:
    """Stop for a person (rule: doubt-stops-for-a-person). Saying it again changes the reason only.

    False: it is COMMITTED, so every marker was seen since the look that left a doubt, and nothing changes.
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


def _empty_mapping(connection: Connection, attempt_id: int) -> None:
    ids = select(t.transactions.c.transactional_id).where(t.transactions.c.attempt_id == attempt_id)
    state = t.kafka_transaction_state
    connection.execute(delete(state).where(state.c.transactional_id.in_(ids)))


def _committing(connection: Connection, load: LoadIdentity, number: int) -> tuple[Locked, int, AttemptRow]:
    """:raises UndecidableError: the attempt is not decided to be committed."""
    locked = must_lock(connection, load)
    attempt = locked.attempt(number)
    if attempt.verdict is not Verdict.COMMIT:
        what = "undecided" if attempt.verdict is None else "decided to be aborted"
        raise UndecidableError(
            f"the attempt is {what}, so it has no commit to record",
            remedy="Decide first; outcomes belong to a commit decision",
            load=str(load),
            attempt=number,
        )
    return locked, locked.attempt_id(number), attempt


def _outcomes(connection: Connection, attempt_id: int) -> dict[str, Outcome | None]:
    c = t.transactions.c
    rows = connection.execute(select(c.transactional_id, c.outcome).where(c.attempt_id == attempt_id))
    return {row.transactional_id: None if row.outcome is None else Outcome(row.outcome) for row in rows}
