"""One day of flights as Kafka records: the key is carrier and flight number, the value is the row as JSON."""

from __future__ import annotations


def flights_of_day(spark, source: str, day: str):
    """All rows of a day's file; columns ``key`` and ``value``, as Spark's own Kafka sink takes them."""
    rows = spark.read.csv(f"{source}/{day}.csv", header=True).repartition(2)
    return rows.selectExpr("concat(carrier, flight) AS key", "to_json(struct(*)) AS value")
