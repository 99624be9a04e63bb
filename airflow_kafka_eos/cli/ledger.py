"""``ledger``: the ledger's database, and how each command finds it."""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.cli.airflow_options import in_ms, or_setting, setting
from airflow_kafka_eos.cli.connections import airflow_connection
from airflow_kafka_eos.cli.durations import milliseconds, text_of
from airflow_kafka_eos.cli.terminal import FOUND, OK, add_output, add_yes, confirm, person, say
from airflow_kafka_eos.errors import ConfigurationError, LedgerNotReadyError
from airflow_kafka_eos.spark.driver_secrets import FILE_SUFFIX, LEDGER_VARIABLE, handed_over

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.ledger import Ledger

log = logging.getLogger(__name__)

PRUNE_AFTER = "90d"

_NEW_ID = """\
A ledger restored from a backup knows less than Kafka: loads that were committed since the
backup look as if they were never loaded, and would be loaded a second time. As long as the
ledger keeps its id, begin finds those on the broker and refuses them (for about a week, until
the broker forgets their transactional ids).

The id is part of every transactional id. With a new one
  - begin no longer sees what was written under the old one: BEFORE this, pause the DAGs, and take back
    what `ledger compare` shows as committed, by `loads reinstate`. What cannot be, note:
    `loads set-committed`, BEHIND this, lets no run write it again;
  - undecided attempts are aborted. What their transactions have open under the old id is not
    ended any more: it holds readers back until its timeout, or until somebody ends it by hand;
  - decided loads must be finished before;
  - every cursor is in doubt: a load that has one is refused until `cursors set` says where what is
    loaded ends; and so is a load whose cursor this ledger does not have: `cursors set --new`.
  - BEFORE this, stop the Spark DRIVERS of all streaming queries, not the queries alone. A query then
    begins no batch until `streams set NAME --decided BATCH` has said, behind this, which is the last
    one that its topics have. One that this ledger has never seen, and whose batch 0 is in its topics,
    needs a new checkpoint, with startingOffsets (of its source) behind it.
Restart Airflow's scheduler and triggerer afterwards, and do not let tasks that began before go on."""

_FORGET_CLUSTER = """\
Each attempt remembers the Kafka cluster that it was written to, and is not touched through a
connection to another one. Use this when that cluster does not exist any more, or when its brokers
were set up anew and have another cluster id. Attempts that are not closed then forget the cluster,
and are looked for in the one that the connection leads to from now on. There
  - undecided attempts have nothing open, and are closed;
  - decided loads cannot be completed: they become IN_DOUBT, for the topics of their names are others.
    Give them up, and load the same data under a load_key of its own.
If the old cluster still runs somewhere, what is open in it holds readers back until its timeout,
and a load that was committed there may be written here once more: clean up there first."""


_PRUNE = """\
Forget the transactions of attempts that were closed long ago: aborted ones, and those of loads
that are COMMITTED. Most of a ledger is that.

Kept for ever: loads with their keys, states and reasons, attempts, decisions, repairs, and of
committed loads what went into each topic partition (records, bytes, offsets). So a key still
loads once, and a cleared task of an old run passes as before.
Gone: which transactions there were, with their ids, digests and outcomes. Programs that come
back to a transaction by KIP-939's calls get an error instead of an answer.

It may run beside everything else, and be interrupted: each step is whole. The space is the
database's to use again; VACUUM gives it back to the disk."""


