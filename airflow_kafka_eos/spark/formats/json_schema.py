"""The JSON Schema (draft 7) of values that are JSON objects.

It has closed objects, and requires only what can never be null: so a registry in mode BACKWARD takes a new nullable
column, as it does for Avro.
"""

from __future__ import annotations

import json
from typing import Any

from airflow_kafka_eos.spark.formats.kinds import ARRAY, FLOATS, INTEGERS, MAP, STRUCT, Field, Kind

_ATOMS: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "binary": {"type": "string", "contentEncoding": "base64"},
    "boolean": {"type": "boolean"},
    **{name: {"type": "integer"} for name in INTEGERS},
    **{name: {"type": "number"} for name in (*FLOATS, "decimal")},
    "date": {"type": "string", "format": "date"},
    "timestamp": {"type": "string", "format": "date-time"},
    "timestamp_ntz": {"type": "string"},
}


def json_schema(record: Kind, record_name: str) -> str:
    """The schema as JSON text, the same text for the same columns.

    :param record: as checked by :func:`.kinds.record`.
    """
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": record_name}
    return json.dumps(head | _of(record))


def _of(kind: Kind) -> dict[str, Any]:
    if kind.name == STRUCT:
        required = [field.name for field in kind.fields if not field.nullable]
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {field.name: _field(field) for field in kind.fields},
        } | ({"required": required} if required else {})
    if kind.name == ARRAY:
        return {"type": "array", "items": _field(kind.element)}
    if kind.name == MAP:
        return {"type": "object", "additionalProperties": _field(kind.element)}
    return _ATOMS[kind.name]


def _field(field: Field) -> dict[str, Any]:
    found = _of(field.kind)
    return {"oneOf": [{"type": "null"}, found]} if field.nullable else found
