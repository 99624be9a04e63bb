"""``transactions hanging``: what no coordinator will ever end (KIP-664, KIP-890)."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.cli.cluster import add_cluster, add_namespace, open_session
from airflow_kafka_eos.cli.confirm import add_yes, confirm
from airflow_kafka_eos.cli.durations import milliseconds, text_of
from airflow_kafka_eos.cli.exits import FOUND, code_of, worst
from airflow_kafka_eos.cli.output import add_output, as_json, as_table
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.transaction import TopicPartition

if TYPE_CHECKING:
    from airflow_kafka_eos.protocol.hanging_transaction import HangingTransaction
    from airflow_kafka_eos.protocol.session import Session


def add_to(transactions: Any) -> None:
    """Add the command to those of ``transactions``."""
    hanging = transactions.add_parser(
        "hanging",
        help="what no coordinator will ever end",
        description="Find transactions that a partition has open and no coordinator will end, in the given topics; "
        "without --topic, in those that loads of the namespace were prepared for, as the ledger has them. "
        "With --abort, those that are this ledger's, and no part of a decision, are ended by an abort marker in their "
        "partition; it needs ALTER on the Cluster. Other applications' are only shown: as hanging where that is "
        "proven, else as what may be alive, with the rights that would tell.",
    )
    hanging.add_argument("--topic", action="append", metavar="TOPIC", help="repeat it for several")
    hanging.add_argument(
        "--running-longer-than", type=milliseconds, metavar="DURATION",
        help="without a record for so long, by the records' own timestamps, which prove nothing: it only narrows the "
        "search; default: the brokers' transaction.max.timeout.ms and 5 minutes",
    )  # fmt: skip
    hanging.add_argument("--abort", action="store_true", help="end those that are ours; the default only looks")
    add_yes(hanging)
    add_namespace(hanging)
    add_cluster(hanging)
    add_output(hanging)
    hanging.set_defaults(run=_hanging)


def _hanging(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.hanging import abort, find
    from airflow_kafka_eos.protocol.hanging_transaction import Whose, what_to_do

    with open_session(arguments) as session:
        topics = arguments.topic or _of_the_ledger(session)
        places = _partitions(session, topics)
        found = find(session, places, longer_than_ms=arguments.running_longer_than)
        ours = [h for h in found if h.whose is Whose.OURS]
        ended = []
        if arguments.abort and ours:
            confirm(arguments, f"Write abort markers for {len(ours)} hanging transactions of this ledger?")
            for one in ours:
                abort(session, one)
                ended.append(one)
        servers = session.partitions.wire.settings.bootstrap_servers
    shown = [_row(h, h in ended) | {"what_to_do": None if h in ended else what_to_do(h, servers)} for h in found]
    if arguments.output == "json":
        print(as_json(shown))
    else:
        print(as_table([_for_people(row) for row in shown]) or f"no hanging transactions in {', '.join(topics)}")
        for row in shown:
            if row["what_to_do"]:
                print(f"\n{row['topic']}-{row['partition']}, offset {row['start_offset']}: {row['what_to_do']}")
    doubts = {str(h.doubt): h.doubt for h in found if h.doubt is not None}
    for text in doubts:
        print(f"airflow-kafka-eos: NOT PROVEN TO HANG: {text}", file=sys.stderr)
    left = [h for h in found if h.is_proven and h not in ended]
    return worst([*([FOUND] if left else []), *map(code_of, doubts.values())])


def _of_the_ledger(session: Session) -> list[str]:
    """Topics of the namespace's loads that are still there, said on stderr: nobody has named them.

    :raises ConfigurationError: there is none.
    """
    from airflow_kafka_eos.kafka.inspecting import topic_seen

    known = sorted(session.ledger.topics(session.namespace))
    there = [name for name in known if topic_seen(session.partitions.wire, name) is not None]
    if not there:
        raise ConfigurationError(
            f"the ledger knows no topic of namespace {session.namespace} that is there",
            remedy="Name the topics: --topic TOPIC; those of loads that were never prepared are not in the ledger",
        )
    gone = f"; not there any more: {', '.join(sorted(set(known) - set(there)))}" if len(there) < len(known) else ""
    print(f"topics of the ledger's prepared loads: {', '.join(there)}{gone}", file=sys.stderr)
    return there


def _partitions(session: Session, topics: list[str]) -> list[TopicPartition]:
    if not all(topics):
        raise ConfigurationError("--topic is empty", remedy="Name a topic")
    return [
        TopicPartition(name, number)
        for name, info in session.partitions.topic_info(topics).items()
        for number in range(info.partitions)
    ]


def _row(hanging: HangingTransaction, ended: bool) -> dict[str, Any]:
    p = hanging.producer
    return {
        "topic": p.partition.topic,
        "partition": p.partition.partition,
        "producer_id": p.producer_id,
        "producer_epoch": p.producer_epoch,
        "start_offset": p.txn_start_offset,
        "idle_ms": hanging.idle_ms,
        "why": hanging.why,
        "whose": hanging.whose.value,
        "transactional_id": hanging.transactional_id,
        "load": str(hanging.attempt.load) if hanging.attempt else None,
        "attempt": hanging.attempt.number if hanging.attempt else None,
        "aborted": ended,
        "proven": hanging.is_proven,
        "doubt": None if hanging.doubt is None else hanging.doubt.message,
    }


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "partition": f"{row['topic']}-{row['partition']}",
        "producer": f"{row['producer_id']}:{row['producer_epoch']}",
        "start_offset": row["start_offset"],
        "hanging": "yes" if row["proven"] else "MAY BE ALIVE",
        "idle": text_of(row["idle_ms"]),
        "whose": (row["whose"] + (", aborted" if row["aborted"] else "")) if row["proven"] else None,
        "why": row["why"],
        "transactional_id": row["transactional_id"],
    }
