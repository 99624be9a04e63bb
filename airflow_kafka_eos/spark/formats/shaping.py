"""The one entry: a DataFrame of any columns becomes one that the data source ``kafka_eos`` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.formats.settings import REGISTRY_VARIABLE, RegistrySettings, ValueFormat

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import types as t


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

    from airflow_kafka_eos.spark.formats.columns import BESIDE_VALUE, record, text_column

    if made.name == "string":
        name = text_column(frame.schema)
        _check_beside(frame.schema, default_topic)
        value = f.col(_quoted(name)).cast("string")
    else:
        fields = record(frame.schema, made.name)
        _check_beside(frame.schema, default_topic)
        whole = (
            f.col(fields.whole)
            if fields.whole
            else f.struct(*(f.col(_quoted(name)) for name in fields.fields.names))
        )
        value = _record_value(frame, made, fields.fields, whole, _targets(frame, topics, default_topic), registry)
    beside = [f.col(name) for name in frame.columns if name in BESIDE_VALUE]
    return frame.select(*beside, value.alias("value"))


def _record_value(
    frame: DataFrame,
    made: ValueFormat,
    fields: t.StructType,
    whole: Column,
    targets: tuple[Column, Sequence[str]],
    registry: RegistrySettings | None,
) -> Column:
    from airflow_kafka_eos.spark.formats.json_value import json_text, with_prefix

    if made.name == "json":
        return json_text(whole, fields)
    from airflow_kafka_eos.spark.formats.registry import resolve

    topic, names = targets
    settings = _given(registry, made)
    if made.name == "confluent-json":
        from airflow_kafka_eos.spark.formats.json_schema import json_schema

        schemas = resolve(settings, made, "JSON", json_schema(fields, made.record_name), names)
        return with_prefix(json_text(whole, fields), topic, schemas)
    from airflow_kafka_eos.spark.formats.avro_schema import avro_schema
    from airflow_kafka_eos.spark.formats.avro_udf import avro_value, plans

    schemas = resolve(settings, made, "AVRO", avro_schema(fields, made.record_name), names)
    return avro_value(whole, topic, plans(fields, schemas))


def _targets(frame: DataFrame, topics: Sequence[str], default: str | None) -> tuple[Column, Sequence[str]]:
    """Each row's topic, and all that there can be."""
    from pyspark.sql import functions as f

    if "topic" not in frame.columns:
        return f.lit(default), [default] if default is not None else []
    names = list(dict.fromkeys([*topics, *([default] if default is not None else [])]))
    return f.coalesce(f.col("topic"), f.lit(default)) if default is not None else f.col("topic"), names


def _given(registry: RegistrySettings | None, made: ValueFormat) -> RegistrySettings:
    if registry is None:
        raise ConfigurationError(
            f"value_format {made.name!r} needs a schema registry, and there are no settings for one",
            remedy=f"Name its Airflow connection (registry_conn_id), or set {REGISTRY_VARIABLE} for the Spark driver",
        )
    return registry


def _check_beside(schema: t.StructType, default_topic: str | None) -> None:
    # before a schema is registered for a DataFrame that the data source then refuses
    from pyspark.sql import types as t

    from airflow_kafka_eos.spark.formats.columns import BESIDE_VALUE
    from airflow_kafka_eos.spark.schema import check_schema

    beside = [field for field in schema.fields if field.name in BESIDE_VALUE]
    check_schema(
        t.StructType([*beside, t.StructField("value", t.BinaryType())]),
        has_default_topic=default_topic is not None,
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
