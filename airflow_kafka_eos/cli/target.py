"""What a command is about: the cluster and ledger that it opens, the load and the transaction that it names."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kafka_eos.cli.airflow_options import default_of, or_setting, setting
from airflow_kafka_eos.cli.connections import airflow_connection
from airflow_kafka_eos.cli.durations import seconds, whole
from airflow_kafka_eos.cli.ledger import add_conn_id, told_where_else_it_may_be, url_of
from airflow_kafka_eos.cli.terminal import add_output, say, to_stderr
from airflow_kafka_eos.errors import ConfigurationError, nearest
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.spark.driver_secrets import FILE_SUFFIX, SETTINGS_VARIABLE, kafka_handed_over
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TopicPartition

#: Keys of a load name among which one is looked for that may have been meant.
_KEYS = 1000

if TYPE_CHECKING:
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.kafka.client.wire import Wire
    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.ledger.rows import LoadRow
    from airflow_kafka_eos.protocol.session import Session

_WITHOUT_AIRFLOW = (
    ". Where there is no Airflow, name the cluster by --bootstrap-server or --command-config, or set "
    f"{SETTINGS_VARIABLE}"
)

#: what Kafka's numbers of partitions, brokers and offsets go to
PARTITION, OFFSET = whole(0, 2**31 - 1), whole(0, 2**63 - 1)


def add_session(command: argparse.ArgumentParser, *, timeout_s: float = 60) -> None:
    """Which namespace, cluster and ledger, and for whom the answer is; see :func:`open_session`."""
    add_namespace(command)
    add_cluster(command, timeout_s=timeout_s)
    add_conn_id(command)
    add_output(command)


def add_cluster(command: argparse.ArgumentParser, *, timeout_s: float = 60) -> None:
    """Which cluster, and how long to wait for it. No secret is ever an argument: process lists show them."""
    command.add_argument(
        "--kafka-conn-id",
        help="Airflow connection of type kafka, where neither --bootstrap-server nor --command-config is given; "
        f"default: the settings in ${SETTINGS_VARIABLE}, or in the file that ${SETTINGS_VARIABLE}{FILE_SUFFIX} names, "
        f"else {default_of('kafka_conn_id').removeprefix('default: ')}",
    )
    add_address(command)
    command.add_argument(
        "--timeout", type=seconds, default=timeout_s, metavar="SECONDS",
        help=f"for one request with its retries; default {timeout_s:g}",
    )  # fmt: skip


def add_address(command: argparse.ArgumentParser, *, before: bool = False) -> None:
    """The cluster without Airflow, by the names that Kafka's own tools have for it.

    :param before: of a group of commands, where Kafka's tools want them: what stands behind the command wins.
    """
    suffix = "_before" if before else ""
    command.add_argument(
        "--bootstrap-server",
        dest=f"bootstrap_server{suffix}",
        metavar="HOST:PORT",
        help="the cluster, without Airflow: brokers, separated by commas",
    )
    command.add_argument(
        "--command-config",
        dest=f"command_config{suffix}",
        type=Path,
        metavar="FILE",
        help="logins and other settings: Kafka's own client.properties, or librdkafka's names, one key=value a line; "
        "may hold bootstrap.servers too",
    )


def add_namespace(command: argparse.ArgumentParser) -> None:
    """The namespace: what loads have that name none, by Airflow's section ``[kafka_eos]``."""
    command.add_argument(
        "--namespace", type=or_setting("namespace", str), default="", help=default_of("namespace")
    )


def settings_of(arguments: argparse.Namespace) -> KafkaSettings:
    """The cluster's settings.

    :raises ConfigurationError: two clusters are named, or none can be found, or a setting is wrong.
    """
    from airflow_kafka_eos.kafka.client.client_properties import read_client_properties
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.kafka.producer.options import check_setting_names
    from airflow_kafka_eos.kafka_connection import settings_of as settings_of_connection

    address = arguments.bootstrap_server or getattr(arguments, "bootstrap_server_before", None)
    file = arguments.command_config or getattr(arguments, "command_config_before", None)
    by_hand = address or file
    if by_hand and arguments.kafka_conn_id:
        raise ConfigurationError(
            "--kafka-conn-id stands beside --bootstrap-server or --command-config",
            remedy="Name the cluster in one way only",
        )
    given = None if by_hand or arguments.kafka_conn_id else kafka_handed_over(os.environ)
    if given is not None:
        source, settings = f"${SETTINGS_VARIABLE}", given
    elif not by_hand:
        option = "--kafka-conn-id" if arguments.kafka_conn_id else "[kafka_eos] kafka_conn_id"
        conn_id = setting("kafka_conn_id", arguments.kafka_conn_id or None)
        source = f"Airflow connection {conn_id!r}"
        extra = airflow_connection(option, conn_id, _WITHOUT_AIRFLOW).extra_dejson
        settings = settings_of_connection(conn_id, extra, behind_import=to_stderr)
    else:
        source = f"{file or '--bootstrap-server'}"
        extra = read_client_properties(file) if file else {}
        if address:
            extra["bootstrap.servers"] = address
        with _named(source):
            settings = KafkaSettings.from_mapping(extra)
    with _named(source):
        check_setting_names(settings)
    return settings


