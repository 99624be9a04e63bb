"""What it costs to see that a load is committed, by how much of the log lies behind its records.

``python -m bench.commit_cost``. It counts what comes over the network. It makes loads by hand,
with librdkafka in a Spark task's place, and prints seconds and bytes read of decide, of its own pass, of commit, and of
``loaded``. Three worlds:

- waves: a load of several transactions written one after the other, as when Spark has fewer cores than tasks. The end
  marker of the first one stands behind the records of all others.
- others: a small load, and other producers' records between its records and its decision.
- late: the same, and the records come between the decision and the first EndTxn.

Knobs: ``WAVES`` (8), ``WAVE_MB`` (400), ``OTHERS_MB`` (3000), ``KAFKA`` (4.4), ``WORLDS`` (waves,others,late).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from kafka.net.transport import KafkaTCPTransport

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, TransactionScope
from airflow_kafka_eos.manifest import Manifest, ManifestEntry, PartitionWrites
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, record_prepared, reference, submit
from airflow_kafka_eos.protocol.stages.commit import commit, commit_pass
from airflow_kafka_eos.protocol.stages.decide import Conditions, decide
from airflow_kafka_eos.protocol.stages.visible import lags
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import PreparedTransaction

WAVES = int(os.environ.get("WAVES", "8"))
WAVE_MB = int(os.environ.get("WAVE_MB", "400"))
OTHERS_MB = int(os.environ.get("OTHERS_MB", "3000"))
VERSION = os.environ.get("KAFKA", "4.4")
WORLDS = os.environ.get("WORLDS", "waves,others,late").split(",")
PARTITIONS = 2
_RECORD = 50_000
_TIMEOUT_MS = 900_000
_BLOCK = os.urandom(_RECORD)
_received = 0


def count_what_is_received() -> None:
    """All of it, on every connection of kafka-python: requests about it and answers without records too."""
    plain = KafkaTCPTransport._sock_recv

    def counted(self: Any) -> Any:
        global _received
        data, error = plain(self)
        _received += len(data)
        return data, error

    KafkaTCPTransport._sock_recv = counted


def producer_of(kafka: LocalKafka, transactional_id: str | None = None) -> Producer:
    own = {} if transactional_id is None else {
        "transactional.id": transactional_id, "transaction.timeout.ms": _TIMEOUT_MS
    }  # fmt: skip
    return Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20, "queue.buffering.max.kbytes": 200_000} | own
    )


def write(producer: Producer, topic: str, records: int, size: int) -> dict[int, list[int]]:
    """By partition the offsets of the first and the last record."""
    found: dict[int, list[int]] = {}

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        ends = found.setdefault(message.partition(), [message.offset(), message.offset()])
        ends[:] = [min(ends[0], message.offset()), max(ends[1], message.offset())]

    for number in range(records):
        while True:
            try:
                producer.produce(topic, _BLOCK[:size], partition=number % PARTITIONS, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(300) == 0
    return found


def prepared(session: Session, kafka: LocalKafka, topic: str, transactions: int, records: int, size: int) -> Manifest:
    load = LoadIdentity("bench", "cost", topic)
    begin(session, load, owner="bench")
    ref = reference(session, submit(session, load, owner="bench"))
    entries = []
    for number in range(transactions):
        name = str(TransactionalId(ref.load, ref.ledger_id, ref.attempt, number, number))
        producer = producer_of(kafka, name)
        producer.init_transactions(60)
        producer.begin_transaction()
        ends = write(producer, topic, records, size)
        state = session.coordinator.describe([name])[name].state
        writes = tuple(
            PartitionWrites(topic, p, last - first + 1, 1, first, last, "0" * 32, int(time.time() * 1000))
            for p, (first, last) in sorted(ends.items())
        )
        entries.append(ManifestEntry(number, PreparedTransaction(name, state), writes))
    manifest = Manifest(
        ref, "2026-01-01T00:00:00+00:00", "bench", TransactionScope.TASK, False, _TIMEOUT_MS, "xor",
        session.partitions.topic_info([topic]), tuple(entries),
    )  # fmt: skip
    record_prepared(session, manifest)
    return manifest


def others(kafka: LocalKafka, topic: str) -> None:
    write(producer_of(kafka), topic, OTHERS_MB * 1_000_000 // _RECORD, _RECORD)


@contextmanager
def new_process(kafka: LocalKafka, url: str) -> Iterator[Session]:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    with connect(settings, url, "bench") as session:
        session.partitions.topic_info([])
        yield session


def measured(what: str, transactions: int, step: Callable[[], Any]) -> Any:
    before, begun = _received, time.monotonic()
    result = step()
    seconds, received = time.monotonic() - begun, _received - before
    each = received / 1e6 / transactions
    print(f"  {what:28}{seconds:8.2f} s {received / 1e6:12.3f} MB {each:10.3f} MB each", flush=True)
    return result


def world(name: str, kafka: LocalKafka, url: str) -> None:
    topic = f"topic-{name}"
    kafka.create_topic(topic, partitions=PARTITIONS)
    with new_process(kafka, url) as session:
        if name == "waves":
            manifest = prepared(session, kafka, topic, WAVES, WAVE_MB * 1_000_000 // _RECORD, _RECORD)
        else:
            manifest = prepared(session, kafka, topic, 1, 50, 100)
        if name == "others":
            others(kafka, topic)
        load, count = manifest.attempt.load, len(manifest.transactions)
        print(f"{name}: {count} transactions, {PARTITIONS} partitions", flush=True)
        row = measured("decide", count, lambda: decide(session, manifest, Conditions(), owner="bench", margin_s=5))
        if name != "late":
            result = measured("its own pass", count, lambda: commit_pass(session, load, row.number))
            print(f"  {'':28}{len(result.newly_committed)} of {count} seen to be committed")
    if name == "late":
        others(kafka, topic)
    with new_process(kafka, url) as session:
        measured("commit, another process", count, lambda: commit(session, load, deadline_s=600))
        left = measured("loaded", count, lambda: lags(session, load))
        assert not left, left


def main() -> None:
    count_what_is_received()
    folder = Path(tempfile.mkdtemp(prefix="commit-cost-"))
    url = f"sqlite:///{folder / 'ledger.db'}"
    Ledger.open(url, upgrade=True).close()
    try:
        for name in WORLDS:
            with LocalKafka(version=VERSION, heap="768m", broker_settings={"log.segment.bytes": "268435456"}) as kafka:
                world(name, kafka, url)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
