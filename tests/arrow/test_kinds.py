"""A value is the same whatever type of Arrow its columns come in; what has no type in Spark is refused by name."""

from __future__ import annotations

import mmap
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from airflow_kafka_eos.arrow.stream import Bounds, batches, pieces, reader_of
from airflow_kafka_eos.arrow.values import shape
from airflow_kafka_eos.errors import ConfigurationError, RecordError
from airflow_kafka_eos.spark.formats.settings import ValueFormat

JSON = ValueFormat("json")
NS = pa.timestamp("ns", "+02:00")


def written(found: Any, value_format: ValueFormat = JSON) -> list[bytes]:
    """The values that a writer gets."""
    reader = reader_of(found, "job")
    columns = shape(reader.schema, value_format, topics=["t"], default_topic="t")
    parts = pieces(batches(reader, "job", Bounds(1 << 20)), columns.take)
    return [value for part in parts for value in part.column("value").to_pylist()]


def one(values: list[Any], kind: pa.DataType) -> list[bytes]:
    """Of one column ``a``, cut out of a longer one."""
    return written(pa.table({"a": pa.array([values[-1], *values], kind).slice(1)}))


def as_dictionary(values: list[Any], kind: pa.DataType) -> pa.Array:
    found = pa.array(values).dictionary_encode()
    return pa.DictionaryArray.from_arrays(found.indices, found.dictionary.cast(kind))


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_texts(kind: pa.DataType) -> None:
    assert one(["ü", None, ""], kind) == ['{"a":"ü"}'.encode(), b'{"a":null}', b'{"a":""}']


@pytest.mark.parametrize(("kind", "value"), [(pa.large_string(), b"ab"), (pa.large_binary(), b"YWI=")], ids=str)
def test_a_slice_that_begins_behind_two_gigabytes(kind: pa.DataType, value: bytes) -> None:
    """What ``Table.to_batches(max_chunksize)`` makes of a large column."""
    far = 2**31 + 10
    with mmap.mmap(-1, far + 2) as data:  # of zeros, which take no memory
        data[far:] = b"ab"
        offsets = pa.py_buffer(np.array([0, far, far + 2], np.int64))
        column = pa.Array.from_buffers(kind, 2, [None, offsets, pa.py_buffer(data)]).slice(1)
        assert written(pa.record_batch({"a": column})) == [b'{"a":"' + value + b'"}']
        del column


def test_a_map_with_a_key_that_is_null() -> None:
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["x", None]))
    found = pa.MapArray.from_arrays([0, 1, 2], keys, pa.array([1, 2]))
    with pytest.raises(RecordError, match="'a' is a map with a key that is null"):
        written(pa.record_batch({"a": found}))


@pytest.mark.parametrize("inner", [pa.large_string(), pa.string_view()], ids=str)
def test_dictionaries_of_texts(inner: pa.DataType) -> None:
    found = pa.table({"a": as_dictionary(["x", None, "y", "x"], inner)})
    assert written(found) == [b'{"a":"x"}', b'{"a":null}', b'{"a":"y"}', b'{"a":"x"}']


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)], ids=str)
def test_bytes(kind: pa.DataType) -> None:
    assert one([b"ab", None], kind) == [b'{"a":"YWI="}', b'{"a":null}']


@pytest.mark.parametrize("kind", [pa.uint8(), pa.uint16(), pa.uint32(), pa.dictionary(pa.int8(), pa.int64())], ids=str)
def test_whole_numbers(kind: pa.DataType) -> None:
    assert one([200, None], kind) == [b'{"a":200}', b'{"a":null}']


@pytest.mark.parametrize("kind", [pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal256(30, 2)], ids=str)
def test_decimals(kind: pa.DataType) -> None:
    assert one([Decimal("-1.20"), None], kind) == [b'{"a":-1.20}', b'{"a":null}']


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "+02:00"])
def test_times(unit: str, zone: str) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert one([at, None], pa.timestamp(unit, zone)) == [b'{"a":"2026-01-02T03:04:05.000000Z"}', b'{"a":null}']
    local = at.replace(tzinfo=None)
    assert one([local], pa.timestamp(unit)) == [b'{"a":"2026-01-02T03:04:05.000000"}']


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64(), pa.dictionary(pa.int8(), pa.date32())], ids=str)
def test_days(kind: pa.DataType) -> None:
    found = pa.array([date(2026, 1, 2), None], pa.date32())
    made = found.dictionary_encode() if pa.types.is_dictionary(kind) else found.cast(kind)
    assert written(pa.table({"a": made})) == [b'{"a":"2026-01-02"}', b'{"a":null}']


@pytest.mark.parametrize("kind", [pa.list_(pa.string_view()), pa.large_list(pa.large_string()),
                                  pa.list_(pa.string(), 2)], ids=str)  # fmt: skip
def test_lists(kind: pa.DataType) -> None:
    assert one([["x", None], None, ["y", "z"]], kind) == [b'{"a":["x",null]}', b'{"a":null}', b'{"a":["y","z"]}']


