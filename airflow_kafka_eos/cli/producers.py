"""``transactions describe-producers``: which producers a partition remembers, and what each has open there."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from airflow_kafka_eos.cli.cluster import add_address, add_kafka_conn_id, settings_of
from airflow_kafka_eos.cli.durations import seconds
from airflow_kafka_eos.cli.exits import OK
from airflow_kafka_eos.cli.naming import PARTITION
from airflow_kafka_eos.cli.output import add_output, as_json, as_table, utc
from airflow_kafka_eos.errors import TopicError
from airflow_kafka_eos.transaction import TopicPartition


def add_to(transactions: Any) -> None:
    """Add the command to those of ``transactions``."""
    producers = transactions.add_parser(
        "describe-producers",
        help="which producers a partition remembers, and what each has open there",
        description="The producers of a partition, as one of its replicas remembers them, whoever they are (KIP-664). "
        "It asks the brokers alone, no ledger; it needs READ on the topic.",
    )
    producers.add_argument("--topic", required=True, help="the topic")
    producers.add_argument("--partition", required=True, type=PARTITION, metavar="N", help="the partition's number")
    producers.add_argument("--broker-id", type=PARTITION, metavar="N", help="ask this replica; default: the leader")
    add_kafka_conn_id(producers)
    add_address(producers)
    producers.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="SECONDS", help="for one request with its retries; default 60"
    )
    add_output(producers)
    producers.set_defaults(run=_producers)


def _producers(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.kafka.partitions import Partitions
    from airflow_kafka_eos.kafka.producers import remembered_producers, transactional_ids_of
    from airflow_kafka_eos.kafka.wire import Wire

    tp = TopicPartition(arguments.topic, arguments.partition)
    with Wire(settings_of(arguments), timeout_s=arguments.timeout) as wire:
        there = Partitions(wire).topic_info([tp.topic])[tp.topic].partitions
        if tp.partition >= there:
            raise TopicError(
                f"topic {tp.topic} has no partition {tp.partition}", remedy=f"It has {there}, counted from 0"
            )
        found = remembered_producers(wire, tp, arguments.broker_id)
        ids = transactional_ids_of(wire, (p.producer_id for p in found))
        print(f"Kafka cluster {wire.cluster_id()} at {wire.settings.bootstrap_servers}", file=sys.stderr)
    shown = [
        {
            "producer_id": p.producer_id,
            "producer_epoch": p.producer_epoch,
            "coordinator_epoch": None if p.coordinator_epoch < 0 else p.coordinator_epoch,
            "last_sequence": p.last_sequence,
            "last_timestamp": utc(p.last_timestamp) if p.last_timestamp >= 0 else None,
            "start_offset": None if p.txn_start_offset < 0 else p.txn_start_offset,
            "transactional_id": ids.get(p.producer_id),
        }
        for p in found
    ]
    print(as_json(shown) if arguments.output == "json" else as_table(shown) or f"no producers in {tp}")
    return OK
