"""The database's clock beside this machine's; SQLite has none of its own."""

from __future__ import annotations

import time

import pytest

from airflow_kafka_eos.doctor import brokers
from airflow_kafka_eos.doctor.finding import Severity
from airflow_kafka_eos.doctor.look import look_at_ledger
from airflow_kafka_eos.errors import LedgerUnavailableError
from airflow_kafka_eos.ledger.database import now_s


def test_a_server_has_a_clock_and_a_file_has_none(url: str) -> None:
    before, found = time.time(), now_s(url)
    assert found is None if url.startswith("sqlite") else found is not None and before - 1 <= found <= time.time() + 1


def test_a_database_that_is_not_there_is_said_so() -> None:
    with pytest.raises(LedgerUnavailableError):
        now_s("postgresql://someone:hunter2@127.0.0.1:1/x")


@pytest.mark.parametrize(("off_by", "severity"), [(0, Severity.OK), (10, Severity.WARNING), (3600, Severity.ERROR)])
def test_the_doctor_sees_a_clock_that_is_off(url: str, off_by: float, severity: Severity) -> None:
    def now() -> float:
        return time.time() + off_by

    found = list(brokers.check_clocks(None, look_at_ledger(url, now)))
    assert [f.severity for f in found] == ([] if url.startswith("sqlite") else [severity])
