"""Decide: believe the manifest only as far as the brokers confirm it, then record one decision for all of it.

Rule: decide-what-is-confirmed.

:func:`observe` asks the brokers, :func:`problems` judges what they said without I/O.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from airflow_kafka_eos.dual_write import DualWrite
from airflow_kafka_eos.errors import CheckFailedError, ConfigurationError, TopicError, UndecidableError
from airflow_kafka_eos.kafka.admin.partitions import ProducerState
from airflow_kafka_eos.kafka.admin.preflight import RETENTION, fits_retention
from airflow_kafka_eos.kafka.records.scan import COMPACTION, warning
from airflow_kafka_eos.kafka.records.transaction_index import SETTINGS as INDEX_SETTINGS
from airflow_kafka_eos.ledger.dual_write import check_finished, decide_beside
from airflow_kafka_eos.ledger.rows import REFUSED, AttemptRow
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest, TopicInfo, TransactionWrites
from airflow_kafka_eos.protocol.guards.known_commits import check_name_known
from airflow_kafka_eos.protocol.guards.ownership import check_cluster
from airflow_kafka_eos.protocol.guards.restored_ledger import check_not_restored
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import (
    SEQUENCE_MODULUS,
    CoordinatorState,
    TopicPartition,
    TransactionDescription,
)

log = logging.getLogger(__name__)
#: Of a topic: those of its retention and its compaction, and what its list of aborted transactions is believed by.
SETTINGS = tuple(sorted({*RETENTION, *COMPACTION, *INDEX_SETTINGS}))
#: how the refusal of an empty load begins
_NO_RECORDS = "0 records, fewer than min_records="


@dataclass(frozen=True)
class Conditions:
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
    """The attempt that ``decide`` may decide, or the one that is decided to be committed already.

    :raises CheckFailedError: the author's checks have refused it before.
    :raises InDoubtError: its dual write, of whichever run, has committed the decision with a part of its rows only.
    :raises UndecidableError: prepare has not finished, was superseded by another run, or was aborted.
    """
    rows = session.ledger.attempts(load)
    for row in rows:
        if row.verdict is Verdict.COMMIT:
            check_finished(row)
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
    if newest.is_refused:
        raise _refused(load, newest.number, newest.reason.removeprefix(REFUSED))
    if newest.verdict is not None:
        raise UndecidableError(
            f"the load's newest attempt is aborted ({newest.reason})",
            remedy="Clear prepare, with what is downstream: it opens a new attempt",
            load=str(load),
            attempt=newest.number,
        )
    if newest.submitted_by != owner:
        raise UndecidableError(
            f"a newer attempt of another run ({newest.submitted_by}) has this load",
            remedy="Let that run decide it; clear prepare here only if it should not",
            load=str(load),
            attempt=newest.number,
        )
    return newest


def decide(
    session: Session,
    manifest: Manifest,
    checks: Conditions,
    *,
    owner: str,
    margin_s: float,
    dual_write: DualWrite | None = None,
    check_stop: Callable[[], object] = lambda: None,
) -> AttemptRow:
    """Record ``commit`` for all of the manifest's transactions, or ``abort`` and raise.

    :param margin_s: seconds, above 0, that each transaction must have left before the broker may time it out.
    :param dual_write: runs in the database transaction that records the decision (KIP-939): its rows and the records
        become true together, or neither. It runs no second time once the load is decided.
    :param check_stop: see :func:`.decisions.decide_commit`: what it raises leaves the attempt undecided.
    :raises DualWriteError: ``dual_write`` failed; nothing is decided, and decide may run again.
    :raises CheckFailedError: the author's checks refused it; the abort is recorded.
    :raises UndecidableError: a transaction is gone, changed, or out of time; the abort is recorded.
    :raises OtherClusterError: the attempt was written to another cluster; nothing is decided.
    :raises InDoubtError: brokers know more of the load than the ledger; nothing is decided.
    """
    ref = manifest.attempt
    check_cluster(session, [row for row in session.ledger.attempts(ref.load) if row.number == ref.attempt])
    refusal = checks.refusal(manifest)
    if refusal:
        _abort(session, ref, owner, f"{REFUSED}{refusal}")
        raise _refused(ref.load, ref.attempt, refusal)
    reads = session.ledger.range(ref.load, ref.attempt)
    if reads is not None and not reads.is_named:
        check_name_known(session, ref.load)  # behind what was prepared: a ledger may have been restored since
    # asked last, so that a check that takes long does not eat the margin
    asked = ask(session, manifest, margin_s)
    if not asked.is_topic_gone:
        check_not_restored(session, ref.load, slots=False)  # or it would be aborted, or there twice
    found = asked.problems
    if reads is not None and (problem := session.ledger.why_not_advance(ref.load, ref.attempt)):
        # the decision asks again, with the cursor locked; here what is refused is aborted, and can be ended
        found = [*found, problem]
    abort_uncommittable(session, ref, asked, found, owner=owner)
    if dual_write is None:
        row = session.ledger.decide_commit(
            manifest, decided_by=owner, not_after=asked.not_after, end_offsets=asked.seen.end_offsets,
            check_stop=check_stop,
        )  # fmt: skip
    else:
        _warn_of_timeouts(manifest)
        row = decide_beside(
            session.ledger, manifest, dual_write, decided_by=owner, not_after=asked.not_after,
            end_offsets=asked.seen.end_offsets, check_stop=check_stop,
        )  # fmt: skip
    log.debug(
        "%s is decided: commit %d records in %s",
        ref,
        manifest.records,
        manifest.how,
    )
    return row


class Asked(NamedTuple):
    """What brokers have answered before a decision.

    :param problems: see :func:`problems`; or that a topic is gone.
    :param not_after: epoch seconds; the answers hold for a while only, and half the margin may pass until the ledger's
        locks are ours.
    """

    seen: Observed
    problems: list[str]
    not_after: float
    is_topic_gone: bool = False


def ask(session: Session, manifest: Manifest, margin_s: float) -> Asked:
    """Ask the brokers about a manifest's transactions, and judge what they say. Nothing is decided."""
    not_after = time.time() + margin_s / 2
    try:
        seen = observe(session, manifest, margin_s)
    except TopicError as e:  # final, and nobody but cleanup would look again
        return Asked(Observed({}, {}, {}, {}), [e.message], not_after, is_topic_gone=True)
    found = problems(manifest, seen, now_ms=int(time.time() * 1000), margin_ms=int(margin_s * 1000))
    return Asked(seen, found, not_after)


