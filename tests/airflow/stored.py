"""What a running Airflow keeps in its own database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import create_engine, text

from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from tests.postgresql import AIRFLOW_DATABASE


def stored(airflow: LocalAirflow, query: str) -> list[Any]:
    """The rows that the query finds right now."""
    engine = create_engine(airflow.env[AIRFLOW_DATABASE])
    try:
        with engine.connect() as connection:
            return list(connection.execute(text(query)).all())
    finally:
        engine.dispose()
