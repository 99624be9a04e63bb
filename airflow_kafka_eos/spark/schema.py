"""The columns that a DataFrame may have, checked before anything is written. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_kafka_eos.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_HEADERS = "array<struct<key:string,value:binary>>"
#: Allowed types by column, as Spark writes them; those of Spark's own Kafka sink.
ALLOWED = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
COLUMNS = tuple(ALLOWED)


def check_schema(schema: StructType, *, has_default_topic: bool) -> None:
    """Refuse a DataFrame that cannot be written.

    :raises ConfigurationError: naming the column, its type, and the types that are allowed.
    """
    names = [field.name for field in schema.fields]
    found = ", ".join(names) or "none"
    for field in schema.fields:
        if field.name not in ALLOWED:
            near = nearest(field.name, COLUMNS)
            raise ConfigurationError(
                f"the DataFrame has a column {field.name!r}, kafka_eos takes only {', '.join(COLUMNS)}",
                remedy=f"Rename it to {near}"
                if near
                else "Drop it, or make it part of key or value (to_json)",
            )
        if names.count(field.name) > 1:
            raise ConfigurationError(
                f"the DataFrame has column {field.name!r} twice", remedy="Keep one of them"
            )
        kind = field.dataType.simpleString()
        if kind not in ALLOWED[field.name]:
            raise ConfigurationError(
                f"column {field.name!r} has type {kind}, allowed is {' or '.join(ALLOWED[field.name])}",
                remedy="Cast it, or use to_json(struct(...)) for a column of several fields",
            )
    if "key" not in names and "value" not in names:
        raise ConfigurationError(
            f"the DataFrame has neither a value nor a key column (its columns: {found})",
            remedy="Select what to send as value, such as to_json(struct('*')).alias('value')",
        )
    if not has_default_topic and "topic" not in names:
        raise ConfigurationError(
            f"the DataFrame has no topic column (its columns: {found}), and there is no default topic",
            remedy="Set the option topic, or add a topic column",
        )
