"""A DataFrame of any columns becomes one that the data source ``kafka_eos`` takes.

Here is which columns make a record's value, and which types they may have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.formats.settings import REGISTRY_VARIABLE, RegistrySettings, ValueFormat

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


#: Columns that Kafka has a place for beside the value; they keep their meaning in every format.
BESIDE_VALUE = ("key", "headers", "topic", "partition", "timestamp")

_ATOMS = (
    t.StringType,
    t.BinaryType,
    t.BooleanType,
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.FloatType,
    t.DoubleType,
    t.DecimalType,
    t.DateType,
    t.TimestampType,
    t.TimestampNTZType,
)
_NOT_TEXT = (t.StructType, t.ArrayType, t.MapType, t.BinaryType, t.NullType)


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
        a key, topic or header column of a wrong type, no registry settings.
    :raises KafkaEosError: see :func:`.registry.resolve`.
    """
    made = ValueFormat.of(value_format)
    if made.name == "raw":
        return frame
    from pyspark.sql import functions as f

    found = text_column(frame.schema) if made.name == "string" else record(frame.schema, made.name)
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

    from airflow_kafka_eos.spark.formats.json import json_schema, json_text, with_prefix

    fields = found.fields
    whole = f.col(found.whole) if found.whole else f.struct(*(f.col(_quoted(name)) for name in fields.names))
    if made.name == "json":
        return json_text(whole, fields)
    if registry is None:
        raise ConfigurationError(
            f"value_format {made.name!r} needs a schema registry, and there are no settings for one",
            remedy=f"Name its Airflow connection (registry_conn_id), or set {REGISTRY_VARIABLE} for the Spark driver",
        )
    from airflow_kafka_eos.spark.formats.registry import resolve

    topic, names = targets
    if made.name == "confluent-json":
        schemas = resolve(registry, made, "JSON", json_schema(fields, made.record_name), names)
        return with_prefix(json_text(whole, fields), topic, schemas)
    from airflow_kafka_eos.spark.formats.avro import avro_schema, avro_value, plans

    schemas = resolve(registry, made, "AVRO", avro_schema(fields, made.record_name), names)
    return avro_value(whole, topic, plans(fields, schemas))


def _targets(frame: DataFrame, topics: Sequence[str], default: str | None) -> tuple[Column, Sequence[str]]:
    """Each row's topic, and all that there can be."""
    from pyspark.sql import functions as f

    if "topic" not in frame.columns:
        return f.lit(default), [default] if default is not None else []
    names = list(dict.fromkeys([*topics, *([default] if default is not None else [])]))
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


@dataclass(frozen=True)
class Record:
    """The value's fields.

    :param whole: the name of the one struct column that is the value; a null in it is a tombstone. None: the fields
        are columns, and there is a value for every row, also when all of them are null.
    """

    fields: t.StructType
    whole: str | None


def text_column(schema: t.StructType) -> str:
    """The column that format ``string`` sends.

    :raises ConfigurationError: there is not exactly one, or its type has no text of its own.
    """
    rest = _rest(schema, "string")
    if len(rest) > 1:
        raise ConfigurationError(
            f"value_format 'string' takes one column, and there are {len(rest)}: {', '.join(f.name for f in rest)}",
            remedy="Select one of them as value, or use value_format json",
        )
    (field,) = rest
    if isinstance(field.dataType, _NOT_TEXT):
        raise ConfigurationError(
            f"column {field.name!r} has type {field.dataType.simpleString()}, which value_format 'string' cannot carry",
            remedy="Use value_format raw for binary, json for structs, arrays and maps, or cast it yourself",
        )
    return field.name


def record(schema: t.StructType, value_format: str) -> Record:
    """The record that formats ``json`` and ``confluent-*`` send.

    :raises ConfigurationError: there is no column for it, or one of a type that the format cannot carry.
    """
    rest = _rest(schema, value_format)
    if len(rest) == 1 and rest[0].name == "value" and isinstance(rest[0].dataType, t.StructType):
        found = Record(rest[0].dataType, "value")
    else:
        found = Record(t.StructType(rest), None)
    _check_no_twins(found.fields, "")
    for path, kind in _atoms(found.fields, ""):
        if not isinstance(kind, _ATOMS):
            raise ConfigurationError(
                f"column {path!r} has type {kind.simpleString()}, which value_format {value_format!r} cannot carry",
                remedy="Cast it (to string, say), or drop it",
            )
    return found


def _rest(schema: t.StructType, value_format: str) -> list[t.StructField]:
    rest = [field for field in schema.fields if field.name not in BESIDE_VALUE]
    if not rest:
        raise ConfigurationError(
            f"value_format {value_format!r} has no column left to make a value of (the DataFrame's columns: "
            f"{', '.join(schema.names) or 'none'}; {', '.join(BESIDE_VALUE)} are not part of the value)",
            remedy="Select more columns, or give a second name to those that belong into the value too",
        )
    return rest


def _check_no_twins(fields: t.StructType, within: str) -> None:
    # Spark finds columns by name without regard to case
    seen: dict[str, str] = {}
    for field in fields.fields:
        twin = seen.setdefault(field.name.lower(), field.name)
        if twin is not field.name:
            raise ConfigurationError(
                f"the value has two fields {within + twin!r} and {within + field.name!r}",
                remedy="Rename or drop one of them",
            )
        if isinstance(field.dataType, t.StructType):
            _check_no_twins(field.dataType, f"{within}{field.name}.")


def _atoms(kind: t.DataType, path: str) -> Iterator[tuple[str, t.DataType]]:
    if isinstance(kind, t.StructType):
        if not kind.fields:
            yield path, kind
        for field in kind.fields:
            yield from _atoms(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, t.ArrayType):
        yield from _atoms(kind.elementType, f"{path}[]")
    elif isinstance(kind, t.MapType):
        if not isinstance(kind.keyType, t.StringType):
            yield path, kind
        yield from _atoms(kind.valueType, f"{path}{{}}")
    else:
        yield path, kind
