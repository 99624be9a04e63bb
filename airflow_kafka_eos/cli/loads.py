"""``loads``: what the ledger knows of each load; and what a person can do for one that is decided and not committed."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos import position
from airflow_kafka_eos.cli.compare import add_reinstate, add_set_committed
from airflow_kafka_eos.cli.durations import text_of, whole
from airflow_kafka_eos.cli.ledger import add_conn_id, open_ledger, say_which
from airflow_kafka_eos.cli.target import add_cluster, add_namespace, known_load, load_of, open_session
from airflow_kafka_eos.cli.terminal import (
    FOUND,
    OK,
    add_deadline,
    add_output,
    add_yes,
    as_table,
    confirm,
    person,
    say,
    short,
    show,
    words_of,
)
from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.load import LoadIdentity, LoadState

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow, RangeRow, RepairRow, TransactionRow
    from airflow_kafka_eos.protocol.session import Session
    from airflow_kafka_eos.transaction import TopicPartition

#: A decision that is not verified for so long is warned about: Kafka's defaults, for retention as for ids, are 7 days.
WARN_AFTER_MS = 86_400_000
_WARNED = 5
#: Open transactions that are named at once.
_ENDED = 20
#: Characters of a reason in a list: an error with its remedy has 1000.
_REASON = 80
#: Loads in a list, unless it is said otherwise.
MOST = 1000


def add_to(commands: Any) -> None:
    """Add the commands to the parser's subcommands."""
    loads = commands.add_parser("loads", help="loads and their states").add_subparsers(required=True, metavar="COMMAND")

    every = loads.add_parser("list", help="the loads that were begun last, the oldest first")
    every.add_argument("--namespace", help="only this namespace")
    every.add_argument("--name", help="only loads of this name")
    every.add_argument("--state", choices=[state.value for state in LoadState], help="only loads in this state")
    every.add_argument(
        "--limit", type=whole(0, 2**31 - 2), default=MOST, metavar="N",
        help=f"so many at most; 0: all; default {MOST}",
    )  # fmt: skip
    every.set_defaults(run=_list)

    one = loads.add_parser("show", help="one load with its attempts, decisions and transactions")
    one.set_defaults(run=_show)

    recover = loads.add_parser(
        "recover", help="roll a decided load forward, or repair it, until it is committed or in doubt"
    )
    add_deadline(recover, 300)
    recover.set_defaults(run=_recover)

    give_up = loads.add_parser(
        "give-up",
        help="say that a decided load will never be completed",
        description="Say that a decided load will never be completed. Readers keep what is committed of it. What is "
        "still open can then be ended by `transactions force-terminate`; it says which, and what comes next. There is "
        "no way back.",
    )
    give_up.add_argument("--reason", required=True, help="why; it is kept in the ledger")
    add_yes(give_up)
    give_up.set_defaults(run=_give_up)

    finished = loads.add_parser(
        "set-finished",
        help="say that the rows of a dual write that has committed too early were added by hand",
        description="Say that you have added the rows that a dual write has not got to, because its SQL had committed "
        "the decision on its own. From then on the load's runs take the decision for done; `loads show` keeps the "
        "reason.",
    )
    finished.add_argument("--reason", required=True, help="what was added; it is kept in the ledger")
    add_yes(finished)
    finished.set_defaults(run=_set_finished)

    reinstate, known = add_reinstate(loads), add_set_committed(loads)

    for command in (one, recover, give_up, finished, reinstate):
        command.add_argument("name", help="the load's name")
        command.add_argument("key", help="its load_key, such as 2026-01-01T00:00:00+00:00")
        add_namespace(command)
    for command in (recover, give_up, reinstate):
        add_cluster(command)
    for command in (every, one, recover, give_up, finished, reinstate, known):
        add_conn_id(command)
        add_output(command)


