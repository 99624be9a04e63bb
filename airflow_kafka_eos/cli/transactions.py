"""``transactions``: what is open at the brokers, whose it is, and ending it by the rules."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.cli import ending, hanging
from airflow_kafka_eos.cli.cluster import add_cluster, add_namespace, open_session
from airflow_kafka_eos.cli.durations import milliseconds, text_of
from airflow_kafka_eos.cli.exits import FOUND, OK
from airflow_kafka_eos.cli.hidden import say_hidden
from airflow_kafka_eos.cli.output import add_output, as_json, as_lines, as_table
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TransactionDescription

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import AttemptRow, TransactionRow
    from airflow_kafka_eos.protocol.session import Session


def add_to(commands: Any) -> None:
    """Add the commands to the parser's subcommands."""
    group = commands.add_parser("transactions", help="open transactions at the brokers, and ending them")
    transactions = group.add_subparsers(required=True, metavar="COMMAND")

    every = transactions.add_parser("list", help="open transactions of a namespace, the oldest first")
    every.add_argument("--all", action="store_true", help="other applications' too, as far as they may be seen")
    every.add_argument(
        "--running-longer-than", type=milliseconds, metavar="DURATION", default=-1,
        help="only those, by the brokers' own clocks; such as 90s, 15m, 2h",
    )  # fmt: skip
    every.set_defaults(run=_list)

    one = transactions.add_parser("describe", help="one transactional id: coordinator, ledger, and log")
    one.add_argument("transactional_id")
    one.set_defaults(run=_describe)

    for command in (every, one):
        add_namespace(command)
        add_cluster(command)
        add_output(command)
    ending.add_to(transactions)
    hanging.add_to(transactions)


def _list(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.naming import namespace_prefix
    from airflow_kafka_eos.protocol.hidden import hidden_by_acls, others_hidden
    from airflow_kafka_eos.protocol.holding import holders_of

    with open_session(arguments) as session:
        prefix = "" if arguments.all else namespace_prefix(session.namespace, session.ledger.ledger_id)
        names = session.coordinator.list_open(prefix, longer_than_ms=arguments.running_longer_than)
        described = [d for d in session.coordinator.describe(names).values() if d.is_open]
        holders = holders_of(session, [PreparedTransaction(d.transactional_id, d.state) for d in described])
        hidden = hidden_by_acls(session) or (others_hidden(session) if arguments.all else None)
    described.sort(key=lambda d: (d.start_time_ms, d.transactional_id))
    now_ms = int(time.time() * 1000)
    shown = [_open(d, holders.get(PreparedTransaction(d.transactional_id, d.state)), now_ms) for d in described]
    if arguments.output == "json":
        print(as_json({"transactions": shown, "hidden": None if hidden is None else str(hidden)}))
    else:
        nothing = "no open transactions" + (" that may be seen from here" if hidden else "")
        print(as_table([_for_people(row) for row in shown]) or nothing)
    return say_hidden(hidden)


def _open(seen: TransactionDescription, attempt: AttemptRow | None, now_ms: int) -> dict[str, Any]:
    return {
        "transactional_id": seen.transactional_id,
        "state": seen.coordinator_state.value,
        "prepared_transaction_state": str(seen.state),
        "running_ms": max(0, now_ms - seen.start_time_ms) if seen.start_time_ms >= 0 else None,
        "two_phase_commit": seen.is_two_phase,
        "time_left_ms": None if seen.is_two_phase else seen.time_left_ms(now_ms),
        "topic_partitions": len(seen.partitions),
        "load": None if attempt is None else str(attempt.load),
        "attempt": None if attempt is None else attempt.number,
        "verdict": None if attempt is None or attempt.verdict is None else attempt.verdict.value,
    }


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    left = "none set" if row["two_phase_commit"] else text_of(row["time_left_ms"])
    running = None if row["running_ms"] is None else text_of(row["running_ms"])
    whose = "not of this ledger" if row["load"] is None else row["verdict"] or "undecided"
    return {
        "transactional_id": row["transactional_id"],
        "state": row["state"],
        "running": running,
        "time_left": left,
        "topic_partitions": row["topic_partitions"],
        "decision": whose,
    }


def _describe(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.evidence import Outcome, judge, judge_decided
    from airflow_kafka_eos.load import Verdict
    from airflow_kafka_eos.protocol.holding import holder_of
    from airflow_kafka_eos.protocol.judging import evidence

    name = arguments.transactional_id
    with open_session(arguments) as session:
        seen = session.coordinator.describe([name]).get(name)
        attempt = holder_of(session, PreparedTransaction(name, seen.state if seen else PreparedTxnState.EMPTY))
        if seen is None and attempt is None:
            raise ConfigurationError(
                "neither the ledger nor a coordinator knows this transactional id",
                remedy="Take it from `airflow-kafka-eos transactions list` or `loads show`",
                transactional_id=name,
            )
        recorded = _recorded(session, name, attempt)
        decided = attempt if attempt is not None and attempt.verdict is Verdict.COMMIT else None
        markers = None if recorded is None else evidence(session, recorded, decided).values()
    outcome = None if markers is None else (judge_decided if decided else judge)(markers)
    shown: dict[str, Any] = {
        "transactional_id": name,
        "coordinator": None if seen is None else _coordinator(seen),
        "ledger": None if attempt is None else _ledger(attempt, recorded, seen),
        # what the partitions' logs say of the recorded transaction: the only evidence (rule 7)
        "log": None if outcome is None else outcome.value,
    }
    if arguments.output == "json":
        print(as_json(shown))
    else:
        print(as_lines({"transactional_id": name, "log": shown["log"]}))
        for title in ("coordinator", "ledger"):
            print(f"\n{title}\n" + (as_lines(shown[title]) if shown[title] else "knows nothing of it"))
    return FOUND if outcome in (Outcome.IN_DOUBT, Outcome.LOST) else OK


def _recorded(session: Session, name: str, attempt: AttemptRow | None) -> TransactionRow | None:
    if attempt is None:
        return None
    rows = session.ledger.transactions(attempt.load, attempt.number)
    return next((row for row in rows if row.transaction.transactional_id == name), None)


def _coordinator(seen: TransactionDescription) -> dict[str, Any]:
    now_ms = int(time.time() * 1000)
    return {
        "state": seen.coordinator_state.value,
        "prepared_transaction_state": str(seen.state),
        "started_at_ms": seen.start_time_ms if seen.start_time_ms >= 0 else None,
        "two_phase_commit": seen.is_two_phase,
        "timeout_ms": None if seen.is_two_phase else seen.timeout_ms,
        "time_left_ms": seen.time_left_ms(now_ms) if seen.is_open and not seen.is_two_phase else None,
        "topic_partitions": [str(tp) for tp in sorted(seen.partitions)],
    }


def _ledger(
    attempt: AttemptRow, recorded: TransactionRow | None, seen: TransactionDescription | None
) -> dict[str, Any]:
    is_shown = recorded is not None and seen is not None and recorded.transaction.state == seen.state
    return {
        # a pooled id is of many attempts: of which one this is
        "found_by": "prepared_transaction_state" if is_shown else "transactional_id",
        "load": str(attempt.load),
        "attempt": attempt.number,
        "verdict": None if attempt.verdict is None else attempt.verdict.value,
        "decided_by": attempt.decided_by,
        "reason": attempt.reason,
        "prepared_transaction_state": None if recorded is None else str(recorded.transaction.state),
        "records": None if recorded is None else recorded.records,
        "outcome": None if recorded is None or recorded.outcome is None else recorded.outcome.value,
    }
