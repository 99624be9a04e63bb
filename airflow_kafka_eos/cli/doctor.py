"""``doctor``: what is wrong with cluster, ledger and Spark settings, and the command that mends it.

Exit code 0: no error was found; 1: one was; 2: bad usage; 3: neither cluster nor ledger could be reached.
"""

from __future__ import annotations

import argparse
import logging
import shlex
from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.cli.airflow_options import airflow_option, default_of, or_setting, setting
from airflow_kafka_eos.cli.connections import airflow_connection
from airflow_kafka_eos.cli.durations import seconds, whole
from airflow_kafka_eos.cli.ledger import url_of
from airflow_kafka_eos.cli.target import add_session, settings_of
from airflow_kafka_eos.cli.terminal import FOUND, OK, TRANSIENT, short, show
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import TransactionScope, TwoPhaseCommit
from airflow_kafka_eos.naming import MAX_IDS_OF_NAME, MAX_IDS_OF_NAMESPACE

if TYPE_CHECKING:
    from airflow_kafka_eos.doctor.examine import Examination
    from airflow_kafka_eos.doctor.finding import Finding
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings

#: what they log of connections is in the findings, and Airflow's logging would print it between them
_CHATTY = ("kafka", "alembic")


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    doctor = commands.add_parser("doctor", help="check cluster, ledger and Spark settings; changes nothing")
    doctor.add_argument(
        "--topic", action="append", default=[], help="a topic that is loaded into; may be given several times"
    )
    doctor.add_argument("--load-name", help="the load name, where the ACLs are for one load name only")
    doctor.add_argument(
        "--hold-time", type=or_setting("hold_time", seconds, timedelta.total_seconds), default="", metavar="SECONDS",
        help=f"as the load has it: seconds, or such as 15m; {default_of('hold_time')}",
    )  # fmt: skip
    doctor.add_argument(
        "--two-phase-commit", choices=[choice.value for choice in TwoPhaseCommit], default="",
        type=or_setting("two_phase_commit", str), help=f"as the load has it; {default_of('two_phase_commit')}",
    )  # fmt: skip
    scopes = [choice.value for choice in TransactionScope]
    doctor.add_argument("--scope", choices=scopes, default=scopes[0], help=f"as the load has it; default {scopes[0]}")
    many = whole(1, 2**31 - 1)
    for option, cap in (("", MAX_IDS_OF_NAME), ("-of-namespace", MAX_IDS_OF_NAMESPACE)):
        doctor.add_argument(
            f"--max-transactional-ids{option}", type=many, default=cap, metavar="N", help=f"default {cap}"
        )
    doctor.add_argument(
        "--spark-conf", action="append", metavar="KEY=VALUE",
        help="a Spark setting of the load; may be given several times",
    )  # fmt: skip
    doctor.add_argument(
        "--spark-conn-id",
        help="check the settings in this Airflow connection's extra too, or the Spark Connect server that it names",
    )
    add_session(doctor, timeout_s=10)
    doctor.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.doctor.examine import examine
    from airflow_kafka_eos.doctor.finding import Asked
    from airflow_kafka_eos.protocol.guards.id_caps import Caps

    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    asked = Asked(
        namespace=arguments.namespace,
        topics=tuple(dict.fromkeys(arguments.topic)),
        hold_time_ms=int(arguments.hold_time * 1000),
        two_phase_commit=TwoPhaseCommit(arguments.two_phase_commit),
        scope=TransactionScope(arguments.scope),
        load_name=arguments.load_name,
        caps=Caps(arguments.max_transactional_ids, arguments.max_transactional_ids_of_namespace),
        spark_conf=_spark_conf(arguments),
        executor=airflow_option("core", "executor", "LocalExecutor"),
        ledger_flags=_flags(arguments, "conn_id"),
        cluster_flags=_flags(arguments, "kafka_conn_id", "bootstrap_server", "command_config"),
    )
    settings = settings_of(arguments)
    found = examine(settings, url_of(arguments), asked, timeout_s=arguments.timeout)
    found = replace(found, findings=(*found.findings, *_of_connect(arguments, settings)))
    table = [
        {"check": f.id, "result": f.severity, "subject": f.subject, "seen": short(f.seen, 70)} for f in found.findings
    ]
    if show(arguments, [asdict(f) for f in found.findings], table):
        _explain(found)
    if not found.reached_anything:
        return TRANSIENT
    return FOUND if found.has_errors else OK


def _of_connect(arguments: argparse.Namespace, settings: KafkaSettings | None) -> list[Finding]:
    """Of a Spark connection of type ``spark_connect``, which names a server that runs already."""
    if not arguments.spark_conn_id:
        return []
    connection = airflow_connection("--spark-conn-id", arguments.spark_conn_id)
    if connection.conn_type != "spark_connect":
        return []
    from airflow_kafka_eos.connect.examine import examine as examine_connect
    from airflow_kafka_eos.connect.remote import Remote
    from airflow_kafka_eos.doctor.finding import Judgement

    try:
        remote = Remote.of(arguments.spark_conn_id, connection)
    except ConfigurationError as e:  # what else was found is shown, too
        judged = Judgement("connect-reachable", arguments.spark_conn_id, e.message)
        return [judged.error("No load can be prepared by it", e.remedy)]
    kafka_conn_id = setting("kafka_conn_id", arguments.kafka_conn_id or None)
    return examine_connect(remote, settings, kafka_conn_id, TransactionScope(arguments.scope))


def _flags(arguments: argparse.Namespace, *names: str) -> str:
    """What of these was given, for another command of ours: which cluster, or ledger, is meant."""
    given = ((name, getattr(arguments, name)) for name in names)
    return " ".join(f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in given if value)


def _pairs(argument: str, texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    for number, text in enumerate(texts, 1):
        key, equals, value = text.partition("=")
        if not (equals and key.strip()):
            # the text may be a password
            raise ConfigurationError(f"{argument}: entry {number} is not key=value", remedy="Write it as key=value")
        yield key.strip(), value.strip()


def _spark_conf(arguments: argparse.Namespace) -> dict[str, str] | None:
    if arguments.spark_conf is None and not arguments.spark_conn_id:
        return None
    conf: dict[str, str] = {}
    if arguments.spark_conn_id:
        found = airflow_connection("--spark-conn-id", arguments.spark_conn_id)
        if found.conn_type == "spark_connect":  # its settings are the server's
            return dict(_pairs("--spark-conf", arguments.spark_conf)) if arguments.spark_conf else None
        extra = found.extra_dejson
        conf |= {key: str(value) for key, value in extra.items() if key.startswith("spark.")}
    return conf | dict(_pairs("--spark-conf", arguments.spark_conf or ()))


def _explain(found: Examination) -> None:
    from airflow_kafka_eos.doctor.commands import ADMIN_CONFIG

    for f in found.findings:
        if f.severity.value == "ok":
            continue
        print(f"\n{f.severity.value}: {f.id}, {f.subject}\n  {f.seen}\n  {f.means}.")
        for number, line in enumerate(f.remedy.splitlines()):
            print(f"     {line}" if number else f"  -> {line}")
    if any(ADMIN_CONFIG in f.remedy for f in found.findings):
        print(f"\n{ADMIN_CONFIG} has the login of an administrator, as Kafka's own tools read it")
