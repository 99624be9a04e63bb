"""Decide: believe the manifest only as far as the broker confirms it, then record one decision for all of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_kafka_eos.dual_write import DualWrite
from airflow_kafka_eos.errors import CheckFailedError, ConfigurationError, TopicError, UndecidableError
from airflow_kafka_eos.kafka.compaction import COMPACTION, warning
from airflow_kafka_eos.kafka.preflight import RETENTION
from airflow_kafka_eos.ledger.beside import decide_beside
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.protocol.confirming import Observed, problems
from airflow_kafka_eos.protocol.elsewhere import refuse_elsewhere
from airflow_kafka_eos.protocol.session import Session

log = logging.getLogger(__name__)

#: how the reason of an abort begins that the author's checks have asked for
_REFUSED = "check: "


#: how the refusal of an empty load begins
_NO_RECORDS = "0 records, fewer than min_records="


@dataclass(frozen=True)
class Checks:
    """The author's conditions on what prepare wrote.

    ``check`` gets the :class:`~airflow_kafka_eos.manifest.Manifest`. None or True accepts, False or a text (the
    reason) refuses; anything else is an error, for what it means would be a guess. An exception refuses nothing: it
    fails the task, which may be retried.
    """

    min_records: int | None = None
    max_records: int | None = None
    check: Callable[[Manifest], Any] | None = None

    def refusal(self, manifest: Manifest) -> str:
        """Why the load is refused, or an empty text."""
        if self.min_records is not None and manifest.records < self.min_records:
            return f"{manifest.records} records, fewer than min_records={self.min_records}"
        if self.max_records is not None and manifest.records > self.max_records:
            return f"{manifest.records} records, more than max_records={self.max_records}"
        answer = self.check(manifest) if self.check is not None else None
        if isinstance(answer, str):
            return answer or "the check returned an empty text"
        if type(answer).__module__ == "numpy" and type(answer).__name__ in ("bool", "bool_"):
            answer = bool(answer)  # what comparing a pandas or numpy figure gives
        if answer is None or isinstance(answer, bool):
            return "the check returned False" if answer is False else ""
        raise ConfigurationError(
            f"the check returned {answer!r} of type {type(answer).__name__}",
            remedy="Return None or True to accept, False or the reason as a text to refuse",
            load=str(manifest.attempt.load),
            attempt=manifest.attempt.attempt,
        )


def undecided_attempt(session: Session, load: LoadIdentity, *, owner: str) -> AttemptRow:
    """The attempt that ``decide`` may decide, or the one that is decided commit already.

    :raises CheckFailedError: the author's checks have refused it before.
    :raises UndecidableError: prepare has not finished, was superseded by another run, or was aborted.
    """
    rows = session.ledger.attempts(load)
    for row in rows:
        if row.verdict is Verdict.COMMIT:
            return row
    newest = rows[-1] if rows else None
    if newest is None or not newest.is_prepared:
        raise UndecidableError(
            "the load has no prepared attempt"
            if newest is None
            else "the load's newest attempt is not prepared",
            remedy="Clear prepare and let it finish; marking it success by hand prepares nothing",
            load=str(load),
            attempt=newest.number if newest else None,
        )
    if newest.verdict is Verdict.ABORT and newest.reason.startswith(_REFUSED):
        raise _refused(load, newest.number, newest.reason.removeprefix(_REFUSED))
    if newest.verdict is Verdict.ABORT:
        raise UndecidableError(
            f"the load's newest attempt is aborted ({newest.reason})",
            remedy="Clear prepare: it opens a new attempt",
            load=str(load),
            attempt=newest.number,
        )
    if newest.submitted_by != owner:
        raise UndecidableError(
            f"another run ({newest.submitted_by}) has taken the load over",
            remedy="Let that run decide it; clear prepare here only if it should not",
            load=str(load),
            attempt=newest.number,
        )
    return newest


def decide(
    session: Session,
    manifest: Manifest,
    checks: Checks,
    *,
    owner: str,
    margin_s: float,
    also: DualWrite | None = None,
) -> AttemptRow:
    """Record ``commit`` for all of the manifest's transactions, or ``abort`` and raise.

    :param margin_s: seconds, above 0, that each transaction must have left before the broker may time it out.
    :param also: runs in the database transaction that records the decision (KIP-939's dual write): its rows and the
        records become true together, or neither. It runs no second time once the load is decided.
    :raises DualWriteError: ``also`` failed; nothing is decided, and decide may run again.
    :raises CheckFailedError: the author's checks refused it; the abort is recorded.
    :raises UndecidableError: a transaction is gone, changed, or out of time; the abort is recorded.
    :raises OtherClusterError: the attempt was written to another cluster; nothing is decided.
    """
    ref = manifest.attempt
    refuse_elsewhere(session, [row for row in session.ledger.attempts(ref.load) if row.number == ref.attempt])
    refusal = checks.refusal(manifest)
    if refusal:
        _abort(session, ref, owner, f"{_REFUSED}{refusal}")
        raise _refused(ref.load, ref.attempt, refusal)
    # asked last, so that a check that takes long does not eat the margin
    asked_s = time.time()
    try:
        seen = observe(session, manifest, margin_s)
    except TopicError as e:  # final, and nobody but cleanup would look again
        found = [e.message]
    else:
        found = problems(manifest, seen, now_ms=int(time.time() * 1000), margin_ms=int(margin_s * 1000))
    if found:
        _abort(session, ref, owner, found[0])
        raise UndecidableError(
            f"what prepare wrote can no longer be committed: {'; '.join(found[:3])}",
            remedy="Clear prepare: it opens a new attempt. If time ran out, raise hold_time",
            load=str(ref.load),
            attempt=ref.attempt,
        )
    for topic, config in sorted(seen.retention.items()):
        if text := warning(topic, config):
            log.warning("%s: %s", ref, text)
    # the brokers' answers hold for a while only: half the margin may pass until the ledger's lock is ours
    not_after = asked_s + margin_s / 2
    if also is None:
        row = session.ledger.decide_commit(manifest, decided_by=owner, not_after=not_after)
    else:
        _warn_of_timeouts(manifest)
        row = decide_beside(session.ledger, manifest, also, decided_by=owner, not_after=not_after)
    log.debug(
        "%s is decided: commit %d records in %s",
        ref,
        manifest.records,
        manifest.how,
    )
    return row


def _refused(load: LoadIdentity, attempt: int, refusal: str) -> CheckFailedError:
    remedy = "Mend the source or the check, then clear prepare: it opens a new attempt"
    if refusal.startswith(_NO_RECORDS):
        remedy = (
            f"Was the data there when the job read it? The key {load.key} is not taken: clear prepare once it is. "
            "Where a load may be empty, set min_records=0"
        )
    return CheckFailedError(
        f"the load is refused: {refusal}",
        remedy=remedy,
        load=str(load),
        attempt=attempt,
    )


def _warn_of_timeouts(manifest: Manifest) -> None:
    if manifest.transactions and not manifest.two_phase_commit:
        log.warning(
            "%s: a dual write without two-phase commit: should the broker end a transaction by its timeout once the "
            "rows are there, the records are missing until they are repaired. Set two_phase_commit='required'",
            manifest.attempt,
        )


def _abort(session: Session, ref: AttemptRef, owner: str, reason: str) -> None:
    if not session.ledger.decide_abort(ref, decided_by=owner, reason=reason):
        raise UndecidableError(
            "the attempt was decided commit meanwhile",
            remedy="Run decide again: it returns that decision",
            load=str(ref.load),
            attempt=ref.attempt,
        )
    log.debug("%s is decided: abort (%s)", ref, reason)  # what is raised says it


def observe(session: Session, manifest: Manifest, margin_s: float) -> Observed:
    """Ask the brokers what :func:`~airflow_kafka_eos.protocol.confirming.problems` goes by.

    :raises TopicError: a topic is gone.
    """
    ids = [t.transactional_id for t in manifest.transactions]
    partitions = sorted({w.topic_partition for p in manifest.prepared for w in p.writes})
    topics = sorted(manifest.topics)
    spent_ms = max(0, manifest.transaction_timeout_ms - int(margin_s * 1000))
    ref = manifest.attempt
    # first: of a topic that is gone no partition has a leader that answers
    infos = session.partitions.topic_info(topics)
    return Observed(
        descriptions=session.coordinator.describe(ids),
        producers=session.partitions.producers(partitions),
        topics=infos,
        log_starts=session.partitions.log_start_offsets(partitions),
        # asked of the brokers too, for their clocks are the ones that count; in two phases there is no timeout
        overdue=frozenset()
        if manifest.two_phase_commit
        else frozenset(session.coordinator.list_open(ref.id_prefix, longer_than_ms=spent_ms)),
        retention=session.partitions.topic_config(topics, sorted({*RETENTION, *COMPACTION})),
    )