def _list(arguments: argparse.Namespace) -> int:
    states = [state for state in LoadState if arguments.state in (None, state.value)]
    of = arguments.namespace, arguments.name
    limit = arguments.limit or None
    with open_ledger(arguments) as ledger:
        rows = ledger.overview(
            *of, states=states if arguments.state else None, at_most=None if limit is None else limit + 1
        )
        # however many loads were begun since
        unverified = ledger.overview(*of, states=[state for state in states if state.is_unverified])
        say_which(ledger)
    if limit is not None and len(rows) > limit:
        rows = rows[1:]
        say(f"there are more: only the {limit} loads that were begun last are shown; --limit 0 shows all")
    found = [_load(row, newest) for row, newest in rows]
    shown = [{k: v for k, v in _for_people(row).items() if k != "created_at"} for row in found]
    for line in shown:  # `loads show` has all of it
        line["reason"] = short(" ".join(line["reason"].split()), _REASON)
    show(arguments, found, shown, nothing="no loads")
    _warn([_load(row, newest) for row, newest in unverified])
    return OK


def _show(arguments: argparse.Namespace) -> int:
    load = load_of(arguments)
    with open_ledger(arguments) as ledger:
        row = known_load(ledger, load)
        attempts = ledger.attempts(load)
        shown: dict[str, Any] = {
            "load": _load(row, attempts[-1] if attempts else None),
            "attempts": [_attempt(a) for a in attempts],
            "transactions": [_transaction(a.number, t) for a in attempts for t in ledger.transactions(load, a.number)],
            "repairs": [_repair(r) for r in ledger.repairs(load)],
            "ranges": [_range(r) for r in ledger.ranges(load)],
        }
        say_which(ledger)
    _warn([shown["load"]])
    if show(arguments, shown, _for_people(shown["load"])):
        for title in ("attempts", "transactions", "repairs", "ranges"):
            if shown[title]:
                print(f"\n{title}\n{as_table(shown[title])}")
        if pruned := [str(a.number) for a in attempts if a.pruned_at is not None]:
            print(f"\nthe transactions of attempts {', '.join(pruned)} were pruned: the ledger has forgotten them")
    return OK


