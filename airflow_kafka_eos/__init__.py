"""Load Spark DataFrames into Kafka exactly once, from Airflow."""

__version__ = "0.1.0.dev0"
