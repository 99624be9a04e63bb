"""Values as Avro: the schema that follows from the columns, how a struct fits a registered one, and the encoder.

The schema is as Spark's own ``to_avro`` has it: timestamps in microseconds, decimals as bytes, nullable as a union with
null, whose default is null, so that a registry in mode BACKWARD takes a new nullable column.

On the driver, before anything is written, every column is matched with the schema's field of its name. Nothing is
dropped, invented or rounded: what has no partner, and a type that would lose something, is refused.

The encoder takes whole Arrow columns in an Arrow UDF; no row becomes a Python object (docs/adr/0026). Each Avro type
becomes parts: binary columns of one entry per row, joined once at the end. A part is empty where its row has nothing to
say (its record, array or union branch is null). Specification: Avro 1.12, "Binary Encoding". fastavro makes the same
bytes row by row, and is the oracle in tests/spark/test_formats_encode.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import arrow_udf

from airflow_kafka_eos.errors import ConfigurationError, RecordError, SchemaRefusedError
from airflow_kafka_eos.kafka.producer.arrow.binary import binary, data_of, from_parts, offsets_of
from airflow_kafka_eos.kafka.producer.arrow.encoding import sizes, zigzag
from airflow_kafka_eos.spark.formats.registry import RegisteredSchema
from airflow_kafka_eos.spark.formats.settings import is_name

Mask = npt.NDArray[np.bool_]
Parts = list[pa.BinaryArray]
_EMPTY = pa.scalar(b"", pa.binary())
_INTEGERS = (t.ByteType, t.ShortType, t.IntegerType)
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

    :param fields: as checked by :func:`.shaping.record`.
    :raises ConfigurationError: a field's name is none for Avro.
    """
    return json.dumps(_record_schema(fields, record_name, ""))


