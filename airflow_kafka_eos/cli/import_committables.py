"""``transactions import-committables``: list, and commit, what another two-phase sink has prepared (FLIP-319)."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.cli.target import add_cluster, settings_of
from airflow_kafka_eos.cli.terminal import FOUND, OK, add_deadline, add_output, add_yes, confirm, say, show
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.transaction import PreparedTransaction

if TYPE_CHECKING:
    from airflow_kafka_eos.two_phase_commit.import_committables import Found

#: a committable has some 50 bytes, and a checkpoint one for each subtask: more is another file
_MOST_BYTES = 64 * 1024 * 1024


def add_to(transactions: Any) -> None:
    """Add the command to those of ``transactions``."""
    command = transactions.add_parser(
        "import-committables",
        help="list, or commit, what another two-phase sink has prepared, by its committables",
        description="Read the committables of a two-phase sink, such as Flink's KafkaSink, and show what their "
        "coordinators know of each; with --commit, commit those that are prepared, by their recorded identity. For a "
        "sink whose job is gone: while it runs, it commits them itself. It asks the brokers alone, no ledger; it needs "
        "DESCRIBE, and for --commit WRITE, on the transactional ids.",
    )
    command.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="committables of version 1 or 2, each behind its version and length; or a JSON object a line",
    )
    command.add_argument("--commit", action="store_true", help="commit them; the default only looks")
    command.add_argument(
        "--partial", action="store_true", help="with --commit: commit the others where some are lost; default: none"
    )
    add_deadline(command, 60)
    add_yes(command)
    add_cluster(command)
    add_output(command)
    command.set_defaults(run=_import)


def _import(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.kafka.client.wire import Wire
    from airflow_kafka_eos.two_phase_commit.import_committables import CommittableState, commit, look

    committables = _read(arguments.file)
    with Wire(settings_of(arguments), timeout_s=arguments.timeout) as wire:
        found = look(wire, committables)
        cluster = f"Kafka cluster {wire.cluster_id() or 'without an id'} at {wire.settings.bootstrap_servers}"
        say(cluster)
        prepared = [one for one in found if one.state is CommittableState.PREPARED]
        if arguments.commit and prepared:
            confirm(arguments, f"Commit {len(prepared)} transactions of another application, on {cluster}?")
        if arguments.commit:
            found = commit(wire, committables, partial=arguments.partial, deadline_s=arguments.deadline)
    shown = [_row(one) for one in found]
    show(arguments, shown, [row | {"topic_partitions": ", ".join(row["topic_partitions"])} for row in shown])
    counts = Counter(one.state.value for one in found)
    say(", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
    return OK if all(one.state is CommittableState.COMMITTED for one in found) else FOUND


def _read(file: Path) -> list[PreparedTransaction]:
    from airflow_kafka_eos.committables import read_file

    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}", remedy="Name a file") from error
    if len(data) > _MOST_BYTES:
        raise ConfigurationError(f"{file} has more than {_MOST_BYTES} bytes", remedy="Name a file of committables")
    try:
        return read_file(data)
    except ConfigurationError as error:
        error.message = f"{file}: {error.message}"
        raise


def _row(found: Found) -> dict[str, Any]:
    identity = found.committable.state
    return {
        "transactional_id": found.committable.transactional_id,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.producer_epoch,
        "state": found.state.value,
        "topic_partitions": [str(tp) for tp in sorted(found.partitions)],
    }
