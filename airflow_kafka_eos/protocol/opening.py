"""Open an attempt: what ``begin`` and a (retried) ``prepare`` do before anything is written to Kafka."""

from __future__ import annotations

import logging

from airflow_kafka_eos.errors import TransientError
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import DECIDED_COMMIT, LoadIdentity, LoadState, TransactionNaming, Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.naming import PooledId, slot_prefix
from airflow_kafka_eos.protocol.elsewhere import refuse_elsewhere
from airflow_kafka_eos.protocol.ids import Caps, check_caps
from airflow_kafka_eos.protocol.leasing import check_slot
from airflow_kafka_eos.protocol.restored import refuse_restored
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.sweeping import sweep

log = logging.getLogger(__name__)


def begin(
    session: Session, load: LoadIdentity, *, owner: str, data_interval: tuple[str, str] | None = None
) -> AttemptRow:
    """Open an attempt, or keep the one that is good, and sweep what older ones left.

    A decided load gets no new attempt (rule: one-key-loads-once); a prepared, undecided attempt is kept, so that
    clearing only ``decide`` throws nothing away (rule: one-application-per-attempt).

    :param owner: the run that asks, as text; cleanup finds "its own" attempts by it.
    :param data_interval: start and end, UTC ISO 8601, of a run whose interval names its data; another interval for the
        same key is refused, until the load is committed.
    :raises ConfigurationError: a name does not fit, or the key was used for another data interval.
    :raises OtherClusterError: an attempt that is not closed was written to another cluster. Nothing is opened.
    :raises InDoubtError: the broker knows more of this load than the ledger, as after a restore. Nothing is opened.
    """
    _refuse_elsewhere(session, load)
    refuse_restored(session, load)
    row = session.ledger.begin(load, owner=owner, data_interval=data_interval)
    try:
        _sweep_older(session, row)
    except TransientError as e:
        # the attempt is open: failing now would leave cleanup, the teardown of begin, without a setup that succeeded,
        # and what older attempts left to its timeout. prepare sweeps again, and so does cleanup
        log.warning("what older attempts of load %s left is swept later: %s", load, e)
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
) -> AttemptRow:
    """Take the opened attempt for one application, or open a new one when it was taken before.

    Rule: one-application-per-attempt.

    No trigger rule fires while Airflow retries a task, so a retried ``prepare`` sweeps here by itself. The ledger notes
    which Kafka cluster the attempt is written to.

    :param naming: ``pooling``: the attempt leases a slot, whose ids are looked at before one is used.
    :param deadline_ms: milliseconds since the epoch, the deadline of its writers (rule: writers-have-a-deadline).
    :param caps: how many transactional ids there may be; None: they are not counted.
    :param arguments_sha256: of what the application is asked for, noted with the attempt.
    :raises ConfigurationError: a cap is reached; no attempt is taken.
    :raises OtherClusterError: an attempt that is not closed was written to another cluster; no attempt is taken (but
        where one was submitted there at this very moment: then ours supersedes it, and is not written either).
    :raises InDoubtError: the broker knows of something under the slot's ids that the ledger does not.
    """
    _refuse_elsewhere(session, load)
    known = session.ledger.load(load)
    if caps is not None and (known is None or known.state not in DECIDED_COMMIT):
        check_caps(session, load, naming, caps)
    if naming is TransactionNaming.POOLING and (known is None or known.state not in DECIDED_COMMIT):
        _sweep_free_slots(session, load, owner)
    row = session.ledger.submit(
        load, owner=owner, naming=naming, deadline_ms=deadline_ms, cluster_id=session.cluster_id,
        arguments_sha256=arguments_sha256,
    )  # fmt: skip
    _sweep_older(session, row)
    if row.verdict is None:
        check_slot(session, row)
    return row


def prepared(session: Session, manifest: Manifest, *, writers_left: bool = True) -> AttemptRow:
    """Tell the ledger that the attempt's application has finished and its manifest is whole.

    :param writers_left: False only when it is known for sure that each Spark task ran once: then a slot is free as soon
        as its attempt's end is verified, else it is quarantined (rule: verified-end-before-reuse).
    :raises UndecidableError: a newer attempt was opened, this one was aborted meanwhile, or it was reported
        with another manifest before.
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


def _refuse_elsewhere(session: Session, load: LoadIdentity) -> None:
    """A committed load stays so wherever the connection leads: nothing is opened, nothing swept."""
    known = session.ledger.load(load)
    if known is not None and known.state is not LoadState.COMMITTED:
        refuse_elsewhere(session, session.ledger.attempts(load))


def _sweep_free_slots(session: Session, load: LoadIdentity, by: str) -> None:
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


def _sweep_older(session: Session, row: AttemptRow) -> None:
    if row.verdict is Verdict.COMMIT:
        log.debug("load %s is decided commit since attempt %d: nothing is written again", row.load, row.number)
    elif row.number > 1:
        sweep(session, row.load, up_to=row.number - 1, by=row.owner)
