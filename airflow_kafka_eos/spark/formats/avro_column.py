"""Values as Avro in a DataFrame: the encoder of :mod:`.avro_encode` as a function over Spark's Arrow columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# at run time too: PySpark looks up the hints of its functions
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import types as t

from airflow_kafka_eos.spark.formats.avro import Plans
from airflow_kafka_eos.spark.formats.avro_encode import encode_by_topic


def avro_value(value: Column, topic: Column, by_topic: Plans) -> Column:
    """The column of encoded values.

    :param value: the struct. :param topic: each row's topic, used where there are several.
    """
    def of_one(column: pa.Array) -> pa.Array:
        return encode_by_topic(column, None, by_topic)

    def of_many(column: pa.Array, topics: pa.Array) -> pa.Array:
        return encode_by_topic(column, topics, by_topic)

    return _udf(of_one, value) if len(set(by_topic.values())) == 1 else _udf(of_many, value, topic)


def _udf(function: Callable[..., Any], *columns: Column) -> Column:
    from pyspark.sql.pandas.functions import arrow_udf

    # PySpark wants type hints, and its own type hints want a function type instead
    made: Column = arrow_udf(function, t.BinaryType())(*columns)  # type: ignore[call-overload]
    return made
