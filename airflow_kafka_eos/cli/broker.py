"""``broker``: a real Kafka on this machine, to try loads on where no cluster is at hand."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from airflow_kafka_eos.cli.durations import whole

_PARTITIONS = 4


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    broker = commands.add_parser(
        "broker",
        help="run a real Kafka on this machine, to try things on",
        description="Run one real Kafka broker, on loopback, until Ctrl-C. It needs Java 17, and Maven the first time. "
        "It grants two-phase commit. Not for data that anybody needs.",
    )
    broker.add_argument("--port", type=whole(1024, 65535), default=9092, help="where it listens; default 9092")
    broker.add_argument(
        "--topic", action="append", default=[], metavar="NAME",
        help=f"a topic that it is to have, with {_PARTITIONS} partitions; may be given several times",
    )  # fmt: skip
    broker.add_argument(
        "--folder", type=Path, default=Path(".kafka"), help="where its data stays, for the next time; default .kafka"
    )
    broker.set_defaults(run=_broker)


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
        LocalKafka(data_dir=folder, port=arguments.port, log=_say, start_again=True) as kafka,
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
