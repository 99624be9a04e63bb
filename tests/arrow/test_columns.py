"""Which columns of a stream are written, and as what."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from airflow_kafka_eos.arrow.columns import columns_of
from airflow_kafka_eos.errors import ConfigurationError, RecordError
from airflow_kafka_eos.spark.formats.settings import ValueFormat

RAW, STRING = ValueFormat.of("raw"), ValueFormat.of("string")
TEXTS = ["a", None, "ü"]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def taken(batch: pa.RecordBatch, value_format: ValueFormat = RAW) -> pa.RecordBatch:
    return columns_of(batch.schema, value_format, has_default_topic=True).take(batch)


def as_kind(kind: pa.DataType) -> pa.Array:
    """``TEXTS``, cut out of more."""
    more = ["before", *TEXTS]
    if pa.types.is_dictionary(kind):
        values = pa.array(["ü", "a", "before"]).cast(kind.value_type)
        return pa.DictionaryArray.from_arrays(pa.array([2, 1, None, 0], kind.index_type), values)[1:]
    return pa.array(more).cast(kind)[1:]


def refused(schema: list[tuple[str, pa.DataType]], value_format: ValueFormat = RAW, topic: bool = True) -> str:
    with pytest.raises(ConfigurationError) as caught:
        columns_of(pa.schema(schema), value_format, has_default_topic=topic)
    return str(caught.value)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
        pa.dictionary(pa.uint32(), pa.string_view()),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["key", "value", "topic"])
def test_a_text_is_one_however_arrow_keeps_it(kind: pa.DataType, name: str) -> None:
    batch = pa.RecordBatch.from_pydict({"value": pa.array(TEXTS, pa.string()), name: as_kind(kind)})
    made = taken(batch)
    assert made.column(name).to_pylist() == TEXTS
    assert made.schema.field(name).type in (pa.string(), pa.large_string())


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)], ids=str)
def test_bytes_are_bytes_however_arrow_keeps_them(kind: pa.DataType) -> None:
    made = taken(pa.RecordBatch.from_pydict({"key": pa.array([b"ab", None], pa.binary()).cast(kind)}))
    assert made.column("key").to_pylist() == [b"ab", None]
    assert made.schema.field("key").type in (pa.binary(), pa.large_binary())


def test_a_time_in_a_dictionary_is_a_time() -> None:
    kind, text = pa.timestamp("us", "UTC"), pa.array(["a", "a"])
    times = pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 2, kind).dictionary_encode()
    made = taken(pa.RecordBatch.from_arrays([text, times], ["value", "timestamp"]))
    assert made.schema.field("timestamp").type == kind


def test_headers_partition_and_time_become_sparks() -> None:
    wide = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    made = taken(
        pa.RecordBatch.from_arrays(
            [
                pa.array(["v"]),
                pa.array([[{"key": "k", "value": b"x"}]], wide),
                pa.array([3], pa.int64()),
                pa.array([at], pa.timestamp("ns", "Europe/Berlin")),
            ],
            ["value", "headers", "partition", "timestamp"],
        )
    )
    assert made.schema.field("headers").type == HEADERS
    assert made.schema.field("partition").type == pa.int32()
    assert made.column("headers").to_pylist() == [[{"key": "k", "value": b"x"}]]
    assert (made.column("partition").to_pylist(), made.column("timestamp")[0].as_py()) == ([3], at)


def test_a_partition_that_no_topic_can_have_is_a_records_error() -> None:
    with pytest.raises(RecordError, match="'partition', of type int64, cannot be written as int32"):
        taken(pa.RecordBatch.from_pydict({"value": ["v"], "partition": pa.array([2**31], pa.int64())}))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([("vaule", pa.string())], "the stream has a column 'vaule', kafka_eos takes only key"),
        ([("value", pa.int64())], "column 'value' has type int, allowed is binary or string"),
        ([("value", pa.float64())], "column 'value' has type double"),
        ([("value", pa.string()), ("value", pa.string())], "the stream has column 'value' twice"),
        ([("topic", pa.string())], "the stream has neither a value nor a key column"),
        ([("value", pa.string()), ("timestamp", pa.timestamp("us"))], "type timestamp[us] without a time zone"),
        ([("value", pa.string()), ("partition", pa.float64())], "column 'partition' has type double"),
        ([("value", pa.string()), ("headers", pa.list_(pa.string()))], "column 'headers' has type list"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(schema: list[tuple[str, pa.DataType]], said: str) -> None:
    assert said in refused(schema)


def test_without_a_default_topic_there_is_a_topic_column() -> None:
    assert "the stream has no topic column" in refused([("value", pa.string())], topic=False)


def test_the_format_string_sends_one_column() -> None:
    columns = {"key": ["k"], "day": [date(2026, 1, 2)]}
    made = taken(pa.RecordBatch.from_pydict(columns), STRING)
    assert made.to_pylist() == [{"key": "k", "value": "2026-01-02"}]
    for values, text in (([7], "7"), ([True], "true"), (["x"], "x")):
        made = taken(pa.RecordBatch.from_pydict({"value": values}), STRING)
        assert made.column("value").to_pylist() == [text]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([("a", pa.string()), ("b", pa.string())], "takes one column, and there are 2: a, b"),
        ([("key", pa.string())], "takes one column, and there are 0: none"),
        ([("a", pa.float64())], "column 'a' has type double, which value_format 'string' cannot carry"),
        ([("a", pa.binary())], "column 'a' has type binary"),
    ],
)
def test_what_the_format_string_cannot_send(schema: list[tuple[str, pa.DataType]], said: str) -> None:
    assert said in refused(schema, STRING)
