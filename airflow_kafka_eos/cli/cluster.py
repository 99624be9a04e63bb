"""How commands find the cluster: an Airflow connection, or an address with a file of client settings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kafka_eos.cli.airflow_options import default_of, or_setting, setting
from airflow_kafka_eos.cli.connections import airflow_connection
from airflow_kafka_eos.cli.durations import seconds
from airflow_kafka_eos.cli.ledger import add_conn_id, told_where_else_it_may_be, url_of
from airflow_kafka_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.protocol.session import Session


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Which cluster, which ledger, and how long to wait. No secret is ever an argument: process lists show them."""
    add_kafka_conn_id(command)
    add_address(command)
    command.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="SECONDS", help="for one request with its retries; default 60"
    )
    add_conn_id(command)


def add_kafka_conn_id(command: argparse.ArgumentParser) -> None:
    """The cluster by an Airflow connection."""
    command.add_argument(
        "--kafka-conn-id",
        help="Airflow connection of type kafka, where neither --bootstrap-server nor --command-config is given; "
        f"{default_of('kafka_conn_id')}",
    )


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
    """The argument that says whose: what loads have that name none, by Airflow's section ``[kafka_eos]``."""
    command.add_argument(
        "--namespace",
        type=or_setting("namespace", str),
        default="",
        help=default_of("namespace"),
    )


def settings_of(arguments: argparse.Namespace) -> KafkaSettings:
    """The cluster's settings.

    :raises ConfigurationError: two clusters are named, or none can be found, or a setting is wrong.
    """
    from airflow_kafka_eos.kafka.client.client_properties import read_client_properties
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.kafka.producer.options import check_setting_names

    address = arguments.bootstrap_server or getattr(arguments, "bootstrap_server_before", None)
    file = arguments.command_config or getattr(arguments, "command_config_before", None)
    by_hand = address or file
    if by_hand and arguments.kafka_conn_id:
        raise ConfigurationError(
            "--kafka-conn-id stands beside --bootstrap-server or --command-config",
            remedy="Name the cluster in one way only",
        )
    if not by_hand:
        conn_id = setting("kafka_conn_id", arguments.kafka_conn_id or None)
        source = f"Airflow connection {conn_id!r}"
        extra = airflow_connection("--kafka-conn-id", conn_id).extra_dejson
    else:
        source = f"{file or '--bootstrap-server'}"
        extra = read_client_properties(file) if file else {}
        if address:
            extra["bootstrap.servers"] = address
    try:
        settings = KafkaSettings.from_mapping(extra)
        check_setting_names(settings)
    except ConfigurationError as e:
        e.message = f"{source}: {e.message}"
        raise
    return settings


@contextmanager
def open_session(arguments: argparse.Namespace, namespace: str | None = None) -> Iterator[Session]:
    """Ledger and cluster, opened; see :func:`airflow_kafka_eos.protocol.session.connect` for the errors.

    The ledger is neither made nor upgraded: on a host without the loads' configuration that would be another one, and
    whatever is open would be a stranger's.
    """
    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.protocol.session import connect

    url, settings = url_of(arguments), settings_of(arguments)
    opened = connect(
        settings,
        url,
        namespace or arguments.namespace,
        timeout_s=arguments.timeout,
        open_ledger=partial(Ledger.open, upgrade=False),
    )
    with ExitStack() as stack:
        with told_where_else_it_may_be():
            session = stack.enter_context(opened)
        yield session


def say_where(session: Session) -> None:
    """On stderr, what was looked at: "nothing" is no answer where nobody knows of what."""
    servers = session.partitions.wire.settings.bootstrap_servers
    cluster = session.cluster_id or "without an id"
    print(
        f"ledger {session.ledger.where} ({session.ledger.ledger_id}), Kafka cluster {cluster} at {servers}, "
        f"namespace {session.namespace}",
        file=sys.stderr,
    )


def person() -> str:
    """Who runs the command, for the ledger."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()} (airflow-kafka-eos)"
