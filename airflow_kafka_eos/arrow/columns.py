"""The columns of a stream become those that a writer takes. No I/O.

A writer takes what Spark hands over. Arrow has more types for the same: of other widths, as views, as dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from airflow_kafka_eos.arrow.kinds import cast, kind_of
from airflow_kafka_eos.errors import ConfigurationError, RecordError
from airflow_kafka_eos.spark.formats.kinds import BESIDE_VALUE
from airflow_kafka_eos.spark.formats.settings import ValueFormat
from airflow_kafka_eos.spark.options import ALLOWED, HEADERS, check_columns

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_VALUE = "value"


@dataclass(frozen=True)
class Columns:
    """How each batch of a stream is made what a writer takes.

    :param of: the writer's columns, each with that of the stream and its type at the writer; None: as it is.
    :param value: makes the value, where it is none of the stream's columns (:mod:`.values`).
    """

    of: tuple[tuple[str, str, pa.DataType | None], ...]
    value: Callable[[pa.RecordBatch], pa.Array] | None = None

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """
        :raises RecordError: a value does not fit the type, such as a partition above 2**31, or Arrow has no way to it;
            see ``value`` too.
        """
        names, arrays = [], []
        for name, source, kind in self.of:
            found = batch.column(source)
            if kind is not None:
                try:
                    found = cast(found, kind)
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
                    raise RecordError(
                        f"a row's {source!r}, of type {found.type}, cannot be written as {kind}: {e}",
                        remedy="Correct the row, or cast the column yourself",
                    ) from None
            names.append(name)
            arrays.append(found)
        if self.value is not None:
            names.append(_VALUE)
            arrays.append(self.value(batch))
        return pa.RecordBatch.from_arrays(arrays, names)


def columns_of(schema: pa.Schema, value_format: ValueFormat, *, has_default_topic: bool) -> Columns:
    """
    :param value_format: of one column; of any other, the columns beside the value.
    :raises ConfigurationError: a column that a load does not take, or of a type that it cannot write; two of one name.
    """
    sources = {name: name for name in schema.names}
    kinds = [(field.name, spark_type(field.type)) for field in schema]
    as_text: str | None = None
    if value_format.name == "string":
        as_text = _text_column(schema)
        sources[_VALUE] = as_text
        kinds = [(name, kind) for name, kind in kinds if name != as_text] + [(_VALUE, "string")]
    elif not value_format.is_of_one_column:
        kinds = [(name, kind) for name, kind in kinds if name in BESIDE_VALUE]
    value = [] if value_format.is_of_one_column else [(_VALUE, "binary")]
    check_columns([*kinds, *value], has_default_topic=has_default_topic, of="the stream")
    taken = []
    for name, kind in kinds:
        source = sources[name]
        had = schema.field(source).type
        wanted = pa.string() if name == _VALUE and as_text is not None else _written_as(had, kind)
        taken.append((name, source, None if wanted == had else wanted))
    return Columns(tuple(taken))


def spark_type(kind: pa.DataType) -> str:
    """What Spark would call a type that a column may have; Arrow's own name for any other."""
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type)
    if pa.types.is_integer(kind):
        return "int"
    found = kind_of(kind)
    match found.name:
        case "string" | "binary" | "timestamp":
            return found.name
        case "timestamp_ntz":
            return f"{found.said} without a time zone"
        case "array":
            fields = [(field.name, field.kind.name) for field in found.element.kind.fields]
            if fields in ([("key", "string"), ("value", "binary")], [("key", "string"), ("value", "string")]):
                return HEADERS
    return found.said


def _written_as(had: pa.DataType, kind: str) -> pa.DataType:
    match kind:
        case "string":
            # 64-bit offsets are the writer's to make narrow: a slice of a large column may begin behind 2 GiB
            return pa.large_string() if pa.types.is_large_string(had) else pa.string()
        case "binary":
            return pa.large_binary() if pa.types.is_large_binary(had) else pa.binary()
        case "int":
            return pa.int32()
        case "timestamp":
            return had.value_type if pa.types.is_dictionary(had) else had
    return _HEADERS


def _text_column(schema: pa.Schema) -> str:
    rest = [field for field in schema if field.name not in ALLOWED or field.name == _VALUE]
    if len(rest) != 1:
        raise ConfigurationError(
            f"value_format 'string' takes one column, and there are {len(rest)}: "
            f"{', '.join(field.name for field in rest) or 'none'}",
            remedy="Select one of them as value, or make one text of them",
        )
    (field,) = rest
    kind = field.type
    if spark_type(kind) not in ("string", "int") and not pa.types.is_boolean(kind) and not pa.types.is_date32(kind):
        raise ConfigurationError(
            f"column {field.name!r} has type {kind}, which value_format 'string' cannot carry with engine='arrow'",
            remedy="Cast it to a text yourself, or use value_format raw for binary",
        )
    return str(field.name)
