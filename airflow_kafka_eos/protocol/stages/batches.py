"""Micro-batches of a streaming query: each is begun, decided and ended like a load, in its turn.

Spark keeps two logs in a query's checkpoint: where each batch ends in its sources, written before it, and which are
done, written behind it. A batch that is not done is asked for again, with the same id, by whatever run comes next. What
the ledger has of it tells whether it is written anew or only told as done. Nothing of what is here remembers anything.

Rules: sweep-at-start, decided-is-not-written, decide-by-compare-and-set, decide-before-done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from airflow_kafka_eos.errors import KafkaEosError, UndecidableError
from airflow_kafka_eos.ledger import streams
from airflow_kafka_eos.ledger.rows import AttemptRow, transactions_of
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionNaming, Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.micro_batch import MicroBatch, StreamRun, batch_of, is_of_a_query
from airflow_kafka_eos.naming import name_prefix
from airflow_kafka_eos.protocol.cleanup.sweep import SweepReport, finish, sweep
from airflow_kafka_eos.protocol.guards.other_ledgers import check_no_other_ledger
from airflow_kafka_eos.protocol.guards.ownership import check_cluster, holders_of
from airflow_kafka_eos.protocol.guards.restored_ledger import check_batches_known, check_not_restored
from airflow_kafka_eos.protocol.guards.slots import check_slot
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.begin import record_prepared, sweep_free_slots
from airflow_kafka_eos.protocol.stages.commit import Decided, commit
from airflow_kafka_eos.protocol.stages.decide import abort_uncommittable, ask
from airflow_kafka_eos.transaction import PreparedTransaction, TransactionDescription

log = logging.getLogger(__name__)

#: A swept attempt is closed once nothing of it was found open for so long, in seconds: its zombies may come late.
QUIET_S = 60.0
_PASSES, _PAUSE_S = 20, 0.2


class Turn(NamedTuple):
    """A batch's attempt.

    :param deadline_ms: milliseconds since the epoch, as the ledger has it: no writer of it begins a transaction after
        that. 0 where nothing is to be written.
    :param slot: what coordinators knew of the slot that it has leased, behind the lease, by id. Empty where nothing is
        to be written, or the attempt has no slot.
    """

    row: AttemptRow
    deadline_ms: int = 0
    slot: Mapping[str, TransactionDescription] = {}


def begin_batch(
    session: Session,
    batch: MicroBatch,
    run: StreamRun,
    *,
    naming: TransactionNaming,
    writers_have_ms: int,
    deadline_s: float,
    first: bool = True,
) -> Turn | None:
    """Open an attempt of a batch, behind the sweep of what is left of earlier ones; or roll a decided batch forward.

    :param writers_have_ms: from when its attempt is opened, behind that sweep, to its writers' deadline: no matter how
        long the sweep takes, they have all of it, and maintenance goes by it.
    :param deadline_s: seconds that rolling forward may take.
    :param first: False: this run has begun a batch before. What brokers may know, and the ledger does not, is then
        asked where it counts, behind what was prepared; and free slots are swept where something was open only.
    :returns: its row undecided: it is to be written. Decided to be committed: it is, and nothing is written again.
        None: a person has said that the topics have it.
    :raises OtherCheckpointError, SupersededError, InDoubtError: see :mod:`airflow_kafka_eos.ledger.streams`; nothing
        was written.
    :raises InDoubtError: brokers know more of it than the ledger; or what was decided needs a person.
    :raises UndecidableError: it was aborted at this very moment: its slot was given back.
    """
    load, by = batch.load, run.owner
    # each time, before anything is ended: a driver that hung for an hour has a successor
    bound = session.ledger.bind_stream(batch, run)
    check_cluster(session, session.ledger.attempts(load))
    if first:
        check_not_restored(session, load)
        check_no_other_ledger(session, load)
    listed = session.coordinator.list_open(name_prefix(batch.namespace, session.ledger.ledger_id, batch.name))
    swept = sweep_earlier(session, batch, listed, by=by, deadline_s=deadline_s)
    if bound.decided == batch.number and session.ledger.pass_over_batch(batch, run):
        log.warning("%s is passed over: a person has said that its topics have it", batch)
        if known := session.ledger.attempts(load):
            _swept(session, load, up_to=known[-1].number, by=by)
        return None
    # of the listing of just now: what began since, and behind its quarantine, the lease's look finds
    if naming is TransactionNaming.POOLING and (first or listed or swept):
        sweep_free_slots(session, load, by)
    deadline_ms = int(time.time() * 1000) + writers_have_ms
    row = session.ledger.begin_batch(
        batch, run, naming=naming, deadline_ms=deadline_ms, cluster_id=session.cluster_id
    )
    if row.verdict is Verdict.COMMIT:
        _roll_forward(session, load, deadline_s)
        return Turn(row)
    if row.number > 1:
        _swept(session, load, up_to=row.number - 1, by=by)
    return Turn(row, deadline_ms, check_slot(session, row))


def sweep_earlier(
    session: Session, batch: MicroBatch, listed: Collection[str], *, by: str, deadline_s: float
) -> bool:
    """End what attempts of other batches of the query's name have left open, and roll forward what is decided.

    Only for a run that was the newest just now: then nobody is at work on any of them (rule: newest-run-begins). There
    are none but behind a run that died, or a batch that failed; and of a batch that is committed, and closed, what a
    task has opened that hung, or whose worker died behind its flush. A successor that was bound since may be at work on
    a later batch, so undecided ones of those are left alone: the batch's own begin has them in its turn.

    :param listed: ids of the query's name that are open.
    :returns: whether there were such attempts.
    """
    zombies = _open_of_closed(session, listed)
    every = [*session.ledger.unfinished(batch.namespace), *zombies]
    # an author's loads may have the same name, and are their runs' own
    rows = [row for row in every if row.load.name == batch.name and is_of_a_query(row.load, row.submitted_by)]
    for load, found in groupby(sorted(rows, key=lambda row: str(row.load)), lambda row: row.load):
        left = list(found)
        if all(row.verdict is not None for row in left) or _is_before(load, batch):
            _sweep_one(session, load, left, by, deadline_s)
    return bool(rows)


def _open_of_closed(session: Session, listed: Collection[str]) -> list[AttemptRow]:
    """Attempts that are closed, and have something open all the same."""
    seen = session.coordinator.describe(listed).values() if listed else ()
    open_ = [PreparedTransaction(one.transactional_id, one.state) for one in seen if one.is_open]
    return list({row for row in holders_of(session, open_).values() if row.closed_at is not None})


def _is_before(load: LoadIdentity, batch: MicroBatch) -> bool:
    """Whether it is an earlier batch of the query, or one of another query that had the name."""
    of = batch_of(load)
    return of is None or of[0] != batch.query_id or of[1] < batch.number


def _sweep_one(session: Session, load: LoadIdentity, left: list[AttemptRow], by: str, deadline_s: float) -> None:
    if any(row.verdict is Verdict.COMMIT for row in left):
        _roll_forward(session, load, deadline_s)
    up_to = max(row.number for row in left)
    report = _swept(session, load, up_to=up_to, by=by)
    if report.has_done:
        log.warning("load %s up to attempt %d: %s", load, up_to, report)
    ended = [row.decided_at for row in session.ledger.attempts(load) if row.verdict is Verdict.ABORT and row.decided_at]
    quiet = all((datetime.now().astimezone() - datetime.fromisoformat(at)).total_seconds() > QUIET_S for at in ended)
    if report.is_quiet and report.is_complete and quiet:
        held = finish(session, load, up_to=up_to)
        if held is not None:
            log.warning("%s", held)


def _swept(session: Session, load: LoadIdentity, *, up_to: int, by: str) -> SweepReport:
    """Sweep, and once more where a coordinator that moved may have hidden something (rule: listing-only-adds).

    What is hidden for longer, the next batches find: they sweep too, until the attempt is closed.
    """
    for _ in range(_PASSES):
        report = sweep(session, load, up_to=up_to, by=by)
        if report.is_complete:
            break
        time.sleep(_PAUSE_S)
    return report


def decide_batch(
    session: Session,
    batch: MicroBatch,
    run: StreamRun,
    manifest: Manifest,
    *,
    writers_left: bool,
    margin_s: float,
    deadline_s: float,
) -> None:
    """Decide what a batch's tasks have prepared, and commit it; back when every marker was seen.

    :param writers_left: see :func:`.attempts.mark_prepared`.
    :param margin_s, deadline_s: see :func:`.decide.decide` and :func:`.commit.commit`.
    :raises UndecidableError: it cannot be committed any more; a later run, or this query once more, writes it anew.
    :raises KafkaEosError: see :func:`.decide.decide`, :func:`.commit.commit`, :mod:`airflow_kafka_eos.ledger.streams`.
    """
    check_cluster(session, [record_prepared(session, manifest, writers_left=writers_left)])
    check_batches_known(session, batch, patience_s=deadline_s)
    asked = ask(session, manifest, margin_s)
    abort_uncommittable(session, manifest.attempt, asked, asked.problems, owner=run.owner)
    ends = asked.seen.end_offsets
    row = session.ledger.decide_commit(
        manifest, decided_by=run.owner, not_after=asked.not_after, end_offsets=ends,
        beside=lambda connection: streams.note_decided(connection, session.ledger.ledger_id, batch, run),
    )  # fmt: skip
    log.debug("%s is decided: commit %d records in %s", manifest.attempt, manifest.records, manifest.how)
    decided = Decided(row, transactions_of(manifest), ends, asked.seen.topic_config)
    commit(session, batch.load, deadline_s=deadline_s, by=run.owner, decided=decided)
    if writers_left:
        _end_zombies(session, manifest.attempt, by=run.owner)


def _end_zombies(session: Session, ref: AttemptRef, *, by: str) -> None:
    """End what runs of tasks have open that the committed batch has not reported. Never raises for Kafka or the ledger.

    A worker that is killed behind its flush leaves its transaction, and readers stand before it for the whole hold
    time: there may be no next batch for long that looks.
    """
    try:
        report = _swept(session, ref.load, up_to=ref.attempt, by=by)
    except KafkaEosError as e:
        log.warning("what load %s may have open is left to the next batch: %s", ref, e)
    else:
        if report.has_done:
            log.warning("load %s is committed, and of runs of its tasks that it has not reported: %s", ref, report)


def abort_batch(session: Session, ref: AttemptRef, run: StreamRun) -> bool:
    """Give up what a batch's tasks have written, and end it; False where it is decided to be committed.

    Rule: writer-ends-only-unreported.

    :raises InDoubtError: brokers know more of it than the ledger, which was put back: nothing is given up or ended.
    """
    check_not_restored(session, ref.load)
    if not session.ledger.decide_abort(ref, decided_by=run.owner, reason="a task of the batch or its commit failed"):
        return False
    sweep(session, ref.load, up_to=ref.attempt, by=run.owner)
    return True


def check_replayed(batch: MicroBatch, number: int, committed: int, rows: int) -> None:
    """A decided batch that is asked for again must have as many rows as were written; no more is compared.

    Which task has which row, and in what order, may differ, and so would every digest of a partition. No I/O.

    :param number: of the attempt that was committed, with so many records.
    :param rows: that its tasks have counted now.
    :raises UndecidableError: these are not as many.
    """
    if committed != rows:
        raise UndecidableError(
            f"the batch was committed with {committed} records, and now its sources give {rows} rows for the very "
            "same offsets",
            remedy="Nothing is written. Was an older checkpoint put back, and do the offsets of its source not say "
            "which rows they are? Put back the last one. Else the source does not give the same rows again, or the "
            "query was changed under its checkpoint: put that right. With the option stream.replay=trust the query "
            "goes on, and what of these rows readers do not have is never written",
            load=str(batch.load),
            attempt=number,
        )


def _roll_forward(session: Session, load: LoadIdentity, deadline_s: float) -> None:
    match session.ledger.state(load):
        case LoadState.COMMITTED:
            pass
        case LoadState.GIVEN_UP:
            log.warning("load %s was given up: the query goes on behind it", load)
        case _:
            commit(session, load, deadline_s=deadline_s)
