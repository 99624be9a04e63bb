"""A DataFrame of any columns becomes one that the data source ``kafka_eos`` takes: Spark's side of ``value_format``.

Which columns make a value, and which types they may have, is in :mod:`.kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.formats.kinds import (
    ARRAY,
    BESIDE_VALUE,
    MAP,
    STRUCT,
    Field,
    Kind,
    Record,
    left,
    record,
)
from airflow_kafka_eos.spark.formats.settings import RegistrySettings, ValueFormat
from airflow_kafka_eos.spark.versions import ARROW_FUNCTIONS, require_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ATOMS: dict[type[t.DataType], str] = {
    t.StringType: "string",
    t.BinaryType: "binary",
    t.BooleanType: "boolean",
    t.ByteType: "byte",
    t.ShortType: "short",
    t.IntegerType: "int",
    t.LongType: "long",
    t.FloatType: "float",
    t.DoubleType: "double",
    t.DateType: "date",
    t.TimestampType: "timestamp",
    t.TimestampNTZType: "timestamp_ntz",
}
_NOT_TEXT = (t.StructType, t.ArrayType, t.MapType, t.BinaryType, t.NullType)


def kind_of(kind: t.DataType) -> Kind:
    """What Spark's type is; under Spark's own name where no value can have it."""
    said = kind.simpleString()
    if isinstance(kind, t.StructType):
        return Kind(STRUCT, said, tuple(Field(f.name, kind_of(f.dataType), f.nullable) for f in kind.fields))
    if isinstance(kind, t.ArrayType):
        return Kind(ARRAY, said, (Field("", kind_of(kind.elementType), kind.containsNull),))
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        return Kind(MAP, said, (Field("", kind_of(kind.valueType), kind.valueContainsNull),))
    if isinstance(kind, t.DecimalType):
        return Kind("decimal", said, precision=kind.precision, scale=kind.scale)
    return Kind(next((name for base, name in _ATOMS.items() if isinstance(kind, base)), said), said)


def shape(
    frame: DataFrame,
    value_format: ValueFormat | Mapping[str, Any] | str,
    *,
    topics: Sequence[str],
    default_topic: str | None = None,
    registry: RegistrySettings | None = None,
) -> DataFrame:
    """Make the column ``value``; key, headers, topic, partition and timestamp keep their meaning.

    All checks, and all talk with the registry, happen here on the driver, before a row is read.

    :param topics: all topics that rows may go to. Without a topic column, only ``default_topic`` gets a schema.
    :param registry: needed for the formats ``confluent-*``.
    :raises ConfigurationError: an unknown format, no column left for the value, a type that the format cannot carry,
        a key, topic or header column of a wrong type, no registry settings, a Spark that is too old for the format.
    :raises KafkaEosError: see :func:`.registry.resolve`.
    """
    made = ValueFormat.of(value_format)
    if made.name == "raw":
        return frame
    from pyspark.sql import functions as f

    found = text_column(frame.schema) if made.name == "string" else record(kind_of(frame.schema), made.name)
    _check_beside(frame.schema, default_topic)
    if isinstance(found, str):
        value = f.col(_quoted(found)).cast("string")
    else:
        value = _record_value(found, made, _targets(frame, topics, default_topic), registry)
    beside = [f.col(name) for name in frame.columns if name in BESIDE_VALUE]
    return frame.select(*beside, value.alias("value"))


def _record_value(
    found: Record,
    made: ValueFormat,
    targets: tuple[Column, Sequence[str]],
    registry: RegistrySettings | None,
) -> Column:
    from pyspark.sql import functions as f

    from airflow_kafka_eos.spark.formats.avro_column import avro_value
    from airflow_kafka_eos.spark.formats.json import json_text, with_prefix
    from airflow_kafka_eos.spark.formats.schemas import avro_plans, json_schemas

    names = [field.name for field in found.kind.fields]
    whole = f.col(found.whole) if found.whole else f.struct(*(f.col(_quoted(name)) for name in names))
    topic, topics = targets
    if made.name == "json":
        return json_text(whole, found.kind)
    if made.name == "confluent-json":
        return with_prefix(json_text(whole, found.kind), topic, json_schemas(found.kind, made, topics, registry))
    # before a schema is registered
    require_spark(ARROW_FUNCTIONS, f"value_format={made.name}", "Encode the values in the job, or use confluent-json")
    return avro_value(whole, topic, avro_plans(found.kind, made, topics, registry))


def _targets(frame: DataFrame, topics: Sequence[str], default: str | None) -> tuple[Column, Sequence[str]]:
    """Each row's topic, and all that there can be."""
    from pyspark.sql import functions as f

    from airflow_kafka_eos.spark.formats.schemas import asked_topics

    named_by_rows = "topic" in frame.columns
    names = asked_topics(topics, default, named_by_rows=named_by_rows)
    if not named_by_rows:
        return f.lit(default), names
    return f.coalesce(f.col("topic"), f.lit(default)) if default is not None else f.col("topic"), names


def _check_beside(schema: t.StructType, default_topic: str | None) -> None:
    # before a schema is registered for a DataFrame that the data source then refuses
    from airflow_kafka_eos.spark.options import check_schema

    beside = [field for field in schema.fields if field.name in BESIDE_VALUE]
    check_schema(
        t.StructType([*beside, t.StructField("value", t.BinaryType())]),
        has_default_topic=default_topic is not None,
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def text_column(schema: t.StructType) -> str:
    """The column that format ``string`` sends.

    :raises ConfigurationError: there is not exactly one, or its type has no text of its own.
    """
    rest = [field.name for field in left(kind_of(schema), "string")]
    if len(rest) > 1:
        raise ConfigurationError(
            f"value_format 'string' takes one column, and there are {len(rest)}: {', '.join(rest)}",
            remedy="Select one of them as value, or use value_format json",
        )
    (name,) = rest
    kind = schema[name].dataType
    if isinstance(kind, _NOT_TEXT):
        raise ConfigurationError(
            f"column {name!r} has type {kind.simpleString()}, which value_format 'string' cannot carry",
            remedy="Use value_format raw for binary, json for structs, arrays and maps, or cast it yourself",
        )
    return name
