"""Avro from whole Arrow columns is byte for byte what fastavro writes row by row."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import unittest.mock
from typing import Any

import pyarrow as pa
import pytest
from fastavro import schemaless_reader, schemaless_writer
from fastavro.schema import expand_schema, parse_schema
from fastavro.write import LOGICAL_WRITERS
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from airflow_kafka_eos.errors import RecordError, SchemaRefusedError
from airflow_kafka_eos.spark.formats.avro import avro_schema, plan
from airflow_kafka_eos.spark.formats.avro_encode import encode, encode_by_topic
from airflow_kafka_eos.spark.formats.shaping import kind_of

UTC = dt.UTC
MOMENTS = st.datetimes(dt.datetime(1800, 1, 1), dt.datetime(2200, 1, 1))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

#: Spark type -> values as pyarrow takes and fastavro writes them.
ATOMS: dict[t.DataType, st.SearchStrategy[Any]] = {
    t.BooleanType(): st.booleans(),
    t.ByteType(): st.integers(-(2**7), 2**7 - 1),
    t.ShortType(): st.integers(-(2**15), 2**15 - 1),
    t.IntegerType(): st.integers(-(2**31), 2**31 - 1),
    t.LongType(): st.integers(-(2**63), 2**63 - 1),
    t.FloatType(): st.floats(width=32),
    t.DoubleType(): st.floats(),
    t.StringType(): TEXTS,
    t.BinaryType(): st.binary(max_size=12),
    t.DateType(): st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    t.TimestampType(): MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    t.TimestampNTZType(): MOMENTS,
    t.DecimalType(9, 2): st.decimals(-9999999, 9999999, places=2),
    t.DecimalType(18, 0): st.decimals(-(10**18) + 1, 10**18 - 1, places=0),
    t.DecimalType(38, 4): st.decimals(-(10**33), 10**33, places=4),
}


def kinds(depth: int) -> st.SearchStrategy[t.DataType]:
    atoms = st.sampled_from(list(ATOMS))
    if depth == 0:
        return atoms
    inner = kinds(depth - 1)
    return st.one_of(
        atoms,
        st.builds(t.ArrayType, inner, st.booleans()),
        st.builds(lambda kind, nullable: t.MapType(t.StringType(), kind, nullable), inner, st.booleans()),
        structs(inner),
    )


def structs(inner: st.SearchStrategy[t.DataType]) -> st.SearchStrategy[t.StructType]:
    return st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=4).map(
        lambda fields: t.StructType([t.StructField(f"f{i}", kind, null) for i, (kind, null) in enumerate(fields)])
    )


def values(kind: t.DataType, nullable: bool = False) -> st.SearchStrategy[Any]:
    made: st.SearchStrategy[Any]
    if isinstance(kind, t.StructType):
        made = st.fixed_dictionaries({f.name: values(f.dataType, f.nullable) for f in kind.fields})
    elif isinstance(kind, t.ArrayType):
        made = st.lists(values(kind.elementType, kind.containsNull), max_size=3)
    elif isinstance(kind, t.MapType):
        made = st.dictionaries(TEXTS, values(kind.valueType, kind.valueContainsNull), max_size=3)
    else:
        made = ATOMS[kind]
    return st.none() | made if nullable else made


TABLES = structs(kinds(2)).flatmap(lambda kind: st.tuples(st.just(kind), st.lists(values(kind, True), max_size=12)))


def shortest(data: Any, schema: Any) -> Any:
    """A decimal's unscaled number as Java's ``BigInteger.toByteArray`` writes it, and as we do.

    fastavro reckons its length by ``bit_length() + 8`` and takes a byte more for -128, -32768 and so on.
    """
    if not isinstance(data, decimal.Decimal):
        return data
    number = int(data.scaleb(schema["scale"]))
    return number.to_bytes((~number if number < 0 else number).bit_length() // 8 + 1, "big", signed=True)


def by_fastavro(schema: Any, row: Any) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, schema, row)
    return out.getvalue()


def arrow_type(kind: t.DataType) -> pa.DataType:
    return to_arrow_type(kind, timezone="America/New_York")


def column(kind: t.StructType, rows: list[Any]) -> pa.StructArray:
    return pa.array([None if row is None else arrow_value(row) for row in rows], arrow_type(kind))


def arrow_value(value: object) -> object:
    if isinstance(value, dict):
        return {key: arrow_value(inner) for key, inner in value.items()}
    return [arrow_value(inner) for inner in value] if isinstance(value, list) else value


#: The lowest number of a byte and of two: where fastavro's own length is not the shortest.
LOWEST = t.StructType([t.StructField("f0", t.DecimalType(9, 2)), t.StructField("f1", t.DecimalType(18, 0))])


@settings(max_examples=300, deadline=None)
@given(TABLES, st.integers(0, 3))
@example((LOWEST, [{"f0": decimal.Decimal("-1.28"), "f1": decimal.Decimal(-(2**15))}]), 0)
def test_the_bytes_are_those_of_fastavro(table: tuple[t.StructType, list[Any]], cut: int) -> None:
    kind, rows = table
    text = avro_schema(kind_of(kind), "tests.Value")
    schema = parse_schema(json.loads(text))
    found = encode(column(kind, rows).slice(cut), plan(kind_of(kind), expand_schema(json.loads(text))), b"\0\0\0\0\7")
    fastavro = unittest.mock.patch.dict(LOGICAL_WRITERS, {"bytes-decimal": shortest})
    with decimal.localcontext(decimal.Context(prec=60)), fastavro:
        wanted = [None if row is None else b"\0\0\0\0\7" + by_fastavro(schema, row) for row in rows[cut:]]
    assert found.to_pylist() == wanted


def one(kind: t.DataType, avro: Any, rows: list[Any], arrow: pa.DataType | None = None) -> list[object]:
    """Rows of a record of one field ``a``, decoded again by fastavro."""
    fields = t.StructType([t.StructField("a", kind)])
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": avro}]}
    given = pa.StructArray.from_arrays([pa.array(rows, arrow or arrow_type(kind))], names=["a"])
    made = encode(given, plan(kind_of(fields), expand_schema(schema)))
    read: list[Any] = [schemaless_reader(io.BytesIO(row), parse_schema(schema), None) for row in made.to_pylist()]
    return [row["a"] for row in read]


FIXED_DECIMAL = {"type": "fixed", "name": "D", "size": 12, "logicalType": "decimal", "precision": 20, "scale": 2}
ENUM = {"type": "enum", "name": "E", "symbols": ["red", "grün"]}


@pytest.mark.parametrize(
    ("kind", "avro", "rows"),
    [
        (t.IntegerType(), "long", [1, -(2**31)]),
        (t.IntegerType(), "double", [1, -(2**31)]),
        (t.ShortType(), "float", [1, -(2**15)]),
        (t.FloatType(), "double", [0.5, -1.25]),
        (t.StringType(), ["string", "null"], ["é", None, ""]),
        (t.BinaryType(), {"type": "fixed", "name": "F", "size": 2}, [b"ab", b"\0\xff"]),
        (t.DecimalType(10, 2), FIXED_DECIMAL, [decimal.Decimal("-1.25"), decimal.Decimal("99999999.99")]),
        (t.DecimalType(20, 2), FIXED_DECIMAL, [decimal.Decimal("-1.25"), decimal.Decimal(10**18 - 1).scaleb(-2)]),
        (t.LongType(), [{"type": "null"}, {"type": "long"}], [None, 7]),
    ],
    ids=str,
)
def test_the_schema_of_the_registry_is_followed_where_nothing_is_lost(
    kind: t.DataType, avro: Any, rows: list[Any]
) -> None:
    with decimal.localcontext(decimal.Context(prec=40)):
        assert one(kind, avro, rows) == rows


def test_an_enum_and_milliseconds() -> None:
    schema = {"type": "enum", "name": "E", "symbols": ["red", "green"]}
    assert one(t.StringType(), ["null", schema], ["green", None, "red"]) == ["green", None, "red"]
    moment = dt.datetime(2013, 1, 1, 5, 15, 0, 123000, UTC)
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    assert one(t.TimestampType(), millis, [moment], pa.timestamp("us", "Europe/Berlin")) == [moment]


@pytest.mark.parametrize(
    ("kind", "avro", "rows", "said"),
    [
        (t.StringType(), "string", ["x", None], "a row has null in 'a', which the schema does not allow"),
        (t.StringType(), {"type": "enum", "name": "E", "symbols": ["red"]}, ["blue"], "no symbol of the schema's enum"),
        (t.BinaryType(), {"type": "fixed", "name": "F", "size": 2}, [b"ab", b"abc"], "a row has 3 bytes in 'a'"),
        (
            t.TimestampType(),
            {"type": "long", "logicalType": "timestamp-millis"},
            [dt.datetime(2013, 1, 1, 0, 0, 0, 1, UTC)],
            "a fraction of a millisecond in 'a'",
        ),
    ],
    ids=["null", "enum", "fixed", "millis"],
)
def test_a_value_that_does_not_fit_the_schema_is_named_without_its_content(
    kind: t.DataType, avro: Any, rows: list[Any], said: str
) -> None:
    with pytest.raises(RecordError, match=said) as caught:
        one(kind, avro, rows)
    assert "blue" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "avro", "said"),
    [
        (t.LongType(), "int", "column 'a' has type bigint, the schema has int"),
        (t.LongType(), "double", "column 'a' has type bigint, the schema has double"),
        (t.IntegerType(), "float", "has type int, the schema has float"),
        (t.DoubleType(), "float", "has type double, the schema has float"),
        (t.StringType(), "long", "has type string, the schema has long"),
        (t.LongType(), {"type": "long", "logicalType": "timestamp-micros"}, "logical type timestamp-micros"),
        (t.TimestampType(), "long", "has type timestamp, the schema has long"),
        (t.TimestampNTZType(), {"type": "long", "logicalType": "timestamp-micros"}, "has type timestamp_ntz"),
        (t.StringType(), ["null", "string", "long"], "the union of null, string, long"),
        (
            t.DecimalType(10, 2),
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            r"has type decimal\(10,2\), the schema has bytes with logical type decimal\(9,2\)",
        ),
        (
            t.DecimalType(10, 2),
            {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
            r"logical type decimal\(12,3\)",
        ),
        (t.ArrayType(t.LongType()), {"type": "array", "items": "int"}, r"column 'a\[\]' has type bigint"),
        (t.MapType(t.StringType(), t.LongType()), {"type": "map", "values": "int"}, "column 'a{}' has type bigint"),
    ],
    ids=str,
)
def test_a_type_that_would_lose_something_is_refused_before_anything_is_written(
    kind: t.DataType, avro: Any, said: str
) -> None:
    with pytest.raises(SchemaRefusedError, match=said):
        one(kind, avro, [])


def test_fields_are_matched_by_name_and_none_is_dropped_or_invented() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "long"}, {"name": "a", "type": "string"}]}
    kind = t.StructType([t.StructField("a", t.StringType()), t.StructField("b", t.LongType())])
    node = plan(kind_of(kind), expand_schema(schema))
    assert encode(pa.array([{"a": "x", "b": 1}], arrow_type(kind)), node).to_pylist() == [b"\x02\x02x"]
    more = t.StructType([*kind.fields, t.StructField("c", t.LongType())])
    with pytest.raises(SchemaRefusedError, match="the columns c are not in the schema, whose fields are b, a"):
        plan(kind_of(more), expand_schema(schema))
    with pytest.raises(SchemaRefusedError, match="the schema's fields b have no column, the columns are a"):
        plan(kind_of(t.StructType(kind.fields[:1])), expand_schema(schema))
    with pytest.raises(SchemaRefusedError, match="the schema is string, a DataFrame's columns make a record"):
        plan(kind_of(kind), "string")


def test_names_that_the_schema_uses_again_are_found() -> None:
    point = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "long"}]}
    schema = {
        "type": "record", "name": "Line", "namespace": "n",
        "fields": [{"name": "start", "type": point}, {"name": "end", "type": ["null", "Point"]}],
    }  # fmt: skip
    one_point = t.StructType([t.StructField("x", t.LongType(), False)])
    kind = t.StructType([t.StructField("start", one_point, False), t.StructField("end", one_point)])
    rows = [{"start": {"x": 1}, "end": {"x": 2}}, {"start": {"x": 3}, "end": None}]
    found = encode(pa.array(rows, arrow_type(kind)), plan(kind_of(kind), expand_schema(schema))).to_pylist()
    assert [schemaless_reader(io.BytesIO(row), parse_schema(schema)) for row in found] == rows


def test_entries_behind_a_null_map_or_list_are_not_written() -> None:
    # Arrow allows a null entry to cover values; what a filter or an if_else leaves behind is such
    valid = pa.py_buffer(b"\x02")
    offsets = pa.array([0, 1, 3], pa.int32()).buffers()[1]
    items = pa.array([7, 8, 9], pa.int64())
    lists = pa.Array.from_buffers(pa.list_(pa.int64()), 2, [valid, offsets], children=[items])
    assert one(t.ArrayType(t.LongType()), ["null", {"type": "array", "items": "long"}], lists) == [None, [8, 9]]
    entries = pa.StructArray.from_arrays([pa.array(["a", "b", "c"]), items], fields=[
        pa.field("key", pa.string(), False), pa.field("value", pa.int64())])  # fmt: skip
    maps = pa.Array.from_buffers(pa.map_(pa.string(), pa.int64()), 2, [valid, offsets], children=[entries])
    found = one(t.MapType(t.StringType(), t.LongType()), ["null", {"type": "map", "values": "long"}], maps)
    assert found == [None, {"b": 8, "c": 9}]


def test_each_topic_has_its_own_schema_and_rows_keep_their_place() -> None:
    kind = t.StructType([t.StructField("a", t.IntegerType(), False)])
    whole = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    real = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "double"}]}
    made = kind_of(kind)
    by_topic = {"x": (plan(made, expand_schema(whole)), b"X"), "y": (plan(made, expand_schema(real)), b"Y")}
    rows = pa.array([{"a": 1}, {"a": 2}, {"a": 3}, None], arrow_type(kind))
    topics = pa.array(["x", "y", "x", "y"])
    found = encode_by_topic(rows, topics, by_topic).to_pylist()
    assert found == [b"X\x02", b"Y" + bytes(7) + b"\x40", b"X\x06", None]
    with pytest.raises(RecordError, match="topic 'z', which is not among the load's topics: x, y"):
        encode_by_topic(rows, pa.array(["x", "y", "z", "y"]), by_topic)
