"""Which way the packaged application writes, and that a result which lacks a partition makes no manifest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from airflow_kafka_eos.errors import ConfigurationError, ManifestError
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef, ManifestEntry
from airflow_kafka_eos.spark import write as ours
from airflow_kafka_eos.spark.datasource import PreparedPartition
from airflow_kafka_eos.spark.formats.settings import RegistrySettings
from airflow_kafka_eos.spark.formats.shaping import shape
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.versions import OLDEST, require_spark
from airflow_kafka_eos.spark.write import arrow_batches
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState
from tests.spark.writing import failure, write

ROWS = "select cast(id as string) key, 'v' value from range(0, 30, 1, 3)"
REF = AttemptRef(LoadIdentity("n", "l", "k"), "00000000bb", 7)


def prepared(partition: int, producer_id: int) -> PreparedPartition:
    transaction = PreparedTransaction(f"id-{partition}", PreparedTxnState(producer_id, 0))
    return PreparedPartition(ManifestEntry(partition, transaction, ()))


def test_a_partition_that_was_written_and_is_not_in_the_result_is_refused() -> None:
    every = [prepared(n, n) for n in range(3)]
    ours.check_complete(every, every, REF)
    # an update of an accumulator may be lost, a result may not
    ours.check_complete([], every, REF)
    with pytest.raises(ManifestError, match=r"Spark partitions \[2\] were written") as caught:
        ours.check_complete(every, every[:2], REF)
    assert (caught.value.load, caught.value.attempt) == ("n/l/k", 7)
    with pytest.raises(ManifestError, match=r"\[1\]"):
        ours.check_complete(every, [every[0], prepared(1, 99), every[2]], REF)
    with pytest.raises(ManifestError):
        ours.check_complete(every, [], REF)


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways that were taken, with the real write behind each."""
    taken: list[str] = []
    mapped = ours._map

    def noted(*arguments: Any) -> None:
        taken.append("mapInArrow")
        mapped(*arguments)

    monkeypatch.setattr(ours, "_map", noted)
    return taken


ARRANGED = {
    "by column": lambda spark: spark.sql(ROWS).repartition("key").sortWithinPartitions("key"),
    "by number": lambda spark: spark.sql(ROWS).repartition(2),
    "below a projection": lambda spark: spark.sql(ROWS).repartition(2, "key").selectExpr("key", "value"),
    "by hint": lambda spark: spark.sql(ROWS.replace("select", "select /*+ REPARTITION(2) */", 1)),
    "rebalanced": lambda spark: spark.sql(ROWS.replace("select", "select /*+ REBALANCE */", 1)),
}


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize("how", ARRANGED)
def test_what_the_author_has_arranged_is_written_by_the_data_source(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    tmp_path: Path, way: list[str], how: str,
) -> None:
    """Adaptive execution keeps a repartition at the root of a write's plan, and may drop it below a mapInArrow."""
    store = ManifestStore(str(tmp_path))
    store.claim(ref, "me")
    write(ARRANGED[how](spark), options(topic=topic(1), load_claim="me"))
    assert (way, store.read(ref).records) == ([], 30)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize("why", ["plain", "no pandas", "a large writer"])
def test_all_else_is_mapped_where_pandas_is_there_and_the_secrets_stay_in_memory(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    tmp_path: Path, way: list[str], monkeypatch: pytest.MonkeyPatch, why: str,
) -> None:
    if why == "no pandas":
        monkeypatch.setitem(sys.modules, "pandas", None)
    if why == "a large writer":
        monkeypatch.setattr(ours, "_IN_MEMORY", 100)
    store = ManifestStore(str(tmp_path))
    store.claim(ref, "me")
    write(spark.sql(ROWS), options(topic=topic(1), load_claim="me"))
    assert way == (["mapInArrow"] if why == "plain" else [])
    assert store.read(ref).records == 30


@pytest.fixture
def no_data_source(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark 3.5 is, on which `make matrix` writes."""
    monkeypatch.delattr(type(spark), "dataSource")


ADAPTIVE = "spark.sql.adaptive.enabled"


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize("how", [*ARRANGED, "plain"])
@pytest.mark.usefixtures("no_data_source")
def test_without_data_sources_all_is_mapped_and_what_is_arranged_stays_so(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str,
) -> None:
    mapped, adaptive = ours._map, []

    def noted(*arguments: Any) -> None:
        adaptive.append(spark.conf.get(ADAPTIVE))
        mapped(*arguments)

    monkeypatch.setattr(ours, "_map", noted)
    store = ManifestStore(str(tmp_path))
    store.claim(ref, "me")
    frame = ARRANGED[how](spark) if how in ARRANGED else spark.sql(ROWS)
    write(frame, options(topic=topic(1), load_claim="me"))
    assert store.read(ref).records == 30
    assert adaptive == ["true" if how == "plain" else "false"]
    assert spark.conf.get(ADAPTIVE) == "true", "the author's own, for whatever he does next"


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize(("name", "value"), [("_IN_MEMORY", 100), ("_THRESHOLD", "spark.app.name")])
@pytest.mark.usefixtures("no_data_source")
def test_without_data_sources_no_secret_gets_into_a_file(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object,
) -> None:
    """A writer that Spark would broadcast by file: too large, or the threshold is the author's (any that is set)."""
    monkeypatch.setattr(ours, name, value)
    store = ManifestStore(str(tmp_path))
    store.claim(ref, "me")
    said = failure(spark.sql(ROWS), options(topic=topic(1), load_claim="me"))
    assert "in files" in said and "Spark 4.0" in said
    assert not store.is_written(ref)


def test_a_spark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("3.4.4", "2.4.8"):
        monkeypatch.setattr(pyspark, "__version__", version)
        with pytest.raises(ConfigurationError, match=f"this package needs Spark 3.5 or newer, and this is {version}"):
            require_spark(OLDEST, "this package", "Use another")
    for version in ("3.5.0", "4.0.0.dev1", "5.0.0"):
        monkeypatch.setattr(pyspark, "__version__", version)
        require_spark(OLDEST, "this package", "Use another")
    assert arrow_batches()
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    assert not arrow_batches(), "50,000 rows of 100 KB would be 5 GB where Spark does not bound their bytes"


@pytest.mark.spark
def test_avro_is_refused_by_an_older_spark_before_a_schema_is_registered(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    nowhere = RegistrySettings.from_mapping({"url": "http://127.0.0.1:1"})
    with pytest.raises(ConfigurationError, match=r"value_format=confluent-avro needs Spark 4\.1 or newer.*4\.0\.5"):
        shape(spark.sql(ROWS), "confluent-avro", topics=["t"], default_topic="t", registry=nowhere)