def abort_uncommittable(
    session: Session, ref: AttemptRef, asked: Asked, found: Sequence[str], *, owner: str
) -> None:
    """Abort what can no longer be committed; of the rest, warn of topics whose settings may take its evidence.

    :param found: what speaks against committing.
    :raises UndecidableError: there is something; the abort is recorded.
    """
    if found:
        _abort(session, ref, owner, found[0])
        raise UndecidableError(
            f"what prepare wrote can no longer be committed: {'; '.join(found[:3])}",
            remedy="Clear prepare, with what is downstream: it opens a new attempt. If time ran out, raise hold_time",
            load=str(ref.load),
            attempt=ref.attempt,
        )
    for topic, config in sorted(asked.seen.topic_config.items()):
        if text := warning(topic, config):
            log.warning("%s: %s", ref, text)


def _abort(session: Session, ref: AttemptRef, owner: str, reason: str) -> None:
    if not session.ledger.decide_abort(ref, decided_by=owner, reason=reason):
        raise UndecidableError(
            "the attempt was decided to be committed meanwhile",
            remedy="Run decide again: it returns that decision",
            load=str(ref.load),
            attempt=ref.attempt,
        )
    log.debug("%s is decided: abort (%s)", ref, reason)  # what is raised says it


def _refused(load: LoadIdentity, attempt: int, refusal: str) -> CheckFailedError:
    remedy = "Correct the source or the check, then clear prepare, with what is downstream: it opens a new attempt"
    if refusal.startswith(_NO_RECORDS):
        remedy = (
            f"Was the data there when the job read it? The key {load.key} is not taken: clear prepare, with what is "
            "downstream, once it is. Where a load may be empty, set checks=Checks(min_records=0)"
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
            "%s: a dual write without two-phase commit: if a transaction times out after the decision, readers see "
            "the rows, and not the records, until commit repairs them. Set "
            "transactions=Transactions(two_phase_commit='required')",
            manifest.attempt,
        )


@dataclass(frozen=True)
class Observed:
    """What coordinators and partition leaders said about a manifest's transactions."""

    descriptions: Mapping[str, TransactionDescription]
    producers: Mapping[TopicPartition, Sequence[ProducerState]]
    topics: Mapping[str, TopicInfo]
    #: the first offset that each partition still has
    log_starts: Mapping[TopicPartition, int]
    #: transactional ids that have run so long, by the brokers' clocks, that less than the margin is left
    overdue: frozenset[str] = frozenset()
    #: topic -> :data:`SETTINGS`; empty where DESCRIBE_CONFIGS is missing
    topic_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: where each partition ended, right before its leader was asked for its producers
    end_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


def observe(session: Session, manifest: Manifest, margin_s: float) -> Observed:
    """Ask the brokers what :func:`~airflow_kafka_eos.protocol.stages.decide.problems` goes by.

    :raises TopicError: a topic is gone.
    """
    ids = [t.transactional_id for t in manifest.transactions]
    partitions = sorted({w.topic_partition for p in manifest.prepared for w in p.writes})
    topics = sorted(manifest.topics)
    spent_ms = max(0, manifest.transaction_timeout_ms - int(margin_s * 1000))
    ref = manifest.attempt
    # first: of a topic that is gone no partition has a leader that answers
    infos = session.partitions.topic_info(topics)
    # then what the leaders show as open cannot have its end marker before these
    ends = session.partitions.end_offsets(partitions)
    return Observed(
        end_offsets=ends,
        descriptions=session.coordinator.describe(ids),
        producers=session.partitions.producers(partitions),
        topics=infos,
        log_starts=session.partitions.log_start_offsets(partitions),
        # asked of the brokers too, for their clocks are the ones that count; in two phases there is no timeout
        overdue=frozenset()
        if manifest.two_phase_commit
        else frozenset(session.coordinator.list_open(ref.id_prefix, longer_than_ms=spent_ms)),
        topic_config=session.partitions.topic_config(topics, SETTINGS),
    )


