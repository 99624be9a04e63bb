"""What a user does first, from an installed package, outside of any clone: one load of the smallest DAG.

    python smoke.py FOLDER [PYTHON]

Leaves smoke.json there for the test that started it; and told.json, by the job, of where driver and executors run.

PYTHON: of Spark's driver and executors; this one, if it is not given.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

RECORDS = 100
DAG = f'''
from datetime import datetime
from airflow.sdk import DAG
from airflow_kafka_eos import ExactlyOnceLoad

with DAG("smoke", schedule=None, start_date=datetime(2026, 1, 1)):
    ExactlyOnceLoad(
        "load",
        job="HOME/job.py",
        job_args={{"records": {RECORDS}, "told": "HOME/told.json"}},
        topics=["orders"],
    )
'''

JOB = """
import importlib.util
import json
from pathlib import Path


def here():
    import airflow_kafka_eos

    return {"package": airflow_kafka_eos.__file__, "has_airflow": importlib.util.find_spec("airflow") is not None}


def load(spark, records, told):
    executor = spark.sparkContext.parallelize([0], 1).map(lambda _: here()).first()
    Path(told).write_text(json.dumps({"driver": here(), "executor": executor}))
    return spark.sql(f"SELECT concat('order ', id) value FROM range({records})")
"""


def main(home: Path, python: str | None) -> dict[str, object]:
    import airflow_kafka_eos
    from airflow_kafka_eos.sandbox.kafka import LocalKafka
    from airflow_kafka_eos.sandbox.spark import quick_settings

    os.environ |= quick_settings(home / "spark") | {
        "AIRFLOW_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    if python is not None:
        import pyspark

        # where Airflow's Python has pyspark-client alone, somebody says it
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
        os.environ |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    with LocalKafka() as kafka:
        kafka.create_topic("orders", partitions=2)
        kafka_extra = {"bootstrap.servers": kafka.bootstrap_servers}
        spark_extra = {"deploy-mode": "client"}
        for name, connection in {
            "KAFKA_DEFAULT": {"conn_type": "kafka", "extra": kafka_extra},
            "SPARK_DEFAULT": {"conn_type": "spark", "host": "local[2]", "extra": spark_extra},
        }.items():
            os.environ[f"AIRFLOW_CONN_{name}"] = json.dumps(connection)
        exit_code = _run_dag(home)
        return {
            "exit_code": exit_code,
            "package": airflow_kafka_eos.__file__,
            "values": sorted(_committed(kafka.bootstrap_servers)),
        }


def _run_dag(home: Path) -> int:
    (home / "dags").mkdir()
    (home / "dags" / "smoke.py").write_text(DAG.replace("HOME", str(home)))
    (home / "job.py").write_text(JOB)
    airflow = Path(sys.executable).with_name("airflow")
    return subprocess.run([airflow, "dags", "test", "smoke"], timeout=500, check=False).returncode


def _committed(servers: str) -> list[str]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "smoke", "isolation.level": "read_committed",
         "enable.partition.eof": True}
    )  # fmt: skip
    consumer.assign([TopicPartition("orders", n, 0) for n in range(2)])
    values: list[str] = []
    at_end = 0
    for _ in range(10 * RECORDS):
        message = consumer.poll(10.0)
        if message is None:
            raise SystemExit("the broker does not answer")
        if message.error():
            at_end += 1
            if at_end == 2:
                break
        else:
            values.append((message.value() or b"").decode())
    consumer.close()
    return values


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "smoke.json").write_text(json.dumps(main(folder, sys.argv[2] if len(sys.argv) > 2 else None)))
