"""The JSON Schema (draft 7) of what Spark's ``to_json`` makes of a struct. Pure.

Closed objects, and only what can never be null is required: so a registry in mode BACKWARD takes a new nullable
column, as it does for Avro.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import types as t

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


def json_schema(fields: t.StructType, record_name: str) -> str:
    """The schema as JSON text, the same text for the same columns.

    :param fields: as checked by :func:`.columns.record`.
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
