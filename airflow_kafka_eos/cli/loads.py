"""``loads``: what the ledger knows of each load, its attempts and their transactions.

``loads recover`` and ``loads give-up``: what a person can do for a load that is decided and not committed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.cli.cluster import add_cluster, add_namespace, open_session, person
from airflow_kafka_eos.cli.durations import seconds, text_of
from airflow_kafka_eos.cli.ledger import add_conn_id, open_ledger
from airflow_kafka_eos.cli.terminal import (
    FOUND,
    OK,
    add_output,
    add_yes,
    as_json,
    as_lines,
    as_table,
    confirm,
)
from airflow_kafka_eos.errors import ConfigurationError, nearest
from airflow_kafka_eos.load import LoadIdentity, LoadState

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow, RepairRow, TransactionRow
    from airflow_kafka_eos.protocol.session import Session


#: A decision that is not verified for so long is warned about: Kafka's defaults, for retention as for ids, are 7 days.
WARN_AFTER_MS = 86_400_000
_WARNED = 5


def add_to(commands: Any) -> None:
    """Add the commands to the parser's subcommands."""
    loads = commands.add_parser("loads", help="loads and their states").add_subparsers(required=True, metavar="COMMAND")

    every = loads.add_parser("list", help="all loads, the oldest first")
    every.add_argument("--namespace", help="only this one's")
    every.add_argument("--name", help="only loads of this name")
    every.add_argument("--state", choices=[state.value for state in LoadState], help="only loads in this state")
    every.set_defaults(run=_list)

    one = loads.add_parser("show", help="one load with its attempts, decisions and transactions")
    add_load(one)
    one.set_defaults(run=_show)

    for command in (every, one):
        add_conn_id(command)
        add_output(command)
    add_recover_and_give_up(loads)


def add_load(command: argparse.ArgumentParser) -> None:
    """The arguments that name one load."""
    command.add_argument("name", help="the load's name")
    command.add_argument("key", help="its load_key, such as 2026-01-01T00:00:00+00:00")
    add_namespace(command)


def _list(arguments: argparse.Namespace) -> int:
    with open_ledger(arguments) as ledger:
        found = [
            as_row(row, newest)
            for row, newest in ledger.overview(arguments.namespace, arguments.name)
            if arguments.state in (None, row.state.value)
        ]
        say_which(ledger)
    if arguments.output == "json":
        print(as_json(found))
    else:
        shown = [{k: v for k, v in _for_people(row).items() if k != "created_at"} for row in found]
        print(as_table(shown) or "no loads")
    _warn(found)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    load = LoadIdentity(arguments.namespace, arguments.name, arguments.key)
    with open_ledger(arguments) as ledger:
        row = ledger.load(load)
        if row is None:
            raise unknown(ledger, load)
        attempts = ledger.attempts(load)
        transactions = [(a.number, t) for a in attempts for t in ledger.transactions(load, a.number)]
        repairs = ledger.repairs(load)
        say_which(ledger)
    shown: dict[str, Any] = {
        "load": as_row(row, attempts[-1] if attempts else None),
        "attempts": [_attempt(a) for a in attempts],
        "transactions": [_transaction(number, t) for number, t in transactions],
        "repairs": [_repair(r) for r in repairs],
    }
    _warn([shown["load"]])
    if arguments.output == "json":
        print(as_json(shown))
        return 0
    print(as_lines(_for_people(shown["load"])))
    for title in ("attempts", "transactions", "repairs"):
        if shown[title]:
            print(f"\n{title}\n{as_table(shown[title])}")
    return 0


def say_which(ledger: Ledger) -> None:
    """On stderr, which ledger was read: "no loads" is no answer where nobody knows of which."""
    print(f"ledger {ledger.where} ({ledger.ledger_id})", file=sys.stderr)


def unknown(ledger: Ledger, load: LoadIdentity) -> ConfigurationError:
    """The error for a load that the ledger does not know, with what may have been meant."""
    every = ledger.loads(load.namespace)
    keys = [row.load.key for row in every if row.load.name == load.name]
    if keys:
        near, field = nearest(load.key, keys), "key"
    else:
        near, field = nearest(load.name, {row.load.name for row in every}), "name"
    return ConfigurationError(
        f"the ledger knows no load {load}",
        remedy=f"Did you mean the {field} {near}" if near else "Run `airflow-kafka-eos loads list` for what it knows",
        load=str(load),
    )


