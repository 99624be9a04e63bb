"""What a running Airflow keeps: in its own database, and in files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
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


def contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file below; what goes while this looks is passed over (``Path.rglob`` fails then)."""
    for where, _, names in os.walk(folder):
        for path in (Path(where, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file():
                    yield path, path.read_bytes()
