"""Ending transactions: ``transactions commit``, ``abort``, ``force-terminate`` and ``hanging``.

The ledger is asked, and written, before a broker is told (rule: decide-before-kafka).
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, assert_never

from airflow_kafka_eos.cli.cleanup import add_quiet
from airflow_kafka_eos.cli.durations import milliseconds, text_of
from airflow_kafka_eos.cli.target import (
    add_partition,
    add_session,
    add_transactional_id,
    id_or_partition,
    needed_id,
    open_session,
    say_where,
    transaction_at,
)
from airflow_kafka_eos.cli.terminal import (
    FOUND,
    OK,
    add_deadline,
    add_yes,
    code_of,
    confirm,
    person,
    say,
    show,
    worst,
)
from airflow_kafka_eos.errors import ConfigurationError, InDoubtError, UndecidableError
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.naming import PooledId, parse
from airflow_kafka_eos.transaction import TopicPartition

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.protocol.hanging import HangingTransaction
    from airflow_kafka_eos.protocol.session import Session
    from airflow_kafka_eos.transaction import PreparedTransaction, TransactionDescription


def add_to(transactions: Any) -> None:
    """Add the commands to those of ``transactions``."""
    commit = transactions.add_parser(
        "commit",
        help="roll the decided load of a transaction forward",
        description="Roll the load of a decided transaction forward, with all of its transactions. What is not decided "
        "is not committed: the task decide does that, for a whole load.",
    )
    commit.set_defaults(run=_commit)
    abort = transactions.add_parser(
        "abort",
        help="abort the attempt that a transaction belongs to",
        description="Make the attempt that a transaction belongs to undecidable in the ledger. Then end all that it, "
        "and older attempts of its load, have open.",
    )
    add_partition(abort)
    add_quiet(abort)
    abort.set_defaults(run=_abort)
    terminate = transactions.add_parser(
        "force-terminate",
        aliases=["forceTerminateTransaction"],
        help="abort one transaction, ledger first",
        description="Make its attempt undecidable in the ledger, then abort what is open under one transactional id, "
        "by the identity that its coordinator shows. Never one that is decided to be committed, unless its load was "
        "given up by name before (loads give-up). Unlike KIP-939's forceTerminateTransaction it sends no "
        "InitProducerId, which would abort whatever is open by then.",
    )
    terminate.set_defaults(run=_force_terminate)
    for command, reason in ((commit, ""), (abort, "aborted by hand"), (terminate, "terminated by hand")):
        add_transactional_id(command)
        if reason:
            command.add_argument("--reason", default=reason, help=f"it is kept in the ledger; default: {reason}")
            add_yes(command)
        add_deadline(command, 60)
        add_session(command)

    hanging = transactions.add_parser(
        "hanging",
        help="find transactions that no coordinator will end",
        description="Find transactions that a partition has open and no coordinator will end, in the given topics; "
        "without --topic, in those that loads of the namespace were prepared for, as the ledger has them. "
        "With --abort, those that are this ledger's, and no part of a decision, are ended by an abort marker in their "
        "partition; it needs ALTER on the Cluster. Those of other applications are only shown: as hanging where that "
        "is proven, otherwise as what may be alive, with the permissions that would tell.",
    )
    hanging.add_argument("--topic", action="append", metavar="TOPIC", help="may be given several times")
    hanging.add_argument(
        "--running-longer-than", type=milliseconds, metavar="DURATION",
        help="without a record for so long, by the records' own timestamps, which prove nothing: it only narrows the "
        "search; default: the brokers' transaction.max.timeout.ms and 5 minutes",
    )  # fmt: skip
    hanging.add_argument("--abort", action="store_true", help="end those of this ledger; the default only shows them")
    add_yes(hanging)
    add_session(hanging)
    hanging.set_defaults(run=_hanging)


def _commit(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.repair.recover import recover

    name = needed_id(arguments)
    with open_session(arguments) as session:
        attempt = _attempt(session, name)
        if not _is_decided(session, attempt, name):
            raise UndecidableError(
                f"the transaction is not decided to be committed: {_why_undecided(attempt.verdict)}",
                remedy="Clear the task decide in Airflow: only what the ledger has decided to commit is committed",
                load=str(attempt.load),
                attempt=attempt.number,
                transactional_id=name,
            )
        row = recover(session, attempt.load, by=person(), deadline_s=arguments.deadline)
        _show(arguments, session, attempt)
    return OK if row.state is LoadState.COMMITTED else FOUND


def _abort(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.cleanup.namespace import clean
    from airflow_kafka_eos.protocol.guards.restored_ledger import check_may_abort

    named = id_or_partition(arguments)
    with open_session(arguments) as session:
        if isinstance(named, str):
            name, attempt = named, _attempt(session, named)
        else:
            at = transaction_at(session.partitions.wire, named, arguments.start_offset)
            name, attempt = at.transactional_id, _attempt_at(session, named, at)
        _check_not_decided(session, attempt, name)
        confirm(arguments, f"Abort attempt {attempt.number} of load {attempt.load}, and end all that it has open?")
        check_may_abort(session, attempt.load)
        session.ledger.make_undecidable(
            attempt.load, up_to=attempt.number, decided_by=person(), reason=arguments.reason
        )
        _check_not_decided(session, attempt, name)  # decided while we asked
        (swept,) = clean(
            session,
            {attempt.load: attempt.number},
            by=person(),
            quiet_s=arguments.quiet / 1000,
            deadline_s=arguments.deadline,
        )
        if swept.error is not None:
            raise swept.error
        _show(arguments, session, attempt, ended=swept.aborted)
    return OK


def _force_terminate(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.cleanup.force_terminate import force_terminate

    name = needed_id(arguments)
    with open_session(arguments) as session:
        attempt = _attempt(session, name)
        undecided = ", which nobody has decided yet: a run may be working on it" if attempt.is_undecided else ""
        confirm(arguments, f"Abort {name}, of attempt {attempt.number} of load {attempt.load}{undecided}?")
        ended = force_terminate(
            session, name, by=person(), reason=arguments.reason, deadline_s=arguments.deadline, of=attempt
        )
        _show(arguments, session, attempt, ended=() if ended is None else (ended.transactional_id,))
    return OK


def _attempt_at(session: Session, tp: TopicPartition, at: PreparedTransaction) -> AttemptRow:
    """Whose it is that a partition has open; refuses what :func:`_attempt` does.

    :raises UndecidableError: its id is a slot's, and its coordinator shows another one under it: it hangs, and the slot
        may be another attempt's by now.
    """
    from airflow_kafka_eos.protocol.guards.slots import ENDING, may_show

    attempt, seen = _attempt_seen(session, at.transactional_id)
    is_shown = seen is not None and seen.is_open and seen.state == at.state
    if seen is not None and seen.coordinator_state in ENDING:
        is_shown = may_show(at.state, seen.state)  # its markers are still to come
    if isinstance(parse(at.transactional_id), PooledId) and not is_shown:
        raise UndecidableError(
            f"what {tp} has open as {at.state} is not what the coordinator shows under this id: it hangs, and the id "
            f"was given to attempt {attempt.number} of load {attempt.load} since, which need not be its own",
            remedy=f"Nothing was done. `airflow-kafka-eos transactions hanging --topic {tp.topic} "
            "--running-longer-than 0s` shows whose it is; with --abort it ends what may be ended",
            load=str(attempt.load),
            attempt=attempt.number,
            transactional_id=at.transactional_id,
        )
    return attempt


def _attempt(session: Session, name: str) -> AttemptRow:
    """Whose it is now; refuses what is not ours, or not of this cluster."""
    return _attempt_seen(session, name)[0]


def _attempt_seen(session: Session, name: str) -> tuple[AttemptRow, TransactionDescription | None]:
    """:func:`_attempt`, and what its coordinator shows."""
    from airflow_kafka_eos.protocol.guards.ownership import (
        check_cluster,
        check_ours,
        ending_the_unknown,
        present_holder,
    )

    check_ours(session, name)
    seen = session.coordinator.describe([name]).get(name)
    attempt = present_holder(session, name, seen)
    if attempt is None:
        raise InDoubtError(
            "the ledger does not know the attempt of this transactional id",
            remedy=ending_the_unknown(name),
            transactional_id=name,
        )
    check_cluster(session, [attempt])
    return attempt, seen


def _is_decided(session: Session, attempt: AttemptRow, name: str) -> bool:
    """Whether the attempt is decided by now, with a transaction of this id: also one that a repair has replaced."""
    now = session.ledger.attempt(attempt.load, attempt.number)
    if now is None or now.verdict is not Verdict.COMMIT:
        return False
    rows = session.ledger.transactions(attempt.load, attempt.number)
    if now.pruned_at is not None:
        return True  # whether it was one of them is forgotten: all of them are committed
    return any(row.transaction.transactional_id == name for row in rows)


def _why_undecided(verdict: Verdict | None) -> str:
    match verdict:
        case Verdict.ABORT:
            return "its attempt is aborted"
        case Verdict.COMMIT | None:  # of a committed attempt: not the one that was decided
            return "it is not decided yet"
    assert_never(verdict)


def _check_not_decided(session: Session, attempt: AttemptRow, name: str) -> None:
    if _is_decided(session, attempt, name):
        raise UndecidableError(
            "the transaction is decided to be committed: it can only be rolled forward",
            remedy="Run `airflow-kafka-eos transactions commit`, or `loads recover`",
            load=str(attempt.load),
            attempt=attempt.number,
            transactional_id=name,
        )


def _show(
    arguments: argparse.Namespace, session: Session, attempt: AttemptRow, ended: tuple[str, ...] = ()
) -> None:
    row = session.ledger.load(attempt.load)
    now = session.ledger.attempt(attempt.load, attempt.number)
    shown = {
        "load": str(attempt.load),
        "state": None if row is None else row.state,
        "attempt": attempt.number,
        "verdict": None if now is None else now.verdict,
        "aborted": list(ended),
    }
    show(arguments, shown)


def _hanging(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.hanging import Whose, abort_each, find, longest_wait_ms, what_to_do

    longer_than_ms = arguments.running_longer_than
    looked_by = "" if longer_than_ms is None else f" --running-longer-than {text_of(longer_than_ms)}"
    with open_session(arguments) as session:
        topics = arguments.topic or _of_the_ledger(session)
        found = find(session, _partitions(session, topics), longer_than_ms=longer_than_ms)
        say_where(session)
        unless_given = longest_wait_ms(session) if longer_than_ms is None and not found else None
        ours = [h for h in found if h.whose is Whose.OURS] if arguments.abort else []
        if ours:
            confirm(arguments, f"Write abort markers for {len(ours)} hanging transactions of this ledger?")
        ended: list[HangingTransaction] = []
        refused = abort_each(session, ours, ended)
        servers = session.partitions.wire.settings.bootstrap_servers
    shown = [
        _row(h, h in ended) | {"what_to_do": None if h in ended else what_to_do(h, servers, looked_by)} for h in found
    ]
    nothing = f"no hanging transactions in {', '.join(topics)}"
    if show(arguments, shown, [_for_people(row) for row in shown], nothing=nothing):
        for row in shown:
            if row["what_to_do"]:
                print(f"\n{row['topic']}-{row['partition']}, offset {row['start_offset']}: {row['what_to_do']}")
    if unless_given is not None:
        say(
            f"only what has had no record for {text_of(unless_given)} was looked at (transaction.max.timeout.ms of the "
            "brokers and 5 minutes); --running-longer-than 0s looks at all that is open"
        )
    doubts = {str(h.doubt): h.doubt for h in found if h.doubt is not None}
    for text in doubts:
        say(f"airflow-kafka-eos: NOT PROVEN TO HANG: {text}")
    for error in refused:
        say(f"airflow-kafka-eos: {type(error).__name__}: {error}")
    left = [h for h in found if h.is_proven and h not in ended]
    return worst([*([FOUND] if left else []), *map(code_of, [*doubts.values(), *refused])])


def _of_the_ledger(session: Session) -> list[str]:
    """Existing topics of the namespace's loads, said on stderr: nobody has named them.

    :raises ConfigurationError: there is none.
    """
    from airflow_kafka_eos.kafka.admin.inspect import topics_seen

    known = sorted(session.ledger.topics(session.namespace))
    seen = topics_seen(session.partitions.wire, known)
    there = [name for name in known if seen[name] is not None]
    if not there:
        raise ConfigurationError(
            f"the ledger knows no existing topic of namespace {session.namespace}",
            remedy="Name the topics: --topic TOPIC. Those of loads that were never prepared are not in the ledger",
        )
    deleted = f"; deleted since: {', '.join(sorted(set(known) - set(there)))}" if len(there) < len(known) else ""
    say(f"topics of the ledger's prepared loads: {', '.join(there)}{deleted}")
    return there


def _partitions(session: Session, topics: list[str]) -> list[TopicPartition]:
    if not all(topics):
        raise ConfigurationError("--topic is empty", remedy="Name a topic")
    return [
        TopicPartition(name, number)
        for name, info in session.partitions.topic_info(topics, to_read=True).items()
        for number in range(info.partitions)
    ]


def _row(hanging: HangingTransaction, ended: bool) -> dict[str, Any]:
    p = hanging.producer
    return {
        "topic": p.partition.topic,
        "partition": p.partition.partition,
        "producer_id": p.producer_id,
        "producer_epoch": p.producer_epoch,
        "start_offset": p.txn_start_offset,
        "idle_ms": hanging.idle_ms,
        "why": hanging.why,
        "whose": hanging.whose,
        "transactional_id": hanging.transactional_id,
        "load": str(hanging.attempt.load) if hanging.attempt else None,
        "attempt": hanging.attempt.number if hanging.attempt else None,
        "aborted": ended,
        "proven": hanging.is_proven,
        "doubt": None if hanging.doubt is None else hanging.doubt.message,
    }


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "partition": f"{row['topic']}-{row['partition']}",
        "producer": f"{row['producer_id']}:{row['producer_epoch']}",
        "start_offset": row["start_offset"],
        "hanging": "yes" if row["proven"] else "MAY BE ALIVE",
        "idle": text_of(row["idle_ms"]),
        "whose": (row["whose"].value + (", aborted" if row["aborted"] else "")) if row["proven"] else None,
        "why": row["why"],
        "transactional_id": row["transactional_id"],
    }
