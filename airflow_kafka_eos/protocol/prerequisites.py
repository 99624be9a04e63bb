"""What a load needs of its cluster, looked at before it is written: topics, rights, limits.

Nothing is changed by looking. What does not show (DESCRIBE_CONFIGS is missing, a broker shows no rights) is no error:
prepare and decide find it. What two-phase commit needs beyond the brokers' settings only an initialised id can tell, so
that is left to prepare too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from airflow_kafka_eos.errors import AccessError, TerminalError, TopicError
from airflow_kafka_eos.kafka import two_phase
from airflow_kafka_eos.kafka.inspecting import TopicSeen, check_may_end, topics_seen
from airflow_kafka_eos.kafka.listing_rights import never_used
from airflow_kafka_eos.kafka.preflight import RETENTION, check_hold_time, check_topics, oldest_kept_ms
from airflow_kafka_eos.load import LoadIdentity, TwoPhaseCommit, WriterName
from airflow_kafka_eos.protocol.session import Session

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """How a load will be written.

    :param writes: whether the principal that looks writes it; else Spark has a login of its own.
    """

    hold_time_ms: int
    two_phase_commit: TwoPhaseCommit
    writer: WriterName
    writes: bool


def refuse_missing_topics(session: Session, topics: Collection[str]) -> None:
    """
    :raises TopicError: a topic does not exist, or is Kafka's own.
    :raises AccessError: a topic may not even be described.
    """
    try:
        check_topics(session.partitions, sorted(topics))
    except TopicError as e:
        e.message = f"topics={sorted(topics)}: {e.message}"
        e.remedy = f"{e.remedy.rstrip('. ')}. Nothing makes a topic by itself; then clear begin"
        raise


def refuse_missing_rights(session: Session, load: LoadIdentity, topics: Collection[str], wanted: Wanted | None) -> None:
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


def refuse_limits(session: Session, topics: Collection[str], wanted: Wanted) -> None:
    """
    :raises ConfigurationError, BrokerTooOldError: ``two_phase_commit="required"`` where no broker can grant it; a
        ``hold_time`` that no broker grants where it counts; or a topic that keeps no record for so long.
    """
    now_ms = int(time.time() * 1000)
    for name, config in sorted(session.partitions.topic_config(topics, RETENTION).items()):
        if oldest_kept_ms(config, now_ms + wanted.hold_time_ms) > now_ms:
            raise TopicError(
                f"topic {name} keeps records for retention.ms={config['retention.ms']}, and the load may wait for its "
                f"decision for hold_time={wanted.hold_time_ms} ms: what is written now could be deleted before",
                remedy="Raise the topic's retention.ms, or set a shorter hold_time; then clear begin",
            )
    has_none = wanted.two_phase_commit is TwoPhaseCommit.OFF or wanted.writer is WriterName.CONFLUENT
    refused = None if has_none else two_phase.foreseen_refusal(session.partitions.wire, session.partitions)
    if refused is not None and wanted.two_phase_commit is TwoPhaseCommit.REQUIRED:
        raise refused
    if has_none or refused is not None:
        check_hold_time(session.partitions, wanted.hold_time_ms)
