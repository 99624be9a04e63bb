"""What no run is left to sweep: found in ledger and listing, and swept until it is quiet.

A run's own cleanup, and the next begin of a load, sweep what is theirs. What stays behind them: runs that were skipped
or deleted whole (`dagrun_timeout`), zombies that write after cleanup, loads that nobody runs again. What is open in the
namespace with another ledger's id is shown to people, never ended (rule: only-our-ids).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_kafka_eos.errors import AccessError, KafkaEosError, NotFinishedError
from airflow_kafka_eos.kafka.admin.list_permissions import why_ledgers_hidden
from airflow_kafka_eos.ledger.rows import AttemptRow, RepairRow, RepairState
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict, fill_in
from airflow_kafka_eos.micro_batch import is_of_a_query
from airflow_kafka_eos.naming import PooledId, parse, prefix_of_all_ledgers
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.cleanup.sweep import CLEANUP
from airflow_kafka_eos.protocol.guards.ownership import (
    hidden_by_acls,
    holders_of,
    is_of_other_cluster,
    open_of_ours,
)
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import PreparedTransaction, TopicPartition


@dataclass(frozen=True)
class NotDue:
    """What a run, or a streaming query's driver, may be at work on, and is left alone for so long.

    :param attempt: undecided; or, of a load that is being repaired, the last one that would be swept.
    :param due_at: when it counts as abandoned, unless it shows life.
    :param open: transactional ids that it has open.
    """

    load: LoadIdentity
    attempt: int
    due_at: datetime
    open: tuple[str, ...]


@dataclass(frozen=True)
class Leftovers:
    """What there is to sweep.

    :param loads: each with the number of the last attempt to sweep.
    :param unknown: ids of this ledger that are open, and whose attempt the ledger does not know.
    :param hidden: why there may be more that was not seen: ACLs limit the listing; None when they do not.
    :param other_cluster: attempts that are not closed, were written to another Kafka cluster, and have shown no life
        for twice as long as makes them abandoned: nobody has swept them with a connection that leads there.
    :param stopped: undecided attempts that are to be swept, young as they are, because nobody goes on with them.
    :param not_due: what is not swept yet, by when it will be.
    """

    loads: Mapping[LoadIdentity, int]
    unknown: tuple[str, ...]
    hidden: AccessError | None = None
    other_cluster: tuple[AttemptRow, ...] = ()
    stopped: tuple[AttemptRow, ...] = ()
    not_due: tuple[NotDue, ...] = ()


@dataclass(frozen=True)
class Swept:
    """What became of one load.

    :param up_to: attempts to this number were swept.
    :param aborted: transactional ids that were ended.
    :param error: why it is not clean; None when it is.
    """

    load: LoadIdentity
    up_to: int
    aborted: tuple[str, ...] = ()
    error: KafkaEosError | None = None


def find(
    session: Session,
    *,
    abandoned_after: timedelta,
    is_stopped: Callable[[AttemptRow], bool] = lambda row: False,
) -> Leftovers:
    """Loads of the session's namespace with something to sweep or to roll forward in the session's Kafka cluster.

    Attempts of another cluster are left alone, with everything of their load from there on. So is what a run, or a
    streaming query's driver, may be at work on (rule: sweep-asks-the-ledger).

    :param abandoned_after: an undecided attempt that has shown no life for so long is abandoned. A younger one
        and everything of its load from there on is left alone: its run may be at work. So is a load with an open repair
        that is younger: prepare may be writing it, and its transactions have a timeout (docs/adr/0014).
    :param is_stopped: of an undecided attempt that is younger: whether nobody is at work on it, and nobody will be for
        as long as a person does nothing (docs/adr/0023). Then it is swept like an old one.
    """
    open_ = _open(session)
    holders = holders_of(session, open_)
    unknown = sorted(t.transactional_id for t in open_ if t not in holders)
    # asked behind the listing: an attempt that was opened since then must not look like an old one
    unfinished = session.ledger.unfinished(session.namespace)
    now = datetime.now().astimezone()
    other_cluster = [row for row in unfinished if is_of_other_cluster(session, row)]
    young = [row for row in unfinished if row.is_undecided and not is_abandoned(row, now, abandoned_after)]
    stopped = tuple(row for row in young if row not in other_cluster and is_stopped(row))
    loads = choose(unfinished, holders.values(), now, abandoned_after, other_cluster, stopped)
    left = [row for row in young if row not in other_cluster and row not in stopped]
    due = {(row.load, row.number): abandoned_at(row, abandoned_after) for row in left}
    rows = session.ledger.loads(session.namespace, states=[LoadState.REPAIRING]) if loads else []
    for load in [row.load for row in rows if row.load in loads]:
        repairs = session.ledger.repairs(load)
        if is_repaired(repairs, now, abandoned_after):
            due[load, loads.pop(load)] = _later(max(_opened(repairs)), abandoned_after)
    # maintenance of that cluster may be about to sweep it, and leaves what is in doubt to a person
    left_there = tuple(
        row
        for row in other_cluster
        if now - last_sign(row) >= 2 * abandoned_after and session.ledger.state(row.load) is not LoadState.IN_DOUBT
    )
    stopped = tuple(row for row in stopped if row.number <= loads.get(row.load, 0))
    return Leftovers(loads, tuple(unknown), hidden_by_acls(session), left_there, stopped, _not_due(due, holders))


def _not_due(
    due: Mapping[tuple[LoadIdentity, int], datetime], holders: Mapping[PreparedTransaction, AttemptRow]
) -> tuple[NotDue, ...]:
    open_ = defaultdict(list)
    for transaction, row in holders.items():
        open_[row.load, row.number].append(transaction.transactional_id)
    by_time = sorted(due.items(), key=lambda item: (item[1], str(item[0][0]), item[0][1]))
    return tuple(NotDue(*which, at, tuple(sorted(open_[which]))) for which, at in by_time)


def choose(
    unfinished: Iterable[AttemptRow],
    holders: Iterable[AttemptRow],
    now: datetime,
    abandoned_after: timedelta,
    other_cluster: Iterable[AttemptRow] = (),
    stopped: Iterable[AttemptRow] = (),
) -> dict[LoadIdentity, int]:
    """Which loads to sweep, up to which attempt. No I/O.

    :param unfinished: attempts that nobody has closed.
    :param holders: attempts that have transactions open, closed or not.
    :param other_cluster: those of ``unfinished`` that were written to another cluster: of each load only what is older.
    :param stopped: those of ``unfinished`` that nobody goes on with, however young they are.
    """
    not_here = {(row.load, row.number) for row in other_cluster}
    without_work = {(row.load, row.number) for row in stopped}
    limits: dict[LoadIdentity, int] = {}
    every: dict[tuple[LoadIdentity, int], AttemptRow] = {}
    for row in (*holders, *unfinished):  # the later look counts
        every[row.load, row.number] = row
    for row in every.values():
        is_young = not is_abandoned(row, now, abandoned_after) and (row.load, row.number) not in without_work
        is_at_work = row.is_undecided and is_young
        if is_at_work or (row.load, row.number) in not_here:
            limits[row.load] = min(row.number - 1, limits.get(row.load, row.number))
    chosen: dict[LoadIdentity, int] = {}
    for load, number in sorted(every, key=lambda key: (str(key[0]), key[1])):
        if number <= limits.get(load, number):
            chosen[load] = number
    return chosen


def is_repaired(repairs: Iterable[RepairRow], now: datetime, abandoned_after: timedelta) -> bool:
    """Whether somebody may be at work on one of a load's repairs. No I/O."""
    return any(now - at < abandoned_after for at in _opened(repairs))