def test_what_is_nested_may_be_in_any_form() -> None:
    kind = pa.struct([
        ("m", pa.map_(pa.large_string(), pa.struct([("at", NS)]))),
        ("l", pa.large_list(pa.dictionary(pa.int8(), pa.string()))),
    ])  # fmt: skip
    values: list[Any] = [{"m": [("k", {"at": 1000}), ("j", None)], "l": ["x", None]}, None, {"m": None, "l": []}]
    assert one(values, kind) == [
        b'{"a":{"m":{"k":{"at":"1970-01-01T00:00:00.000001Z"},"j":null},"l":["x",null]}}',
        b'{"a":null}',
        b'{"a":{"m":null,"l":[]}}',
    ]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.uint64(), "column 'a' has type uint64, which value_format 'json' cannot carry"),
        (pa.float16(), "column 'a' has type halffloat"),
        (pa.time64("us"), r"column 'a' has type time64\[us\]"),
        (pa.duration("s"), r"column 'a' has type duration\[s\]"),
        (pa.month_day_nano_interval(), "column 'a' has type month_day_nano_interval"),
        (pa.null(), "column 'a' has type null"),
        (pa.decimal256(39, 2), r"column 'a' has type decimal256\(39, 2\)"),
        (pa.decimal128(5, -2), r"column 'a' has type decimal128\(5, -2\)"),
        (pa.map_(pa.int32(), pa.string()), "column 'a' has type map<int32, string"),
        (pa.list_(pa.struct([("x", pa.uint64())])), r"column 'a\[\].x' has type uint64"),
        (pa.struct([]), "column 'a' has type struct<>"),
        (pa.list_view(pa.int8()), "column 'a' has type list_view<item: int8>"),
        (pa.run_end_encoded(pa.int32(), pa.string()), "column 'a' has type run_end_encoded"),
        (pa.uuid(), "column 'a' has type extension<arrow.uuid>"),
    ],
    ids=str,
)
def test_a_type_that_spark_has_none_for_is_refused_by_name(kind: pa.DataType, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        shape(pa.schema([("a", kind)]), JSON, topics=["t"], default_topic="t")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([("key", pa.string())], r"no column left to make a value of \(the stream's columns: key;"),
        ([("a", pa.int8()), ("A", pa.int8())], "the value has two fields 'a' and 'A'"),
        # texts of one character are one object in CPython, whoever made them
        ([("x", pa.int8()), ("x", pa.int8())], "the value has two fields 'x' and 'x'"),
        ([("a", pa.struct([("x", pa.int8()), ("x", pa.int8())]))], "two fields 'a.x' and 'a.x'"),
        ([("a", pa.list_(pa.struct([("x", pa.int8()), ("x", pa.int8())])))], r"two fields 'a\[\].x' and 'a\[\].x'"),
        ([("a", pa.map_(pa.string(), pa.struct([("b", pa.int8()), ("B", pa.int8())])))], "two fields 'a{}.b' and"),
        ([("a", pa.int8()), ("key", pa.int8())], "column 'key' has type int, allowed is binary or string"),
        ([("a", pa.int8()), ("timestamp", pa.timestamp("us"))], "without a time zone"),
        ([("a", pa.int8()), ("__index_level_0__", pa.int64())], "the index of a pandas DataFrame would be part"),
    ],
    ids=str,
)
def test_columns_that_cannot_be_written(schema: list[tuple[str, pa.DataType]], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        shape(pa.schema(schema), JSON, topics=["t"], default_topic="t")
    with pytest.raises(ConfigurationError, match="the stream has no topic column"):
        shape(pa.schema([("a", pa.int8())]), JSON, topics=["t", "u"])


@pytest.mark.parametrize("name", ["confluent-json", "confluent-avro"])
def test_a_format_with_a_registry_needs_its_settings(name: str) -> None:
    with pytest.raises(ConfigurationError, match="needs a schema registry, and there are no settings for one"):
        shape(pa.schema([("a", pa.int8())]), ValueFormat(name), topics=["t"], default_topic="t")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (pa.array([1500], NS), r"a row's 'a', of type timestamp\[ns, tz=\+02:00\], cannot be written as timestamp\[us"),
        (pa.array([2**62], pa.timestamp("s")), r"a row's 'a', of type timestamp\[s\]"),
        (pa.array([b"\xff"]).view(pa.string()), "a row's 'a', of type string, cannot be written as string: .*UTF8"),
        (pa.array([10**7], pa.int64()).cast(pa.decimal128(19, 0)), None),
    ],
    ids=str,
)
def test_a_value_that_has_no_place_is_the_records_error(made: pa.Array, said: str | None) -> None:
    if said is None:  # more digits than its type has: nothing in Arrow looks at that by itself
        said = r"a row's 'a', of type decimal128\(5, 0\), cannot be written as decimal128\(5, 0\)"
        made = pa.Array.from_buffers(pa.decimal128(5, 0), 1, made.buffers())
    with pytest.raises(RecordError, match=said):
        written(pa.table({"a": made}))


def test_what_libraries_return() -> None:
    frame = pl.DataFrame({"key": ["k"], "n": [1], "c": ["x"], "l": [[1.5]], "s": [{"d": date(2026, 1, 2)}]})
    frame = frame.with_columns(pl.col("c").cast(pl.Categorical()))
    wanted = [b'{"n":1,"c":"x","l":[1.5],"s":{"d":"2026-01-02"}}']
    assert written(frame) == wanted
    query = "SELECT 'k' AS key, 1::BIGINT AS n, 'x' AS c, [1.5::DOUBLE] AS l, {'d': DATE '2026-01-02'} AS s"
    assert written(duckdb.sql(query)) == wanted
    assert written(duckdb.sql("SELECT MAP {'a': 1.25::DECIMAL(9, 2)} AS m")) == [b'{"m":{"a":1.25}}']
    assert written(pd.DataFrame({"n": [1, 2], "at": pd.to_datetime([0, 1], unit="s", utc=True)})) == [
        b'{"n":1,"at":"1970-01-01T00:00:00.000000Z"}', b'{"n":2,"at":"1970-01-01T00:00:01.000000Z"}',
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="index of a pandas DataFrame"):
        written(pd.DataFrame({"n": [1, 2, 3]}).query("n > 1"))
