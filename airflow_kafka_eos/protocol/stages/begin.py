"""Begin: what a load needs is looked at, and an attempt opened, submitted and recorded as prepared.

This is what ``begin`` and a (retried) ``prepare`` do beside writing: which generation of the load the run goes on with,
the sweep of what older attempts left, and the guards that come before a record is written.

The checks of brokers, topics, rights and limits only look. What does not show (DESCRIBE_CONFIGS is missing, a broker
shows no rights) is no error: prepare and decide find it. What two-phase commit needs beyond the brokers' settings only
an initialised id can tell, so that is left to prepare too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count

from airflow_kafka_eos.errors import AccessError, BrokerTooOldError, TerminalError, TopicError, TransientError
from airflow_kafka_eos.generation import Generation, choose, load_of
from airflow_kafka_eos.kafka.admin import preflight
from airflow_kafka_eos.kafka.admin.inspect import TopicSeen, check_may_end, topics_seen
from airflow_kafka_eos.kafka.admin.list_permissions import never_used
from airflow_kafka_eos.kafka.admin.preflight import (
    RETENTION,
    check_every_broker,
    check_hold_time,
    check_topics,
    oldest_kept_ms,
)
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import (
    LoadIdentity,
    LoadState,
    TransactionNaming,
    TwoPhaseCommit,
    Verdict,
    WriterName,
)
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.naming import PooledId, slot_prefix
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.guards.id_caps import Caps, check_caps
from airflow_kafka_eos.protocol.guards.other_ledgers import check_no_other_ledger
from airflow_kafka_eos.protocol.guards.ownership import check_cluster
from airflow_kafka_eos.protocol.guards.restored_ledger import check_not_restored
from airflow_kafka_eos.protocol.guards.slots import check_slot
from airflow_kafka_eos.protocol.session import Session

log = logging.getLogger(__name__)


def begin(
    session: Session, load: LoadIdentity, *, owner: str, data_interval: tuple[str, str] | None = None
) -> AttemptRow:
    """Open an attempt, or keep the one that is good, and sweep what older ones left.

    A decided load gets no new attempt (rule: one-key-loads-once); a prepared, undecided attempt is kept, so that
    clearing only ``decide`` throws nothing away (rule: one-application-per-attempt).

    :param owner: the run that asks, as text; cleanup finds "its own" attempts by it.
    :param data_interval: of a run whose interval names its data; see :func:`.attempts.begin`.
    :raises ConfigurationError: a name does not fit, or the key was used for another data interval.
    :raises OtherClusterError: an attempt that is not closed was written to another cluster. Nothing is opened.
    :raises InDoubtError: the broker knows more of this load than the ledger, as after a restore. Nothing is opened.
    :raises OtherLedgerError: another ledger has loads of the name, and this one, which is embedded, has none yet.
    """
    _check_cluster_unless_committed(session, load)
    check_not_restored(session, load)
    check_no_other_ledger(session, load)
    row = session.ledger.begin(load, owner=owner, data_interval=data_interval)
    try:
        _sweep_older(session, row)
    except TransientError as e:
        # the attempt is open: failing now would leave cleanup, the teardown of begin, without a setup that succeeded,
        # and what older attempts left to its timeout. prepare sweeps again, and so does cleanup
        log.warning(
            "what older attempts of load %s have left open could not be swept now; prepare and cleanup sweep it again: "
            "%s",
            load,
            e,
        )
    return row


def submit(
    session: Session,
    load: LoadIdentity,
    *,
    owner: str,
    naming: TransactionNaming = TransactionNaming.INCREMENTING,
    deadline_ms: int | None = None,
    caps: Caps | None = None,
    arguments_sha256: str | None = None,
    has_fence: bool = False,
) -> AttemptRow:
    """Take the opened attempt for one application, or open a new one when it was taken before.

    Rule: one-application-per-attempt.

    No trigger rule fires while Airflow retries a task, so a retried ``prepare`` sweeps here by itself. The ledger notes
    which Kafka cluster the attempt is written to.

    Parameters are those of :func:`.attempts.submit`. A leased slot's ids are looked at before one is used.

    :param caps: how many transactional ids there may be; None: they are not counted.
    :raises ConfigurationError: a cap is reached; no attempt is taken.
    :raises OtherClusterError: an attempt that is not closed was written to another cluster; no attempt is taken (but
        where one was submitted there at this very moment: then ours supersedes it, and is not written either).
    :raises InDoubtError: the broker knows of something under the slot's ids that the ledger does not, or shows a commit
        of what would be superseded.
    :raises UndecidableError: it was aborted before, or at this very moment: its slot was given back.
    """
    _check_cluster_unless_committed(session, load)
    state = session.ledger.state(load)
    if state is None or not state.is_decided:
        # begin has asked, long ago maybe: what this supersedes, or writes once more, may be decided
        check_not_restored(session, load, slots=naming is TransactionNaming.POOLING)
        if caps is not None:
            check_caps(session, load, naming, caps)
        if naming is TransactionNaming.POOLING:
            sweep_free_slots(session, load, owner)
    row = session.ledger.submit(
        load, owner=owner, naming=naming, deadline_ms=deadline_ms, cluster_id=session.cluster_id,
        arguments_sha256=arguments_sha256, has_fence=has_fence,
    )  # fmt: skip
    _sweep_older(session, row)
    if row.verdict is None:
        check_slot(session, row)
    return row


def record_prepared(session: Session, manifest: Manifest, *, writers_left: bool = True) -> AttemptRow:
    """Tell the ledger that the attempt's application has finished and its manifest is whole.

    Parameters and errors are those of :func:`.attempts.mark_prepared`.
    """
    row = session.ledger.mark_prepared(manifest, writers_left=writers_left)
    log.debug(
        "%s is prepared: %d records, %d bytes in %s",
        manifest.attempt,
        manifest.records,
        manifest.bytes,
        manifest.how,
    )
    return row


def reference(session: Session, row: AttemptRow) -> AttemptRef:
    """The attempt as Spark and the manifest name it."""
    return AttemptRef(row.load, session.ledger.ledger_id, row.number, row.slot)


def _check_cluster_unless_committed(session: Session, load: LoadIdentity) -> None:
    """A committed load stays so wherever the connection leads: nothing is opened, nothing swept."""
    if session.ledger.state(load) is not LoadState.COMMITTED:
        check_cluster(session, session.ledger.attempts(load))


def _sweep_older(session: Session, row: AttemptRow) -> None:
    if row.verdict is Verdict.COMMIT:
        log.debug("load %s is decided to be committed since attempt %d: nothing is written again", row.load, row.number)
    elif row.number > 1:
        sweep(session, row.load, up_to=row.number - 1, by=row.owner)


def sweep_free_slots(session: Session, load: LoadIdentity, by: str) -> None:
    """End what zombies of aborted attempts have begun behind their cleanup, under slots that nobody has leased since.

    Found by the lease's look, it would put the whole name in doubt.
    """
    own = slot_prefix(load.namespace, session.ledger.ledger_id, load.name)
    open_ = {found.slot for name in session.coordinator.list_open(own) if (found := PooledId.parse(name)) is not None}
    for slot in session.ledger.slots(load.namespace, load.name) if open_ else ():
        if slot.number in open_ and not slot.is_leased and slot.checked_at is not None:
            last = session.ledger.attempt(slot.holder, slot.attempt)
            if last is not None and last.verdict is Verdict.ABORT:
                sweep(session, slot.holder, up_to=slot.attempt, by=by)


def reload(session: Session, first: LoadIdentity, *, owner: str, whole: bool) -> LoadIdentity:
    """The load to begin; see :func:`airflow_kafka_eos.generation.choose`.

    Nothing is locked: of two runs that ask at the same time both get the same generation, and that is one load.

    :raises InDoubtError: the newest generation waits for a person, and is not the owner's to go on with.
    """
    load = load_of(first, choose(first, generations(session, first), owner=owner, whole=whole))
    if load != first:
        log.info("load %s is loaded again under the key %s", first, load.key)
    return load


def generations(session: Session, first: LoadIdentity) -> list[Generation]:
    """All generations of a load: without a gap, each was opened behind the commit of the one before."""
    found: list[Generation] = []
    for number in count(1):
        load = load_of(first, number)
        state = session.ledger.state(load)
        if state is None:
            return found
        owners = frozenset(a.responsible for a in session.ledger.attempts(load))
        found.append(Generation(number, state, owners))
    raise AssertionError("count() has no end")


@dataclass(frozen=True)
class Wanted:
    """How a load will be written.

    :param writes: whether the principal that looks writes it; else Spark has a login of its own.
    """

    hold_time_ms: int
    two_phase_commit: TwoPhaseCommit
    writer: WriterName
    writes: bool


def check_brokers(session: Session) -> None:
    """
    :raises BrokerTooOldError: a broker lacks a request that a step of the load needs.
    """
    try:
        check_every_broker(session.partitions.wire)
    except BrokerTooOldError as e:
        e.remedy = f"{e.remedy}. Then clear begin"
        raise


def check_topics_exist(session: Session, topics: Collection[str]) -> None:
    """
    :raises TopicError: a topic does not exist, or is Kafka's own.
    :raises AccessError: a topic may not even be described.
    """
    try:
        check_topics(session.partitions, sorted(topics))
    except TopicError as e:
        e.message = f"topics={sorted(topics)}: {e.message}"
        e.remedy = f"{e.remedy.rstrip('. ')}. Then clear begin"
        raise


def check_rights(session: Session, load: LoadIdentity, topics: Collection[str], wanted: Wanted | None) -> None:
    """
    :param wanted: None: it is not known how the load will be written, so only what Airflow's steps need is looked at.
    :raises AccessError: naming what is missing, on what, and which step it is for.
    """
    wire = session.partitions.wire
    writes = wanted is not None and wanted.writes
    missing = [
        text
        for name, seen in sorted(topics_seen(wire, topics).items())
        if seen is not None
        for text in missing_rights(seen, writes=writes)
    ]
    if missing:
        raise AccessError(
            f"the principal of the Kafka connection lacks {'; and '.join(missing)}",
            remedy="Grant it, then clear begin; `airflow-kafka-eos doctor --topic …` prints the command",
            load=str(load),
        )
    try:
        check_may_end(wire, never_used(load, session.ledger.ledger_id))
    except AccessError:
        raise
    except TerminalError as e:
        # a broker that answers otherwise for an id that it does not know: it says nothing of the right
        log.debug("WRITE on transactional ids cannot be looked at: %s", e)


def missing_rights(seen: TopicSeen, *, writes: bool) -> Iterator[str]:
    """What of the least set (docs/acls.md) a topic shows to be missing. No I/O."""
    if "DESCRIBE" not in seen.rights:
        return  # it was described: so these are not the rights
    if writes and "WRITE" not in seen.rights:
        yield f"WRITE on Topic {seen.name} (prepare writes to it)"
    if "READ" not in seen.rights:
        yield f"READ on Topic {seen.name} (decide counts what was written, commit sees the markers)"


def check_limits(session: Session, topics: Collection[str], wanted: Wanted) -> None:
    """
    :raises ConfigurationError, BrokerTooOldError: ``two_phase_commit="required"`` where no broker can grant it; a
        ``hold_time`` that no broker grants where it counts; or a topic that keeps no record for so long.
    """
    now_ms = int(time.time() * 1000)
    for name, config in sorted(session.partitions.topic_config(topics, RETENTION).items()):
        if oldest_kept_ms(config, now_ms + wanted.hold_time_ms) > now_ms:
            raise TopicError(
                f"topic {name} keeps records for retention.ms={config['retention.ms']}, and the load may wait for its "
                f"decision for hold_time={wanted.hold_time_ms} ms: records may be deleted before they are committed",
                remedy="Raise the topic's retention.ms, or set a shorter hold_time; then clear begin",
            )
    has_none = wanted.two_phase_commit is TwoPhaseCommit.OFF or wanted.writer is WriterName.CONFLUENT
    refused = None if has_none else preflight.foreseen_refusal(session.partitions.wire, session.partitions)
    if refused is not None and wanted.two_phase_commit is TwoPhaseCommit.REQUIRED:
        raise refused
    if has_none or refused is not None:
        check_hold_time(session.partitions, wanted.hold_time_ms)