def as_row(row: LoadRow, newest: AttemptRow | None) -> dict[str, Any]:
    """A load as commands show it."""
    from airflow_kafka_eos.ledger.rows import reason_of_load  # SQLAlchemy: --help does without

    return {
        "namespace": row.load.namespace,
        "name": row.load.name,
        "key": row.load.key,
        "state": row.state.value,
        "attempt": row.newest_attempt,
        "records": None if newest is None else newest.records,
        "how": newest.how if newest is not None else "",
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
    # as `loads show NAME KEY` takes them
    row = row | {"name": shlex.quote(row["name"]), "key": shlex.quote(row["key"])}
    shown = {k: v for k, v in row.items() if k != "unverified_ms"}
    return shown | {"unverified": None if waited is None else text_of(waited)}


def _warn(rows: list[dict[str, Any]]) -> None:
    """Long before retention (7 days by default) takes what such a load is verified and repaired by."""
    late = [row for row in rows if (row["unverified_ms"] or 0) >= WARN_AFTER_MS]
    for row in sorted(late, key=lambda row: -row["unverified_ms"])[:_WARNED]:
        print(
            f"airflow-kafka-eos: load {row['name']} {row['key']} of namespace {row['namespace']} is decided since "
            f"{text_of(row['unverified_ms'])}, and not verified: retention of its topics (retention.ms) takes what it "
            "is verified and repaired by, and coordinators forget its ended transactions "
            "(transactional.id.expiration.ms). Run `airflow-kafka-eos loads recover`; doctor says what time is left",
            file=sys.stderr,
        )
    if len(late) > _WARNED:
        print(f"airflow-kafka-eos: and {len(late) - _WARNED} more such loads", file=sys.stderr)


def _attempt(row: AttemptRow) -> dict[str, Any]:
    return {
        "number": row.number,
        "by": row.responsible,
        "opened_at": row.opened_at,
        "prepared_at": row.prepared_at,
        "verdict": None if row.verdict is None else row.verdict.value,
        "decided_at": row.decided_at,
        "decided_by": row.decided_by,
        "closed_at": row.closed_at,
        "reason": row.reason,
        "records": row.records,
        "bytes": row.bytes,
        "cluster_id": row.cluster_id,
    }


def _transaction(attempt: int, row: TransactionRow) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "transactional_id": row.transaction.transactional_id,
        "prepared_transaction_state": str(row.transaction.state),
        "spark_partition": row.spark_partition,
        "topic_partitions": len(row.writes),
        "records": row.records,
        "outcome": None if row.outcome is None else row.outcome.value,
    }


def _repair(row: RepairRow) -> dict[str, Any]:
    return {
        "number": row.number,
        "lost_transactional_id": row.lost_transactional_id,
        "transactional_id": row.transactional_id,
        "state": row.state.value,
        "opened_at": row.opened_at,
        "opened_by": row.opened_by,
        "ended_at": row.ended_at,
        "reason": row.reason,
    }


def add_recover_and_give_up(loads: Any) -> None:
    """Add the commands to those of ``loads``."""
    from airflow_kafka_eos.cli.loads import add_load

    recover = loads.add_parser(
        "recover", help="roll a decided load forward, or repair it, until it is committed or in doubt"
    )
    recover.add_argument(
        "--deadline", type=seconds, default=300.0, metavar="SECONDS", help="how long to try; default 300"
    )
    recover.set_defaults(run=_recover)
    give_up = loads.add_parser(
        "give-up",
        help="say that a decided load will never be completed",
        description="Say that a decided load will never be completed. Readers keep what is committed of it; what is "
        "not may be ended then, by `transactions force-terminate`. There is no way back.",
    )
    give_up.add_argument("--reason", required=True, help="why, for whoever looks at the ledger later")
    add_yes(give_up)
    give_up.set_defaults(run=_give_up)
    for command in (recover, give_up):
        add_load(command)
        add_cluster(command)
        add_output(command)


def _recover(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.repair.recover import recover

    load = _identity(arguments)
    with open_session(arguments) as session:
        _refuse_unknown(session, load)
        row = recover(session, load, by=person(), deadline_s=arguments.deadline)
        return _print(arguments, session, row)


def _give_up(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.repair.recover import give_up

    load = _identity(arguments)
    with open_session(arguments) as session:
        _refuse_unknown(session, load)
        confirm(arguments, f"Give up load {load} for good? It is decided to be committed.")
        give_up(session, load, by=person(), reason=arguments.reason)
        row = session.ledger.load(load)
        assert row is not None
        _print(arguments, session, row)
    return OK


def _identity(arguments: argparse.Namespace) -> LoadIdentity:
    return LoadIdentity(arguments.namespace, arguments.name, arguments.key)


def _refuse_unknown(session: Session, load: LoadIdentity) -> None:
    from airflow_kafka_eos.cli.loads import unknown

    if session.ledger.load(load) is None:
        raise unknown(session.ledger, load)


def _print(arguments: argparse.Namespace, session: Session, row: LoadRow) -> int:
    from airflow_kafka_eos.cli.loads import as_row

    shown = as_row(row, session.ledger.attempt(row.load, row.newest_attempt))
    print(as_json(shown) if arguments.output == "json" else as_lines(shown))
    return OK if row.state is LoadState.COMMITTED else FOUND
