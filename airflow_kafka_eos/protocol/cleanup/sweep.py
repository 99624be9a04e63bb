"""Cleanup by name and by listing: end what attempts left open, and nothing else (FLIP-511).

Rules: decide-before-kafka, only-our-ids, describe-then-ask.

One pass is idempotent and short; whoever waits for a quiet period repeats it.

A listing can be hidden: by a coordinator that moves, by rights, by a proxy that has no ListTransactions. So ids that
nobody has reported are guessed, and asked for by name, where they can be (:func:`describe_guesses`). Asked is by
Describe, never by InitProducerId as in FLIP-511's probing: it makes no id, and ends nothing. What cannot be guessed:
incrementing ids of scope ``task`` end in Spark's ``taskAttemptId()``. Where listing is never possible, use pooling, or
scope ``load``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from airflow_kafka_eos.errors import InDoubtError, KafkaEosError
from airflow_kafka_eos.kafka.admin.list_permissions import describe_listed
from airflow_kafka_eos.ledger.rows import AttemptRow, SlotRow
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.naming import (
    AttemptRef,
    IdRole,
    PooledId,
    TransactionalId,
    counted,
    parse,
    prefix,
    slot_prefix,
)
from airflow_kafka_eos.protocol import fences
from airflow_kafka_eos.protocol.guards.coordinator_watch import CoordinatorWatch
from airflow_kafka_eos.protocol.guards.ownership import check_cluster
from airflow_kafka_eos.protocol.guards.restored_ledger import (
    check_attempts_known,
    check_commits_known,
    check_not_restored,
    is_named,
)
from airflow_kafka_eos.protocol.guards.slots import may_have_begun
from airflow_kafka_eos.protocol.hanging import end_hanging_in
from airflow_kafka_eos.protocol.repair.copy import end_abandoned
from airflow_kafka_eos.protocol.repair.recover import hanging_in, still_open
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.commit import commit_pass
from airflow_kafka_eos.transaction import (
    CoordinatorState,
    Outcome,
    PreparedTransaction,
    TopicPartition,
    TransactionDescription,
)

log = logging.getLogger(__name__)
#: why what nobody has decided is aborted, as the ledger notes it
CLEANUP = "cleanup"
#: Spark partitions asked about at once. So many in a row without an id end the search: empty ones have none.
PARTITIONS = 256
#: Ids of a Spark partition asked about at once: Spark tries a task four times (spark.task.maxFailures).
TRIES = 4
Describe = Callable[[Iterable[str]], Mapping[str, TransactionDescription]]


@dataclass
class SweepReport:
    """What one pass saw and did; transactional ids throughout."""

    aborted: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    still_open: list[str] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    #: aborted although the decision was commit: only commit, or a person's recover, repairs them
    lost: list[str] = field(default_factory=list)
    #: decided, open, and of a load that was given up: only a person ends them
    given_up: list[str] = field(default_factory=list)
    #: where aborted transactions had records: of those that attempts have reported, and of those that were open
    partitions: set[TopicPartition] = field(default_factory=set)
    #: warnings that were given before: whoever waits looks again and again
    told: set[str] = field(default_factory=set)
    #: fences that were asked about before; whoever waits asks once
    fences: set[str] = field(default_factory=set)
    #: no coordinator moved, or was away, while the listing was made: it hid nothing
    is_complete: bool = True

    @property
    def is_quiet(self) -> bool:
        """Nothing was open that ends by itself or by another pass, and nothing had to be ended in this one."""
        return not (self.aborted or self.committed or self.still_open)

    @property
    def has_done(self) -> bool:
        """Whether it ended anything. Most looks do not: somebody waits, and looks again."""
        return bool(self.aborted or self.committed)

    def warn(self, text: str) -> None:
        """Once for all looks that share :attr:`told`."""
        if text not in self.told:
            self.told.add(text)
            log.warning(text)

    def __str__(self) -> str:
        """One line: how many of each kind, and the first id of it."""
        kinds = {
            "aborted": self.aborted,
            "rolled forward": self.committed,
            "still open": self.still_open,
            "left alone": self.left_alone,
        }
        return "; ".join(f"{kind} {counted(ids)}" for kind, ids in kinds.items() if ids) or "nothing was open"

    def problem(self, load: LoadIdentity) -> InDoubtError | None:
        """What a person has to do before the load is clean: no pass ends it, however often it is repeated."""
        if self.lost:
            return InDoubtError(
                f"{len(self.lost)} of its transactions were lost: {self.lost[0]} was aborted although the decision was "
                "commit, and is not repaired yet",
                remedy=f"Clear commit, or run `airflow-kafka-eos loads recover {load.in_command}`: both copy what is "
                "lost, or say that it is gone from the log, and prepare must write it again",
                load=str(load),
                transactional_id=self.lost[0],
            )
        if self.given_up:
            return InDoubtError(
                f"the load was given up with {len(self.given_up)} decided transactions open, and they hold readers "
                f"back: {self.given_up[0]}",
                remedy="End each by `airflow-kafka-eos transactions force-terminate`, then run cleanup again",
                load=str(load),
                transactional_id=self.given_up[0],
            )
        return None


def sweep(
    session: Session,
    load: LoadIdentity,
    *,
    up_to: int,
    by: str,
    guesses: bool = True,
    report: SweepReport | None = None,
    reason: str = CLEANUP,
) -> SweepReport:
    """One pass over the attempts of a load with number ``up_to`` or below.

    The order matters (rule: describe-then-ask): first the ledger makes them undecidable, and the fences of those that
    have one are moved (rule: writers-have-a-deadline), then Kafka describes the
    ledger's ids and those that a listing adds, then the ledger is asked who holds each id and whether that very
    identity is decided, and only then exactly the described identity is ended by EndTxn. A decided load is rolled
    forward instead.

    :param guesses: ask by name too for ids that nobody has reported. Without, the pass proves nothing about them.
    :param report: to be filled, so that what a pass has seen outlives an error; None: a new one.
    :param reason: why undecided attempts are aborted, for the ledger.
    :raises OtherClusterError: one of these attempts was written to another cluster, and is not closed: nothing is done.
    :raises InDoubtError: the broker shows attempts, or commits under slots, that the ledger does not know: nothing is
        aborted; or a decided transaction is lost.
    :raises NotFinishedError: a coordinator is moving or away, and may hide such a one: nothing is aborted, unless the
        ledger knows by name all that there can be.
    """
    report = SweepReport() if report is None else report
    before = [row for row in session.ledger.attempts(load) if row.number <= up_to]
    check_cluster(session, before)
    asked = any(row.is_undecided for row in before)
    if asked:
        check_not_restored(session, load, slots=False, named=is_named(before))
    rows = session.ledger.make_undecidable(load, up_to=up_to, decided_by=by, reason=reason)
    if not rows:
        return report
    check_cluster(session, rows)  # submitted meanwhile
    failed = _roll_forward(session, rows, report)  # first, for the time of decided transactions is running
    failed = _end_repairs(session, load, rows, by, report) or failed
    failed = _fence(session, rows, report) or failed
    lingering = _lingering(session, load, rows, up_to, report, guesses)
    if lingering and not asked:
        # whoever aborted it may have known as little
        check_not_restored(session, load, slots=False, named=is_named(rows))
    if any(PooledId.parse(t.transactional_id) for t in lingering):
        # also of a decided load: its slot may have had holders since that the ledger has forgotten
        check_commits_known(session, load)
    failed = _abort(session, lingering, report) or failed
    log.log(
        # a look that ends nothing comes every second while somebody waits, and says itself what for
        logging.INFO if report.has_done else logging.DEBUG,
        "sweep of load %s up to attempt %d: %s",
        load,
        up_to,
        report,
    )
    if failed is not None:
        raise failed  # after what could be swept is swept
    return report


def _roll_forward(session: Session, rows: list[AttemptRow], report: SweepReport) -> KafkaEosError | None:
    for row in rows:
        if row.verdict is Verdict.COMMIT and session.ledger.state(row.load) is not LoadState.GIVEN_UP:
            try:
                result = commit_pass(session, row.load, row.number, ends_forgotten=True)
            except KafkaEosError as e:
                return e
            report.committed += result.newly_committed
            report.still_open += result.open
            if result.lost:
                # copying takes its time, and commit's retry or a person has it
                report.lost += result.lost
                report.warn(f"load {row.load} lost {counted(result.lost)} after its decision: run commit again")
            if result.refused is not None:
                return result.refused
    return None


def _end_repairs(
    session: Session, load: LoadIdentity, rows: list[AttemptRow], by: str, report: SweepReport
) -> KafkaEosError | None:
    """A repair that is under way is taken for a dead one's; if it is not, commit opens another.

    Rule: decide-before-kafka.
    """
    if not any(row.verdict is Verdict.COMMIT for row in rows):
        return None
    try:
        session.ledger.abandon_repairs(load, reason=f"cleanup by {by}")
        report.aborted += end_abandoned(session, load, closed_too=True, partitions=report.partitions)
    except KafkaEosError as e:
        return e
    return None


def _fence(session: Session, rows: list[AttemptRow], report: SweepReport) -> KafkaEosError | None:
    """Before anything is listed: what a writer begins that has looked before, the listing shows.

    Only attempts by Spark Connect have one, committed ones too; for all others nothing is asked.
    """
    try:
        fences.move(session.coordinator, fences.of_attempts(session.ledger.ledger_id, rows), report.fences)
    except KafkaEosError as e:
        return e
    return None


def _lingering(
    session: Session, load: LoadIdentity, rows: list[AttemptRow], up_to: int, report: SweepReport, guesses: bool
) -> list[PreparedTransaction]:
    """What is to be ended."""
    lingering = []
    described = _open_transactions(session, load, rows, report, guesses)
    if not described:
        return []
    # asked after the Describe, never before: in between the decision could have been recorded, and a pooled id have
    # gone to another load (rule: describe-then-ask). Asked once for all, for there may be thousands
    holders = _holders(session, load, up_to, described.values(), report)
    of_decided = [PreparedTransaction(name, described[name].state) for name, row in holders.items() if row.verdict]
    decided = session.ledger.decided_among(of_decided)
    state = session.ledger.state(load)
    for name, holder in holders.items():
        found = described[name]
        if (identity := _if_ours(session, holder, decided, state, found, report)) is not None:
            lingering.append(identity)
            report.partitions |= found.partitions
    return lingering


def _holders(
    session: Session, load: LoadIdentity, up_to: int, described: Iterable[TransactionDescription], report: SweepReport
) -> dict[str, AttemptRow]:
    """By transactional id the attempts of the load that answer for them; without those that are not to be swept."""
    attempts = {row.number: row for row in session.ledger.attempts(load)}
    slots: dict[int, SlotRow | None] = {}
    holders = {}
    for found in described:
        name = found.transactional_id
        parsed = parse(name)
        if parsed is None or (parsed.namespace, parsed.ledger_id) != (load.namespace, session.ledger.ledger_id):
            report.left_alone.append(name)  # rule: only-our-ids
            continue
        if isinstance(parsed, TransactionalId):
            if parsed.load != load:
                report.left_alone.append(name)
                continue
            number: int | None = parsed.attempt
        else:
            if parsed.slot not in slots:
                slots[parsed.slot] = session.ledger.slot(parsed.namespace, parsed.load_name, parsed.slot)
            number = _holder(load, slots[parsed.slot], attempts, found, report)
        if number is None or number > up_to:
            continue  # a newer attempt is left to its own cleanup (rule: up-to-its-own-attempt)
        holder = attempts.get(number)
        if holder is None or holder.is_undecided:
            identity = PreparedTransaction(name, found.state)
            report.warn(f"transaction {identity} is open, and the ledger does not know its attempt as aborted")
            report.left_alone.append(name)
            continue
        holders[name] = holder
    return holders


def _open_transactions(
    session: Session, load: LoadIdentity, rows: list[AttemptRow], report: SweepReport, guesses: bool
) -> dict[str, TransactionDescription]:
    # the ledger's ids by name, for a coordinator that is just moving hides its ids from a listing
    # (rule: listing-only-adds); what an attempt closed as swept or committed had open was seen to end: a zombie of its
    # is left to the listing
    known = []
    for row in (row for row in rows if row.closed_at is None):
        for t in session.ledger.transactions(load, row.number):
            known.append(t.transaction.transactional_id)
            if row.verdict is Verdict.ABORT:
                report.partitions.update(w.topic_partition for w in t.writes)
    watch = CoordinatorWatch(session)
    listed = session.coordinator.list_open(prefix(load, session.ledger.ledger_id))
    pooled = _pooled(session, load, rows)
    report.is_complete = not watch.has_moved()
    check_attempts_known(session, load, listed)
    leased = any(row.slot is not None for row in rows)

    def describe(ids: Iterable[str]) -> dict[str, TransactionDescription]:
        return describe_listed(session.coordinator, load, session.ledger.ledger_id, ids, pooled=leased)

    guessed = _guessed(session, rows, describe) if guesses else set()
    described = describe(sorted({*known, *listed, *pooled, *guessed}))
    return {name: d for name, d in described.items() if d.is_open}


def _pooled(session: Session, load: LoadIdentity, rows: list[AttemptRow]) -> list[str]:
    """Open ids of the slots that these attempts have, or had: the ledger says later who holds them now."""
    slots = {row.slot for row in rows if row.slot is not None}
    if not slots:
        return []
    listed = session.coordinator.list_open(slot_prefix(load.namespace, session.ledger.ledger_id, load.name))
    return [name for name in listed if (found := PooledId.parse(name)) is not None and found.slot in slots]


def _guessed(session: Session, rows: list[AttemptRow], describe: Describe) -> set[str]:
    """Ids by name of attempts that have reported nothing: a listing may hide them, too."""
    silent = [r for r in rows if r.is_submitted and not r.is_prepared and r.closed_at is None]
    refs = [AttemptRef(r.load, session.ledger.ledger_id, r.number, r.slot) for r in silent]
    return {name for ref in refs for name in describe_guesses(describe, ref)}


def describe_guesses(describe: Describe, ref: AttemptRef) -> set[str]:
    """The ids of an attempt that coordinators know, of those that can be guessed.

    :param describe: what coordinators show of ids; those that none knows are left out.
    """
    common = str(ref.common_id(IdRole.LOAD))
    if ref.slot is None:
        return set(describe([common]))
    known: set[str] = set()
    first, beside = 0, [common]  # with the first block: a request of its own it does not need
    while True:
        wanted = [(p, n) for p in range(first, first + PARTITIONS) for n in range(TRIES)]
        found = set(describe([*beside, *(str(ref.task_id(p, n)) for p, n in wanted)]))
        known |= found
        tasks = found - {common}
        if not tasks:
            return known
        known |= _more(describe, ref, tasks)
        first, beside = first + PARTITIONS, []


def _more(describe: Describe, ref: AttemptRef, found: set[str]) -> set[str]:
    """Higher numbers of the Spark partitions all of whose ids were known so far."""
    known: set[str] = set()
    while last := [i for name in found if (i := PooledId.parse(name)) and (i.number or 0) % TRIES == TRIES - 1]:
        wanted = [(i.spark_partition or 0, (i.number or 0) + k) for i in last for k in range(1, TRIES + 1)]
        found = set(describe([str(ref.task_id(p, n)) for p, n in wanted]))
        known |= found
    return known


def _if_ours(
    session: Session,
    holder: AttemptRow,
    decided: Collection[PreparedTransaction],
    state: LoadState | None,
    found: TransactionDescription,
    report: SweepReport,
) -> PreparedTransaction | None:
    """The identity that was described, if it is one to be ended.

    :param decided: identities that are decided to be committed.
    :param state: the load's.
    """
    name = found.transactional_id
    identity = PreparedTransaction(name, found.state)
    if _is_pruned_commit(holder) or identity in decided:
        # rolled forward, not swept; but on transaction version 1 a zombie begins anew under the committed identity
        if zombie_reopened(session, holder, found):
            return identity
        if state is LoadState.GIVEN_UP:
            (report.given_up if found.coordinator_state is CoordinatorState.ONGOING else report.still_open).append(name)
    elif found.coordinator_state is CoordinatorState.ONGOING:
        if _is_to_be_aborted(holder):
            log.debug("aborting %s of %s attempt %d", identity, holder.load, holder.number)  # there may be thousands
            return identity
        report.left_alone.append(name)
    else:
        report.still_open.append(name)  # the broker is ending it by itself
        report.partitions |= found.partitions
    return None


def _is_to_be_aborted(holder: AttemptRow) -> bool:
    """Whether what the attempt has open, and is not decided to be committed, is to be aborted."""
    match holder.verdict:
        case Verdict.ABORT:
            return True
        case Verdict.COMMIT:
            return True  # of a task attempt whose result Spark did not take, or of a zombie
        case None:
            return False
    assert_never(holder.verdict)


def _holder(
    load: LoadIdentity,
    slot: SlotRow | None,
    attempts: Mapping[int, AttemptRow],
    found: TransactionDescription,
    report: SweepReport,
) -> int | None:
    """The attempt of this load that answers for a pooled id; None when none does."""
    if slot is None or slot.holder != load:
        return None
    # what it showed before it was looked at, or what put it in doubt then, may be of a load that this ledger has
    # forgotten: nothing of it is ended by program
    if slot.checked_at is not None and may_have_begun(slot, attempts.get(slot.attempt), found):
        return slot.attempt
    name = found.transactional_id
    report.left_alone.append(name)
    report.warn(f"{name} is open, and attempt {slot.attempt} of {load} has not begun it: left alone")
    return None


def _is_pruned_commit(holder: AttemptRow) -> bool:
    """Whether what of the attempt was decided is forgotten: all of it was committed, and every marker seen."""
    return holder.verdict is Verdict.COMMIT and holder.pruned_at is not None


def zombie_reopened(session: Session, holder: AttemptRow, found: TransactionDescription) -> bool:
    """Whether the open transaction that was described is another one than the committed one of the same identity.

    So it is when the ledger has the commit's markers on record (rule: zombie-behind-the-commit), and every partition's
    leader shows the open one to begin behind the committed one's last record. Aborting that identity cannot hurt the
    committed one then: its markers are in the log, and an EndTxn(abort) that finds it instead is refused
    (INVALID_TXN_STATE). Of an attempt that was pruned: behind the last record of all of it, for its markers were.
    """
    if found.coordinator_state is not CoordinatorState.ONGOING:
        return False
    if _is_pruned_commit(holder):
        last = session.ledger.summary(holder.load, holder.number).last_offsets
    else:
        rows = [
            t
            for t in session.ledger.transactions(holder.load, holder.number)
            if t.transaction.transactional_id == found.transactional_id and t.outcome is Outcome.COMMITTED
        ]
        if not rows:
            return False
        last = rows[0].last_offsets
    identity = (found.state.producer_id, found.state.producer_epoch)
    for tp, states in session.partitions.producers(found.partitions).items():
        for state in states:
            mine = (state.producer_id, state.producer_epoch) == identity and state.txn_start_offset >= 0
            if mine and state.txn_start_offset <= last.get(tp, -1):
                return False
    log.warning("a zombie began another transaction as %s (%s) after the commit", found.transactional_id, found.state)
    return True


def _abort(session: Session, lingering: list[PreparedTransaction], report: SweepReport) -> KafkaEosError | None:
    """End them; what failed is found by the next pass."""
    report.aborted += [t.transactional_id for t in lingering]
    try:
        session.coordinator.end_many(lingering, Verdict.ABORT)
    except KafkaEosError as e:
        return e
    return None


def needs_quiet_period(rows: list[AttemptRow]) -> bool:
    """Whether writers may be left that open one more transaction after a sweep.

    An application that was submitted and never reported may still have zombies; and so may one that reported, unless
    each of its tasks is known to have run once: the Spark that it ran on may outlive it, and so does a Spark Connect
    server, whose attempts have a fence.
    """
    return any(
        (r.closed_at is None and r.is_submitted and not (r.is_prepared and r.writers_left is False))
        or fences.may_have_writers(r)
        for r in rows
    )


def nothing_can_hide(rows: list[AttemptRow], *, repaired: bool) -> bool:
    """Whether all that these attempts ever opened is in the ledger, and was seen to end: a listing could add nothing.

    So it is behind a commit whose tasks ran once: its manifest names every transaction (rule: listing-only-adds).

    :param repaired: whether the load was ever repaired: a repair has writers of its own.
    """
    return not repaired and all(r.closed_at is not None and r.writers_left is False for r in rows if r.is_submitted)


def finish(session: Session, load: LoadIdentity, *, up_to: int) -> InDoubtError | None:
    """Write down which attempts are swept, after the quiet period: aborted ones, and the decided one of a load that
    was given up. What keeps that one open, for a person to end."""
    held = None
    for row in session.ledger.attempts(load):
        if row.number > up_to or row.closed_at is not None:
            continue
        match row.verdict:
            case Verdict.ABORT:
                session.ledger.record_swept(load, row.number)
            case Verdict.COMMIT:
                held = _close_given_up(session, row)
            case None:
                pass  # opened since the sweep
            case _:
                assert_never(row.verdict)
    return held


def _close_given_up(session: Session, row: AttemptRow) -> InDoubtError | None:
    """Close it if its load was given up, and neither coordinators nor leaders show any of it open.

    Rule: forgotten-markers.
    """
    if session.ledger.state(row.load) is not LoadState.GIVEN_UP or still_open(session, row.load):
        return None
    if held := hanging_in(session, row.load):
        of = ["--namespace", row.load.namespace]
        return InDoubtError(
            f"the load was given up, and its coordinators have forgotten to end it in {', '.join(map(str, held[:5]))}: "
            "readers are held back there",
            remedy=f"Run `{end_hanging_in(held, *of)}` with a login that has ALTER on the Cluster, then "
            f"`airflow-kafka-eos cleanup {row.load.in_command}`",
            load=str(row.load),
            attempt=row.number,
        )
    session.ledger.record_swept(row.load, row.number)
    return None
