"""How commands find the cluster: an Airflow connection, or an address with a file of client settings."""

from __future__ import annotations

import argparse
import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kafka_eos.cli.configured import setting
from airflow_kafka_eos.cli.connections import airflow_connection
from airflow_kafka_eos.cli.ledger import add_conn_id, url_of
from airflow_kafka_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_kafka_eos.kafka.settings import KafkaSettings
    from airflow_kafka_eos.protocol.session import Session


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Which cluster, which ledger, and how long to wait. No secret is ever an argument: process lists show them."""
    command.add_argument(
        "--kafka-conn-id",
        help="Airflow connection of type kafka; default, where no --bootstrap-server is given: kafka_conn_id of "
        "section [kafka_eos] in Airflow's configuration, else kafka_default",
    )
    command.add_argument("--bootstrap-server", metavar="HOST:PORT", help="the cluster, without Airflow")
    command.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="logins and other librdkafka settings, one key=value a line; may hold bootstrap.servers too",
    )
    command.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="for one request with its retries; default 60"
    )
    add_conn_id(command)


def add_namespace(command: argparse.ArgumentParser) -> None:
    """The argument that says whose: what loads have that name none, by Airflow's section ``[kafka_eos]``."""
    command.add_argument(
        "--namespace",
        type=lambda text: setting("namespace", text or None),
        default="",  # argparse hands it to `type`, and only where the argument is missing: Airflow takes its time
        help="default: that of section [kafka_eos] in Airflow's configuration, else airflow",
    )


def settings_of(arguments: argparse.Namespace) -> KafkaSettings:
    """The cluster's settings.

    :raises ConfigurationError: two clusters are named, or none can be found, or a setting is wrong.
    """
    from airflow_kafka_eos.kafka.setting_names import refuse_unknown_names
    from airflow_kafka_eos.kafka.settings import KafkaSettings

    by_hand = arguments.bootstrap_server or arguments.command_config
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
        source = f"{arguments.command_config or '--bootstrap-server'}"
        extra = properties(arguments.command_config) if arguments.command_config else {}
        if arguments.bootstrap_server:
            extra["bootstrap.servers"] = arguments.bootstrap_server
    try:
        settings = KafkaSettings.from_mapping(extra)
        refuse_unknown_names(settings)
    except ConfigurationError as e:
        e.message = f"{source}: {e.message}"
        raise
    return settings


def properties(path: Path) -> dict[str, str]:
    """The settings in a file: ``key=value`` lines, ``#`` for comments.

    :raises ConfigurationError: it cannot be read, or a line is none; its text is not shown, it may be a secret.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        raise ConfigurationError(
            f"--command-config {path} cannot be read: {reason}", remedy="Name a readable file"
        ) from None
    found = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith(("#", "!")):
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(
                f"line {number} of --command-config {path} is not key=value",
                remedy="Use librdkafka's names, one setting a line",
            )
        found[key.strip()] = value.strip()
    return found


@contextmanager
def open_session(arguments: argparse.Namespace, namespace: str | None = None) -> Iterator[Session]:
    """Ledger and cluster, opened; see :func:`airflow_kafka_eos.protocol.session.connect` for the errors."""
    from airflow_kafka_eos.protocol.session import connect

    url, settings = url_of(arguments), settings_of(arguments)
    with connect(settings, url, namespace or arguments.namespace, timeout_s=arguments.timeout) as session:
        yield session


def person() -> str:
    """Who runs the command, for the ledger."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()} (airflow-kafka-eos)"
