"""JSON from whole Arrow columns: what a reader reads again is what was there; what it could not read is refused."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from airflow_kafka_eos.arrow.json_text import json_texts
from airflow_kafka_eos.arrow.kinds import in_form, struct_of
from airflow_kafka_eos.errors import RecordError
from tests.spark.test_formats_encode import TABLES, column


def texts(table: pa.Table | pa.RecordBatch) -> list[bytes | None]:
    kind = struct_of(table.schema)
    (batch,) = pa.Table.from_batches([table] if isinstance(table, pa.RecordBatch) else table.to_batches()).to_batches()
    whole = pa.StructArray.from_arrays(batch.columns, names=batch.schema.names)
    return list(json_texts(in_form(whole, kind, ""), kind).to_pylist())


def of(values: Any, kind: pa.DataType | None = None, nullable: bool = True) -> list[bytes | None]:
    """Of one column ``a``."""
    made = values if isinstance(values, pa.Array) else pa.array(values, kind)
    return texts(pa.RecordBatch.from_arrays([made], schema=pa.schema([pa.field("a", made.type, nullable)])))


def readable(value: Any) -> Any:
    """As a reader of JSON sees it."""
    if isinstance(value, dict):
        return {key: readable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [readable(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return f"{value.year:04}-{value:%m-%dT%H:%M:%S.%f}" + ("Z" if value.tzinfo else "")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value) if value.as_tuple().exponent else int(value)
    return value


def same(found: Any, wanted: Any) -> bool:
    """A float of 32 bits is read as the nearest of 64 to its shortest text."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[key], inner) for key, inner in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=1e-6, abs_tol=1e-44)
    return type(found) is type(wanted) and bool(found == wanted)


def finite(value: Any) -> bool:
    if isinstance(value, (dict, list)):
        return all(finite(inner) for inner in (value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or abs(value) < float("inf")


@settings(max_examples=300, deadline=None)
@given(TABLES, st.integers(0, 3))
def test_what_is_read_again_is_what_was_there(table: tuple[t.StructType, list[Any]], cut: int) -> None:
    kind, rows = table
    made = column(kind, rows).slice(cut)
    of_columns = struct_of(pa.schema(list(made.type)))
    if not finite(rows[cut:]):
        with pytest.raises(RecordError, match="NaN or infinity"):
            json_texts(in_form(made, of_columns, ""), of_columns)
        return
    found = json_texts(in_form(made, of_columns, ""), of_columns).to_pylist()
    assert same([None if one is None else json.loads(one) for one in found], readable(rows[cut:]))


def test_the_escapes_are_those_of_javas_json() -> None:
    text = "\x00\x01\b\t\n\x0b\f\r\x1f\"\\/\x7fü☃😀\u2028"
    wanted = '{"a":"\\u0000\\u0001\\b\\t\\n\\u000B\\f\\r\\u001F\\"\\\\/\x7fü☃😀\u2028"}'
    assert of([text, "", "plain"]) == [wanted.encode(), b'{"a":""}', b'{"a":"plain"}']


def test_a_fields_name_is_escaped_too() -> None:
    assert texts(pa.table({'a"\\\n': [1], "é": [2]})) == ['{"a\\"\\\\\\n":1,"é":2}'.encode()]


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        ([True, False, None], pa.bool_(), ["true", "false", "null"]),
        ([-128, 127], pa.int8(), ["-128", "127"]),
        ([2**63 - 1, None], pa.int64(), ["9223372036854775807", "null"]),
        ([Decimal("0E-18"), Decimal("1E-10"), Decimal("-1.50")], pa.decimal128(38, 18),
         ["0E-18", "1.00000000E-10", "-1.500000000000000000"]),
        ([Decimal("-0.01"), Decimal(0)], pa.decimal128(9, 2), ["-0.01", "0.00"]),
        ([b"", b"a", b"ab", b"abc", b"\xff\xfe\xfd\xfc", None], pa.binary(),
         ['""', '"YQ=="', '"YWI="', '"YWJj"', '"//79/A=="', "null"]),
        ([dt.date(1, 1, 1), dt.date(9999, 12, 31)], pa.date32(), ['"0001-01-01"', '"9999-12-31"']),
        ([dt.datetime(2013, 7, 1, 12, 30, 15, 123456)], pa.timestamp("us"), ['"2013-07-01T12:30:15.123456"']),
        ([0, 1, None], pa.timestamp("s", "Asia/Tokyo"),
         ['"1970-01-01T00:00:00.000000Z"', '"1970-01-01T00:00:01.000000Z"', "null"]),
        ([[], [None, 1], None], pa.list_(pa.int8()), ["[]", "[null,1]", "null"]),
        ([[[]], [None, [1]]], pa.list_(pa.list_(pa.int8())), ["[[]]", "[null,[1]]"]),
        ([[], [("k", None), ('"', 2)], None], pa.map_(pa.string(), pa.int8()), ["{}", '{"k":null,"\\"":2}', "null"]),
        ([{"b": None}, None], pa.struct([("b", pa.int8())]), ['{"b":null}', "null"]),
        ([None, None], pa.string(), ["null", "null"]),
    ],
    ids=str,
)  # fmt: skip
def test_each_type(values: Any, kind: pa.DataType, wanted: list[str]) -> None:
    assert of(values, kind) == [b'{"a":' + text.encode() + b"}" for text in wanted]


