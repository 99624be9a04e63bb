"""Hanging transactions: whose they are, whether that is proven, and ending those that are ours (KIP-664, KIP-890).

Rules: only-our-ids, hanging-is-proven, unknown-commit-stops.

Found by producer state: a partition's leader has a transaction open that its coordinator does not know, or knows as
ended. Nothing but a marker, written past the coordinator, ends it: here an abort marker; what is decided is
:mod:`.forgotten_markers`'s. Without transaction version 2 (brokers before 4.0, and older clients) a delayed produce
request is enough to make one; and a broker that comes up may forget an end.

A live transaction that one may not see looks the same. So what is not proven to hang is said to be not proven, with
what would prove it (docs/adr/0024). How long ago its last record was proves nothing: records carry the times that
their application gives them.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from airflow_kafka_eos.errors import (
    AccessError,
    ConfigurationError,
    InDoubtError,
    KafkaEosError,
    NotFinishedError,
    UndecidableError,
)
from airflow_kafka_eos.kafka.admin.inspect import topics_seen
from airflow_kafka_eos.kafka.admin.open_producers import (
    OpenProducer,
    open_producers,
    who_may,
    why_hanging,
    write_marker,
)
from airflow_kafka_eos.kafka.admin.preflight import MAX_TIMEOUT
from airflow_kafka_eos.ledger.rows import AttemptRow, TransactionRow
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.naming import PooledId, parse
from airflow_kafka_eos.protocol.guards.coordinator_watch import CoordinatorWatch, is_finished, listed_open
from airflow_kafka_eos.protocol.guards.ownership import holder_of, is_ours, others_hidden
from airflow_kafka_eos.protocol.guards.restored_ledger import check_commits_known
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TopicPartition

log = logging.getLogger(__name__)
#: Where the broker does not show its transaction.max.timeout.ms: Kafka's default.
_DEFAULT_MAX_TIMEOUT_MS = 900_000
#: Behind it a coordinator gets this long to end what has timed out, as kafka-transactions.sh does.
_GRACE_MS = 300_000
_VERIFY_S = 30.0
#: Seconds between the two listings that must both lack a producer id: a new coordinator lists nothing for a moment.
_APART_S = 3.0
Prepared = tuple[AttemptRow, TransactionRow]


class Whose(str, Enum):
    """Who may end it."""

    #: the ledger knows it, and it is not, or no more, part of a decision that is to be completed: it may be ended here
    OURS = "ours"
    #: its attempt may still be committed: make it undecidable first (cleanup)
    UNDECIDED = "ours, undecided"
    #: its load is decided to be committed, and not verified yet: commit or recover it
    DECIDED = "ours, decided"
    #: another application's, or another deployment's: only shown, never ended (rule: only-our-ids)
    FOREIGN = "foreign"


@dataclass(frozen=True)
class HangingTransaction:
    """A transaction that holds back a partition's readers, and that no coordinator is seen to end.

    :param idle_ms: since its last record, by the record's own timestamp against this machine's clock: an application
        dates its records as it likes, and may be at work.
    :param transactional_id: as far as anybody knows.
    :param attempt: the ledger's, where it is ours.
    :param doubt: why it may be alive all the same, and what would tell; None: it is proven to hang.
    """

    producer: OpenProducer
    transactional_id: str | None
    why: str
    idle_ms: int
    whose: Whose
    attempt: AttemptRow | None = None
    doubt: KafkaEosError | None = None

    @property
    def is_proven(self) -> bool:
        return self.doubt is None

    def __str__(self) -> str:
        p = self.producer
        return f"{p.partition}: producer {p.state} since offset {p.txn_start_offset} ({self.why})"


def what_to_do(hanging: HangingTransaction, bootstrap_servers: str, looked_by: str = "") -> str:
    """For people: what to make sure of first, and what ends it then. No I/O.

    :param looked_by: options that it was found by, and is not found without.

    Until its application is stopped, a hanging transaction of another one is not safe to end either: the application's
    next transaction under that producer id takes in what is open, and the marker would abort the records of both.
    """
    p = hanging.producer
    if hanging.doubt is not None:
        return f"It may belong to an application that is running: end nothing. {hanging.doubt.remedy.rstrip('. ')}"
    match hanging.whose:
        case Whose.OURS:
            return f"airflow-kafka-eos transactions hanging --topic {p.partition.topic}{looked_by} --abort ends it"
        case Whose.UNDECIDED:
            return "Make its attempt undecidable first: run cleanup for its load"
        case Whose.DECIDED:
            return "Run `loads recover` for its load: that also ends what its coordinator has forgotten"
        case Whose.FOREIGN:
            return _what_its_owner_has_to_do(hanging, bootstrap_servers)
    assert_never(hanging.whose)


def _what_its_owner_has_to_do(hanging: HangingTransaction, bootstrap_servers: str) -> str:
    p = hanging.producer
    command = (
        f"kafka-transactions.sh --bootstrap-server {bootstrap_servers} abort --topic {p.partition.topic} "
        f"--partition {p.partition.partition} --start-offset {p.txn_start_offset}"
    )
    if hanging.transactional_id is None:
        return (
            "No application can go on with it. If loads of another ledger write to this topic, look with that one "
            f"first: {_look_there(p.partition.topic, '…')} says whether it is part of one. Else somebody with ALTER on "
            f"the Cluster ends it: {command}"
        )
    parsed = parse(hanging.transactional_id)
    if parsed is not None:
        # a decided load may have its commit markers in other partitions: an abort marker here would tear it
        return (
            f"It is of a load of ledger {parsed.ledger_id}, namespace {parsed.namespace}, which may be decided, and "
            "visible in other partitions: write no marker by hand. Look with that ledger: "
            f"{_look_there(p.partition.topic, shlex.quote(parsed.namespace))} says what ends it there, of a decided "
            "load `airflow-kafka-eos loads recover NAME KEY`. If you have looked with that ledger already, it was "
            'restored from a backup: docs/howto-on-call.md, "The ledger was restored". If it is lost for good: '
            '"A deployment is gone", there'
        )
    return (
        f"Do not end it while an application uses transactional id {hanging.transactional_id}: its next "
        "transaction would include what is open here, and be aborted with it. Stop the application, and look "
        f"again. If the same is shown then, somebody with ALTER on the Cluster ends it: {command}"
    )


def _look_there(topic: str, namespace: str) -> str:
    return (
        f"`airflow-kafka-eos transactions hanging --topic {topic} --running-longer-than 0s --namespace {namespace} "
        "--conn-id …`"
    )


def check_abortable(hanging: HangingTransaction) -> None:
    """
    :raises ConfigurationError: it is foreign (rule: only-our-ids).
    :raises UndecidableError: it is ours, and undecided or decided.
    """
    match hanging.whose:
        case Whose.OURS:
            return
        case Whose.FOREIGN:
            raise ConfigurationError(
                f"the hanging transaction {hanging} is not of this ledger and namespace: it is never ended here",
                remedy=what_to_do(hanging, "…"),
            )
        case Whose.UNDECIDED | Whose.DECIDED:
            raise UndecidableError(
                f"the hanging transaction {hanging} is {hanging.whose.value}",
                remedy=what_to_do(hanging, "…"),
                load=str(hanging.attempt.load) if hanging.attempt else None,
                attempt=hanging.attempt.number if hanging.attempt else None,
                transactional_id=hanging.transactional_id,
            )
    assert_never(hanging.whose)


def find(
    session: Session, partitions: Iterable[TopicPartition], *, longer_than_ms: int | None = None
) -> list[HangingTransaction]:
    """Transactions in these partitions that hang, or may hang, by partition and start offset. Ends nothing.

    A transaction is hanging when its leader shows it open, no coordinator will end it (:func:`why_hanging`), and the
    leader still shows it, without a new record, behind the coordinators' answers. Where its transactional id is not
    known, that no coordinator has it counts only if none can have been left out: every id may be described, and two
    listings some seconds apart lack it, the later one while no coordinator moved. Else it has a ``doubt``.

    :param longer_than_ms: look only at those whose last record has a timestamp at least so old; default
        :func:`longest_wait_ms`. It narrows the search, and proves nothing.
    :raises AccessError: READ on a topic, or DESCRIBE on an id of ours, is missing.
    """
    return _search(session, partitions, longer_than_ms, nameless=True)


def longest_wait_ms(session: Session) -> int:
    """After so long without a record a transaction without two-phase commit must have been timed out."""
    return max(session.broker_limits(MAX_TIMEOUT), default=_DEFAULT_MAX_TIMEOUT_MS) + _GRACE_MS


def _search(
    session: Session, partitions: Iterable[TopicPartition], longer_than_ms: int | None, *, nameless: bool
) -> list[HangingTransaction]:
    """:param nameless: also those that neither ledger nor coordinators have a transactional id of; none is ours."""
    wire = session.partitions.wire
    wait_ms = longest_wait_ms(session) if longer_than_ms is None else longer_than_ms
    now_ms = int(time.time() * 1000)
    # records may be dated in the future, by their author or another machine's clock
    idle = [p for p in open_producers(wire, partitions) if wait_ms <= 0 or now_ms - p.last_timestamp_ms >= wait_ms]
    if not idle:
        return []
    watch = CoordinatorWatch(session)
    rows = session.partitions.listed(p.producer_id for p in idle)
    names = {row.producer_id: row.transactional_id for row in rows}
    holders = _prepared_as(session, idle, names)
    # the ledger's ids are described by name too: a coordinator that moves hides its ids from a listing
    # (rule: listing-only-adds)
    for state, (_, t) in holders.items():
        names.setdefault(state.producer_id, t.transaction.transactional_id)
    described = session.coordinator.describe(names.values())
    # one coordinator's word that it is finished does not count while any lists it as open (:func:`.finished`)
    listed = listed_open(session) | {row.transactional_id for row in rows if row.may_be_open}
    unsure = watch.doubt()
    found = []
    for producer in idle:
        name = names.get(producer.producer_id)
        seen = described.get(name) if name else None
        why = why_hanging(producer, seen)
        if name is None or not why or (name in listed and is_finished(seen)):
            continue
        whose, attempt = _whose(session, producer, name, holders.get(producer.state))
        doubt = unsure if whose is Whose.FOREIGN else None
        idle_ms = now_ms - producer.last_timestamp_ms
        found.append(HangingTransaction(producer, name, why, idle_ms, whose, attempt, doubt))
    if nameless:
        found += _nameless(session, [p for p in idle if p.producer_id not in names], now_ms)
    # behind all answers: in between a marker may have come
    still = open_producers(wire, {h.producer.partition for h in found})
    looked_again = (_again(h, still) for h in found)
    return sorted((h for h in looked_again if h), key=lambda h: (h.producer.partition, h.producer.txn_start_offset))


def _prepared_as(
    session: Session, idle: list[OpenProducer], names: Mapping[int, str]
) -> dict[PreparedTxnState, Prepared]:
    """Who has prepared a transaction under these producer ids and epochs, on this very cluster.

    A ledger may serve several clusters, and producer ids are small numbers: the transactional id must be the same, or
    where nobody remembers it, the recorded topic id.
    """
    topics = session.partitions.topic_info({p.partition.topic for p in idle}, to_read=True)
    found = {}
    for attempt, row in session.ledger.prepared_as({p.state for p in idle}):
        transaction = row.transaction
        written = {p.partition.topic for p in idle if p.state == transaction.state}
        listed = names.get(transaction.state.producer_id)
        here = any(row.topic_ids.get(topic) == topics[topic].topic_id for topic in written)
        if listed == transaction.transactional_id or (listed is None and here):
            found[transaction.state] = (attempt, row)
    return found


def _whose(
    session: Session,
    producer: OpenProducer,
    name: str | None,
    holder: Prepared | None,
) -> tuple[Whose, AttemptRow | None]:
    name = holder[1].transaction.transactional_id if holder else name
    if name is None or not is_ours(session, name):
        return Whose.FOREIGN, None
    attempt = holder[0] if holder else holder_of(session, PreparedTransaction(name, producer.state))
    if attempt is None:
        return Whose.FOREIGN, None  # a ledger that was restored: not known, so not ours to end
    match attempt.verdict:
        case None:
            return Whose.UNDECIDED, attempt
        case Verdict.COMMIT:
            is_given_up = session.ledger.state(attempt.load) is LoadState.GIVEN_UP
            is_decided = not is_given_up and not is_behind(producer, attempt, _last_offsets(session, attempt, holder))
            return Whose.DECIDED if is_decided else Whose.OURS, attempt
        case Verdict.ABORT:
            return Whose.OURS, attempt
    assert_never(attempt.verdict)


def _last_offsets(
    session: Session, attempt: AttemptRow, holder: Prepared | None
) -> Mapping[TopicPartition, int] | None:
    """Of what was decided, in each partition; of an attempt that was pruned, of all of it. None: never decided."""
    if holder is not None:
        return holder[1].last_offsets
    return None if attempt.pruned_at is None else session.ledger.summary(attempt.load, attempt.number).last_offsets


def is_behind(producer: OpenProducer, attempt: AttemptRow, last_offsets: Mapping[TopicPartition, int] | None) -> bool:
    """Whether what is open began behind a decided transaction whose every commit marker was seen.

    Rule: zombie-behind-the-commit.

    Then it is what a zombie wrote after the end, and no record of the load. A task attempt of a decided load whose
    transaction was never reported is no part of the decision at all.
    """
    if last_offsets is None:
        return True
    if attempt.closed_at is None:
        return False
    return producer.txn_start_offset > last_offsets.get(producer.partition, -1)


def _nameless(session: Session, producers: list[OpenProducer], now_ms: int) -> list[HangingTransaction]:
    if not producers:
        return []
    doubt: KafkaEosError | None = others_hidden(session)
    if doubt is None:
        time.sleep(_APART_S)
        watch = CoordinatorWatch(session)
        known = {row.producer_id for row in session.partitions.listed(p.producer_id for p in producers)}
        producers = [p for p in producers if p.producer_id not in known]
        doubt = watch.doubt()
    seen = "" if doubt is None else " that may be seen from here"
    why = f"no coordinator{seen} knows its producer id"
    return [
        HangingTransaction(p, None, why, now_ms - p.last_timestamp_ms, Whose.FOREIGN, doubt=doubt)
        for p in producers
    ]


def _again(hanging: HangingTransaction, still: Iterable[OpenProducer]) -> HangingTransaction | None:
    """As the leader shows it now; None: it is over."""
    now = next((p for p in still if _same(p, hanging.producer)), None)
    if now is None or hanging.whose is not Whose.FOREIGN or not hanging.is_proven or now == hanging.producer:
        return None if now is None else hanging
    return replace(
        hanging,
        producer=now,
        doubt=NotFinishedError(
            "its producer has written a record since the first look",
            remedy="Ask whose application it is. End nothing of an application that is running",
        ),
    )


def _same(one: OpenProducer, other: OpenProducer) -> bool:
    """The same transaction; a record more does not make it another one."""
    return one[:3] == other[:3] and one.txn_start_offset == other.txn_start_offset


def end_ours(
    session: Session,
    partitions: Iterable[TopicPartition],
    load: LoadIdentity | None = None,
    *,
    up_to: int = 0,
    longer_than_ms: int | None = 0,
    ended: list[HangingTransaction] | None = None,
) -> list[HangingTransaction]:
    """End what hangs in these partitions, is ours, and is part of no decision; what was ended.

    What is gone meanwhile is no error. A load that was given up is left to a person (`transactions hanging --abort`).
    One that may not be ended, or is not seen to end, keeps no other from being ended.

    :param partitions: those that are not there any more count for nothing.
    :param load: only what attempts of this load with number ``up_to`` or below have left; None: all of the namespace.
    :param longer_than_ms: see :func:`find`.
    :param ended: to be filled, so that what was ended outlives an error; None: a new list.
    :raises AccessError: READ on a topic or ALTER on the Cluster is missing: says who has to do what.
    :raises InDoubtError: see :func:`abort`; the first of those that were refused, once the others are ended.
    :raises NotFinishedError: the same.
    """
    there = still_there(session, partitions)
    ended = [] if ended is None else ended
    found = _search(session, there, longer_than_ms, nameless=False) if there else []

    def is_ours_to_end(one: HangingTransaction) -> bool:
        attempt, name = one.attempt, one.transactional_id
        if one.whose is not Whose.OURS or attempt is None or name is None:
            return False
        if load is not None and (attempt.load != load or attempt.number > up_to):
            return False  # rule: up-to-its-own-attempt
        is_decided = session.ledger.is_decided_commit(PreparedTransaction(name, one.producer.state))
        return not is_decided or session.ledger.state(attempt.load) is LoadState.COMMITTED

    # each is asked about right before it is ended
    refused = abort_each(session, filter(is_ours_to_end, found), ended)
    for error in refused:
        if not isinstance(error, UndecidableError):  # it was ended meanwhile
            raise error  # after what could be ended is ended
    return ended


def abort_each(
    session: Session, some: Iterable[HangingTransaction], ended: list[HangingTransaction]
) -> list[KafkaEosError]:
    """:func:`abort` each of them; one that is refused keeps no other from being ended.

    :param ended: to be filled.
    :returns: why the others were not: UndecidableError, InDoubtError, NotFinishedError.
    :raises AccessError: see :func:`abort`.
    """
    refused: list[KafkaEosError] = []
    hides: NotFinishedError | None = None
    for one in some:
        name = one.transactional_id
        if hides is not None and name is not None and PooledId.parse(name) is not None:
            refused.append(hides)  # each would be waited for as long, and be refused for the same
            continue
        try:
            abort(session, one)
        except (UndecidableError, InDoubtError, NotFinishedError) as e:
            refused.append(e)
            if isinstance(e, NotFinishedError):
                hides = e
            if not isinstance(e, UndecidableError):
                log.warning("the hanging transaction %s is left: %s", one, e.message)
        else:
            log.info("the hanging transaction %s of %s is ended", one, name)
            ended.append(one)
    return refused


def end_hanging_in(partitions: Iterable[TopicPartition], *more: str) -> str:
    """The command that ends what hangs of ours there, however young it is. No I/O."""
    topics = [word for topic in sorted({p.topic for p in partitions}) for word in ("--topic", topic)]
    words = ["transactions", "hanging", *topics, "--running-longer-than", "0s", *more]
    return f"airflow-kafka-eos {shlex.join(words)} --abort"


def still_there(session: Session, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Of these partitions those that exist: a topic may have been deleted."""
    wanted = set(partitions)
    return sorted(wanted.intersection(_leaders_of(session, {p.topic for p in wanted})))


