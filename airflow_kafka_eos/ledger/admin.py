"""What a person changes by hand: the id of a ledger restored from a backup, loads that it has forgotten, a cluster
that is gone.

Rules: only-our-ids, one-key-loads-once.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection

from sqlalchemy import Connection, or_, select, update

from airflow_kafka_eos.errors import ConfigurationError, UndecidableError
from airflow_kafka_eos.ledger import attempts, cursors, decisions, slots, streams
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.queries import UNVERIFIED, ledger_id, lock, now, slices, with_undecided
from airflow_kafka_eos.ledger.rows import AttemptRow, RepairState
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionScope, Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest, sha256
from airflow_kafka_eos.micro_batch import batch_of
from airflow_kafka_eos.transaction import FINAL, Outcome

#: What is recorded of a transaction that is over; of one that is not recorded so, nobody knows.
_OVER = tuple(outcome.value for outcome in (*FINAL, Outcome.ABORTED))
_SHOWN = 5


def new_id(connection: Connection, decided_by: str) -> tuple[str, str]:
    """Give the ledger another id; the old one and the new one.

    Every undecided attempt is aborted with it: its transactions carry the old id, and are nobody's from here on. Every
    cursor is in doubt from here on, and so is one that the ledger does not have: behind a backup, loads have moved or
    made it that this ledger does not know (rule: cursor-in-doubt-stops). And no streaming query begins a batch until a
    person has said which one was its last.

    :raises ConfigurationError: a decided load is not finished, under another id it could never be rolled forward; or
        one that was given up may have transactions open, which nobody could end.
    """
    # first: who decides a batch now, under the old id, has its query's row locked, and its load is seen below
    streams.forget_decided(connection)
    query = select(t.loads.c.namespace, t.loads.c.name, t.loads.c.load_key).where(t.loads.c.state.in_(UNVERIFIED))
    unfinished = [".".join(row) for row in connection.execute(query)]
    if unfinished:
        raise ConfigurationError(
            f"{len(unfinished)} decided loads are not finished: {', '.join(unfinished[:_SHOWN])}",
            remedy="Run `airflow-kafka-eos loads recover` for them first: their transactions have the present id, "
            "and would not be found under a new one. What can never be completed is closed by `loads give-up`; "
            "`transactions force-terminate` then ends what it has open, before the new id",
        )
    _check_none_given_up_open(connection)
    for row in with_undecided(connection):
        decisions.make_undecidable(
            connection, row.load, up_to=row.newest_attempt, decided_by=decided_by, reason="the ledger got a new id"
        )
    old, new = ledger_id(connection), secrets.token_hex(5)
    why = "if it was restored from a backup, loads that it does not know have read on since"
    cursors.doubt_all(connection, f"the ledger's id was changed by {decided_by}: {why}")
    connection.execute(update(t.ledger).values(ledger_id=new, id_changed_at=now()))
    return old, new


def set_committed(
    connection: Connection, load: LoadIdentity, *, by: str, reason: str, cluster_id: str | None = None
) -> AttemptRow:
    """Record that a load's records are in its topics, as a person says: it is COMMITTED, and no run writes it.

    It gets an attempt that was prepared without a transaction, and the decision to commit it. One that is COMMITTED
    stays as it is.

    :param cluster_id: where these topics are.
    :raises ConfigurationError: the load is decided and not COMMITTED, or undecided: a run may be at work on it; or it
        is a micro-batch.
    """
    check_no_batch(connection, load)
    locked = lock(connection, load)
    if locked is not None:
        if locked.committed is not None and locked.row.state is LoadState.COMMITTED:
            return locked.committed
        if locked.row.state.is_decided:
            raise ConfigurationError(
                f"the load is {locked.row.state.value}: it is decided to be committed already",
                remedy="`airflow-kafka-eos loads recover NAME KEY` completes it. One that was given up is never "
                "written again under this key",
                load=str(load),
            )
        if locked.newest is not None and locked.newest.is_undecided:
            raise ConfigurationError(
                f"the load is {locked.row.state.value}: a run may be at work on attempt {locked.newest.number}, which "
                f"{locked.newest.responsible} has opened",
                remedy="Let it end, or end it: `airflow-kafka-eos cleanup NAME KEY`",
                load=str(load),
                attempt=locked.newest.number,
            )
    number = attempts.begin(connection, load, by, None).number
    attempts.submit(connection, load, owner=by, cluster_id=cluster_id)
    ref = AttemptRef(load, ledger_id(connection), number)
    nothing = Manifest(
        ref, now(), writer=by, scope=TransactionScope.TASK, two_phase_commit=False, transaction_timeout_ms=0,
        digest_algorithm="none", topics={}, entries=(), ran_again=False,
    )  # fmt: skip
    digest = sha256(nothing)
    attempts.mark_prepared(connection, nothing, digest, writers_left=False)
    decisions.decide_commit(connection, ref, digest, by, None, None, reason=f"said to be committed: {reason}")
    return decisions.record_committed(connection, load, number)


def reinstate(
    connection: Connection,
    manifest: Manifest,
    digest: str,
    committed: Collection[str],
    *,
    by: str,
    writers_left: bool,
    cluster_id: str | None,
) -> AttemptRow:
    """Take back an attempt that the ledger has forgotten, and the decision to commit it, by its manifest.

    The caller has seen that it was decided, and that all of it is committed or can be. Attempts before it that the
    ledger does not know either are aborted with it. That there is one shows that the ledger was restored: all cursors
    are in doubt from here on, those that it does not have among them, as behind a new id. None is moved.

    :param digest: the manifest's SHA-256.
    :param committed: ids of its transactions whose logs show a commit: they are not ended once more, for a zombie may
        have begun anew under the same identity.
    :param writers_left: see :func:`.attempts.mark_prepared`.
    :param cluster_id: where its topics are.
    :raises ConfigurationError: it is a micro-batch, or has a slot, or the ledger has another id by now.
    :raises UndecidableError: the attempt is aborted in this ledger, or another one is newer; or the load is decided.
    """
    ref = manifest.attempt
    check_no_batch(connection, ref.load)
    if ref.slot is not None:
        raise ConfigurationError(
            "the attempt has pooled ids: whose they were when, only the ledger's slots could say",
            remedy="Look at the topic, then say so by `airflow-kafka-eos loads set-committed`, behind `ledger new-id`",
            **ref.ids,
        )
    if ledger_id(connection) != ref.ledger_id:
        raise ConfigurationError(
            f"the attempt is of ledger {ref.ledger_id}, and this one has another id by now",
            remedy="Say that its topics have it, by `airflow-kafka-eos loads set-committed`",
            **ref.ids,
        )
    locked = lock(connection, ref.load)
    if locked is not None and locked.committed is not None:
        if (locked.committed.number, locked.committed.manifest_sha256) == (ref.attempt, digest):
            return locked.committed  # the answer to COMMIT was lost
        raise UndecidableError(
            f"attempt {locked.committed.number} is decided to be committed, by {locked.committed.decided_by}",
            remedy="The ledger knows this load: `airflow-kafka-eos loads recover NAME KEY` completes it",
            **ref.ids,
        )
    attempts.take_back(connection, manifest, digest, by=by, writers_left=writers_left, cluster_id=cluster_id)
    reason = "taken back from its manifest: brokers show its commit"
    decided = decisions.decide_commit(connection, ref, digest, by, None, None, reason=reason, moves_cursor=False)
    decisions.record_outcomes(connection, ref.load, ref.attempt, dict.fromkeys(committed, Outcome.COMMITTED))
    doubt = f"the ledger had forgotten load {ref.load}, which {by} took back: it was restored"
    cursors.doubt_all(connection, doubt)
    connection.execute(update(t.ledger).values(id_changed_at=now()))
    return decided


def check_no_batch(connection: Connection, load: LoadIdentity) -> None:
    """:raises ConfigurationError: it is a micro-batch: which one was the last of its query counts."""
    if batch_of(load) is not None or streams.stream_row(connection, load.namespace, load.name) is not None:
        raise ConfigurationError(
            f"{load} is a micro-batch, or the name is a streaming query's",
            remedy="Say which batch is its last by `airflow-kafka-eos streams set NAME --decided N`",
            load=str(load),
        )


def committing_numbers(connection: Connection, namespace: str) -> dict[LoadIdentity, set[int]]:
    """Of each load that is decided to be committed: the numbers of its attempt, and of the repairs that entered it."""
    of, a, d, r = t.loads.c, t.attempts.c, t.decisions.c, t.repairs.c
    decided = (
        select(of.name, of.load_key, a.number, a.id)
        .join(t.attempts, a.load_id == of.id)
        .join(t.decisions, d.attempt_id == a.id)
        .where(of.namespace == namespace, d.verdict == Verdict.COMMIT.value)
    )
    rows = connection.execute(decided).all()
    found = {row.id: (LoadIdentity(namespace, row.name, row.load_key), {row.number}) for row in rows}
    adopted = select(r.attempt_id, r.number).where(r.state == RepairState.ADOPTED.value)
    for row in connection.execute(adopted):
        if row.attempt_id in found:
            found[row.attempt_id][1].add(row.number)
    return dict(found.values())


def elsewhere(connection: Connection) -> tuple[list[str], list[str]]:
    """All namespaces that loads have, and all Kafka clusters that attempts were written to."""
    namespaces = connection.execute(select(t.loads.c.namespace).distinct()).scalars()
    clusters = connection.execute(select(t.attempts.c.cluster_id).distinct()).scalars()
    return sorted(namespaces), sorted(filter(None, clusters))


def forget_cluster(connection: Connection, cluster_id: str) -> int:
    """Forget which cluster attempts that are not closed were written to, for one that is gone for good.

    And those that hold a slot in doubt: it is looked at there before it is settled. Other slots that they hold are
    retired: they were kept for that cluster.

    :returns: how many attempts; from here on they are looked for where the connection leads.
    """
    of = t.attempts.c
    # a repair that came to nothing is swept after its load was committed, too
    repairs = t.repairs.c
    repaired = select(repairs.attempt_id).where(repairs.closed_at.is_(None), repairs.state != RepairState.ADOPTED.value)
    doubted = select(t.slots.c.attempt_id).where(t.slots.c.doubt.is_not(None))
    unclosed = or_(of.closed_at.is_(None), of.id.in_(repaired), of.id.in_(doubted))
    forgotten = list(connection.execute(select(of.id).where(of.cluster_id == cluster_id, unclosed)).scalars())
    slots.retire_held(connection, forgotten)
    for some in slices(forgotten, 500):
        connection.execute(update(t.attempts).where(of.id.in_(some)).values(cluster_id=None))
    return len(forgotten)


def _check_none_given_up_open(connection: Connection) -> None:
    """Cleanup closes the decided attempt of such a load once nothing of it is open; until then something may be."""
    of = t.transactions.c
    query = (
        select(t.loads.c.namespace, t.loads.c.name, t.loads.c.load_key, of.transactional_id, of.outcome)
        .join(t.attempts, t.attempts.c.load_id == t.loads.c.id)
        .join(t.decisions, t.decisions.c.attempt_id == t.attempts.c.id)
        .join(t.transactions, of.attempt_id == t.attempts.c.id)
        .where(
            t.loads.c.state == LoadState.GIVEN_UP.value,
            t.decisions.c.verdict == Verdict.COMMIT.value,
            t.attempts.c.closed_at.is_(None),
        )
        .order_by(t.loads.c.id, of.transactional_id)
    )
    found = connection.execute(query).all()
    if not found:
        return
    loads = sorted({".".join(row[:3]) for row in found})
    # those that the log has not shown to be over come first; where it has, cleanup has not looked since
    ids = sorted((row.outcome in _OVER, row.transactional_id) for row in found)
    shown = ", ".join(name for _, name in ids[:_SHOWN])
    raise ConfigurationError(
        f"{len(loads)} loads that were given up may have transactions open: {', '.join(loads[:_SHOWN])} ({shown}"
        f"{', ...' if len(ids) > _SHOWN else ''})",
        remedy="Run `airflow-kafka-eos cleanup` first: it names what is open, `transactions force-terminate` ends "
        "that, and the next cleanup closes the load. Under a new id nothing would end them, and they may hold "
        "back readers",
        transactional_id=ids[0][1],
    )
