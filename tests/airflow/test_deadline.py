"""What the deadline's callback says, called as the triggerer calls it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.triggers import report_unfinished_loads
from tests.airflow.steps import LOAD, a_prepared_load, run, session


def test_loads_that_are_not_done_are_reported_and_no_others(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    for key in ("committed", "prepared", "aborted"):
        a_prepared_load(home, kafka, key, name, 1)
    run("decide", "committed")
    run("commit", "committed")
    run("cleanup", "aborted")
    with caplog.at_level(logging.ERROR):
        told = asyncio.run(report_unfinished_loads(load_name=LOAD))
    prepared = LoadIdentity("airflow", LOAD, "prepared")
    # the triggerer ends where a callback returns anything but text (tests/airflow/test_dags.py has a whole one)
    assert isinstance(told, str)
    found = json.loads(told)
    assert [(row["load"], row["state"]) for row in found["oldest"]] == [(str(prepared), "PREPARED")]
    assert found["unfinished"] == 1
    assert [r.getMessage() for r in caplog.records if str(prepared) in r.getMessage()]
    assert json.loads(asyncio.run(report_unfinished_loads(load_name="another"))) == {"unfinished": 0, "oldest": []}
    with session() as opened:  # it only looks
        (attempt,) = opened.ledger.attempts(prepared)
    assert attempt.is_undecided
