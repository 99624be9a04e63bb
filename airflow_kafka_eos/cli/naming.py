"""Which transaction a command is about: by its id, or by where it is open, under the names of Kafka's own tools too."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from airflow_kafka_eos.cli.durations import whole
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.transaction import TopicPartition

if TYPE_CHECKING:
    from airflow_kafka_eos.kafka.client.wire import Wire

#: what Kafka's numbers of partitions, brokers and offsets go to
PARTITION, OFFSET = whole(0, 2**31 - 1), whole(0, 2**63 - 1)


def add_transactional_id(command: argparse.ArgumentParser) -> None:
    """The id, as a word of its own or as ``kafka-transactions.sh`` takes it."""
    command.add_argument("transactional_id", nargs="?", metavar="ID", help="the transactional id")
    command.add_argument("--transactional-id", "--transactionalId", dest="id_by_option", metavar="ID", help="the same")
    command.set_defaults(usage_of=command)


def add_place(command: argparse.ArgumentParser) -> None:
    """Instead of the id, where the transaction is open: what ``kafka-transactions.sh find-hanging`` shows."""
    command.add_argument("--topic", help="instead of ID, with --partition and --start-offset: where it is open")
    command.add_argument("--partition", type=PARTITION, metavar="N", help="see --topic")
    command.add_argument("--start-offset", type=OFFSET, metavar="N", help="see --topic: where it begins")


def given_id(arguments: argparse.Namespace) -> str | None:
    """The id that was named; ends with the usage where it was named twice."""
    if arguments.transactional_id and arguments.id_by_option:
        arguments.usage_of.error("ID stands beside --transactional-id: name it once")
    return arguments.transactional_id or arguments.id_by_option or None


def needed_id(arguments: argparse.Namespace) -> str:
    """The same; ends with the usage where there is none."""
    name = given_id(arguments)
    if name is None:
        arguments.usage_of.error("the following arguments are required: ID")
    assert name is not None  # error() has exited
    return name


def id_or_place(arguments: argparse.Namespace) -> str | TopicPartition:
    """What names the transaction; ends with the usage where nothing does, or too much."""
    name, place = given_id(arguments), (arguments.topic, arguments.partition, arguments.start_offset)
    if (name is None) == all(part is None for part in place) or (name is None and None in place):
        arguments.usage_of.error("name ID, or all of --topic, --partition and --start-offset")
    return name if name is not None else TopicPartition(arguments.topic, arguments.partition)


def id_at(wire: Wire, tp: TopicPartition, start_offset: int) -> str:
    """The transactional id of what is open in a partition from an offset on.

    :raises ConfigurationError: nothing is open there, or no coordinator knows whose it is.
    """
    from airflow_kafka_eos.kafka.admin.list_transactions import transactional_ids_of
    from airflow_kafka_eos.kafka.admin.partitions import Partitions

    there = [p for p in Partitions(wire).producers([tp])[tp] if p.txn_start_offset >= 0]
    mine = next((p for p in there if p.txn_start_offset == start_offset), None)
    if mine is None:
        offsets = ", ".join(str(p.txn_start_offset) for p in there) or "none at all"
        raise ConfigurationError(
            f"no transaction is open in {tp} from offset {start_offset} on; open from: {offsets}",
            remedy="`airflow-kafka-eos transactions describe-producers` shows what is open there",
        )
    name = transactional_ids_of(wire, [mine.producer_id]).get(mine.producer_id)
    if name is None:
        raise ConfigurationError(
            f"no coordinator shows whose transaction producer {mine.producer_id}:{mine.producer_epoch} has in {tp}",
            remedy=f"Run `airflow-kafka-eos transactions hanging --topic {tp.topic}`, with DESCRIBE on every "
            "transactional id",
        )
    return name
