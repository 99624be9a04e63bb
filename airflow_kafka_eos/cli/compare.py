"""What a restored ledger has forgotten: ``ledger compare``, ``loads reinstate`` and ``loads set-committed``."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.cli.airflow_options import airflow_home, default_of, or_setting
from airflow_kafka_eos.cli.target import (
    add_cluster,
    add_namespace,
    add_session,
    load_of,
    open_session,
    say_where,
)
from airflow_kafka_eos.cli.terminal import (
    FOUND,
    OK,
    TRANSIENT,
    add_deadline,
    add_yes,
    confirm,
    person,
    say,
    say_hidden,
    show,
    words_of,
    worst,
)
from airflow_kafka_eos.load import LoadIdentity, LoadState

if TYPE_CHECKING:
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

_REINSTATE = """\
Take back a load that the ledger has forgotten, because it was restored from a backup: its attempt
and its decision, by the manifest that prepare has left. Then roll it forward, as `loads recover`
does: what is still open of it is committed, and COMMITTED is said once every end marker was seen.

Only what is proven, else nothing is changed: brokers show one of its transactions as committed,
which none is before the whole load was decided; the manifest names it; and each other one that
it names is committed, or open just as it was prepared. It needs ids of the load's own (not
pooled ones), and comes before `ledger new-id`. All cursors are in doubt afterwards, as behind
that. Not one that was given up since the backup."""

_SET_COMMITTED = """\
Say that a load's records are in its topics, all of them, once. The ledger has it as COMMITTED from
here on, and no run writes it again: a run of it passes as done.

