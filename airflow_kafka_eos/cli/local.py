"""Commands that need no cluster and no ledger of yours: ``broker``, ``demo`` and ``spark-archive``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from airflow_kafka_eos.cli.durations import whole
from airflow_kafka_eos.cli.terminal import OK
from airflow_kafka_eos.sandbox.jars import DEFAULT_KAFKA

_PARTITIONS = 4


def add_to(commands: Any) -> None:
    """Add the commands to the parser's subcommands."""
    broker = commands.add_parser(
        "broker",
        help="run a real Kafka on this machine, to try things on",
        description="Run one real Kafka broker, on loopback, until Ctrl-C. It needs Java 17, and Maven the first time. "
        "It grants two-phase commit. Not for data that anybody needs.",
    )
    broker.add_argument("--port", type=whole(1024, 65535), default=9092, help="where it listens; default 9092")
    broker.add_argument(
        "--topic", action="append", default=[], metavar="NAME",
        help=f"a topic to create, with {_PARTITIONS} partitions; may be given several times",
    )  # fmt: skip
    broker.add_argument(
        "--folder", type=Path, default=Path(".kafka"), help="where its data stays, for the next time; default .kafka"
    )
    _add_kafka_version(broker)
    broker.set_defaults(run=_broker)

    demo = commands.add_parser("demo", help="load real flights while things fail, and count what arrived")
    demo.add_argument(
        "--days", type=whole(5, 365), default=5,
        help="days of 2013 to load, two of which fail first; default 5, the least",
    )  # fmt: skip
    demo.add_argument(
        "--keep-running", action="store_true", help="leave the broker and Airflow with its UI running, until Ctrl-C"
    )
    demo.add_argument("--folder", type=Path, default=Path(".demo"), help="its folder, emptied first; default .demo")
    _add_kafka_version(demo)
    demo.set_defaults(run=_demo)

    archive = commands.add_parser(
        "spark-archive",
        help="write the archive for spark-submit's --py-files",
        description="Write a zip of this package and kafka-python, for executors where they are not installed: "
        'spark_args={"py_files": "OUT.zip"}, or spark-submit --py-files OUT.zip. Libraries with machine code must be '
        "installed there: see docs/spark.md.",
    )
    archive.add_argument("out", type=Path, metavar="OUT.zip", help="the file to write; replaced if it exists")
    archive.set_defaults(run=_archive)


def _add_kafka_version(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--kafka-version", default=DEFAULT_KAFKA, metavar="VERSION",
        help=f"the broker's, such as 4.1.2, or 4.1; default {DEFAULT_KAFKA}",
    )  # fmt: skip


def _broker(arguments: argparse.Namespace) -> int:
    import json
    import time
    from contextlib import suppress

    from airflow_kafka_eos.sandbox.broker import TopicExists
    from airflow_kafka_eos.sandbox.kafka import LocalKafka
    from airflow_kafka_eos.sandbox.keeping import sigterm_as_ctrl_c

    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with (
        sigterm_as_ctrl_c(),
        LocalKafka(arguments.kafka_version, data_dir=folder, port=arguments.port, log=_say, start_again=True) as kafka,
    ):
        for topic in dict.fromkeys(arguments.topic):
            with suppress(TopicExists):  # from the last time
                kafka.create_topic(topic, partitions=_PARTITIONS)
        extra = json.dumps({"bootstrap.servers": kafka.bootstrap_servers})
        _say(f"Kafka {kafka.version} listens on {kafka.bootstrap_servers}; Ctrl-C ends it, its data stays in {folder}")
        _say(f"  airflow connections add kafka_default --conn-type kafka --conn-extra '{extra}'")
        while True:
            time.sleep(0.5)
            kafka.check()


def _say(line: str) -> None:
    print(line, flush=True)


def _demo(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.sandbox.demo.main import main as run

    kept = arguments.keep_running
    return run(arguments.folder, days=arguments.days, keep_running=kept, kafka=arguments.kafka_version)


def _archive(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.load import WriterName
    from airflow_kafka_eos.spark.python_env import NEEDED, PACKAGES, write_archive

    count = write_archive(arguments.out)
    natives = sorted(set(NEEDED[WriterName.ARROW].values()) - {"kafka-python"})
    print(f"{arguments.out}: {count} files of {' and '.join(PACKAGES)}")
    print(f"executors need beside it, installed: {', '.join(natives)}")
    return OK