def _opened(repairs: Iterable[RepairRow]) -> list[datetime]:
    """When those were that are open."""
    return [datetime.fromisoformat(r.opened_at) for r in repairs if r.state is RepairState.OPEN]


def is_abandoned(row: AttemptRow, now: datetime, abandoned_after: timedelta) -> bool:
    """Whether nobody goes on with an undecided attempt, as far as time tells. No I/O."""
    return now >= abandoned_at(row, abandoned_after)


def abandoned_at(row: AttemptRow, abandoned_after: timedelta) -> datetime:
    """From when on nobody goes on with an undecided attempt, unless it shows life. No I/O.

    That of a streaming query's batch once its writers' time has passed twice: a transaction that was begun at the end
    of it has no hold time left then, for that is no longer (:mod:`airflow_kafka_eos.streams.options`).
    """
    if row.writers_until and row.submitted_at and is_of_a_query(row.load, row.submitted_by):
        until = datetime.fromisoformat(row.writers_until)
        return until + (until - datetime.fromisoformat(row.submitted_at))
    return _later(last_sign(row), abandoned_after)


def _later(at: datetime, by: timedelta) -> datetime:
    """At the calendar's end, where it is longer than that: a duration may be as long as one likes."""
    try:
        return at + by
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def last_sign(row: AttemptRow) -> datetime:
    """When the attempt last showed life."""
    return datetime.fromisoformat(max(filter(None, (row.opened_at, row.submitted_at, row.prepared_at))))


