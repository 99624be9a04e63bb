"""The schemas that a load's values have in the registry, one for each topic, and how Avro is written by them.

Asked before a row is read, by Spark's driver or by the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.formats.avro import Plans, avro_schema, plans
from airflow_kafka_eos.spark.formats.json_schema import json_schema
from airflow_kafka_eos.spark.formats.kinds import Kind
from airflow_kafka_eos.spark.formats.registry import RegisteredSchema, resolve
from airflow_kafka_eos.spark.formats.settings import REGISTRY_VARIABLE, RegistrySettings, ValueFormat


def asked_topics(topics: Sequence[str], default: str | None, *, named_by_rows: bool) -> Sequence[str]:
    """The topics that values need a schema for.

    :param topics: all that rows may go to.
    :param default: that of rows which name none.
    :param named_by_rows: whether there is a column ``topic``.
    """
    of_default = [] if default is None else [default]
    return list(dict.fromkeys([*topics, *of_default])) if named_by_rows else of_default


def json_schemas(
    record: Kind, value_format: ValueFormat, topics: Sequence[str], registry: RegistrySettings | None
) -> Mapping[str, RegisteredSchema]:
    """
    :param record: as checked by :func:`.kinds.record`.
    :raises ConfigurationError: there are no settings of a registry.
    :raises KafkaEosError: see :func:`.registry.resolve`.
    """
    known = _known(registry, value_format)
    return resolve(known, value_format, "JSON", json_schema(record, value_format.record_name), topics)


def avro_plans(
    record: Kind, value_format: ValueFormat, topics: Sequence[str], registry: RegistrySettings | None
) -> Plans:
    """
    :param record: as checked by :func:`.kinds.record`.
    :raises ConfigurationError: there are no settings of a registry, or a name is none for Avro.
    :raises SchemaRefusedError: the columns do not fit a topic's schema.
    :raises KafkaEosError: see :func:`.registry.resolve`.
    """
    known = _known(registry, value_format)
    schemas = resolve(known, value_format, "AVRO", avro_schema(record, value_format.record_name), topics)
    return plans(record, schemas)


def _known(registry: RegistrySettings | None, value_format: ValueFormat) -> RegistrySettings:
    if registry is None:
        raise ConfigurationError(
            f"value_format {value_format.name!r} needs a schema registry, and there are no settings for one",
            remedy=f"Name its Airflow connection (registry_conn_id), or set {REGISTRY_VARIABLE} for the Spark driver",
        )
    return registry