@contextmanager
def _named(source: str) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as e:
        e.message = f"{source}: {e.message}"
        raise


@contextmanager
def open_session(arguments: argparse.Namespace) -> Iterator[Session]:
    """Ledger and cluster, opened; see :func:`airflow_kafka_eos.protocol.session.connect` for the errors.

    The ledger is neither made nor upgraded: on a host without the loads' configuration that would be another one, and
    whatever is open would not be this ledger's.
    """
    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.protocol.session import connect

    url, settings = url_of(arguments), settings_of(arguments)
    opened = connect(
        settings,
        url,
        arguments.namespace,
        timeout_s=arguments.timeout,
        open_ledger=partial(Ledger.open, upgrade=False),
        reads_index=setting("transaction_index"),
    )
    with ExitStack() as stack:
        with told_where_else_it_may_be():
            session = stack.enter_context(opened)
        yield session


def say_where(session: Session) -> None:
    """What was looked at: "nothing" is no answer where nobody knows of what."""
    servers = session.partitions.wire.settings.bootstrap_servers
    cluster = session.cluster_id or "without an id"
    say(
        f"ledger {session.ledger.where} ({session.ledger.ledger_id}), Kafka cluster {cluster} at {servers}, "
        f"namespace {session.namespace}"
    )


def load_of(arguments: argparse.Namespace) -> LoadIdentity:
    """The load that NAME, KEY and --namespace name."""
    return LoadIdentity(arguments.namespace, arguments.name, arguments.key)


def known_load(ledger: Ledger, load: LoadIdentity) -> LoadRow:
    """
    :raises ConfigurationError: the ledger does not know the load; with what may have been meant.
    """
    row = ledger.load(load)
    if row is not None:
        return row
    keys = ledger.keys(load.namespace, load.name, _KEYS)
    if keys:
        near, field = nearest(load.key, keys), "key"
    else:
        near, field = nearest(load.name, ledger.names(load.namespace)), "name"
    raise ConfigurationError(
        f"the ledger knows no load {load}",
        remedy=f"Did you mean the {field} {near}" if near else "Run `airflow-kafka-eos loads list` for what it knows",
        load=str(load),
    )


def add_transactional_id(command: argparse.ArgumentParser) -> None:
    """The id, as a word of its own or as ``kafka-transactions.sh`` takes it."""
    command.add_argument("transactional_id", nargs="?", metavar="ID", help="the transactional id")
    command.add_argument("--transactional-id", "--transactionalId", dest="id_by_option", metavar="ID", help="the same")
    command.set_defaults(usage_of=command)


def add_partition(command: argparse.ArgumentParser) -> None:
    """Instead of the id, where the transaction is open: what ``kafka-transactions.sh find-hanging`` shows."""
    command.add_argument("--topic", help="instead of ID, with --partition and --start-offset: where it is open")
    command.add_argument("--partition", type=PARTITION, metavar="N", help="see --topic")
    command.add_argument("--start-offset", type=OFFSET, metavar="OFFSET", help="see --topic: its first offset there")


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


def id_or_partition(arguments: argparse.Namespace) -> str | TopicPartition:
    """What names the transaction; ends with the usage where nothing does, or too much."""
    name, where = given_id(arguments), (arguments.topic, arguments.partition, arguments.start_offset)
    if (name is None) == all(part is None for part in where) or (name is None and None in where):
        arguments.usage_of.error("name ID, or all of --topic, --partition and --start-offset")
    return name if name is not None else TopicPartition(arguments.topic, arguments.partition)


def transaction_at(wire: Wire, tp: TopicPartition, start_offset: int) -> PreparedTransaction:
    """What is open in a partition from an offset on, as its leader shows it.

    :raises ConfigurationError: nothing is open there, or no coordinator knows whose it is.
    """
    from airflow_kafka_eos.kafka.admin.coordinator import transactional_ids_of
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
            remedy=f"Run `airflow-kafka-eos transactions hanging --topic {tp.topic} --running-longer-than 0s`, with "
            "DESCRIBE on every transactional id",
        )
    return PreparedTransaction(name, PreparedTxnState(mine.producer_id, mine.producer_epoch))