#: As the javadoc of Double.toString tells, and Java 25 says.
DOUBLES = [
    (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (-12.5, "-12.5"), (0.1, "0.1"), (1e-3, "0.001"), (9.999e-4, "9.999E-4"),
    (9999999.0, "9999999.0"), (9999999.999999998, "9999999.999999998"), (1e7, "1.0E7"), (12345678.25, "1.234567825E7"),
    (2e23, "2.0E23"), (1.7976931348623157e308, "1.7976931348623157E308"), (5e-324, "4.9E-324"), (1e-323, "9.9E-324"),
    (2.2250738585072014e-308, "2.2250738585072014E-308"), (1125899906842624.25, "1.1258999068426242E15"),
    (1125899906842624.75, "1.1258999068426248E15"),
]  # fmt: skip
FLOATS = [
    (0.1, "0.1"), (1e7, "1.0E7"), (1.4e-45, "1.4E-45"), (3.4028235e38, "3.4028235E38"), (2097152.25, "2097152.2"),
    (2097152.75, "2097152.8"), (1e-3, "0.001"), (8388608.0, "8388608.0"), (3.3e-10, "3.3E-10"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "known"), [(pa.float64(), DOUBLES), (pa.float32(), FLOATS)], ids=str)
def test_numbers_are_written_as_java_writes_them(kind: pa.DataType, known: list[tuple[float, str]]) -> None:
    values: list[Any] = [value for value, _ in known]
    assert of([*values, None], kind) == [f'{{"a":{text}}}'.encode() for text in (*[text for _, text in known], "null")]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", [pa.float32(), pa.list_(pa.float64()), pa.map_(pa.string(), pa.float64())], ids=str)
def test_what_json_has_no_number_for_is_refused(value: float, kind: pa.DataType) -> None:
    given: Any = value
    if pa.types.is_nested(kind):
        given = [("k", value)] if pa.types.is_map(kind) else [value]
    with pytest.raises(RecordError, match=r"a row has NaN or infinity in 'a(\[\]|\{\})?', and JSON has no such"):
        of([None, given], kind)


def test_a_number_that_stands_behind_a_null_is_none() -> None:
    # Arrow allows it: what a filter or an if_else leaves behind is such
    valid, data = pa.py_buffer(b"\x02"), pa.array([float("nan"), 1.5]).buffers()[1]
    assert of(pa.Array.from_buffers(pa.float64(), 2, [valid, data])) == [b'{"a":null}', b'{"a":1.5}']
    inner = pa.StructArray.from_arrays([pa.array([float("nan"), 1.5])], names=["x"], mask=pa.array([True, False]))
    assert of(inner) == [b'{"a":null}', b'{"a":{"x":1.5}}']


@pytest.mark.parametrize(
    ("days", "kind"),
    [
        ([-719_163], pa.date32()),
        ([2_932_897], pa.date32()),
        ([-719_163 * 86_400 * 10**6], pa.timestamp("us")),
        ([2_932_897 * 86_400], pa.timestamp("s", "UTC")),
    ],
    ids=str,
)
def test_a_year_that_readers_would_not_take_is_refused(days: list[int], kind: pa.DataType) -> None:
    made = pa.array(days, pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
    with pytest.raises(RecordError, match="a row has a year below 1 or above 9999 in 'a'"):
        of(made)


def test_a_field_that_has_no_null_must_have_none() -> None:
    assert of([1, 2], nullable=False) == [b'{"a":1}', b'{"a":2}']
    with pytest.raises(RecordError, match="a row has null in 'a', which the stream's schema does not allow"):
        of([1, None], nullable=False)
    kind = pa.struct([pa.field("x", pa.int8(), nullable=False)])
    assert of([None, {"x": 1}], kind) == [b'{"a":null}', b'{"a":{"x":1}}']  # its record is null, not the field
