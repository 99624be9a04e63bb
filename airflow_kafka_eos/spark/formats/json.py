"""Values as JSON objects, made by the JVM alone. Those of engine="arrow" are the same (``arrow/json_text.py``)."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as f

from airflow_kafka_eos.spark.formats.kinds import ARRAY, FLOATS, MAP, STRUCT, Kind
from airflow_kafka_eos.spark.formats.registry import RegisteredSchema

# Spark's own formats cut timestamps to milliseconds and show them in the session's time zone
_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
#: What ``errortext`` finds again in Spark's Java exception.
_RECORD_ERROR = "airflow_kafka_eos.errors.RecordError: "


def json_text(value: Column, record: Kind) -> Column:
    """The JSON object of a struct, null for a null struct. NaN and infinity, which JSON lacks, end the task."""
    text = f.to_json(value, _OPTIONS)
    wrong = _not_finite(record, value)
    if wrong is None:
        return text
    refusal = f.raise_error(
        f.lit(
            f"{_RECORD_ERROR}a row has NaN or infinity in a float or double column, and JSON has no such numbers. "
            "Replace it (nanvl, nullif), or use value_format confluent-avro."
        )
    )
    return f.when(wrong, refusal).otherwise(text)


def with_prefix(text: Column, topic: Column, schemas: Mapping[str, RegisteredSchema]) -> Column:
    """Confluent's wire format around a JSON text."""
    prefixes = {name: f.lit(bytearray(schema.prefix)) for name, schema in schemas.items()}
    if len({schema.id for schema in schemas.values()}) == 1:
        prefix = next(iter(prefixes.values()))
    else:
        # a foreign topic has no prefix, so its value is null here; the data source refuses such a row
        prefix = f.lit(None).cast("binary")
        for name, literal in prefixes.items():
            prefix = f.when(topic == name, literal).otherwise(prefix)
    return f.concat(prefix, text.cast("binary"))


def _not_finite(kind: Kind, value: Column) -> Column | None:
    """A condition that is true where a float within ``value`` is NaN or infinite; None where there can be none."""
    if kind.name in FLOATS:
        return f.coalesce(f.isnan(value) | (f.abs(value) == float("inf")), f.lit(False))
    if kind.name == STRUCT:
        inner = [_not_finite(field.kind, value.getField(field.name)) for field in kind.fields]
        found = [condition for condition in inner if condition is not None]
        return reduce(operator.or_, found) if found else None
    if kind.name == ARRAY:
        return _within(kind.element.kind, value)
    if kind.name == MAP:
        return _within(kind.element.kind, f.map_values(value))
    return None


def _within(kind: Kind, values: Column) -> Column | None:
    if _not_finite(kind, f.lit(None)) is None:
        return None

    def test(item: Column) -> Column:
        found = _not_finite(kind, item)
        assert found is not None
        return found

    return f.coalesce(f.exists(values, test), f.lit(False))
