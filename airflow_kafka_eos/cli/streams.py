"""``streams``: streaming queries whose micro-batches are loads, and what a person says of one."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.cli.durations import milliseconds, whole
from airflow_kafka_eos.cli.ledger import add_conn_id, open_ledger, say_which
from airflow_kafka_eos.cli.target import add_namespace
from airflow_kafka_eos.cli.terminal import FOUND, OK, add_output, add_yes, confirm, say, show
from airflow_kafka_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import StreamRow

_SET = """\
The ledger binds a query's name to its query id, its checkpoint and the last batch that was decided,
and a run that does not fit is refused before it writes anything. This says what a person knows:
  --checkpoint    the checkpoint was moved, and nobody runs on the first one any more;
  --decided       the last batch of the query that its topics have: look there, not in the checkpoint;
                  -1 for none. The ledger asks for it behind `ledger new-id`. Where the query asks for
                  that very batch, it is passed over. Too low, one is written once more; too high, one is
                  never written. Refused below what was decided under a name that the query had before;
  --forget-query  the name is free: the next run binds its query, whose batches begin at 0. Where it reads
                  from (startingOffsets of its SOURCE) must be behind the last rows that the topics have, or
                  rows are there twice or missing: docs/streams.md, A new query behind the old one.
                  When the old query comes back, what is known of it is so again; has it gone on under
                  another name since, it stops until --decided is said.
The last two are refused while a batch of the query is decided, and not COMMITTED: `loads recover` first.
Stop the query's Spark DRIVER before: one that is at work goes by what it has read."""


def add_to(commands: Any) -> None:
    """Add the commands to the parser's subcommands."""
    group = commands.add_parser("streams", help="streaming queries whose micro-batches are loads")
    streams = group.add_subparsers(required=True, metavar="COMMAND")
    listed = streams.add_parser(
        "list",
        help="queries, their checkpoints, and the last batch that was decided",
        description="Queries, their checkpoints, and the last batch that was decided. With --idle only those "
        "whose last batch is older, or that have none since they were bound so long ago; exit code 1 where there is "
        "one. A query without new data has no new batch. Names that were set free are left out there, but for the one "
        "that --name gives.",
    )
    listed.add_argument(
        "--idle", type=milliseconds, metavar="TIME",
        help="only those whose last batch is older: 90s, 15m, 2h, 7d; exit code 1 where there is one",
    )  # fmt: skip
    listed.add_argument("--name", help="only this query")
    add_namespace(listed)
    add_conn_id(listed)
    add_output(listed)
    listed.set_defaults(run=_list)

    changed = streams.add_parser(
        "set",
        help="say that a query's checkpoint was moved, which batch was its last one, or that its name is free",
        description=_SET,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    changed.add_argument("name", help="of the query, as .queryName() has it")
    one = changed.add_mutually_exclusive_group(required=True)
    one.add_argument("--checkpoint", metavar="LOCATION", help="where it was moved to")
    one.add_argument("--decided", type=_batch, metavar="BATCH", help="the last batch that the topics have")
    one.add_argument("--forget-query", action="store_true", help="the next run may be of another query")
    add_namespace(changed)
    add_yes(changed)
    add_conn_id(changed)
    changed.set_defaults(run=_set)


def _batch(text: str) -> int:
    """A batch id, or -1 for none; for argparse."""
    return -1 if text == "-1" else whole(0, 2**63 - 1)(text)


def _list(arguments: argparse.Namespace) -> int:
    idle_ms = arguments.idle
    with open_ledger(arguments) as ledger:
        found = [row for row in ledger.streams(arguments.namespace) if arguments.name in (None, row.name)]
        say_which(ledger, arguments.namespace)
    if arguments.name is not None and not found:  # an alert on a name that is mistyped would never come
        raise _unknown(arguments.name, arguments.namespace)
    now = datetime.now(UTC)
    late = [
        row for row in found
        if idle_ms is None or (_is_watched(row, arguments.name) and _age_ms(row, now) > idle_ms)
    ]  # fmt: skip
    nothing = "no streaming queries" if idle_ms is None or not found else "no streaming query is late"
    show(arguments, [asdict(row) for row in late], nothing=nothing)
    return FOUND if idle_ms is not None and late else OK


def _is_watched(row: StreamRow, name: str | None) -> bool:
    """Whether it counts as late: a name that was set free has no query, unless somebody asks for that very name."""
    return row.query_id is not None or row.name == name


def _age_ms(row: StreamRow, now: datetime) -> float:
    """Of its last batch; of one that has none, since it was bound."""
    return (now - datetime.fromisoformat(row.decided_at or row.bound_at)).total_seconds() * 1000


def _set(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.spark.checkpoint import normal

    checkpoint = None if arguments.checkpoint is None else normal(arguments.checkpoint)
    with open_ledger(arguments) as ledger:
        row = ledger.stream(arguments.namespace, arguments.name)
        if row is None:
            raise _unknown(arguments.name, arguments.namespace)
        if arguments.decided is not None and row.decided is not None and arguments.decided < row.decided:
            say(
                f"airflow-kafka-eos: BACKWARDS: this ledger has batch {row.decided} of query {row.name} as decided. "
                f"What its topics have behind batch {arguments.decided} is written once more"
            )
        confirm(
            arguments,
            f"Query {row.name} is {row.query_id or 'free'}, its checkpoint {row.checkpoint}, its last batch "
            f"{_decided(row)}. Is its driver stopped, and shall that change?",
        )
        ledger.set_stream(
            arguments.namespace, arguments.name,
            checkpoint=checkpoint, decided=arguments.decided, forget_query=arguments.forget_query,
        )  # fmt: skip
        row = ledger.stream(arguments.namespace, arguments.name) or row
    print(f"query {row.name}: {row.query_id or 'free'}, checkpoint {row.checkpoint}, last batch {_decided(row)}")
    return OK


def _unknown(name: str, namespace: str | None) -> ConfigurationError:
    return ConfigurationError(
        f"the ledger knows no streaming query {name!r} in namespace {namespace!r}",
        remedy="`airflow-kafka-eos streams list` shows those that it knows",
    )


def _decided(row: StreamRow) -> str:
    return "not known" if row.decided is None else str(row.decided)
