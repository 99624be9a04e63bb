"""Opening, submitting and preparing attempts. Each function is one locked database transaction's work."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any, assert_never

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from airflow_kafka_eos.errors import ConfigurationError, UndecidableError
from airflow_kafka_eos.ledger import cursors
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.database import insert_first
from airflow_kafka_eos.ledger.decisions import abort_undecided, why_undecidable
from airflow_kafka_eos.ledger.queries import Locked, lock, move, must_lock, now
from airflow_kafka_eos.ledger.rows import AttemptRow, transactions_of
from airflow_kafka_eos.ledger.slots import lease, release, text_of
from airflow_kafka_eos.ledger.tables import for_people
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionNaming, Verdict
from airflow_kafka_eos.manifest import Manifest

Interval = tuple[str, str]


def begin(connection: Connection, load: LoadIdentity, owner: str, interval: Interval | None) -> AttemptRow:
    """The attempt to go on with; a new one when there is none (rules: one-decision-per-load, one-key-loads-once).

    A commit-decided attempt, a prepared one, and one that was not submitted yet are returned as they are. Otherwise
    every undecided attempt is aborted and a new one opened.

    :param owner: who asks, for people: dag, run, task and try.
    :param interval: of the data, ISO times with a time zone; recorded once.
    :raises ConfigurationError: the load was begun for another data interval, and is not committed.
    """
    interval = normalise_interval(load, interval)
    locked = lock(connection, load) or _create(connection, load, interval)
    if locked.committed is not None:
        return locked.committed
    # one that is committed has nothing to protect: nothing is written for any interval
    _check_interval(connection, locked, interval)
    newest = locked.newest
    if newest is not None and newest.is_undecided and (newest.is_prepared or not newest.is_submitted):
        return newest
    return _open(connection, locked, owner)


def submit(
    connection: Connection,
    load: LoadIdentity,
    *,
    owner: str,
    opened_by: str | None = None,
    naming: TransactionNaming = TransactionNaming.INCREMENTING,
    deadline_ms: int | None = None,
    cluster_id: str | None = None,
    arguments_sha256: str | None = None,
    has_fence: bool = False,
) -> AttemptRow:
    """The attempt that the caller's application may prepare: no two callers get the same.

    Rule: one-application-per-attempt.

    A commit-decided attempt is returned instead; look at ``verdict`` first. Where the answer to COMMIT was lost, the
    attempt that nobody was told of is aborted and the next one opened.

    :param opened_by: who opens an attempt, where it has to be opened here; None: the owner.
    :param naming: ``pooling``: it leases a slot in this very database transaction.
    :param deadline_ms: milliseconds since the epoch; past them none of its writers begins a transaction
        (rule: writers-have-a-deadline).
    :param cluster_id: of the Kafka cluster that its application writes to; None: not known.
    :param arguments_sha256: of what its job is asked for; None: that does not follow from the run.
    :param has_fence: its writers see Kafka alone, and look at a fence there before they begin.
    :raises ConfigurationError: pooling without a deadline: nobody could tell how long its ids may not be used.
    :raises InDoubtError: a slot of the load's name is in doubt.
    """
    if naming is TransactionNaming.POOLING and deadline_ms is None:
        raise ConfigurationError(
            "pooled transactional ids need a deadline for their writers",
            remedy="Pass deadline_ms, the one that the writers get",
            load=str(load),
        )
    locked = must_lock(connection, load)
    if locked.committed is not None:
        return locked.committed
    newest = locked.newest
    if newest is not None and not newest.is_undecided:
        # opened here, nobody's cleanup would be left to sweep it: the run's own may be over by now
        raise UndecidableError(
            f"the attempt was aborted by {newest.decided_by} at {newest.decided_at}: {newest.reason}",
            remedy="Clear begin, or prepare together with its setup: begin opens a new attempt",
            load=str(load),
            attempt=newest.number,
        )
    if newest is None or newest.is_submitted:
        newest = _open(connection, locked, opened_by or owner, submitted_by=owner)
        locked = must_lock(connection, load)
    slot = left = None
    if naming is TransactionNaming.POOLING:
        slot, left = lease(connection, load, locked.attempt_id(newest.number), cluster_id)
    by = newest.submitted_by or for_people(owner)
    row = _set(
        connection,
        locked,
        newest,
        submitted_at=newest.submitted_at or now(),
        submitted_by=by,
        slot=slot,
        writers_until=None if deadline_ms is None else text_of(datetime.fromtimestamp(deadline_ms / 1000, UTC)),
        cluster_id=cluster_id,
        arguments_sha256=arguments_sha256,
        has_fence=has_fence,
    )
    return replace(row, left_slot=left)


def mark_prepared(
    connection: Connection, manifest: Manifest, sha256: str, writers_left: bool
) -> AttemptRow:
    """Record that all of the attempt's transactions are prepared; the same answer for the same manifest again.

    From here on cleanup finds them by name (rule: listing-only-adds), and only this manifest can be decided.

    :param sha256: the manifest's; computed before the lock is taken.
    :param writers_left: False only when it is known for sure that each task ran once: then a slot of the attempt
        is free as soon as its end is verified, else it is quarantined (rule: verified-end-before-reuse).
    :raises UndecidableError: aborted, superseded, never submitted, prepared with another manifest, or one of
        the transactional ids belongs to another attempt.
    """
    ref = manifest.attempt
    locked = must_lock(connection, ref.load)
    attempt = locked.attempt(ref.attempt)
    same = attempt.manifest_sha256 == sha256
    if attempt.is_prepared and same and attempt.verdict is not Verdict.ABORT:
        return attempt
    problem = why_undecidable(locked, attempt)
    if not problem and not attempt.is_submitted:
        problem = "no application was submitted for it"
    if not problem and attempt.is_prepared:
        problem = f"it is prepared already, with another manifest (sha256 {attempt.manifest_sha256}, now {sha256})"
    if not problem and ref.slot != attempt.slot:
        problem = f"it has leased {_slot(attempt.slot)}, its manifest is of {_slot(ref.slot)}"
    if not problem:
        move(connection, locked, LoadState.PREPARED, reason="")
        _note_topics(connection, ref.load.namespace, manifest)
        try:
            _insert_transactions(connection, locked.attempt_id(ref.attempt), manifest)
        except IntegrityError:
            # not raised in here, so that the driver's error stays out; what was written is rolled back
            problem = "one of its transactions belongs to another attempt"
    if problem:
        raise UndecidableError(
            f"the attempt cannot become prepared: {problem}",
            remedy="Let this task fail; the newest attempt goes on",
            load=str(ref.load),
            attempt=ref.attempt,
        )
    return _set(
        connection,
        locked,
        attempt,
        prepared_at=now(),
        records=manifest.records,
        bytes=manifest.bytes,
        manifest_sha256=sha256,
        scope=manifest.scope,
        two_phase_commit=manifest.two_phase_commit,
        writer=for_people(manifest.writer),
        digest_algorithm=for_people(manifest.digest_algorithm),
        writers_left=writers_left,
    )


def take_back(
    connection: Connection, manifest: Manifest, sha256: str, *, by: str, writers_left: bool, cluster_id: str | None
) -> AttemptRow:
    """An attempt that the ledger has forgotten, or that it has not known to be prepared, prepared as its manifest says.

    Attempts before it that are not known either are opened, and superseded by it. What their writers look at before
    they begin is moved with the next sweep, where there is such a thing.

    :param by: who answers for what has to be opened.
    :raises UndecidableError: it is aborted, or a newer one is known, or another one is decided.
    """
    ref = manifest.attempt
    prepared_at = datetime.fromisoformat(manifest.created_at).astimezone(UTC).isoformat(timespec="microseconds")
    locked = lock(connection, ref.load) or _create(connection, ref.load, None)
    while locked.row.newest_attempt < ref.attempt:
        opened = _open(connection, locked, by, submitted_by=by)
        locked = must_lock(connection, ref.load)
        _set(connection, locked, opened, has_fence=True)
    attempt = locked.attempt(ref.attempt)
    if attempt.is_undecided and not attempt.is_prepared:
        submitted = {"submitted_at": attempt.submitted_at or prepared_at, "submitted_by": attempt.submitted_by or by}
        attempt = _set(connection, locked, attempt, **submitted, cluster_id=attempt.cluster_id or cluster_id)
    mark_prepared(connection, manifest, sha256, writers_left)
    return _set(connection, must_lock(connection, ref.load), attempt, prepared_at=prepared_at)


def record_swept(connection: Connection, load: LoadIdentity, number: int) -> AttemptRow:
    """Close an attempt of which nothing is open any more, aborted or of a load that was given up.

    Nothing happens to one that is decided to be committed and may still be: its verified end closes it.

    :raises ConfigurationError: it is undecided, so it cannot have been swept (rule: decide-before-kafka).
    """
    locked = must_lock(connection, load)
    attempt = locked.attempt(number)
    if attempt.is_undecided:
        raise ConfigurationError(
            "an undecided attempt cannot have been swept",
            remedy="Make it undecidable first, then look for its transactions again",
            load=str(load),
            attempt=number,
        )
    given_up = locked.row.state is LoadState.GIVEN_UP
    if attempt.closed_at is not None or not _may_be_swept(attempt, given_up):
        return attempt
    if not given_up and locked.newest == attempt:
        move(connection, locked, LoadState.ABORTED, reason="")
    # an application that never said how it ended may have writers anywhere, and ids that nobody knows
    quarantine = given_up or not attempt.is_prepared or attempt.writers_left is not False
    release(connection, locked.attempt_id(number), quarantine=quarantine)
    if attempt.verdict is Verdict.COMMIT:
        # who has looked while it was open, and would set the cursor, has to look again (rule: cursor-in-doubt-stops)
        cursors.note_over(connection, locked)
    return _set(connection, locked, attempt, closed_at=now())


def _may_be_swept(attempt: AttemptRow, given_up: bool) -> bool:
    """:param given_up: whether its load was."""
    match attempt.verdict:
        case Verdict.ABORT:
            return True
        case Verdict.COMMIT:
            return given_up
        case None:
            return False
    assert_never(attempt.verdict)


def normalise_interval(load: LoadIdentity, interval: Interval | None) -> Interval | None:
    """The same two moments as UTC ISO texts.

    :raises ConfigurationError: not ISO, or without a time zone.
    """
    if interval is None:
        return None
    moments = []
    for value in interval:
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise ConfigurationError(
                f"data interval bound {value!r} is not an ISO time with a time zone",
                remedy="Pass the run's data interval in UTC",
                load=str(load),
            )
        moments.append(moment.astimezone(UTC).isoformat(timespec="microseconds"))
    return moments[0], moments[1]


def _check_interval(connection: Connection, locked: Locked, interval: Interval | None) -> None:
    # a run whose interval says nothing of the data (manual, asset) neither asks nor overwrites
    recorded = locked.row.data_interval
    if interval is None or interval == recorded:
        return
    if recorded is not None:
        raise ConfigurationError(
            f"this load is of the data interval {recorded[0]} to {recorded[1]}, this run's is {interval[0]} to "
            f"{interval[1]}: one key would stand for two loads",
            remedy="Nothing was opened or aborted. Does load_key leave out what tells the intervals apart? Put it in: "
            "load_key='{{ data_interval_start | ts }}'. Was the DAG's schedule changed? Give its loads another "
            "load_name, under which every earlier key loads again when it is cleared or backfilled "
            "(docs/load-keys.md, A new name knows no old key). Then clear begin",
            load=str(locked.row.load),
        )
    values = {"data_interval_start": interval[0], "data_interval_end": interval[1]}
    connection.execute(update(t.loads).where(t.loads.c.id == locked.id).values(values))


def _create(connection: Connection, load: LoadIdentity, interval: Interval | None) -> Locked:
    moment = now()
    # whoever inserts it first wins, and we go on with the winner's row
    insert_first(
        connection,
        insert(t.loads).values(
            namespace=load.namespace,
            name=load.name,
            load_key=load.key,
            state=LoadState.PREPARING.value,
            data_interval_start=None if interval is None else interval[0],
            data_interval_end=None if interval is None else interval[1],
            newest_attempt=0,
            reason="",
            created_at=moment,
            updated_at=moment,
        ),
    )
    return must_lock(connection, load)


def _open(connection: Connection, locked: Locked, owner: str, *, submitted_by: str | None = None) -> AttemptRow:
    """Abort every undecided attempt and open the next one. Only for a load without a commit.

    Rule: one-decision-per-load.
    """
    number = locked.row.newest_attempt + 1
    abort_undecided(
        connection, locked, up_to=number, decided_by=owner, reason=f"superseded by attempt {number}"
    )
    moment, person = now(), for_people(owner)
    values: dict[str, Any] = {"number": number, "owner": person, "opened_at": moment}
    if submitted_by is not None:
        values |= {"submitted_at": moment, "submitted_by": for_people(submitted_by)}
    connection.execute(insert(t.attempts).values(load_id=locked.id, **values))
    move(connection, locked, LoadState.PREPARING, newest_attempt=number, reason="")
    return AttemptRow(load=locked.row.load, **values)


def _slot(number: int | None) -> str:
    return "no slot" if number is None else f"slot {number}"


def _note_topics(connection: Connection, namespace: str, manifest: Manifest) -> None:
    c = t.topics.c
    written = sorted({w.topic for prepared in manifest.prepared for w in prepared.writes})
    for topic in written:
        is_it = (c.namespace == namespace, c.topic == topic)
        if connection.execute(select(c.topic).where(*is_it)).first() is None:
            insert_first(connection, insert(t.topics).values(namespace=namespace, topic=topic))


def _insert_transactions(connection: Connection, attempt_id: int, manifest: Manifest) -> None:
    rows = [
        {
            "transactional_id": row.transaction.transactional_id,
            "attempt_id": attempt_id,
            "prepared_transaction_state": str(row.transaction.state),
            "spark_partition": -1 if row.spark_partition is None else row.spark_partition,
            "records": row.records,
            "bytes": sum(w.bytes for w in row.writes),
            "writes": json.dumps([vars(w) for w in row.writes]),
            "topic_ids": json.dumps(row.topic_ids),
        }
        for row in transactions_of(manifest)
    ]
    if rows:
        connection.execute(insert(t.transactions), rows)


def _set(connection: Connection, locked: Locked, attempt: AttemptRow, **columns: Any) -> AttemptRow:
    attempt_id = locked.attempt_id(attempt.number)
    # not every driver takes a text that is an Enum too
    values = {name: value.value if isinstance(value, Enum) else value for name, value in columns.items()}
    connection.execute(update(t.attempts).where(t.attempts.c.id == attempt_id).values(values))
    return replace(attempt, **columns)