def problems_by_now(session: Session, manifest: Manifest, margin_s: float) -> list[str]:
    """What :func:`decide` would refuse by now, whatever the author's checks say; empty where it would not."""
    return ask(session, manifest, margin_s).problems


def problems(manifest: Manifest, seen: Observed, *, now_ms: int, margin_ms: int) -> list[str]:
    """Everything that speaks against committing, one text each; empty when all is confirmed.

    Each transaction must be open under its recorded state (rule: recorded-identity), with the very timeout and
    partitions of the manifest, the number of records that each leader counted (last sequence + 1: one InitProducerId
    per transaction, rule: one-init-per-transaction), begun in each partition where the manifest says and not ended
    there since, and more than the margin left before the broker's timeout, if it has one (KIP-939).
    """
    found = []
    for name, info in manifest.topics.items():
        now = seen.topics.get(name)
        if now is None or now.topic_id != info.topic_id:
            found.append(f"topic {name} was deleted or recreated since prepare")
    found += _outdated(manifest, seen, now_ms + margin_ms)
    for prepared in manifest.prepared:
        found += _of_transaction(prepared, manifest, seen, now_ms, margin_ms)
    return found


def _outdated(manifest: Manifest, seen: Observed, visible_at_ms: int) -> list[str]:
    """Retention counts by the records' own time, whether they are committed or not."""
    oldest: dict[str, int] = {}
    for prepared in manifest.prepared:
        for w in prepared.writes:
            oldest[w.topic] = min(w.oldest_timestamp_ms, oldest.get(w.topic, w.oldest_timestamp_ms))
    return [
        f"topic {topic} may delete the first records before readers see them: raise retention.ms, which counts "
        "by the records' own timestamps"
        for topic, timestamp_ms in sorted(oldest.items())
        if not fits_retention(seen.topic_config.get(topic, {}), timestamp_ms, visible_at_ms)
    ]


def _of_transaction(
    prepared: TransactionWrites, manifest: Manifest, seen: Observed, now_ms: int, margin_ms: int
) -> list[str]:
    transaction = prepared.transaction
    name = transaction.transactional_id
    description = seen.descriptions.get(name)
    if description is None:
        return [f"transaction {name} is unknown to its coordinator"]
    if description.coordinator_state is not CoordinatorState.ONGOING:
        return [f"transaction {name} is {description.coordinator_state.value}, not Ongoing"]
    if description.state != transaction.state:
        return [f"transaction {name} is open as producer {description.state}, the manifest has {transaction.state}"]
    found = []
    if description.timeout_ms != manifest.transaction_timeout_ms:
        found.append(
            f"transaction {name}: its coordinator shows a timeout of {description.timeout_ms} ms, the manifest says "
            f"{manifest.transaction_timeout_ms} ms (two_phase_commit={manifest.two_phase_commit})"
        )
    written = {w.topic_partition for w in prepared.writes}
    if description.partitions != written:
        differs = ", ".join(map(str, sorted(description.partitions ^ written)))
        found.append(f"transaction {name}: broker and manifest disagree on partitions {differs}")
    if not description.is_two_phase:
        left = description.time_left_ms(now_ms)
        if name in seen.overdue:
            found.append(f"transaction {name} has less than {margin_ms / 1000:g} s left by its broker's clock")
        elif left < margin_ms:
            found.append(f"transaction {name} has {left / 1000:.1f} s left, {margin_ms / 1000:g} s are required")
    for w in prepared.writes:
        identity = (transaction.state.producer_id, transaction.state.producer_epoch)
        at_leader = seen.producers.get(w.topic_partition, ())
        states = [p for p in at_leader if (p.producer_id, p.producer_epoch) == identity]
        begins = seen.log_starts[w.topic_partition]
        if begins > w.first_offset:
            found.append(
                f"transaction {name}: {w.topic_partition} begins at offset {begins} now, records from {w.first_offset} "
                "on are deleted (retention.ms, retention.bytes or DeleteRecords)"
            )
        count = (states[0].last_sequence + 1) % SEQUENCE_MODULUS if states else 0
        if count != w.records % SEQUENCE_MODULUS:
            found.append(
                f"transaction {name}: {w.topic_partition} has {count} records, the manifest says {w.records}"
            )
        elif states[0].txn_start_offset != w.first_offset:
            # the coordinator may still call it Ongoing: markers can be written past it (KIP-664)
            begun = states[0].txn_start_offset
            shows = "none" if begun < 0 else f"one from offset {begun} on"
            found.append(
                f"transaction {name}: its leader shows {shows} open in {w.topic_partition}, the manifest says from "
                f"offset {w.first_offset} on: it was ended there, and not by its load"
            )
    return found
