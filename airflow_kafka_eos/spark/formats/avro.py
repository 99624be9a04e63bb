"""Values as Avro: the schema that follows from the columns, and how a struct fits a registered one. No I/O.

The schema is as Spark's own ``to_avro`` has it: timestamps in microseconds, decimals as bytes, nullable as a union with
null, whose default is null, so that a registry in mode BACKWARD takes a new nullable column.

Before anything is written, every column is matched with the schema's field of its name. Nothing is dropped, invented or
rounded: what has no partner, and a type that would lose something, is refused. :mod:`.avro_encode` makes the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError, SchemaRefusedError
from airflow_kafka_eos.extras import needed
from airflow_kafka_eos.spark.formats.kinds import ARRAY, MAP, STRUCT, Field, Kind
from airflow_kafka_eos.spark.formats.registry import RegisteredSchema
from airflow_kafka_eos.spark.formats.settings import is_name

_SMALL_INTEGERS = ("byte", "short", "int")
_ATOMS: dict[str, Any] = {
    "string": "string",
    "binary": "bytes",
    "boolean": "boolean",
    **{name: "int" for name in _SMALL_INTEGERS},
    "long": "long",
    "float": "float",
    "double": "double",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}
#: Which Avro types carry a type as it is, and by which way of writing.
_SAME: dict[str, dict[str, str]] = {
    "long": {"long": "long"},
    "float": {"float": "float", "double": "double"},
    "double": {"double": "double"},
    "boolean": {"boolean": "boolean"},
    "string": {"string": "bytes", "bytes": "bytes"},
    "binary": {"bytes": "bytes"},
}


def avro_schema(record: Kind, record_name: str) -> str:
    """The schema as JSON text, the same text for the same columns.

    :param record: as checked by :func:`.kinds.record`.
    :raises ConfigurationError: a field's name is none for Avro.
    """
    return json.dumps(_record_schema(record, record_name, ""))


def _record_schema(record: Kind, name: str, path: str) -> dict[str, Any]:
    made = []
    for field in record.fields:
        where = f"{path}{field.name}"
        if not is_name(field.name):
            raise ConfigurationError(
                f"column {where!r} has a name that Avro does not allow (letters, digits and _, no digit first)",
                remedy="Rename it with .alias(...), or use value_format confluent-json",
            )
        kind = _of(field.kind, f"{name}.{field.name}", f"{where}.")
        typed = {"type": ["null", kind], "default": None} if field.nullable else {"type": kind}
        made.append({"name": field.name} | typed)
    return {"type": "record", "name": name, "fields": made}


def _of(kind: Kind, name: str, path: str) -> Any:
    if kind.name == STRUCT:
        return _record_schema(kind, name, path)  # its path is its name, as in Spark: no name twice
    if kind.name == ARRAY:
        return {"type": "array", "items": _items(kind.element, name, path)}
    if kind.name == MAP:
        return {"type": "map", "values": _items(kind.element, name, path)}
    if kind.name == "decimal":
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    return _ATOMS[kind.name]


def _items(element: Field, name: str, path: str) -> Any:
    found = _of(element.kind, name, path)
    return ["null", found] if element.nullable else found


@dataclass(frozen=True)
class Node:
    """One Avro type, and where its values come from. Sent to the executors by pickle.

    :param kind: a name that :mod:`.avro_encode` knows.
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


#: By topic: how the struct is written, and the bytes before each record.
Plans = Mapping[str, tuple[Node, bytes]]


def plans(record: Kind, schemas: Mapping[str, RegisteredSchema]) -> Plans:
    """How the record is written for each topic.

    :raises SchemaRefusedError: the columns do not fit a topic's schema.
    """
    return {topic: (_plan(record, topic, schema), schema.prefix) for topic, schema in schemas.items()}


def _plan(record: Kind, topic: str, schema: RegisteredSchema) -> Node:
    with needed("value_format confluent-avro"):
        from fastavro.schema import SchemaParseException, UnknownType, expand_schema

    try:
        return plan(record, expand_schema(json.loads(schema.text)))
    except (SchemaParseException, UnknownType, ValueError, KeyError) as e:
        raise SchemaRefusedError(
            f"the schema {schema.id} for topic {topic!r} is none that fastavro can read ({type(e).__name__}: {e})",
            remedy="Correct it in the registry",
        ) from e
    except SchemaRefusedError as e:
        raise SchemaRefusedError(f"topic {topic!r}, schema id {schema.id}: {e.message}", remedy=e.remedy) from None


def plan(record: Kind, schema: Any) -> Node:
    """Match a record.

    :param schema: as ``fastavro.schema.expand_schema`` gives it: names resolved, parsed from JSON.
    :raises SchemaRefusedError: naming the field, its type and what the schema has.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaRefusedError(
            f"the schema is {_say(schema)}, a DataFrame's columns make a record",
            remedy="Register a record for this subject, or send a single column with value_format string or raw",
        )
    return _record(record, schema, "")


def _record(record: Kind, schema: dict[str, Any], path: str) -> Node:
    wanted = [field["name"] for field in schema["fields"]]
    have = {field.name: (index, field) for index, field in enumerate(record.fields)}
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
        children.append(replace(_node(column.kind, field["type"], where), index=index))
    return Node("record", path, children=tuple(children))


def _node(kind: Kind, schema: Any, path: str) -> Node:
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
    if kind.name == STRUCT and avro == "record":
        return _record(kind, definition, path)
    if kind.name == ARRAY and avro == "array":
        return Node("array", path, children=(_node(kind.element.kind, definition["items"], f"{path}[]"),))
    if kind.name == MAP and avro == "map":
        return Node("map", path, children=(_node(kind.element.kind, definition["values"], f"{path}{{}}"),))
    if kind.name == "decimal":
        same = logical == "decimal" and definition.get("scale", 0) == kind.scale
        if same and definition["precision"] >= kind.precision and avro in ("bytes", "fixed"):
            return Node("decimal" if avro == "bytes" else "fixed decimal", path, size=definition.get("size", 0))
        raise _unfit(path, kind, schema)
    if kind.name == "string" and avro == "enum":
        return Node("enum", path, symbols=tuple(definition["symbols"]))
    if kind.name == "binary" and avro == "fixed" and logical is None:
        return Node("fixed", path, size=definition["size"])
    if made := _simple(kind, avro, logical):
        return Node(made, path)
    raise _unfit(path, kind, schema)


def _simple(kind: Kind, avro: str, logical: str | None) -> str | None:
    if kind.name in ("timestamp", "timestamp_ntz"):
        local = "local-" if kind.name == "timestamp_ntz" else ""
        found = {f"{local}timestamp-micros": "long", f"{local}timestamp-millis": "millis"}
        return found.get(logical or "") if avro == "long" else None
    if kind.name == "date":
        return "long" if (avro, logical) == ("int", "date") else None
    if logical is not None and not (logical == "uuid" and avro == "string"):
        return None
    if kind.name in _SMALL_INTEGERS:
        # float has 24 bits for whole numbers
        narrow = "float" if kind.name != "int" else ""
        return {"int": "long", "long": "long", "double": "double", "float": narrow}.get(avro) or None
    return _SAME.get(kind.name, {}).get(avro)


def _is_null(schema: Any) -> bool:
    return schema == "null" or (isinstance(schema, dict) and schema.get("type") == "null")


def _unfit(path: str, kind: Kind, schema: Any) -> SchemaRefusedError:
    return SchemaRefusedError(
        f"column {path!r} has type {kind.said}, the schema has {_say(schema)}",
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