def add_to(commands: Any) -> Any:
    """Add the commands to the parser's subcommands; the group, for commands that open a cluster too."""
    group = commands.add_parser("ledger", help="the ledger's database")
    ledger = group.add_subparsers(required=True, metavar="COMMAND")
    for name, run, help, explained in (
        ("upgrade", _upgrade, "create or migrate the ledger's tables", None),
        ("check", _check, "say which ledger it is, and whether its tables are up to date", None),
        ("new-id", _new_id, "give a ledger that was restored from a backup an id of its own", _NEW_ID),
        ("forget-cluster", _forget_cluster, "forget a Kafka cluster that does not exist any more", _FORGET_CLUSTER),
    ):
        command = ledger.add_parser(
            name, help=help, description=explained, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if run is _forget_cluster:
            command.add_argument("cluster_id", metavar="CLUSTER-ID", help="as `loads show` has it")
        if explained:  # it cannot be taken back
            add_yes(command)
        add_conn_id(command)
        command.set_defaults(run=run)
    _add_prune(ledger)
    return ledger


def _add_prune(ledger: Any) -> None:
    prune = ledger.add_parser(
        "prune",
        help="forget the transactions of loads that ended long ago",
        description=_PRUNE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prune.add_argument(
        "--older-than", type=or_setting("prune_after", _older_than, _set_or_usual), default="", metavar="DURATION",
        help="of attempts that were closed so long ago, a day at least; default: [kafka_eos] prune_after, or "
        f"{PRUNE_AFTER}",
    )  # fmt: skip
    prune.add_argument("--namespace", help="only of this namespace; default: of all")
    prune.add_argument("--dry-run", action="store_true", help="only say how much it would be")
    add_yes(prune)
    add_conn_id(prune)
    add_output(prune)
    prune.set_defaults(run=_prune)


def _older_than(text: str) -> int:
    ms = milliseconds(text)
    if ms < milliseconds("1d"):
        raise argparse.ArgumentTypeError(f"{text} is less than a day: people may still ask what became of a load")
    return ms


def _set_or_usual(found: timedelta | None) -> int:
    return milliseconds(PRUNE_AFTER) if found is None else in_ms(found)


def _prune(arguments: argparse.Namespace) -> int:
    older_than = timedelta(milliseconds=arguments.older_than)
    of = {"namespace": arguments.namespace}
    with open_ledger(arguments) as ledger:
        say_which(ledger)
        found = ledger.prunable(older_than, **of)
        attempts = transactions = 0
        if found.attempts and not arguments.dry_run:
            confirm(
                arguments,
                f"Forget {found.transactions} transactions of {found.attempts} attempts that were closed more than "
                f"{text_of(arguments.older_than)} ago?",
            )
            for done in ledger.prune(older_than, **of):
                attempts += done.attempts
                transactions += done.transactions
                say(f"{attempts} of {found.attempts} attempts, {transactions} transactions")
    if arguments.dry_run:
        attempts, transactions = found.attempts, found.transactions
    answer = {"attempts": attempts, "transactions": transactions, "dry_run": arguments.dry_run}
    what = "would be pruned" if arguments.dry_run else "pruned"
    shown = f"{transactions} transactions of {attempts} attempts {what}" if found.attempts else "nothing to prune"
    if arguments.output == "json":
        print(json.dumps(answer, indent=2))
    else:
        print(shown)
    return OK


def add_conn_id(command: argparse.ArgumentParser) -> None:
    """The argument that says which ledger."""
    command.add_argument(
        "--conn-id",
        "--ledger-conn-id",
        dest="conn_id",
        help=f"Airflow connection of the ledger; default: the URL in ${LEDGER_VARIABLE}, or in the file that "
        f"${LEDGER_VARIABLE}{FILE_SUFFIX} names, else ledger_conn_id of section [kafka_eos] in Airflow's "
        "configuration, else the SQLite file",
    )


def url_of(arguments: argparse.Namespace) -> str:
    """The ledger's URL, by argument, environment or Airflow's section ``[kafka_eos]``: that of the loads.

    :raises ConfigurationError: the connection is not there, or cannot hold a ledger.
    """
    from airflow_kafka_eos.ledger.location import default_url, ledger_url

    option, conn_id = "--conn-id", arguments.conn_id
    if not conn_id:
        if url := handed_over(os.environ, LEDGER_VARIABLE):
            return _readable(url.strip())
        option, conn_id = "[kafka_eos] ledger_conn_id", setting("ledger_conn_id")
    if not conn_id:
        return default_url()
    return _readable(ledger_url(airflow_connection(option, conn_id)))


def _readable(url: str) -> str:
    try:
        url.encode()
    except UnicodeEncodeError:
        # without the cause, which has the URL in it
        raise ConfigurationError("the ledger's URL is not UTF-8", remedy="Write its bytes as %XX") from None
    return url


def open_ledger(arguments: argparse.Namespace) -> Ledger:
    """The ledger, as it is: no command but ``ledger upgrade`` makes or upgrades one.

    :raises LedgerNotReadyError: there is none, or not of this version's revision.
    :raises LedgerUnavailableError: its database does not answer.
    """
    from airflow_kafka_eos.ledger.ledger import Ledger

    url = url_of(arguments)
    with told_where_else_it_may_be():
        return Ledger.open(url, upgrade=False)


def say_which(ledger: Ledger, namespace: str | None = None) -> None:
    """Which ledger was read, and of one namespace alone: "no loads" is no answer where nobody knows of which."""
    say(f"ledger {ledger.where} ({ledger.ledger_id}){f', namespace {namespace}' if namespace else ''}")


@contextmanager
def told_where_else_it_may_be() -> Iterator[None]:
    """Adds a remedy to the error of a missing ledger: this host may lack the configuration of the loads' hosts."""
    try:
        yield
    except LedgerNotReadyError as e:
        e.remedy += (
            f". Another ledger is named by --conn-id, ${LEDGER_VARIABLE} or ledger_conn_id of section [kafka_eos]"
        )
        raise


def _upgrade(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.ledger.location import redacted
    from airflow_kafka_eos.ledger.migrate import current, upgrade

    url = url_of(arguments)
    before = current(url)
    upgrade(url)
    print(f"ledger {redacted(url)}: {before or 'empty'} -> {current(url)}")
    if before is None:
        say(
            "airflow-kafka-eos: this ledger is new, and knows no load. If loads have run already, let none run here: "
            "all of them would be loaded again. Name the ledger that they use, or restore its database"
        )
    return OK


def _check(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.ledger.location import redacted
    from airflow_kafka_eos.ledger.migrate import current

    url = url_of(arguments)
    with open_ledger(arguments) as ledger:  # says what is wrong
        print(f"ledger {redacted(url)}: revision {current(url)}, up to date; its id is {ledger.ledger_id}")
    return OK


def _new_id(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.ledger.location import redacted

    url = url_of(arguments)
    with open_ledger(arguments) as ledger:
        if not arguments.yes:
            print(f"{_NEW_ID}\n")
        confirm(arguments, f"Give ledger {redacted(url)}, now {ledger.ledger_id}, a new id?")
        old = ledger.new_id(decided_by="airflow-kafka-eos ledger new-id")
        print(f"ledger {redacted(url)}: {old} -> {ledger.ledger_id}")
    return OK


def _forget_cluster(arguments: argparse.Namespace) -> int:
    with open_ledger(arguments) as ledger:
        if not arguments.yes:
            print(f"{_FORGET_CLUSTER}\n")
        confirm(arguments, f"Let {ledger} forget Kafka cluster {arguments.cluster_id}?")
        count = ledger.forget_cluster(arguments.cluster_id)
        log.warning("%s: %s let %d attempts forget Kafka cluster %s", ledger, person(), count, arguments.cluster_id)
        print(f"{ledger}: {count} attempts that are not closed have forgotten Kafka cluster {arguments.cluster_id}")
    return OK if count else FOUND
