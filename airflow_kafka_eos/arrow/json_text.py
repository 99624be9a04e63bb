"""Values as JSON objects, by column: the same bytes as Spark's ``to_json`` (``spark/formats/json.py``). No I/O.

Of each column a text per row is made, and the texts of a record are joined once, with what stands between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.arrow import java_numbers
from airflow_kafka_eos.arrow.kinds import as_lists, entries, list_offsets
from airflow_kafka_eos.errors import RecordError
from airflow_kafka_eos.kafka.producer.arrow.binary import binary, data_of, from_parts, lengths_of, offsets_of
from airflow_kafka_eos.spark.formats.kinds import ARRAY, MAP, STRUCT, Field, Kind

Mask = npt.NDArray[np.bool_]
#: What a text is joined of: a column of texts, or what is the same for all rows.
Parts = list[pa.BinaryArray | bytes]

_NULL = b"null"
_SHORT = {0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0C: b"\\f", 0x0D: b"\\r", 0x22: b'\\"', 0x5C: b"\\\\"}
_ESCAPES = {code: b"\\u%04X" % code for code in range(0x20)} | _SHORT
_IS_ESCAPED = np.isin(np.arange(256), list(_ESCAPES))
_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
#: Days since 1970 of the first days of the years 1 and 10000. Java writes a sign before years of five digits.
_FIRST_DAY, _BEYOND = -719_162, 2_932_897
_DAY_US = 86_400_000_000


def json_texts(column: pa.StructArray, kind: Kind) -> pa.BinaryArray:
    """The JSON object of each row, null for a null one.

    :param column: in the form of ``kind`` (:func:`.kinds.in_form`).
    :raises RecordError: NaN or infinity; a date that JSON's readers would not take; null in a field that has none.
    """
    live = _valid(column)
    made = _joined(_struct(column, kind, "", live), len(column))
    return made if live.all() else pc.if_else(pa.array(live), made, pa.scalar(None, pa.binary()))


def _field(column: pa.Array, field: Field, path: str, live: Mask) -> Parts:
    """
    :param live: the rows in which there is such a field: none where its record is null.
    """
    valid = _valid(column)
    if not field.nullable and (live & ~valid).any():
        raise RecordError(
            f"a row has null in {path!r}, which the stream's schema does not allow",
            remedy="Filter such rows or fill them, or make the field nullable in the schema",
        )
    if not valid.any():
        return [_NULL]
    made = _KINDS[field.kind.name](column, field.kind, path, valid)
    if valid.all():
        return made
    return [pc.if_else(pa.array(valid), _joined(made, len(column)), pa.scalar(_NULL))]


def _struct(column: pa.StructArray, kind: Kind, path: str, live: Mask) -> Parts:
    parts: Parts = []
    for number, (child, field) in enumerate(zip(column.flatten(), kind.fields, strict=True)):
        where = f"{path}.{field.name}" if path else field.name
        parts += [(b"," if number else b"{") + _name(field.name) + b":", *_field(child, field, where, live)]
    return [*parts, b"}"]


def _name(text: str) -> bytes:
    return b'"' + b"".join(_ESCAPES.get(code, bytes([code])) for code in text.encode()) + b'"'


def _array(column: pa.ListArray, kind: Kind, path: str, live: Mask) -> Parts:
    items = column.flatten()
    every = np.ones(len(items), np.bool_)
    texts = _joined(_field(items, kind.element, f"{path}[]", every), len(items))
    return [b"[", _rows(column, texts), b"]"]


def _map(column: pa.MapArray, kind: Kind, path: str, live: Mask) -> Parts:
    keys, items = entries(column)
    every = np.ones(len(items), np.bool_)
    values = _field(items, kind.element, f"{path}{{}}", every)
    texts = _joined([*_string(keys, kind, path, every), b":", *values], len(items))
    return [b"{", _rows(as_lists(column), texts), b"}"]


def _rows(column: pa.ListArray, items: pa.BinaryArray) -> pa.BinaryArray:
    """The texts of each row's items, with commas between them."""
    offsets = pa.py_buffer(list_offsets(column))
    lists = pa.Array.from_buffers(pa.list_(pa.binary()), len(column), [None, offsets], children=[items])
    return pc.binary_join(lists, pa.scalar(b","))


def _string(column: pa.Array, kind: Kind, path: str, live: Mask) -> Parts:
    content = binary(column)
    data = np.frombuffer(data_of(content), np.uint8)
    special = _IS_ESCAPED[data]
    # the backslash first: those of the others are no characters of the text
    for code in sorted(np.unique(data[special]).tolist() if special.any() else (), key=lambda one: one != 0x5C):
        content = pc.replace_substring(content, pattern=bytes([code]), replacement=_ESCAPES[code])
    return [b'"', content, b'"']