def open_of(session: Session, loads: Mapping[LoadIdentity, int]) -> dict[LoadIdentity, list[str]]:
    """Transactional ids that are open now, of each load's attempts up to that number. Ends nothing."""
    found: dict[LoadIdentity, list[str]] = {load: [] for load in loads}
    for transaction, holder in holders_of(session, _open(session)).items():
        if holder.number <= loads.get(holder.load, 0):
            found[holder.load].append(transaction.transactional_id)
    return {load: sorted(ids) for load, ids in found.items()}


def _open(session: Session) -> list[PreparedTransaction]:
    """What is open under the ids of this ledger in the session's namespace."""
    return [PreparedTransaction(seen.transactional_id, seen.state) for seen in open_of_ours(session)]


def clean(
    session: Session,
    loads: Mapping[LoadIdentity, int],
    *,
    by: str,
    quiet_s: float,
    deadline_s: float,
    poll_s: float = 0.5,
    reasons: Mapping[LoadIdentity, str] | None = None,
    partitions: Collection[TopicPartition] = (),
) -> list[Swept]:
    """Sweep each load until nothing of it has been open for the quiet period; one that fails keeps no other.

    All are waited for together. Decided loads are rolled forward.

    :param deadline_s: for all of them.
    :param reasons: why undecided attempts of a load are aborted, for the ledger; where none is given: cleanup.
    :param partitions: where what hangs of them is looked for, beside those where something is aborted: see
        :func:`aborted_in`.
    """
    waiting = {
        load: CleanPoll(
            load,
            up_to=up_to,
            by=by,
            quiet_s=quiet_s,
            partitions=partitions,
            reason=(reasons or {}).get(load, CLEANUP),
        )
        for load, up_to in loads.items()
        if up_to
    }
    done: dict[LoadIdentity, Swept] = {}
    give_up = time.monotonic() + deadline_s
    while waiting:
        for load, poll in list(waiting.items()):
            error: KafkaEosError | None = None
            try:
                still = poll(session)
            except KafkaEosError as e:
                still, error = None, e
            if still is not None and time.monotonic() >= give_up:
                error = NotFinishedError(
                    f"not clean after {deadline_s:g} s: {still}", remedy="Run it again", load=str(load)
                )
            if still is None or error is not None:
                error = error or poll.problem
                if error is not None:
                    fill_in(error, load)
                done[load] = Swept(load, loads[load], tuple(poll.summary()["aborted"]), error)
                del waiting[load]
        if waiting:
            time.sleep(poll_s)
    return [done[load] for load in loads if load in done]


def aborted_in(session: Session, load: LoadIdentity, *, up_to: int) -> set[TopicPartition]:
    """Where aborted attempts of a load have written, as they have reported: also those that are swept.

    A produce request may come behind the sweep, and what it opens hangs: no coordinator lists it.
    """
    aborted = [r for r in session.ledger.attempts(load) if r.number <= up_to and r.verdict is Verdict.ABORT]
    every = (t for row in aborted for t in session.ledger.transactions(load, row.number))
    return {writes.topic_partition for t in every for writes in t.writes}


def why_unknown(transactional_id: str) -> str:
    """For people: what an id of :attr:`Leftovers.unknown` says of the ledger. No I/O."""
    if PooledId.parse(transactional_id) is None:
        return "this ledger does not know it (was it restored from a backup?)"
    return (
        "no attempt that holds its slot has begun it: the slot is in doubt or was settled, or the ledger was restored "
        "from a backup (docs/howto-on-call.md, Transactional ids)"
    )


def open_of_other_ledgers(session: Session, *, longer_than: timedelta) -> list[str]:
    """Ids of the session's namespace with another ledger's id in them, open for longer than that; sorted.

    A deployment that is gone for good, or a ledger that was thrown away, leaves them: with two-phase commit they hold
    readers back until somebody ends them. A deployment that lives and has the same namespace shows up too, once a
    transaction of its is that old.

    :param longer_than: by the brokers' clocks.
    """
    found = session.coordinator.list_open(
        prefix_of_all_ledgers(session.namespace), longer_than_ms=int(longer_than.total_seconds() * 1000)
    )
    parsed = {name: parse(name) for name in found}
    return [
        name for name, of in parsed.items() if of is not None and of.ledger_id != session.ledger.ledger_id
    ]


def other_ledgers_hidden(session: Session) -> AccessError | None:
    """Why other ledgers' transactions in the namespace may not be among them; None where they may be described."""
    return why_ledgers_hidden(session.coordinator, session.namespace)
