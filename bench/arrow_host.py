"""The process in which engine="arrow" runs: ``python -m bench.arrow_host`` with what :mod:`bench.host` sends.

``way`` says how the rows are written: by the package's own prepare (``engine``), or, as a trial, by two writers of a
file each: in two threads of this process (``threads``), or in two processes (``processes``).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from airflow_kafka_eos.arrow.engine import prepare
from airflow_kafka_eos.arrow.stream import PIECE_ROWS, Bounds, batches, pieces, reader_of
from airflow_kafka_eos.arrow.values import shape
from airflow_kafka_eos.spark.attempt_writer import AttemptWriter, Part, PartReport, check_claim, identities
from airflow_kafka_eos.spark.formats.settings import ValueFormat
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.preflight import check_cluster
from airflow_kafka_eos.spark.spec import ApplicationSpec

BOUNDS = Bounds(256 * 1024 * 1024)
RAW = ValueFormat()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not answer for us
    files: list[str] = []
    pools: dict[str, Executor] = {}
    for line in sys.stdin:
        word, *fields = line.rstrip("\n").split("\t")
        given = dict(field.split("=", 1) for field in fields)
        answer = ""
        try:
            if word == "load":
                files = given["files"].split(",")
            elif word == "settle":
                gc.collect()
            elif word == "peak":
                answer = f"\tkib={peak_kib()}"
            elif word == "run":
                pool = pools.setdefault(given["way"], _pool(given["way"])) if given["way"] != "engine" else None
                begun = time.perf_counter()
                _write(files, given, pool)
                answer = f"\tseconds={time.perf_counter() - begun}"
            else:
                raise ValueError(f"unknown command {word}")
        except Exception as error:
            traceback.print_exc()
            answer = "\terror=" + " ".join(f"{type(error).__name__}: {error}".split())
        answers.write("@" + answer + "\n")
        answers.flush()
    for pool in pools.values():
        pool.shutdown()


def peak_kib() -> int:
    """The most memory that this process has had."""
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found)


def _pool(way: str) -> Executor:
    if way == "threads":
        return ThreadPoolExecutor(2)
    pool = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    for ready in [pool.submit(time.sleep, 1) for _ in range(2)]:  # both are there, with what they import
        ready.result()
    return pool


def _write(files: list[str], given: dict[str, str], pool: Executor | None) -> None:
    texts = {k.removeprefix("option."): v for k, v in given.items() if k.startswith(("option.", "kafka."))}
    options = WriteOptions.parse(texts)
    settings = options.settings({})
    store = ManifestStore(options.manifest_dir)
    if pool is None:
        spec = ApplicationSpec(options, job="bench", value_format=RAW)
        prepare(spec, settings, store, lambda: source(files, given), bounds=BOUNDS, stop=threading.Event(),
                say=lambda line: None)  # fmt: skip
        return
    store.claim(options.attempt, "bench")
    options = replace(options, claim="bench")
    checked = check_cluster(settings, options)
    check_claim(options, store)
    writer = AttemptWriter(options, settings, checked, *identities(options, settings, checked, store))
    writer.commit(list(pool.map(_write_part, [writer] * len(files), range(len(files)), files)))


def _write_part(writer: AttemptWriter, number: int, file: str) -> PartReport:
    reader = reader_of(ds.dataset([file]), "bench")
    columns = shape(reader.schema, RAW, topics=writer.options.topics, default_topic=writer.options.default_topic)
    report: PartReport = writer.write_part(
        Part(number, 0, number), pieces(batches(reader, "bench", BOUNDS), columns.take), lambda _: None
    )
    return report


def source(files: list[str], given: dict[str, str]) -> Any:
    """What the job returns: the files as a dataset, or their batches ``times`` times over."""
    if "times" not in given:
        return ds.dataset(files)
    schema = pq.read_schema(files[0])

    def many() -> Iterator[pa.RecordBatch]:
        for _ in range(int(given["times"])):
            for file in files:
                yield from pq.ParquetFile(file).iter_batches(PIECE_ROWS)

    return pa.RecordBatchReader.from_batches(schema, many())


if __name__ == "__main__":
    main()