def _record_schema(fields: t.StructType, name: str, path: str) -> dict[str, Any]:
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
        return _record_schema(kind, name, path)  # its path is its name, as in Spark: no name twice
    if isinstance(kind, t.ArrayType):
        items = _of(kind.elementType, name, path)
        return {"type": "array", "items": ["null", items] if kind.containsNull else items}
    if isinstance(kind, t.MapType):
        values = _of(kind.valueType, name, path)
        return {"type": "map", "values": ["null", values] if kind.valueContainsNull else values}
    if isinstance(kind, t.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    return next(schema for base, schema in _ATOMS.items() if isinstance(kind, base))


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


#: By topic: how the struct is written, and the bytes before each record.
Plans = Mapping[str, tuple[Node, bytes]]


def plans(fields: t.StructType, schemas: Mapping[str, RegisteredSchema]) -> Plans:
    """How the struct is written for each topic.

    :raises SchemaRefusedError: the columns do not fit a topic's schema.
    """
    return {topic: (_plan(fields, topic, schema), schema.prefix) for topic, schema in schemas.items()}


def _plan(fields: t.StructType, topic: str, schema: RegisteredSchema) -> Node:
    from fastavro.schema import SchemaParseException, UnknownType, expand_schema

    try:
        return plan(fields, expand_schema(json.loads(schema.text)))
    except (SchemaParseException, UnknownType, ValueError, KeyError) as e:
        raise SchemaRefusedError(
            f"the schema {schema.id} for topic {topic!r} is none that fastavro can read ({type(e).__name__}: {e})",
            remedy="Correct it in the registry",
        ) from e
    except SchemaRefusedError as e:
        raise SchemaRefusedError(f"topic {topic!r}, schema id {schema.id}: {e.message}", remedy=e.remedy) from None


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


def avro_value(value: Column, topic: Column, by_topic: Plans) -> Column:
    """The column of encoded values.

    :param value: the struct. :param topic: each row's topic, used where there are several.
    """
    if len(set(by_topic.values())) == 1:
        ((node, prefix),) = set(by_topic.values())

        def one(column: pa.Array) -> pa.Array:
            return encode(column, node, prefix)

        return _udf(one, value)

    def many(column: pa.Array, topics: pa.Array) -> pa.Array:
        return encode_by_topic(column, topics, by_topic)

    return _udf(many, value, topic)


def _udf(function: Callable[..., Any], *columns: Column) -> Column:
    # PySpark wants type hints, and its own type hints want a function type instead
    made: Column = arrow_udf(function, t.BinaryType())(*columns)  # type: ignore[call-overload]
    return made


def encode_by_topic(column: pa.StructArray, topics: pa.StringArray, by_topic: Plans) -> pa.BinaryArray:
    """Encode each row by its topic's plan.

    :param topics: as long as ``column``.
    :raises RecordError: a topic has no plan; see :func:`encode` too.
    """
    made, order = [], []
    for name in pc.unique(topics).to_pylist():
        if name not in by_topic:
            raise RecordError(
                f"a row asks for topic {name!r}, which is not among the load's topics: {', '.join(sorted(by_topic))}",
                remedy="Add it to the load's topics, or correct the topic column",
            )
        node, prefix = by_topic[name]
        rows = pc.indices_nonzero(pc.equal(topics, name))
        made.append(encode(column.take(rows), node, prefix))
        order.append(rows)
    if len(made) < 2:
        return made[0] if made else pa.array([], pa.binary())
    return pa.concat_arrays(made).take(pc.sort_indices(pa.concat_arrays(order)))


def encode(column: pa.StructArray, node: Node, prefix: bytes = b"") -> pa.BinaryArray:
    """The rows of a struct as Avro records, each with ``prefix`` before it; a null row stays null.

    :param column: as Spark hands over a struct of the type that ``node`` was planned for.
    :raises RecordError: a value does not fit the schema: null, an enum's symbol, a fixed's size, a fraction of a
        millisecond.
    """
    if len(column) == 0:
        return pa.array([], pa.binary())
    live = _valid(column)
    parts = _encode_record(column, node, live)
    joined = pc.binary_join_element_wise(pa.scalar(prefix, pa.binary()), *parts, _EMPTY)
    return joined if live.all() else pc.if_else(pa.array(live), joined, pa.scalar(None, pa.binary()))


def _encode_record(column: pa.StructArray, node: Node, live: Mask) -> Parts:
    # flatten, unlike field, makes a child null where its parent is
    children = column.flatten()
    return [part for child in node.children for part in _any(children[child.index], child, live)]


def _any(column: pa.Array, node: Node, live: Mask) -> Parts:
    valid = _valid(column)
    write = _KINDS[node.kind]
    if node.null_branch is None:
        if (live & ~valid).any():
            raise RecordError(
                f"a row has null in {node.path!r}, which the schema does not allow",
                remedy="Filter such rows or fill them (coalesce), or make the field nullable in the schema",
            )
        return write(column, node, live)
    null, other = (0, 2) if node.null_branch == 0 else (2, 0)  # zig-zag of 0 and 1
    branch = np.where(valid, np.uint8(other), np.uint8(null))
    return [_fixed(branch, live), *write(column, node, valid & live)]


def _long(column: pa.Array, node: Node, live: Mask) -> Parts:
    if not pa.types.is_integer(column.type):
        column = column.view(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    return [_varints(_numbers(column), live)]


def _millis(column: pa.Array, node: Node, live: Mask) -> Parts:
    micros = _numbers(column.view(pa.int64()))
    if (micros % 1000)[live].any():
        raise RecordError(
            f"a row has a fraction of a millisecond in {node.path!r}, the schema has timestamp-millis",
            remedy="Truncate it with date_trunc('MILLISECOND', ...), or register timestamp-micros",
        )
    return [_varints(micros // 1000, live)]


def _float(column: pa.Array, node: Node, live: Mask) -> Parts:
    return [_fixed(_numbers(column).astype("<f4"), live)]


def _double(column: pa.Array, node: Node, live: Mask) -> Parts:
    return [_fixed(_numbers(column).astype("<f8"), live)]


def _boolean(column: pa.Array, node: Node, live: Mask) -> Parts:
    return [_fixed(_numbers(column.cast(pa.uint8())), live)]


def _bytes(column: pa.Array, node: Node, live: Mask) -> Parts:
    content = _content(column)
    return [_varints(_lengths(content), live), content]


def _fixed_bytes(column: pa.Array, node: Node, live: Mask) -> Parts:
    content = _content(column)
    wrong = _lengths(content)[live] != node.size
    if wrong.any():
        raise RecordError(
            f"a row has {int(_lengths(content)[live][wrong][0])} bytes in {node.path!r}, "
            f"the schema has fixed({node.size})",
            remedy="Correct the value's length, or register bytes",
        )
    return [content]


def _enum(column: pa.Array, node: Node, live: Mask) -> Parts:
    found = pc.index_in(column, pa.array(node.symbols, column.type))
    if (live & ~_valid(found)).any():
        raise RecordError(
            f"a row has a text in {node.path!r} that is no symbol of the schema's enum: {', '.join(node.symbols)}",
            remedy="Correct the value, or add the symbol to the schema",
        )
    return [_varints(_numbers(found), live)]


def _decimal(column: pa.Array, node: Node, live: Mask) -> Parts:
    big = _big_endian(column)
    negative = big[:, 0] >> 7
    # a leading byte is needless when it, and the top bit behind it, only repeat the sign
    repeats = (big[:, :-1] == (negative * np.uint8(255))[:, None]) & ((big[:, 1:] >> 7) == negative[:, None])
    needless = np.logical_and.accumulate(repeats, axis=1).sum(axis=1)
    length = big.shape[1] - needless
    there = (np.arange(big.shape[1]) >= needless[:, None]) & live[:, None]
    return [_varints(length, live), from_parts(big[there], _offsets(np.where(live, length, 0)))]


def _fixed_decimal(column: pa.Array, node: Node, live: Mask) -> Parts:
    big = _big_endian(column)
    missing = node.size - big.shape[1]
    if missing > 0:
        sign = np.repeat((big[:, :1] >> 7) * np.uint8(255), missing, axis=1)
        big = np.hstack([sign, big])
    # cutting loses nothing: Avro demands that a fixed can hold its precision, and the column's is not larger
    return [_cells(big[:, -node.size :], live)]


def _array(column: pa.ListArray, node: Node, live: Mask) -> Parts:
    items = column.flatten()  # of this slice only, and without what may stand behind a null
    lengths = _numbers(pc.list_value_length(column))
    return _blocks(lengths, live, lambda every: _any(items, node.children[0], every))


def _map(column: pa.MapArray, node: Node, live: Mask) -> Parts:
    # a map's own keys and items know nothing of slices and nulls; a list's flatten does
    kind = column.type
    pair = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
    lists = column.cast(pa.list_(pair))
    keys, items = lists.flatten().flatten()
    lengths = _numbers(pc.list_value_length(lists))
    return _blocks(
        lengths, live, lambda every: [*_bytes(keys, node, every), *_any(items, node.children[0], every)]
    )


def _blocks(lengths: npt.NDArray[Any], live: Mask, write: Callable[[Mask], Parts]) -> Parts:
    """One block of all items of a row, and the empty one that ends them.

    :param lengths: items of each row, 0 where there is no list.
    :param write: the parts of all rows' items, given that all are alive.
    """
    end = _cells(np.zeros((len(live), 1), np.uint8), live)
    total = int(lengths.sum())
    if total == 0:
        return [end]
    items = pc.binary_join_element_wise(*write(np.ones(total, np.bool_)), _EMPTY)
    # the items of a row lie side by side: its bytes are a longer entry of the same buffer
    rows = from_parts(np.frombuffer(data_of(items), np.uint8), offsets_of(items)[_offsets(lengths)])
    return [_varints(lengths, lengths > 0), rows, end]


_KINDS: dict[str, Callable[[Any, Node, Mask], Parts]] = {
    "record": _encode_record,
    "long": _long,
    "millis": _millis,
    "float": _float,
    "double": _double,
    "boolean": _boolean,
    "bytes": _bytes,
    "fixed": _fixed_bytes,
    "enum": _enum,
    "decimal": _decimal,
    "fixed decimal": _fixed_decimal,
    "array": _array,
    "map": _map,
}


def _valid(column: pa.Array) -> Mask:
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    found: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    # nulls made 0: numpy would turn whole numbers beside nulls into floats
    whole = pc.fill_null(column, 0) if column.null_count else column
    found: npt.NDArray[Any] = whole.to_numpy(zero_copy_only=False)
    return found


def _content(column: pa.Array) -> pa.BinaryArray:
    found = binary(column)
    return pc.fill_null(found, b"") if found.null_count else found


def _lengths(content: pa.BinaryArray) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = np.diff(offsets_of(content))
    return found


def _big_endian(column: pa.Array) -> npt.NDArray[np.uint8]:
    """One row of bytes per decimal: 8, or 16 where the precision needs them."""
    whole = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * 16 : (column.offset + len(column)) * 16]
    width = 8 if column.type.precision <= 18 else 16
    return whole.reshape(-1, 16)[:, :width][:, ::-1]


def _varints(values: npt.NDArray[Any], live: Mask) -> pa.BinaryArray:
    numbers = zigzag(np.where(live, values, 0))
    size = sizes(numbers)
    width = int(size.max())
    matrix = np.empty((len(values), width), np.uint8)
    for k in range(width):
        matrix[:, k] = (numbers >> (7 * k) & 0x7F) | ((size > k + 1) * np.uint8(0x80))
    if width == 1:
        return _cells(matrix, live)
    there = (np.arange(width) < size[:, None]) & live[:, None]
    return from_parts(matrix[there], _offsets(np.where(live, size, 0)))


def _fixed(values: npt.NDArray[Any], live: Mask) -> pa.BinaryArray:
    return _cells(np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1), live)


def _cells(matrix: npt.NDArray[np.uint8], live: Mask) -> pa.BinaryArray:
    return from_parts(np.ascontiguousarray(matrix[live]).reshape(-1), _offsets(live * matrix.shape[1]))


def _offsets(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    found = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=found[1:])
    return found
