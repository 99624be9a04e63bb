"""Avro values within Spark: one Arrow UDF over the struct of the value's columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import arrow_udf

from airflow_kafka_eos.errors import RecordError, SchemaRefusedError
from airflow_kafka_eos.spark.formats.avro_encode import encode
from airflow_kafka_eos.spark.formats.avro_plan import Node, plan
from airflow_kafka_eos.spark.formats.registry import RegisteredSchema

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
    :raises RecordError: a topic has no plan; see :func:`.avro_encode.encode` too.
    """
    made, order = [], []
    for name in pc.unique(topics).to_pylist():
        if name not in by_topic:
            raise RecordError(unknown_topic(name, by_topic), remedy=UNKNOWN_TOPIC_REMEDY)
        node, prefix = by_topic[name]
        rows = pc.indices_nonzero(pc.equal(topics, name))
        made.append(encode(column.take(rows), node, prefix))
        order.append(rows)
    if len(made) < 2:
        return made[0] if made else pa.array([], pa.binary())
    return pa.concat_arrays(made).take(pc.sort_indices(pa.concat_arrays(order)))


UNKNOWN_TOPIC_REMEDY = "Add it to the load's topics, or correct the topic column"


def unknown_topic(name: str | None, topics: Mapping[str, Any]) -> str:
    """What is wrong with a row of a foreign topic."""
    return f"a row asks for topic {name!r}, which is not among the load's topics: {', '.join(sorted(topics))}"
