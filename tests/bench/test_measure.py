"""What a timed write is checked by, and the contestants' own code, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_kafka_eos.sandbox.kafka import LocalKafka
from bench.cases import CASES, CONTESTANTS, kafka_settings
from bench.data import Dataset, dataset
from bench.logcheck import NotWhatWasWritten, check, scan_topic
from bench.measure import NotAvailable, available, check_content
from bench.spark_writers import write_batches, write_rows

RECORDS = 3000
PARTITIONS = 4


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return dataset(tmp_path_factory.mktemp("records"), "small", RECORDS, 1, PARTITIONS)


def table_of(records: Dataset) -> pa.Table:
    return pq.read_table(records.parquet_files[0])


def settings_of(kafka: LocalKafka, key: str) -> dict[str, str]:
    contestant = next(c for c in CONTESTANTS if c.key == key)
    return kafka_settings(contestant, CASES[0], kafka.bootstrap_servers)


def found_in(kafka: LocalKafka, name: str, records: Dataset) -> None:
    """All of it, committed, where it belongs; a marker may be a moment behind its EndTxn."""
    end = time.monotonic() + 20
    while True:
        try:
            check(scan_topic([kafka.log_file().parent / "data"] * PARTITIONS, name), records.wanted)
            break
        except NotWhatWasWritten:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    check_content(kafka.bootstrap_servers, name, PARTITIONS, records)


def test_produce_batch_loses_nothing_when_the_queue_is_full(
    kafka: LocalKafka, topic: Callable[..., str], records: Dataset
) -> None:
    name = topic(PARTITIONS)
    settings = settings_of(kafka, "produce-batch") | {"queue.buffering.max.messages": "500"}
    (none,) = write_batches(table_of(records).to_batches(max_chunksize=2000), name, settings)
    assert none.num_rows == 0
    found_in(kafka, name, records)


def test_row_by_row_loses_nothing_when_the_queue_is_full(
    kafka: LocalKafka, topic: Callable[..., str], records: Dataset
) -> None:
    name = topic(PARTITIONS)
    settings = settings_of(kafka, "foreach") | {"queue.buffering.max.messages": "500"}
    rows = [SimpleNamespace(**row) for row in table_of(records).to_pylist()]
    write_rows(rows, name, settings)  # type: ignore[arg-type]
    found_in(kafka, name, records)


def test_another_content_or_one_record_less_is_seen(
    kafka: LocalKafka, topic: Callable[..., str], records: Dataset
) -> None:
    changed, shorter = topic(PARTITIONS), topic(PARTITIONS)
    rows = table_of(records).to_pylist()
    settings = settings_of(kafka, "foreach")
    rows[7] = {**rows[7], "value": rows[7]["value"][:-1] + b"]"}
    write_rows([SimpleNamespace(**row) for row in rows], changed, settings)  # type: ignore[misc]
    write_rows([SimpleNamespace(**row) for row in rows[1:]], shorter, settings)  # type: ignore[misc]
    with pytest.raises(NotWhatWasWritten, match="checksums"):
        check_content(kafka.bootstrap_servers, changed, PARTITIONS, records)
    with pytest.raises(NotWhatWasWritten, match="read back 2999 of 3000"):
        check_content(kafka.bootstrap_servers, shorter, PARTITIONS, records, seconds=5)


def test_values_alone_are_read_back_without_keys(
    kafka: LocalKafka, topic: Callable[..., str], records: Dataset
) -> None:
    values, with_keys = topic(PARTITIONS), topic(PARTITIONS)
    rows = table_of(records).to_pylist()
    settings = settings_of(kafka, "foreach")
    write_rows([SimpleNamespace(**{**row, "key": None}) for row in rows], values, settings)  # type: ignore[misc]
    write_rows([SimpleNamespace(**row) for row in rows], with_keys, settings)  # type: ignore[misc]
    found_in(kafka, values, records.without_keys())
    with pytest.raises(NotWhatWasWritten, match="checksums"):
        check_content(kafka.bootstrap_servers, with_keys, PARTITIONS, records.without_keys())
    with pytest.raises(NotWhatWasWritten, match="checksums"):
        check_content(kafka.bootstrap_servers, values, PARTITIONS, records)


def options(**more: str) -> dict[str, str]:
    own = {
        "topic": "t", "load.name": "n", "load.key": "k", "load.attempt": "1", "ledger.id": "00000be9c4",
        "manifest.dir": str(Path("/nowhere")), "transaction.timeout.ms": "1000", "deadline.ms": "1000",
    }  # fmt: skip
    return {"writer": "kafka_eos", **{f"option.{k.replace('_', '.')}": v for k, v in (own | more).items()}}


def test_what_this_version_does_not_have_is_left_out_by_name() -> None:
    assert available(options(writer="arrow"))["option.writer"] == "arrow"
    with pytest.raises(NotAvailable, match="writer"):
        available(options(writer="quantum"))
    with pytest.raises(NotAvailable, match=r"transaction\.scope"):
        available(options(writer="arrow", transaction_scope="galaxy"))
