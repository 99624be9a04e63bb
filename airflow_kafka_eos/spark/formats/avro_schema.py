"""The Avro schema that follows from Spark types. Pure.

As Spark's own ``to_avro`` has it: timestamps in microseconds, decimals as bytes, nullable as a union with null.
Nullable fields have the default null, so that a registry in mode BACKWARD takes a new nullable column.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import types as t

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.formats.settings import is_name

_ATOMS: dict[type[t.DataType], Any] = {
    t.StringType: "string",
    t.BinaryType: "bytes",
    t.BooleanType: "boolean",
    t.ByteType: "int",
    t.ShortType: "int",
    t.IntegerType: "int",
    t.LongType: "long",
    t.FloatType: "float",
    t.DoubleType: "double",
    t.DateType: {"type": "int", "logicalType": "date"},
    t.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    t.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def avro_schema(fields: t.StructType, record_name: str) -> str:
    """The schema as JSON text, the same text for the same columns.

    :param fields: as checked by :func:`.columns.record`.
    :raises ConfigurationError: a field's name is none for Avro.
    """
    return json.dumps(_record(fields, record_name, ""))


def _record(fields: t.StructType, name: str, path: str) -> dict[str, Any]:
    made = []
    for field in fields.fields:
        where = f"{path}{field.name}"
        if not is_name(field.name):
            raise ConfigurationError(
                f"column {where!r} has a name that Avro does not allow (letters, digits and _, no digit first)",
                remedy="Rename it with .alias(...), or use value_format confluent-json",
            )
        kind = _of(field.dataType, f"{name}.{field.name}", f"{where}.")
        made.append({"name": field.name} | _nullable(kind, field.nullable))
    return {"type": "record", "name": name, "fields": made}


def _nullable(kind: Any, nullable: bool) -> dict[str, Any]:
    return {"type": ["null", kind], "default": None} if nullable else {"type": kind}


def _of(kind: t.DataType, name: str, path: str) -> Any:
    if isinstance(kind, t.StructType):
        return _record(kind, name, path)  # its path is its name, as in Spark: no name twice
    if isinstance(kind, t.ArrayType):
        items = _of(kind.elementType, name, path)
        return {"type": "array", "items": ["null", items] if kind.containsNull else items}
    if isinstance(kind, t.MapType):
        values = _of(kind.valueType, name, path)
        return {"type": "map", "values": ["null", values] if kind.valueContainsNull else values}
    if isinstance(kind, t.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    return next(schema for base, schema in _ATOMS.items() if isinstance(kind, base))
