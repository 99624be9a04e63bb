"""``transactions``: what is open at the brokers, whose it is, and what each partition remembers.

The commands that end transactions are in :mod:`.ending`.
"""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.cli import ending, import_committables
from airflow_kafka_eos.cli.durations import milliseconds_or_duration, text_of
from airflow_kafka_eos.cli.target import (
    PARTITION,
    add_address,
    add_cluster,
    add_session,
    add_transactional_id,
    needed_id,
    open_session,
    say_where,
    settings_of,
)
from airflow_kafka_eos.cli.terminal import (
    FOUND,
    OK,
    add_output,
    as_lines,
    as_table,
    say,
    say_hidden,
    show,
    utc,
    words_of,
)
from airflow_kafka_eos.errors import ConfigurationError, TopicError
from airflow_kafka_eos.transaction import (
    CoordinatorState,
    PreparedTransaction,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import AttemptRow, TransactionRow
    from airflow_kafka_eos.protocol.session import Session

#: `--state any`
_ANY = "any"


def add_to(commands: Any) -> None:
    """Add the commands to the parser's subcommands."""
    group = commands.add_parser("transactions", help="transactions at the brokers, and ending them")
    add_address(group, before=True)
    transactions = group.add_subparsers(required=True, metavar="COMMAND")

    every = transactions.add_parser("list", help="open transactions of a namespace, the oldest first")
    every.add_argument("--all", action="store_true", help="other applications' too, as far as they may be seen")
    states = [state.value for state in CoordinatorState if state is not CoordinatorState.UNKNOWN]
    every.add_argument(
        "--state", action="append", type=_state, choices=[*states, _ANY], metavar="STATE",
        help=f"instead of those that are open, those in this state: {', '.join(states)}, or {_ANY}. In upper or lower "
        "case; may be given several times",
    )  # fmt: skip
    every.add_argument(
        "--running-longer-than", "--duration-filter", type=milliseconds_or_duration, metavar="DURATION", default=-1,
        help="only those, by the brokers' own clocks; such as 90s, 15m, 2h; a number alone is milliseconds",
    )  # fmt: skip
    every.add_argument(
        "--transactional-id-pattern", type=_pattern, metavar="REGEX", help="only ids that match it as a whole"
    )
    every.set_defaults(run=_list)

    one = transactions.add_parser("describe", help="one transactional id: coordinator, ledger, and log")
    add_transactional_id(one)
    one.set_defaults(run=_describe)

    for command in (every, one):
        add_session(command)

    producers = transactions.add_parser(
        "describe-producers",
        help="which producers a partition remembers, and what each has open there",
        description="The producers of a partition, as one of its replicas remembers them, of all applications "
        "(KIP-664). It asks the brokers alone, no ledger; it needs READ on the topic.",
    )
    producers.add_argument("--topic", required=True, help="the topic")
    producers.add_argument("--partition", required=True, type=PARTITION, metavar="N", help="the partition's number")
    producers.add_argument("--broker-id", type=PARTITION, metavar="N", help="ask this replica; default: the leader")
    add_cluster(producers)
    add_output(producers)
    producers.set_defaults(run=_producers)

    ending.add_to(transactions)
    import_committables.add_to(transactions)


def _state(text: str) -> str:
    names = [*(state.value for state in CoordinatorState), _ANY]
    return next((name for name in names if name.lower() == text.lower()), text)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as e:
        raise argparse.ArgumentTypeError(f"is no regular expression: {e}") from None


def _list(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.naming import namespace_prefix
    from airflow_kafka_eos.protocol.guards.ownership import hidden_by_acls, holders_of, others_hidden

    wanted = None if arguments.state is None else set(arguments.state)
    if wanted is not None and _ANY in wanted:
        wanted = set()
    with open_session(arguments) as session:
        prefix = "" if arguments.all else namespace_prefix(session.namespace, session.ledger.ledger_id)
        longer = arguments.running_longer_than
        if wanted is None:
            names = session.coordinator.list_open(prefix, longer_than_ms=longer)
        else:
            names = session.coordinator.list_in(prefix, map(CoordinatorState, wanted), longer_than_ms=longer)
        if arguments.transactional_id_pattern is not None:
            names = [name for name in names if arguments.transactional_id_pattern.fullmatch(name)]
        described = [
            d
            for d in session.coordinator.describe(names).values()
            if (d.is_open if wanted is None else not wanted or d.coordinator_state.value in wanted)
        ]
        holders = holders_of(session, [PreparedTransaction(d.transactional_id, d.state) for d in described])
        hidden = hidden_by_acls(session) or (others_hidden(session) if arguments.all else None)
        say_where(session)
        own_id = session.ledger.ledger_id
    described.sort(key=lambda d: (not d.is_open, d.start_time_ms, d.transactional_id))
    now_ms = int(time.time() * 1000)
    shown = [_shown(d, holders.get(PreparedTransaction(d.transactional_id, d.state)), now_ms) for d in described]
    nothing = "no open transactions" if wanted is None else "no such transactions"
    nothing += " that this login may see" if hidden else ""
    answer = {"transactions": shown, "hidden": None if hidden is None else str(hidden)}
    show(arguments, answer, [_for_people(row, own_id) for row in shown], nothing=nothing)
    return say_hidden(hidden)


def _shown(seen: TransactionDescription, attempt: AttemptRow | None, now_ms: int) -> dict[str, Any]:
    return {
        "transactional_id": seen.transactional_id,
        "state": seen.coordinator_state,
        "prepared_transaction_state": str(seen.state),
        "running_ms": _running_ms(seen, now_ms),
        "two_phase_commit": seen.is_two_phase,
        "time_left_ms": _time_left_ms(seen, now_ms),
        "topic_partitions": len(seen.partitions),
        **_of_load(attempt),
    }


def _running_ms(seen: TransactionDescription, now_ms: int) -> int | None:
    return max(0, now_ms - seen.start_time_ms) if seen.is_open and seen.start_time_ms >= 0 else None


def _time_left_ms(seen: TransactionDescription, now_ms: int) -> int | None:
    return seen.time_left_ms(now_ms) if seen.is_open and not seen.is_two_phase else None


def _of_load(attempt: AttemptRow | None) -> dict[str, Any]:
    if attempt is None:
        return dict.fromkeys(("load", "namespace", "name", "key", "attempt", "verdict"))
    load = {"load": str(attempt.load), **asdict(attempt.load)}
    return load | {"attempt": attempt.number, "verdict": attempt.verdict}


def _nobodys(transactional_id: str, own_id: str) -> str:
    """Of an id whose attempt the ledger has not: whether that is as it should be."""
    from airflow_kafka_eos.naming import parse

    parsed = parse(transactional_id)
    if parsed is None:
        return "not of this ledger"
    return "this ledger does not know it" if parsed.ledger_id == own_id else f"of ledger {parsed.ledger_id}"


def _for_people(row: dict[str, Any], own_id: str) -> dict[str, Any]:
    left, running = row["time_left_ms"], row["running_ms"]
    endless = row["two_phase_commit"] and running is not None
    return {
        "transactional_id": row["transactional_id"],
        "state": row["state"],
        "running": None if running is None else text_of(running),
        "time_left": "none set" if endless else None if left is None else text_of(left),
        "topic_partitions": row["topic_partitions"],
        **words_of(row),
        "decision": _nobodys(row["transactional_id"], own_id) if row["load"] is None else row["verdict"] or "undecided",
    }


def _describe(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.load import Verdict
    from airflow_kafka_eos.protocol.evidence import evidence
    from airflow_kafka_eos.protocol.guards.ownership import check_cluster, holder_of
    from airflow_kafka_eos.transaction import Outcome, judge, judge_decided

    name = needed_id(arguments)
    with open_session(arguments) as session:
        seen = session.coordinator.describe([name]).get(name)
        attempt = holder_of(session, PreparedTransaction(name, seen.state if seen else PreparedTxnState.EMPTY))
        if seen is None and attempt is None:
            raise ConfigurationError(
                "neither the ledger nor a coordinator knows this transactional id",
                remedy="Take it from `airflow-kafka-eos transactions list` or `loads show`",
                transactional_id=name,
            )
        if attempt is not None:
            # of a closed one, too: its markers would be missing here, and the load look as if it were in doubt
            check_cluster(session, [attempt], closed_too=True)
        recorded = _recorded(session, name, attempt)
        decided = attempt if attempt is not None and attempt.verdict is Verdict.COMMIT else None
        markers = None if recorded is None else evidence(session, recorded, decided)
        wire = session.partitions.wire
        node_id = wire.coordinators([name])[name]
        address = wire.addresses().get(node_id)
        say_where(session)
        own_id = session.ledger.ledger_id
    outcome = None if markers is None else (judge_decided if decided else judge)(markers.values())
    # in each partition, for "open" says only that one of them has none yet: whoever then aborts by hand what has a
    # commit marker in another one tears it
    seen_there = None if markers is None else {str(tp): marker for tp, marker in sorted(markers.items())}
    shown: dict[str, Any] = {
        "transactional_id": name,
        "coordinator": None if seen is None else {"broker": node_id, "address": address} | _coordinator(seen),
        "ledger": None if attempt is None else _ledger(attempt, recorded, seen),
        # what the partitions' logs say of the recorded transaction: the only evidence (rule: log-is-the-evidence)
        "log": outcome,
        "markers": seen_there,
    }
    verdict = _nobodys(name, own_id) if attempt is None else attempt.verdict or "undecided"
    log = outcome or "not looked at: this ledger has no offsets of it"
    if show(arguments, shown, {"transactional_id": name, "verdict": verdict, "log": log}):
        coordinator, ledger = shown["coordinator"], shown["ledger"]
        if coordinator is not None:
            times = {key: coordinator[key] for key in ("duration_ms", "timeout_ms", "time_left_ms")}
            coordinator = {key: v for key, v in coordinator.items() if key not in (*times, "started_at_ms")} | {
                key.removesuffix("_ms"): None if ms is None else text_of(ms) for key, ms in times.items()
            }
        if ledger is not None:
            ledger = ledger | {"verdict": verdict} | words_of(ledger)
        for title, document in (("coordinator", coordinator), ("ledger", ledger)):
            print(f"\n{title}\n" + (as_lines(document) if document else "knows nothing of it"))
        rows = [{"topic_partition": tp, "marker": marker} for tp, marker in (seen_there or {}).items()]
        print("\nmarkers\n" + (as_table(rows) or "not looked at"))
    return FOUND if outcome in (Outcome.IN_DOUBT, Outcome.LOST) else OK


def _recorded(session: Session, name: str, attempt: AttemptRow | None) -> TransactionRow | None:
    if attempt is None:
        return None
    rows = session.ledger.transactions(attempt.load, attempt.number)
    return next((row for row in rows if row.transaction.transactional_id == name), None)


def _coordinator(seen: TransactionDescription) -> dict[str, Any]:
    now_ms = int(time.time() * 1000)
    return {
        "state": seen.coordinator_state,
        "prepared_transaction_state": str(seen.state),
        "producer_id": None if seen.state.is_empty else seen.state.producer_id,
        "producer_epoch": None if seen.state.is_empty else seen.state.producer_epoch,
        "started_at": utc(seen.start_time_ms),
        "started_at_ms": seen.start_time_ms if seen.start_time_ms >= 0 else None,
        "duration_ms": _running_ms(seen, now_ms),
        "two_phase_commit": seen.is_two_phase,
        "timeout_ms": None if seen.is_two_phase else seen.timeout_ms,
        "time_left_ms": _time_left_ms(seen, now_ms),
        "topic_partitions": [str(tp) for tp in sorted(seen.partitions)],
    }


def _ledger(
    attempt: AttemptRow, recorded: TransactionRow | None, seen: TransactionDescription | None
) -> dict[str, Any]:
    is_shown = recorded is not None and seen is not None and recorded.transaction.state == seen.state
    return {
        # a pooled id is of many attempts: of which one this is
        "found_by": "prepared_transaction_state" if is_shown else "transactional_id",
        **_of_load(attempt),
        "decided_at": attempt.decided_at,
        "decided_by": attempt.decided_by,
        "reason": attempt.reason,
        "prepared_transaction_state": None if recorded is None else str(recorded.transaction.state),
        "records": None if recorded is None else recorded.records,
        "outcome": None if recorded is None else recorded.outcome,
    }


def _producers(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.kafka.admin.coordinator import transactional_ids_of
    from airflow_kafka_eos.kafka.admin.open_producers import producers_of
    from airflow_kafka_eos.kafka.admin.partitions import Partitions
    from airflow_kafka_eos.kafka.client.wire import Wire

    tp = TopicPartition(arguments.topic, arguments.partition)
    with Wire(settings_of(arguments), timeout_s=arguments.timeout) as wire:
        partitions, broker_id = Partitions(wire), arguments.broker_id
        there = partitions.topic_info([tp.topic], to_read=True)[tp.topic].partitions
        if tp.partition >= there:
            raise TopicError(
                f"topic {tp.topic} has no partition {tp.partition}", remedy=f"It has {there}, counted from 0"
            )
        found = partitions.producers([tp])[tp] if broker_id is None else producers_of(wire, tp, broker_id)
        ids = transactional_ids_of(wire, (p.producer_id for p in found))
        say(f"Kafka cluster {wire.cluster_id()} at {wire.settings.bootstrap_servers}")
    shown = [
        {
            "producer_id": p.producer_id,
            "producer_epoch": p.producer_epoch,
            "coordinator_epoch": None if p.coordinator_epoch < 0 else p.coordinator_epoch,
            "last_sequence": p.last_sequence,
            "last_timestamp": utc(p.last_timestamp_ms),
            "start_offset": None if p.txn_start_offset < 0 else p.txn_start_offset,
            "transactional_id": ids.get(p.producer_id),
        }
        for p in found
    ]
    show(arguments, shown, nothing=f"no producers in {tp}")
    return OK
