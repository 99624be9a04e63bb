"""One day of flights as Kafka records: the key is carrier and flight number, the value is the row as JSON."""

from __future__ import annotations

# given, not inferred: inferring reads the file once more, and may find other types on another day
SCHEMA = """
    id INT, year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,
    sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
    air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP
"""


def flights_of_day(spark, source: str, day: str):
    """All rows of a day's file; columns ``key`` and ``value``, as Spark's own Kafka sink takes them."""
    rows = spark.read.csv(f"{source}/{day}.csv", schema=SCHEMA, header=True, nullValue="NA", mode="FAILFAST")
    return rows.selectExpr("concat(carrier, flight) AS key", "to_json(struct(*)) AS value")
