"""The copied examples run, in a real Airflow of the cell's version, and what they load is counted.

    python copied.py FOLDER COPIED KAFKA

FOLDER: for Airflow and what it leaves. COPIED: where `airflow-kafka-eos examples copy` has copied to. KAFKA: the
broker's version. Those that need no person, no PostgreSQL and no Airflow 3.2 are run: a load by Spark, mapped; one
without Spark; one behind an operator; one that reads on; a streaming query; maintenance. The others are read
(noxfile.py), and run with the tests (tests/airflow/test_dags.py).
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, TopicPartition

from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.spark import quick_settings

#: the records of one run, by topic
RECORDS = {
    "without_spark": {"readings": 24},
    "own_operator": {"measurements": 1000},
    "mapped_topics": {"invoices": 1, "payments": 1},
    "incremental": {"orders": 0, "large_orders": 0},  # reads the first of them, in which there is nothing
    "hourly_stream": {"parcels": 3},  # its first run takes all there is
    "kafka_eos_maintenance": {},
}
PARCELS = RECORDS["hourly_stream"]["parcels"]
#: the first run takes all there is, a second one finds nothing more
ONCE = {"hourly_stream"}
PATIENCE_SECONDS = 600
ENDED = ("success", "failed")
Found = TypeVar("Found")


def main(folder: Path, copied: Path, version: str) -> None:
    stream = folder / "stream"
    settings = quick_settings(folder / "spark") | {
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "STREAM_FOLDER": str(stream),
    }
    (stream / "in").mkdir(parents=True)
    for number in range(PARCELS):
        (stream / "in" / f"{number}.json").write_text(f'{{"id": "{number}", "state": "sent"}}\n', encoding="utf-8")
    local = {"deploy-mode": "client", "spark-binary": "spark-submit"}
    with LocalKafka(version=version) as kafka:
        for topic in (topic for of in RECORDS.values() for topic in of):
            kafka.create_topic(topic, partitions=2)
        connections: dict[str, dict[str, Any]] = {
            "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}},
            "spark_default": {"conn_type": "spark", "host": "local[2]", "extra": local},
        }
        with LocalAirflow(folder / "airflow", copied, connections=connections, settings=settings, log=print) as airflow:
            runs = {dag: ended(airflow, dag) for dag in RECORDS}
        for dag, topics in RECORDS.items():
            assert set(runs[dag].values()) == {"success"}, (dag, runs[dag])
            for topic, records in topics.items():
                # none twice, and as many as the runs have loaded: at midnight a DAG may have had two
                seen = committed(kafka.bootstrap_servers, topic)
                twice = {value: times for value, times in seen.items() if times > 1}
                of_all = records * (1 if dag in ONCE else len(runs[dag]))
                assert not twice and len(seen) == of_all, (topic, len(seen), runs[dag], twice)
                print(f"{dag}: {len(seen)} records of {topic}, each once, by {len(runs[dag])} runs", flush=True)


def ended(airflow: LocalAirflow, dag: str) -> dict[str, str]:
    """The states of a DAG's scheduled runs by their ids, once there is one and none is under way."""
    wait(airflow, lambda: any(one["dag_id"] == dag for one in airflow.get("/dags")["dags"]), f"{dag} to be read")
    airflow.patch(f"/dags/{dag}", {"is_paused": False})

    def over() -> dict[str, str]:
        found = {run["dag_run_id"]: run["state"] for run in airflow.get(f"/dags/{dag}/dagRuns")["dag_runs"]}
        return found if all(state in ENDED for state in found.values()) else {}

    try:
        return wait(airflow, over, f"{dag} to end")
    finally:
        airflow.patch(f"/dags/{dag}", {"is_paused": True})


def wait(airflow: LocalAirflow, condition: Callable[[], Found], what: str) -> Found:
    until = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        airflow.check()
        if time.monotonic() > until:
            raise SystemExit(f"waited {PATIENCE_SECONDS} s for {what}; see {airflow.home}")
        time.sleep(1)
    return found


def committed(servers: str, topic: str) -> Counter[bytes]:
    """How often a read_committed reader sees each value."""
    settings = {"group.id": "copied", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer(settings | {"bootstrap.servers": servers})
    consumer.assign([TopicPartition(topic, n, 0) for n in range(2)])
    values: Counter[bytes] = Counter()
    at_end = 0
    while at_end < 2:
        message = consumer.poll(60.0)
        if message is None:
            raise SystemExit(f"the broker does not give what is in {topic}")
        if (error := message.error()) is None:
            values[message.value() or b""] += 1
        elif error.code() == KafkaError._PARTITION_EOF:
            at_end += 1
        else:
            raise SystemExit(str(error))
    consumer.close()
    return values


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
