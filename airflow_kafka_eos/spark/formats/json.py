"""Values as JSON objects, made by the JVM alone, and the JSON Schema (draft 7) of them.

The schema has closed objects, and requires only what can never be null: so a registry in mode BACKWARD takes a new
nullable column, as it does for Avro.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from airflow_kafka_eos.spark.formats.registry import RegisteredSchema

# Spark's own formats cut timestamps to milliseconds and show them in the session's time zone
_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
#: What ``errortext`` finds again in Spark's Java exception.
_RECORD_ERROR = "airflow_kafka_eos.errors.RecordError: "
_ATOMS: dict[type[t.DataType], dict[str, Any]] = {
    t.StringType: {"type": "string"},
    t.BinaryType: {"type": "string", "contentEncoding": "base64"},
    t.BooleanType: {"type": "boolean"},
    t.ByteType: {"type": "integer"},
    t.ShortType: {"type": "integer"},
    t.IntegerType: {"type": "integer"},
    t.LongType: {"type": "integer"},
    t.FloatType: {"type": "number"},
    t.DoubleType: {"type": "number"},
    t.DecimalType: {"type": "number"},
    t.DateType: {"type": "string", "format": "date"},
    t.TimestampType: {"type": "string", "format": "date-time"},
    t.TimestampNTZType: {"type": "string"},
}


def json_text(value: Column, fields: t.StructType) -> Column:
    """The JSON object of a struct, null for a null struct. NaN and infinity, which JSON lacks, end the task."""
    text = f.to_json(value, _OPTIONS)
    wrong = _not_finite(fields, value)
    if wrong is None:
        return text
    refusal = f.raise_error(
        f.lit(
            f"{_RECORD_ERROR}a row has NaN or infinity in a float or double column, and JSON has no such numbers. "
            "Replace it (nanvl, nullif), or use value_format confluent-avro."
        )
    )
    return f.when(wrong, refusal).otherwise(text)


def with_prefix(text: Column, topic: Column, schemas: Mapping[str, RegisteredSchema]) -> Column:
    """Confluent's wire format around a JSON text."""
    prefixes = {name: f.lit(bytearray(schema.prefix)) for name, schema in schemas.items()}
    if len({schema.id for schema in schemas.values()}) == 1:
        prefix = next(iter(prefixes.values()))
    else:
        # a foreign topic has no prefix, so its value is null here; the data source refuses such a row
        prefix = f.lit(None).cast("binary")
        for name, literal in prefixes.items():
            prefix = f.when(topic == name, literal).otherwise(prefix)
    return f.concat(prefix, text.cast("binary"))


def _not_finite(kind: t.DataType, value: Column) -> Column | None:
    """A condition that is true where a float within ``value`` is NaN or infinite; None where there can be none."""
    if isinstance(kind, t.FloatType | t.DoubleType):
        return f.coalesce(f.isnan(value) | (f.abs(value) == float("inf")), f.lit(False))
    if isinstance(kind, t.StructType):
        inner = [_not_finite(field.dataType, value.getField(field.name)) for field in kind.fields]
        found = [condition for condition in inner if condition is not None]
        return reduce(operator.or_, found) if found else None
    if isinstance(kind, t.ArrayType):
        return _within(kind.elementType, value)
    if isinstance(kind, t.MapType):
        return _within(kind.valueType, f.map_values(value))
    return None


def _within(kind: t.DataType, values: Column) -> Column | None:
    if _not_finite(kind, f.lit(None)) is None:
        return None

    def test(item: Column) -> Column:
        found = _not_finite(kind, item)
        assert found is not None
        return found

    return f.coalesce(f.exists(values, test), f.lit(False))


def json_schema(fields: t.StructType, record_name: str) -> str:
    """The schema as JSON text, the same text for the same columns.

    :param fields: as checked by :func:`.shaping.record`.
    """
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": record_name}
    return json.dumps(head | _of(fields))


def _of(kind: t.DataType) -> dict[str, Any]:
    if isinstance(kind, t.StructType):
        required = [field.name for field in kind.fields if not field.nullable]
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {f.name: _nullable(f.dataType, f.nullable) for f in kind.fields},
        } | ({"required": required} if required else {})
    if isinstance(kind, t.ArrayType):
        return {"type": "array", "items": _nullable(kind.elementType, kind.containsNull)}
    if isinstance(kind, t.MapType):
        return {"type": "object", "additionalProperties": _nullable(kind.valueType, kind.valueContainsNull)}
    return next(schema for base, schema in _ATOMS.items() if isinstance(kind, base))


def _nullable(kind: t.DataType, nullable: bool) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, _of(kind)]} if nullable else _of(kind)
