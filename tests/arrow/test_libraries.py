"""What DuckDB and Polars return is written as it is meant, each type that a column may have."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from airflow_kafka_eos.arrow.columns import columns_of
from airflow_kafka_eos.arrow.stream import Bounds, batches, pieces, reader_of
from airflow_kafka_eos.errors import ConfigurationError, RecordError
from airflow_kafka_eos.spark.formats.settings import ValueFormat

TEXTS = pl.DataFrame({"value": ["a", None, "c"]})
AT = datetime(2026, 1, 1, tzinfo=UTC)


def written(found: Any, value_format: str = "raw") -> list[dict[str, Any]]:
    """The rows that a writer gets."""
    reader = reader_of(found, "job")
    columns = columns_of(reader.schema, ValueFormat.of(value_format), has_default_topic=True)
    parts = pieces(batches(reader, "job", Bounds(1 << 20)), columns.take)
    return [row for part in parts for row in part.to_pylist()]


def headers(value: pl.DataType) -> pl.DataType:
    return pl.List(pl.Struct({"key": pl.String(), "value": value}))


@pytest.mark.parametrize("kind", [pl.String(), pl.Categorical(), pl.Enum(["a", "c"])], ids=str)
def test_texts_of_polars(kind: pl.DataType) -> None:
    assert written(TEXTS.select(pl.col("value").cast(kind))) == [{"value": "a"}, {"value": None}, {"value": "c"}]
    assert written(TEXTS.slice(1).select(pl.col("value").cast(kind)), "string") == [{"value": None}, {"value": "c"}]


def test_all_columns_of_polars() -> None:
    frame = pl.DataFrame({"value": [b"v"]}).with_columns(
        key=pl.lit("k"),
        partition=pl.lit(1, dtype=pl.UInt8),
        timestamp=pl.lit(AT),
        headers=pl.lit([{"key": "h", "value": b"x"}], dtype=headers(pl.Binary())),
    )
    row = {"value": b"v", "key": "k", "partition": 1, "timestamp": AT, "headers": [{"key": "h", "value": b"x"}]}
    assert written(frame) == [row]
    of_texts = pl.DataFrame({"value": ["v"]}).with_columns(
        headers=pl.lit([{"key": "h", "value": "x"}], dtype=headers(pl.String()))
    )
    assert written(of_texts) == [{"value": "v", "headers": [{"key": "h", "value": b"x"}]}]


def test_what_arrow_cannot_convert_is_refused_by_name() -> None:
    of_categories = pl.List(pl.Struct({"key": pl.Categorical(), "value": pl.String()}))
    with pytest.raises(RecordError, match=r"a row's 'headers', of type .* or cast the column yourself"):
        written(TEXTS.with_columns(headers=pl.lit([{"key": "h", "value": "x"}], dtype=of_categories)))


@pytest.mark.parametrize(
    ("values", "texts"), [([1, 2], ["1", "2"]), ([True, None], ["true", None]), ([date(2026, 1, 1)], ["2026-01-01"])]
)
def test_one_column_of_polars_as_text(values: list[Any], texts: list[str | None]) -> None:
    assert written(pl.DataFrame({"n": values}), "string") == [{"value": text} for text in texts]


def test_what_polars_has_not_computed_yet_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="returned LazyFrame, which is no stream"):
        written(TEXTS.lazy())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("'a'", "a"),
        ("'a'::BLOB", b"a"),
        ("'a'::ENUM('a', 'b')", "a"),
        ("'{\"a\":1}'::JSON", '{"a":1}'),
        ("'00000000-0000-0000-0000-000000000001'::UUID", "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_values_of_duckdb(column: str, value: str | bytes) -> None:
    assert written(duckdb.sql(f"SELECT {column} AS value")) == [{"value": value}]


def test_all_columns_of_duckdb() -> None:
    found = duckdb.sql(
        "SELECT 'k' AS key, 'v' AS value, 1::BIGINT AS partition, TIMESTAMPTZ '2026-01-01 00:00:00+00' AS timestamp, "
        "[{'key': 'h', 'value': 'x'}] AS headers"
    )
    row = {"key": "k", "value": "v", "partition": 1, "timestamp": AT, "headers": [{"key": "h", "value": b"x"}]}
    assert written(found) == [row]


def test_the_query_of_the_docs(tmp_path: Path) -> None:
    """docs/arrow-engine.md: a value of JSON out of Parquet files."""
    duckdb.sql(f"COPY (SELECT range AS id, 'n' || range AS name FROM range(3)) TO '{tmp_path}/a.parquet'")
    rows = written(duckdb.sql(f"SELECT id::VARCHAR AS key, to_json(o) AS value FROM '{tmp_path}/*.parquet' o"))
    assert rows == [{"key": str(n), "value": f'{{"id":{n},"name":"n{n}"}}'} for n in range(3)]


def test_a_number_that_is_too_wide_for_a_partition_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="column 'partition' has type decimal128"):
        written(duckdb.sql("SELECT 'a' AS value, 1::HUGEINT AS partition"))


def test_a_frame_comes_as_one_batch_and_is_cut_as_the_docs_say() -> None:
    """docs/arrow-engine.md, and the error's remedy."""
    assert [batch.num_rows for batch in reader_of(pd.DataFrame({"value": ["v"] * 200_000}), "job")] == [200_000]
    frame = pl.concat([pl.DataFrame({"value": [letter * 100] * 6_000}) for letter in "ab"], rechunk=False)
    assert frame.n_chunks() == 2
    assert [batch.num_rows for batch in reader_of(frame.to_arrow(), "job")] == [6_000, 6_000]
    assert [batch.num_rows for batch in reader_of(frame, "job")] == [12_000]
    big = pl.concat([pl.DataFrame({"value": range(400_000)}) for _ in "ab"], rechunk=False)
    assert [batch.num_rows for batch in reader_of(big, "job")] == [800_000]
    with pytest.raises(ConfigurationError, match=r"from_batches\(table.schema, table.to_batches\(max_chunksize"):
        written(frame)
    table = frame.rechunk().to_arrow()
    assert table["value"].num_chunks == 1
    cut = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=5_000))
    assert [row["value"][0] for row in written(cut)] == ["a"] * 6_000 + ["b"] * 6_000


def test_a_relation_of_duckdb_comes_in_smaller_batches() -> None:
    relation = duckdb.sql("SELECT 'v' || range AS value FROM range(20_000)")
    assert relation is not None
    found = relation.to_arrow_reader(4_096)
    assert max(batch.num_rows for batch in reader_of(found, "job")) <= 4_096


def test_the_frame_of_the_docs(tmp_path: Path) -> None:
    """docs/arrow-engine.md: the same by Polars."""
    pl.DataFrame({"id": range(3), "amount": [1, 2, 3]}).write_parquet(tmp_path / "a.parquet")
    rows = pl.scan_parquet(f"{tmp_path}/*.parquet").select(
        pl.col("id").cast(pl.String).alias("key"), pl.struct("id", "amount").struct.json_encode().alias("value")
    )
    wanted = [{"key": str(n), "value": f'{{"id":{n},"amount":{n + 1}}}'} for n in range(3)]
    assert written(rows.collect()) == wanted
