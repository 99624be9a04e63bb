"""Arrow's types as those of a value (``spark/formats/kinds.py``), and columns brought into one form of each. No I/O.

Arrow has more types for the same than Spark: of other widths, units and time zones, as views, as dictionaries. What
Spark would read such a column as, from Parquet, is what it is here; what Spark has no type for cannot be part of a
value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.errors import RecordError
from airflow_kafka_eos.kafka.producer.arrow.binary import own_part
from airflow_kafka_eos.spark.formats.kinds import ARRAY, MAP, STRUCT, Field, Kind

_MAX_PRECISION = 38
#: The form of each, as Spark hands it over.
FORMS: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_NAMES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_string_view, "string"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_large_binary, "binary"),
    (pa.types.is_binary_view, "binary"),
    (pa.types.is_fixed_size_binary, "binary"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "byte"),
    (pa.types.is_int16, "short"),
    (pa.types.is_int32, "int"),
    (pa.types.is_int64, "long"),
    # an unsigned one needs the next width; of 64 bits there is none
    (pa.types.is_uint8, "short"),
    (pa.types.is_uint16, "int"),
    (pa.types.is_uint32, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_date, "date"),
)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def struct_of(schema: pa.Schema) -> Kind:
    """The columns of a stream."""
    return Kind(STRUCT, "struct", tuple(_field(one.name, one) for one in schema))


def kind_of(kind: pa.DataType) -> Kind:
    """What Arrow's type is; under Arrow's own name where no value can have it."""
    said = str(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return Kind(said, said)
    if pa.types.is_dictionary(kind):
        found = kind_of(kind.value_type)
        # Arrow cannot take apart one of lists or structs
        return Kind(said if found.fields else found.name, said, (), found.precision, found.scale)
    if pa.types.is_struct(kind):
        return Kind(STRUCT, said, tuple(_field(one.name, one) for one in kind))
    if any(one(kind) for one in _LISTS):
        return Kind(ARRAY, said, (_field("", kind.value_field),))
    if pa.types.is_map(kind) and kind_of(kind.key_type).name == "string":
        return Kind(MAP, said, (_field("", kind.item_field),))
    if pa.types.is_timestamp(kind):
        return Kind("timestamp" if kind.tz is not None else "timestamp_ntz", said)
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= _MAX_PRECISION:
        return Kind("decimal", said, precision=kind.precision, scale=kind.scale)
    return Kind(next((name for test, name in _NAMES if test(kind)), said), said)


def _field(name: str, found: pa.Field) -> Field:
    return Field(name, kind_of(found.type), found.nullable)


def in_form(column: pa.Array, kind: Kind, path: str) -> pa.Array:
    """The same values in the form that encoders take, whatever form of ``kind`` they come in.

    :param path: of the column, for errors.
    :raises RecordError: a value has no place in that form: a fraction of a microsecond, bytes that are no UTF-8, a
        decimal with more digits than its type.
    """
    if kind.name == STRUCT:
        # flatten, unlike field, makes a child null where its parent is
        parts = zip(column.flatten(), kind.fields, strict=True)
        children = [in_form(child, one.kind, f"{path}.{one.name}" if path else one.name) for child, one in parts]
        absent = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, names=[one.name for one in kind.fields], mask=absent)
    if kind.name == ARRAY:
        items = in_form(column.flatten(), kind.element.kind, f"{path}[]")
        return _nested(pa.list_(items.type), column, items)
    if kind.name == MAP:
        keys, items = entries(column)
        keys = in_form(keys, Kind("string", ""), f"{path}{{}}")
        if keys.null_count:  # of a dictionary; Arrow would end the process over it
            raise RecordError(
                f"a row's {path!r} is a map with a key that is null",
                remedy="Leave such an entry out, or give the key a text",
            )
        items = in_form(items, kind.element.kind, f"{path}{{}}")
        pair = [pa.field("key", keys.type, nullable=False), pa.field("value", items.type)]
        made = pa.StructArray.from_arrays([keys, items], fields=pair)
        return _nested(pa.map_(keys.type, items.type), as_lists(column), made)
    try:
        return _atom(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise RecordError(
            f"a row's {path!r}, of type {column.type}, cannot be written as {_form(kind)}: {e}",
            remedy="Correct the row, or cast the column yourself",
        ) from None


def _atom(column: pa.Array, kind: Kind) -> pa.Array:
    column = cast(column, _form(kind))
    if kind.name in ("string", "decimal"):
        # that it is UTF-8, and of no more digits: Arrow does not look by itself
        column.validate(full=True)
    return column


def _form(kind: Kind) -> pa.DataType:
    return pa.decimal128(kind.precision, kind.scale) if kind.name == "decimal" else FORMS[kind.name]


def cast(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """
    :raises ArrowInvalid: a value does not fit.
    :raises ArrowNotImplementedError: Arrow has no way from the one type to the other.
    """
    if found.type == kind:
        return found
    views = (pa.types.is_string_view, pa.types.is_binary_view)
    if pa.types.is_dictionary(found.type) and any(is_view(found.type.value_type) for is_view in views):
        # of a Categorical or an Enum of Polars, which Arrow's own cast cannot take apart
        return pc.take(pc.cast(found.dictionary, kind), found.indices)
    if pa.types.is_large_string(found.type) or pa.types.is_large_binary(found.type):
        found = own_part(found)
    return pc.cast(found, kind)


def as_lists(column: pa.MapArray) -> pa.ListArray:
    """A map as a list of pairs: its own keys and items know nothing of slices and nulls."""
    kind = column.type
    pair = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
    return column.cast(pa.list_(pair))


def entries(column: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """Keys and items of all rows, one after the other."""
    keys, items = as_lists(column).flatten().flatten()
    return keys, items


def list_offsets(column: pa.Array) -> npt.NDArray[np.int32]:
    """Where each row's items begin in ``column.flatten()``, and where the last one's end."""
    lengths: npt.NDArray[Any] = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    found = np.zeros(len(column) + 1, np.int32)
    np.cumsum(lengths, out=found[1:])
    return found


def _nested(kind: pa.DataType, column: pa.Array, child: pa.Array) -> pa.Array:
    """
    :param kind: a list or a map.
    :param column: a list or a map's list of pairs: whose nulls and lengths it has.
    :param child: what ``column.flatten()`` has, in another form.
    """
    valid = column.is_valid().buffers()[1] if column.null_count else None
    offsets = pa.py_buffer(list_offsets(column))
    return pa.Array.from_buffers(kind, len(column), [valid, offsets], children=[child])
