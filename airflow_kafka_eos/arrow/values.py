"""``value_format`` for a stream: its columns become those that a writer takes.

Byte for byte as ``spark/formats/shaping.py`` does it for a DataFrame. The registry is asked here, before a row is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.arrow.columns import Columns, columns_of
from airflow_kafka_eos.arrow.json_text import json_texts
from airflow_kafka_eos.arrow.kinds import cast, in_form, struct_of
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.formats.kinds import Kind, Record, record
from airflow_kafka_eos.spark.formats.settings import RegistrySettings, ValueFormat

#: The values of a batch, given its records and the topic of each; no topics: all of them go to one.
Encode = Callable[[pa.StructArray, pa.Array | None], pa.Array]

_INDEX_OF_PANDAS = re.compile(r"__index_level_\d+__")


def shape(
    schema: pa.Schema,
    value_format: ValueFormat,
    *,
    topics: Sequence[str],
    default_topic: str | None = None,
    registry: RegistrySettings | None = None,
) -> Columns:
    """How each batch becomes what a writer takes.

    :param topics: all topics that rows may go to. Without a topic column, only ``default_topic`` gets a schema.
    :param registry: needed for the formats ``confluent-*``.
    :raises ConfigurationError: no column left for the value, a column of a type that the format or Kafka cannot carry,
        no registry settings.
    :raises KafkaEosError: see ``spark/formats/registry.resolve``.
    """
    if value_format.is_of_one_column:
        return columns_of(schema, value_format, has_default_topic=default_topic is not None)
    found = record(struct_of(schema), value_format.name, "the stream")
    _check_no_index(found.kind)
    # before a schema is registered
    columns = columns_of(schema, value_format, has_default_topic=default_topic is not None)
    encode = _encoder(found.kind, value_format, schema, topics, default_topic, registry)

    def value(batch: pa.RecordBatch) -> pa.Array:
        return encode(_records(batch, found), _topics(batch, default_topic))

    return replace(columns, value=value)


def _check_no_index(kind: Kind) -> None:
    for field in kind.fields:
        if _INDEX_OF_PANDAS.fullmatch(field.name):
            raise ConfigurationError(
                f"the stream has a column {field.name!r}: the index of a pandas DataFrame would be part of each value",
                remedy="Return frame.reset_index(drop=True), or reset_index() where the index is to be sent",
            )


def _encoder(
    kind: Kind,
    value_format: ValueFormat,
    schema: pa.Schema,
    topics: Sequence[str],
    default_topic: str | None,
    registry: RegistrySettings | None,
) -> Encode:
    if value_format.name == "json":
        return lambda column, _: json_texts(column, kind)
    from airflow_kafka_eos.spark.formats.schemas import asked_topics, avro_plans, json_schemas

    asked = asked_topics(topics, default_topic, named_by_rows="topic" in schema.names)
    if value_format.name == "confluent-json":
        schemas = json_schemas(kind, value_format, asked, registry)
        prefixes = {topic: one.prefix for topic, one in schemas.items()}
        return lambda column, of_rows: _with_prefix(json_texts(column, kind), of_rows, prefixes)
    from airflow_kafka_eos.spark.formats.avro_encode import encode_by_topic

    plans = avro_plans(kind, value_format, asked, registry)
    return lambda column, of_rows: encode_by_topic(column, of_rows, plans)


def _records(batch: pa.RecordBatch, found: Record) -> pa.StructArray:
    if found.whole is not None:
        return in_form(batch.column(found.whole), found.kind, "")
    fields = found.kind.fields
    columns = [in_form(batch.column(one.name), one.kind, one.name) for one in fields]
    return pa.StructArray.from_arrays(columns, names=[one.name for one in fields])


def _topics(batch: pa.RecordBatch, default: str | None) -> pa.Array | None:
    if "topic" not in batch.schema.names:
        return None
    found = cast(batch.column("topic"), pa.string())
    return found if default is None else pc.fill_null(found, default)


def _with_prefix(texts: pa.BinaryArray, topics: pa.Array | None, prefixes: Mapping[str, bytes]) -> pa.BinaryArray:
    """Confluent's wire format around a JSON text; null stays null."""
    from airflow_kafka_eos.spark.formats.avro_encode import check_topics

    if topics is None or len(set(prefixes.values())) == 1:
        prefix = pa.scalar(next(iter(prefixes.values())))
    else:
        check_topics(topics, prefixes)
        place = pc.index_in(topics, pa.array(list(prefixes), pa.string()))
        prefix = pa.array(list(prefixes.values()), pa.binary()).take(place)
    return pc.binary_join_element_wise(prefix, texts, pa.scalar(b""))