def _recover(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.repair.recover import recover

    load = load_of(arguments)
    with open_session(arguments) as session:
        known_load(session.ledger, load)
        row = recover(session, load, by=person(), deadline_s=arguments.deadline)
        _show_state(arguments, session, row)
    return OK if row.state is LoadState.COMMITTED else FOUND


def _give_up(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.repair.recover import give_up

    load = load_of(arguments)
    with open_session(arguments) as session:
        known_load(session.ledger, load)
        confirm(arguments, f"Give up load {load} for good? It is decided to be committed.")
        row = give_up(session, load, by=person(), reason=arguments.reason)
        _show_state(arguments, session, row)
        _say_next(session, load)
    return OK


def _set_finished(arguments: argparse.Namespace) -> int:
    load = load_of(arguments)
    with open_ledger(arguments) as ledger:
        known_load(ledger, load)
        say_which(ledger)
        confirm(arguments, f"Are all rows of the dual write of {load} in their tables, once? No run will write them.")
        row = ledger.set_finished(load, by=person(), reason=arguments.reason)
        show(arguments, {**asdict(load), "state": ledger.state(load), "attempt": row.number, "reason": row.reason})
    return OK


def _say_next(session: Session, load: LoadIdentity) -> None:
    """What of a load that was given up is open, and what comes next: a commit may still be under way."""
    from airflow_kafka_eos.protocol.hanging import end_hanging_in
    from airflow_kafka_eos.protocol.repair.recover import hanging_in, still_open

    held: list[TopicPartition] = []
    try:
        names = still_open(session, load)
        held = [] if names else hanging_in(session, load)
        told = f"{len(names)} of its transactions are open" if names else "no coordinator shows any of it as open"
        if held:
            told += f", and it hangs in {', '.join(map(str, held[:_ENDED]))}: readers are held back there"
    except KafkaEosError as e:
        names, told = [], f"what of it is open could not be seen: {e}"
    of = ["--namespace", load.namespace]
    commands = [["transactions", "force-terminate", name, *of] for name in names[:_ENDED]]
    commands.append(["cleanup", load.name, load.key, *of])
    say(f"{told}. Next, in this order, with the ledger and the cluster that this command was given:")
    if held:
        say(f"  {end_hanging_in(held, *of)}")
    for words in commands:
        say(f"  airflow-kafka-eos {shlex.join(words)}")
    if len(names) > _ENDED:
        say(f"  (before cleanup, the other {len(names) - _ENDED}: run this command again, and it names them)")
    say(
        "until cleanup finds it clean, more of it may become visible. Only then compare the topics with the source, "
        "and only then write what is missing"
    )


def _show_state(arguments: argparse.Namespace, session: Session, row: LoadRow) -> None:
    show(arguments, _load(row, session.ledger.attempt(row.load, row.newest_attempt)))


def _warn(rows: list[dict[str, Any]]) -> None:
    """Long before retention (7 days by default) takes what such a load is verified and repaired by."""
    late = [row for row in rows if (row["unverified_ms"] or 0) >= WARN_AFTER_MS]
    for row in sorted(late, key=lambda row: -row["unverified_ms"])[:_WARNED]:
        say(
            f"airflow-kafka-eos: load {row['name']} {row['key']} of namespace {row['namespace']} was decided "
            f"{text_of(row['unverified_ms'])} ago, and its commit is not verified yet. Verifying and repairing it need "
            "its records, which are deleted after retention.ms of its topics, and ended transactions are forgotten "
            "after the brokers' transactional.id.expiration.ms. Run `airflow-kafka-eos loads recover`; doctor says how "
            "much time is left"
        )
    if len(late) > _WARNED:
        say(f"airflow-kafka-eos: and {len(late) - _WARNED} more such loads")


def _load(row: LoadRow, newest: AttemptRow | None) -> dict[str, Any]:
    from airflow_kafka_eos.ledger.rows import reason_of_load  # SQLAlchemy: --help does without

    return {
        **asdict(row.load),
        "state": row.state,
        "attempt": row.newest_attempt,
        "records": None if newest is None else newest.records,
        "how": "" if newest is None else newest.how,
        "reason": reason_of_load(row, newest),
        "unverified_ms": _unverified_ms(row, newest),
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def _unverified_ms(row: LoadRow, newest: AttemptRow | None) -> int | None:
    """How long its decision has been waiting for its last commit marker to be seen; None for loads that do not wait."""
    if not row.state.is_unverified or newest is None or newest.decided_at is None:
        return None
    waited = datetime.now(UTC) - datetime.fromisoformat(newest.decided_at)
    return max(0, int(waited.total_seconds() * 1000))


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    waited = row["unverified_ms"]
    shown = {k: v for k, v in row.items() if k != "unverified_ms"} | words_of(row)
    return shown | {"unverified": None if waited is None else text_of(waited)}


def _attempt(row: AttemptRow) -> dict[str, Any]:
    return {
        "number": row.number,
        "by": row.responsible,
        "opened_at": row.opened_at,
        "prepared_at": row.prepared_at,
        "verdict": row.verdict,
        "decided_at": row.decided_at,
        "decided_by": row.decided_by,
        "closed_at": row.closed_at,
        "reason": row.reason,
        "records": row.records,
        "bytes": row.bytes,
        "cluster_id": row.cluster_id,
        "pruned_at": row.pruned_at,
    }


def _transaction(attempt: int, row: TransactionRow) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "transactional_id": row.transaction.transactional_id,
        "prepared_transaction_state": str(row.transaction.state),
        "spark_partition": row.spark_partition,
        "topic_partitions": len(row.writes),
        "records": row.records,
        "outcome": row.outcome,
    }


def _range(row: RangeRow) -> dict[str, Any]:
    return {
        "attempt": row.attempt,
        "since": position.dump(row.since),
        "until": None if row.until is None else position.dump(row.until),
        "named": row.is_named,
        "taken_at": row.taken_at,
    }


def _repair(row: RepairRow) -> dict[str, Any]:
    return {
        "number": row.number,
        "lost_transactional_id": row.lost_transactional_id,
        "transactional_id": row.transactional_id,
        "state": row.state,
        "opened_at": row.opened_at,
        "opened_by": row.opened_by,
        "ended_at": row.ended_at,
        "reason": row.reason,
    }