For what the ledger does not know: loads that were committed since the backup that it was restored
from (behind `ledger new-id`, which comes first), and loads that something else has written, before
the DAG had them. Nobody looks whether it is true. Of a key that is wrong, the data is never loaded;
only on_committed="reload" would write it."""


def add_compare(ledger: Any) -> None:
    """Add ``compare`` to the commands of ``ledger``."""
    compare = ledger.add_parser(
        "compare",
        help="what brokers show of this ledger's transactions, and it does not know: it was restored from a backup",
        description="List what brokers show of this ledger's transactions in the namespace: ids that were committed, "
        "and are not decided in the ledger, which then was restored from a backup; and ids with a transaction open, "
        "which nothing ends any more once the ledger has a new id. Stop the DAGs before: what running loads have open "
        "is listed, too. It reads only. Brokers show an id's last transaction, for as long as they remember "
        "it (transactional.id.expiration.ms, 7 days). Of pooled ids they do not show which load it was. Exit code 1 "
        "where there is something.",
    )
    compare.add_argument("--ledger-id", metavar="ID", help="an id that the ledger had before `ledger new-id`")
    add_session(compare)
    compare.set_defaults(run=_compare)


def add_reinstate(loads: Any) -> argparse.ArgumentParser:
    """Add ``reinstate`` to those of ``loads``, which add what all of them have."""
    command: argparse.ArgumentParser = loads.add_parser(
        "reinstate",
        help="take back a load that a restored ledger has forgotten, by its manifest",
        description=_REINSTATE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_yes(command)
    command.add_argument(
        "--manifest-dir", type=or_setting("manifest_dir", str), default="",
        help="where the loads' manifests are; " + default_of("manifest_dir", "a folder in Airflow's home"),
    )  # fmt: skip
    add_deadline(command, 300)
    command.set_defaults(run=_reinstate)
    return command


def add_set_committed(loads: Any) -> argparse.ArgumentParser:
    """Add ``set-committed`` to those of ``loads``, which add the arguments for the ledger and the output."""
    command: argparse.ArgumentParser = loads.add_parser(
        "set-committed",
        help="say that the topics have a load that the ledger does not know",
        description=_SET_COMMITTED,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("name", help="the loads' name")
    command.add_argument("keys", nargs="+", metavar="KEY", help="their load_key, one or several")
    command.add_argument("--reason", required=True, help="how you know; it is kept in the ledger")
    add_yes(command)
    add_namespace(command)
    add_cluster(command)
    command.set_defaults(run=_set_committed)
    return command


def _compare(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.guards.ownership import CHOSEN_BY
    from airflow_kafka_eos.protocol.repair.restored import compare

    with open_session(arguments) as session:
        found = compare(session, arguments.ledger_id)
        namespaces, clusters = session.ledger.elsewhere()
        say_where(session)
        here = session.namespace, session.cluster_id
    rows = [asdict(one) for one in found.forgotten]
    told = [
        row | words_of(row) | {"committed": len(row["committed"]) or None, "open": len(row["open"]) or None}
        for row in rows
    ]
    show(arguments, rows, told, nothing="the ledger has decided all commits that brokers show, and nothing is open")
    for what, names, option in (("namespaces", namespaces, "--namespace"), ("clusters", clusters, CHOSEN_BY)):
        if others := [name for name in names if name not in here]:
            say(f"airflow-kafka-eos: NOT LOOKED AT: other {what} of this ledger: {', '.join(others)} ({option})")
    for ledger_id in sorted({*found.other_ledgers, *found.open_of_others}):
        committed, open_ = found.other_ledgers.get(ledger_id, 0), found.open_of_others.get(ledger_id, 0)
        shows = [f"{committed} ids of ledger {ledger_id} show a commit"] if committed else []
        shows += [f"{open_} ids of ledger {ledger_id} have a transaction open"] if open_ else []
        say(
            f"airflow-kafka-eos: {', '.join(shows)}. Had this ledger that id, before "
            f"`ledger new-id` or before it was restored again? Then look at them by --ledger-id {ledger_id}"
        )
    if found.has_moved:
        say("airflow-kafka-eos: THIS MAY NOT BE ALL: a transaction coordinator is moving or away. Run it again")
    moved = TRANSIENT if found.has_moved else OK
    return worst([FOUND if rows else OK, moved, say_hidden(found.hidden)])


def _reinstate(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.repair.restored import reinstate

    store = _manifests(arguments.manifest_dir)
    with open_session(arguments) as session:
        say_where(session)
        load = load_of(arguments)
        confirm(
            arguments,
            f"Shall {load} be taken back? Is no run or driver at work on it, and was it not given up since the backup?",
        )
        row = reinstate(
            session, load, store.read, by=person(), writers_left=store.writers_left,
            deadline_s=arguments.deadline,
        )  # fmt: skip
        attempt = session.ledger.attempt(row.load, row.newest_attempt)
    show(
        arguments,
        asdict(row.load)
        | {"state": row.state, "attempt": row.newest_attempt, "records": None if attempt is None else attempt.records},
    )
    return OK if row.state is LoadState.COMMITTED else FOUND


def _manifests(manifest_dir: str | None) -> ManifestStore:
    from airflow_kafka_eos.spark.manifest_store import DEFAULT_FOLDER, ManifestStore

    if not manifest_dir:
        return ManifestStore(os.path.join(airflow_home(), DEFAULT_FOLDER))
    if "@" in manifest_dir.partition("://")[2]:  # with an Airflow connection's login
        from airflow_kafka_eos.operators.submitting import manifest_store

        return manifest_store(manifest_dir)
    return ManifestStore(manifest_dir)


def _set_committed(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.repair.restored import set_committed

    loads = [LoadIdentity(arguments.namespace, arguments.name, key) for key in arguments.keys]
    done: list[dict[str, Any]] = []
    with open_session(arguments) as session:
        say_where(session)
        named = ", ".join(map(str, loads))
        confirm(arguments, f"Are all records of {named} in their topics, once? No run will write them again.")
        try:
            for load in loads:
                row = set_committed(session, load, by=person(), reason=arguments.reason)
                known = {"state": session.ledger.state(load), "attempt": row.number, "reason": row.reason}
                done.append({"name": load.name, "key": load.key} | known)
        finally:  # what is done is done, whatever comes behind it
            show(arguments, done, [one | words_of(one) for one in done])
    return OK
