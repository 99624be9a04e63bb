"""Broker and ledger of a world that go away for a while, and are there again."""

from __future__ import annotations

import contextlib
import sqlite3
import time

from airflow_kafka_eos.errors import BrokerUnavailableError
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.faults.proxy import FaultProxy

#: a starved machine needs so long for a broker
PATIENCE_S = 240.0


def broker_killed(kafka: LocalKafka, seconds: float) -> None:
    """By SIGKILL; it is started again so much later, and answers."""
    kafka.kill()
    time.sleep(seconds)
    try:
        kafka.restart()
    except BrokerUnavailableError:
        kafka.wait_ready(PATIENCE_S)


def ledger_away(url: str, proxy: FaultProxy | None, seconds: float) -> None:
    """PostgreSQL does not answer at its address; SQLite's file is locked by somebody else."""
    if proxy is not None:
        proxy.weather.away_until = float("inf")
        proxy.cut()
        time.sleep(seconds)
        proxy.weather.away_until = 0.0
        return
    file = url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        other.execute("ROLLBACK")