def _binary(column: pa.Array, kind: Kind, path: str, live: Mask) -> Parts:
    return [b'"', _base64(pc.fill_null(column, b"")), b'"']


def _base64(column: pa.BinaryArray) -> pa.BinaryArray:
    """RFC 4648, with padding."""
    data, lengths = np.frombuffer(data_of(column), np.uint8), lengths_of(column)
    groups = (lengths + 2) // 3
    ends = np.cumsum(groups)
    # three bytes at a time, those of a row padded with zeros
    whole = np.zeros(3 * int(ends[-1]), np.uint8)
    begins = offsets_of(column)[:-1] - offsets_of(column)[0]
    whole[np.arange(len(data)) + np.repeat(3 * (ends - groups) - begins, lengths)] = data
    bits = whole.reshape(-1, 3).astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    made = np.stack([_ALPHABET[bits >> shift & 63] for shift in (18, 12, 6, 0)], axis=1).reshape(-1)
    made[4 * ends[lengths % 3 != 0] - 1] = ord("=")
    made[4 * ends[lengths % 3 == 1] - 2] = ord("=")
    return from_parts(made, _offsets(4 * groups))


def _whole(column: pa.Array, kind: Kind, path: str, live: Mask) -> Parts:
    return [binary(pc.cast(column, pa.string()))]


def _boolean(column: pa.Array, kind: Kind, path: str, live: Mask) -> Parts:
    return [pc.if_else(column, pa.scalar(b"true"), pa.scalar(b"false"))]


def _floating(column: pa.Array, kind: Kind, path: str, live: Mask) -> Parts:
    if not pc.all(pc.is_finite(column)).as_py():
        raise RecordError(
            f"a row has NaN or infinity in {path!r}, and JSON has no such numbers",
            remedy="Replace it with null, or use value_format confluent-avro",
        )
    return [java_numbers.texts(column)]


def _date(column: pa.Array, kind: Kind, path: str, live: Mask) -> Parts:
    days = pc.fill_null(column.view(pa.int32()), 0)
    _check_years(days, 1, path)
    return [b'"', binary(pc.cast(days.view(pa.date32()), pa.string())), b'"']


def _timestamp(column: pa.Array, kind: Kind, path: str, live: Mask) -> Parts:
    micros = pc.fill_null(column.view(pa.int64()), 0)
    _check_years(micros, _DAY_US, path)
    texts = binary(pc.cast(micros.view(pa.timestamp("us")), pa.string()))
    # 2013-07-01 12:30:15.123456
    matrix = np.frombuffer(data_of(texts), np.uint8).reshape(len(column), -1).copy()
    matrix[:, len("2013-07-01")] = ord("T")
    made = from_parts(matrix.reshape(-1), _offsets(np.full(len(column), matrix.shape[1])))
    return [b'"', made, b'Z"' if kind.name == "timestamp" else b'"']


def _check_years(column: pa.Array, day: int, path: str) -> None:
    values = column.to_numpy(zero_copy_only=False)
    if (values < _FIRST_DAY * day).any() or (values >= _BEYOND * day).any():
        raise RecordError(
            f"a row has a year below 1 or above 9999 in {path!r}, which engine='arrow' does not write as JSON",
            remedy="Correct the row, send the column as a text, or use value_format confluent-avro",
        )


_KINDS: dict[str, Callable[[Any, Kind, str, Mask], Parts]] = {
    STRUCT: _struct,
    ARRAY: _array,
    MAP: _map,
    "string": _string,
    "binary": _binary,
    "boolean": _boolean,
    "byte": _whole,
    "short": _whole,
    "int": _whole,
    "long": _whole,
    # as BigDecimal.toString, which Arrow's own text follows
    "decimal": _whole,
    "float": _floating,
    "double": _floating,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp,
}


def _joined(parts: Parts, rows: int) -> pa.BinaryArray:
    """One text per row; null where a part of it is."""
    merged: list[Any] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    if len(merged) == 1:
        (only,) = merged
        return pa.repeat(pa.scalar(only), rows) if isinstance(only, bytes) else only
    texts = [pa.scalar(part) if isinstance(part, bytes) else part for part in merged]
    return pc.binary_join_element_wise(*texts, pa.scalar(b""))


def _valid(column: pa.Array) -> Mask:
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    found: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _offsets(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    found = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=found[1:])
    return found
