"""A streaming query of the cell's Spark: batches, one that comes again, and what a failed one has left; counted.

    python streamed.py FOLDER PYTHON KAFKA

FOLDER: for what it leaves. PYTHON: of Spark's driver and executors, which has the ledger's libraries, too. KAFKA: the
broker's version. By ``foreachBatch``, and by ``format("kafka_eos")`` where that Spark has data sources in Python.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROWS = 20
FORMS = ("foreachBatch", "kafka_eos")


def main(folder: Path, python: str, version: str) -> None:
    """Here is the broker, and who counts."""
    from copied import committed  # type: ignore[import-not-found]

    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.sandbox.kafka import LocalKafka

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ledger_url = f"sqlite:///{folder}/ledger.db"
    Ledger.open(ledger_url, upgrade=True).close()
    with LocalKafka(version=version) as kafka:
        for form in FORMS:
            kafka.create_topic(form, partitions=2)
        environ = os.environ | {"AIRFLOW_KAFKA_EOS_LEDGER": ledger_url, "PYSPARK_PYTHON": python}
        given = [python, str(Path(__file__).resolve()), str(folder), kafka.bootstrap_servers]
        run = subprocess.run(given, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=900)
        told = json.loads(run.stdout.splitlines()[-1])
        for form in told["forms"]:
            seen = committed(kafka.bootstrap_servers, form)
            expected = {f"v{n:03}".encode(): 1 for n in range(3 * ROWS)}
            assert dict(seen) == expected, (told["spark"], form, seen)
            print(f"Spark {told['spark']}, {form}: {len(seen)} records, each once", flush=True)


def in_spark(folder: Path, servers: str) -> None:
    """There is Spark's driver."""
    import pyspark
    from pyspark.sql import SparkSession

    # four tries of a task, as on a cluster: Spark 3.5 may give a task the worker of one that it has just cancelled, and
    # closes it then ("Socket is closed", seen in the batch behind the one that failed)
    builder = SparkSession.builder.master("local[2, 4]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    forms = FORMS if hasattr(spark, "dataSource") else FORMS[:1]
    for form in forms:
        _query(spark, form, folder / form, servers)
    spark.stop()
    print(json.dumps({"spark": pyspark.__version__, "forms": forms}))


def _query(spark: Any, form: str, folder: Path, servers: str) -> None:
    source, checkpoint = folder / "source", folder / "checkpoint"
    source.mkdir(parents=True)
    options = {
        "checkpointLocation": str(checkpoint),
        "kafka.bootstrap.servers": servers,
        "topic": form,
        "load.namespace": "matrix",
    }
    for number in range(2):
        _file(source, number)
    _run(spark, form, source, options)
    _forget(checkpoint, 1)  # as if the driver had died before Spark's note
    _run(spark, form, source, options)
    _file(source, 2)
    try:
        _run(spark, form, source, options, fails=True)
    except Exception as e:
        assert "for good" in str(e), e
    else:
        raise AssertionError("a task that fails for good fails the query")
    _run(spark, form, source, options)


def _file(source: Path, number: int) -> None:
    lines = [f"v{number * ROWS + n:03}" for n in range(ROWS)]
    (source.parent / "new").write_text("\n".join(lines))
    (source.parent / "new").rename(source / f"{number}.txt")


def _run(spark: Any, form: str, source: Path, options: dict[str, str], *, fails: bool = False) -> None:
    from pyspark.sql.functions import udf

    @udf("string")
    def for_good(value: str) -> str:
        if value == "v055":
            raise ValueError("for good")
        return value

    rows = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
    if fails:
        rows = rows.repartition(2).select(for_good("value").alias("value"))
    writer = rows.writeStream.queryName(form).trigger(availableNow=True)
    if form == "kafka_eos":
        from airflow_kafka_eos.streams.source import KafkaEosStreams

        spark.dataSource.register(KafkaEosStreams)
        writer = writer.format(form).options(**options)
    else:
        writer = writer.foreachBatch(_writer(form, options))
        writer = writer.option("checkpointLocation", options["checkpointLocation"])
    query = writer.start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _writer(form: str, options: dict[str, str]) -> Callable[[Any, int], None]:
    from airflow_kafka_eos.streams.foreach import exactly_once

    return exactly_once(queryName=form, **options)


def _forget(checkpoint: Path, batch: int) -> None:
    found: Iterable[Path] = (checkpoint / "commits").glob(f"*{batch}*")
    for file in list(found):
        file.unlink()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    else:
        in_spark(Path(sys.argv[1]), sys.argv[2])