def of_the_ledger(session: Session) -> list[TopicPartition]:
    """All partitions of the topics that loads of the namespace were prepared for, and that are still there.

    One without a leader is left out, and named in a warning: nobody can say what it has open, and for that the others
    need not wait.

    :raises AccessError: DESCRIBE on one of them is missing.
    """
    leaders = _leaders_of(session, session.ledger.topics(session.namespace))
    away = [str(partition) for partition, leader in leaders.items() if leader < 0]
    if away:
        log.warning("not looked at, for there is no leader: %s", ", ".join(away))
    return [partition for partition, leader in leaders.items() if leader >= 0]


def _leaders_of(session: Session, topics: Iterable[str]) -> dict[TopicPartition, int]:
    """Each partition's leader, -1 where there is none, of the topics that are there; one request for all."""
    return {
        TopicPartition(topic, p.partition): p.leader
        for topic, seen in sorted(topics_seen(session.partitions.wire, topics).items())
        if seen is not None
        for p in seen.partitions
    }


def abort(session: Session, hanging: HangingTransaction) -> None:
    """End one that is ours by an abort marker, and see that it is gone.

    It is looked for once more right before: what has been ended or begun since then is not touched. A pooled id is its
    slot's holder's, and of a ledger that was restored that is not whose it is: it may be a part of what is decided, and
    visible in other partitions. So brokers are asked last (rule: unknown-commit-stops).

    :raises ConfigurationError: it is foreign (rule: only-our-ids).
    :raises UndecidableError: it is undecided, decided, or not hanging (any more).
    :raises InDoubtError: its id is pooled, and brokers show a commit under the load's name that the ledger has not
        decided. Nothing is written.
    :raises NotFinishedError: the leader still shows it after half a minute; or its id is pooled, and a coordinator that
        is moving or away may hide such a commit.
    :raises AccessError: ALTER on the Cluster is missing.
    """
    check_abortable(hanging)
    producer = hanging.producer
    again = _search(session, [producer.partition], 0, nameless=False)
    now = next((h for h in again if _same(h.producer, producer)), None)
    if now is None:
        raise UndecidableError(
            f"{hanging} is not hanging any more", remedy="Nothing is left to do: look again to be sure"
        )
    name = now.transactional_id
    is_pooled = name is not None and PooledId.parse(name) is not None
    if is_pooled and now.whose is Whose.FOREIGN:
        raise UndecidableError(
            f"{hanging} was ours, and its slot was leased anew meanwhile: whose it is is not known",
            remedy="Look for hanging transactions again, once that load is through",
        )
    check_abortable(now)
    if now.attempt is not None and is_pooled:
        check_commits_known(session, now.attempt.load)
    wire = session.partitions.wire
    log.warning("writing an abort marker for the hanging transaction %s", now)
    try:
        is_written = write_marker(wire, now.producer, Verdict.ABORT)
    except AccessError as e:
        raise AccessError(
            f"a hanging transaction of this ledger holds readers back, {now}; it cannot be ended from here: "
            f"{e.message}",
            remedy=f"Run `airflow-kafka-eos transactions hanging --running-longer-than 0s --abort` {who_may(e)}",
            load=str(now.attempt.load) if now.attempt else None,
            attempt=now.attempt.number if now.attempt else None,
            transactional_id=now.transactional_id,
        ) from e
    if not is_written:
        raise UndecidableError(
            f"{hanging} was ended, or begun anew, meanwhile", remedy="Look for hanging transactions again"
        )
    give_up = time.monotonic() + _VERIFY_S
    while any(_same(p, producer) for p in open_producers(wire, [producer.partition])):
        if time.monotonic() >= give_up:
            raise NotFinishedError(
                f"{hanging} is still open {_VERIFY_S:g} s after its abort marker was accepted",
                remedy="Look for hanging transactions again",
            )
        time.sleep(0.1)
