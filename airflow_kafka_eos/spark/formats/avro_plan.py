"""How a struct of Spark's is written as an Avro schema says: every field matched by name, every type checked. Pure.

Runs on the driver, before anything is written. Nothing is dropped, invented or rounded: a column without a field, a
field without a column, and a type that would lose something are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import types as t

from airflow_kafka_eos.errors import SchemaRefusedError

_INTEGERS = (t.ByteType, t.ShortType, t.IntegerType)


@dataclass(frozen=True)
class Node:
    """One Avro type, and where its values come from. Sent to the executors by pickle.

    :param kind: a name that ``avro_encode`` knows.
    :param path: the field, for errors.
    :param null_branch: the union's index of null, None where null is not allowed.
    :param children: of a record in the schema's order, of an array its items, of a map its values.
    :param index: position within the parent's struct.
    :param size: bytes of a fixed; the scale of a decimal stays as it is.
    :param symbols: of an enum.
    """

    kind: str
    path: str
    null_branch: int | None = None
    children: tuple[Node, ...] = ()
    index: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()


def plan(fields: t.StructType, schema: Any) -> Node:
    """Match a record.

    :param schema: as ``fastavro.schema.expand_schema`` gives it: names resolved, parsed from JSON.
    :raises SchemaRefusedError: naming the field, its type and what the schema has.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaRefusedError(
            f"the schema is {_say(schema)}, a DataFrame's columns make a record",
            remedy="Register a record for this subject, or send a single column with value_format string or raw",
        )
    return _record(fields, schema, "")


def _record(fields: t.StructType, schema: dict[str, Any], path: str) -> Node:
    wanted = [field["name"] for field in schema["fields"]]
    have = {field.name: (index, field) for index, field in enumerate(fields.fields)}
    inside = f" (in {path})" if path else ""
    if surplus := [name for name in have if name not in wanted]:
        raise SchemaRefusedError(
            f"the columns {', '.join(surplus)}{inside} are not in the schema, whose fields are {', '.join(wanted)}",
            remedy="Drop them, or register a schema that has them",
        )
    if missing := [name for name in wanted if name not in have]:
        raise SchemaRefusedError(
            f"the schema's fields {', '.join(missing)}{inside} have no column, the columns are {', '.join(have)}",
            remedy="Add them, such as lit(None).cast(...).alias(name) for a field that may be null",
        )
    children = []
    for field in schema["fields"]:
        index, column = have[field["name"]]
        where = f"{path}.{column.name}" if path else column.name
        children.append(replace(_node(column.dataType, field["type"], where), index=index))
    return Node("record", path, children=tuple(children))


def _node(kind: t.DataType, schema: Any, path: str) -> Node:
    null_branch = None
    if isinstance(schema, list):
        others = [branch for branch in schema if not _is_null(branch)]
        if len(others) != 1 or len(schema) > 2:
            raise _unfit(path, kind, schema)
        if len(schema) == 2:
            null_branch = 0 if _is_null(schema[0]) else 1
            return replace(_node(kind, others[0], path), null_branch=null_branch)
        raise _unfit(path, kind, schema)  # a union of one is legal, and nobody writes it
    definition = schema if isinstance(schema, dict) else {"type": schema}
    avro, logical = definition["type"], definition.get("logicalType")
    if isinstance(avro, (dict, list)):
        return _node(kind, avro, path)
    if isinstance(kind, t.StructType) and avro == "record":
        return _record(kind, definition, path)
    if isinstance(kind, t.ArrayType) and avro == "array":
        return Node("array", path, children=(_node(kind.elementType, definition["items"], f"{path}[]"),))
    if isinstance(kind, t.MapType) and avro == "map":
        return Node("map", path, children=(_node(kind.valueType, definition["values"], f"{path}{{}}"),))
    if isinstance(kind, t.DecimalType):
        same = logical == "decimal" and definition.get("scale", 0) == kind.scale
        if same and definition["precision"] >= kind.precision and avro in ("bytes", "fixed"):
            return Node("decimal" if avro == "bytes" else "fixed decimal", path, size=definition.get("size", 0))
        raise _unfit(path, kind, schema)
    if isinstance(kind, t.StringType) and avro == "enum":
        return Node("enum", path, symbols=tuple(definition["symbols"]))
    if isinstance(kind, t.BinaryType) and avro == "fixed" and logical is None:
        return Node("fixed", path, size=definition["size"])
    if made := _simple(kind, avro, logical):
        return Node(made, path)
    raise _unfit(path, kind, schema)


def _simple(kind: t.DataType, avro: str, logical: str | None) -> str | None:
    if isinstance(kind, t.TimestampType | t.TimestampNTZType):
        local = "local-" if isinstance(kind, t.TimestampNTZType) else ""
        found = {f"{local}timestamp-micros": "long", f"{local}timestamp-millis": "millis"}
        return found.get(logical or "") if avro == "long" else None
    if isinstance(kind, t.DateType):
        return "long" if (avro, logical) == ("int", "date") else None
    if logical is not None and not (logical == "uuid" and avro == "string"):
        return None
    if isinstance(kind, _INTEGERS):
        # float has 24 bits for whole numbers
        narrow = "float" if not isinstance(kind, t.IntegerType) else ""
        return {"int": "long", "long": "long", "double": "double", "float": narrow}.get(avro) or None
    by_type: tuple[tuple[type[t.DataType], dict[str, str]], ...] = (
        (t.LongType, {"long": "long"}),
        (t.FloatType, {"float": "float", "double": "double"}),
        (t.DoubleType, {"double": "double"}),
        (t.BooleanType, {"boolean": "boolean"}),
        (t.StringType, {"string": "bytes", "bytes": "bytes"}),
        (t.BinaryType, {"bytes": "bytes"}),
    )
    return next((known.get(avro) for base, known in by_type if isinstance(kind, base)), None)


def _is_null(schema: Any) -> bool:
    return schema == "null" or (isinstance(schema, dict) and schema.get("type") == "null")


def _unfit(path: str, kind: t.DataType, schema: Any) -> SchemaRefusedError:
    return SchemaRefusedError(
        f"column {path!r} has type {kind.simpleString()}, the schema has {_say(schema)}",
        remedy="Cast the column so that nothing is lost, or register a schema that fits it",
    )


def _say(schema: Any) -> str:
    if isinstance(schema, list):
        return "the union of " + ", ".join(_say(branch) for branch in schema)
    if not isinstance(schema, dict):
        return str(schema)
    if "logicalType" in schema:
        size = f"({schema['precision']},{schema.get('scale', 0)})" if schema["logicalType"] == "decimal" else ""
        return f"{schema['type']} with logical type {schema['logicalType']}{size}"
    return _say(schema["type"]) if isinstance(schema["type"], (dict, list)) else str(schema["type"])
