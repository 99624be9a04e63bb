"""The retry rule and the preflight's table: pure decisions."""

from __future__ import annotations

import pytest

from airflow_kafka_eos.errors import AccessError, BrokerUnavailableError, TerminalError
from airflow_kafka_eos.kafka.admin import preflight
from airflow_kafka_eos.kafka.client import retry


@pytest.mark.parametrize("code", [-1, 5, 6, 7, 13, 14, 15, 16, 51, 52, 56, 74, 75, 78])
def test_retriable_codes(code: int) -> None:
    assert isinstance(retry.verdict_on(code, operation="WRITE", resource="X"), retry.Retry)


@pytest.mark.parametrize("code", [3, 100, 103])
def test_an_unknown_topic_is_retriable_only_where_metadata_may_lag(code: int) -> None:
    assert not retry.is_retriable(code)
    assert retry.is_retriable(code, metadata_may_lag=True)


@pytest.mark.parametrize("code", [29, 31, 53])
def test_a_refusal_names_operation_and_resource(code: int) -> None:
    error = retry.verdict_on(code, operation="DESCRIBE", resource="TransactionalId t", transactional_id="t")
    assert isinstance(error, AccessError)
    assert "DESCRIBE on TransactionalId t" in error.message
    assert error.transactional_id == "t"


def test_other_codes_are_terminal_and_named() -> None:
    assert retry.verdict_on(0, operation="WRITE", resource="X") is None
    error = retry.verdict_on(42, operation="WRITE", resource="X")
    assert isinstance(error, TerminalError)
    assert "INVALID_REQUEST (42)" in str(error)


def test_the_deadline_names_what_was_asked_and_the_last_reason() -> None:
    def attempt() -> None:
        retry.check(51, operation="WRITE", resource="TransactionalId t")

    with pytest.raises(BrokerUnavailableError, match=r"ending t .*0\.1 s.*CONCURRENT_TRANSACTIONS \(51\)") as caught:
        retry.until_settled(attempt, what="ending t", timeout_s=0.1, transactional_id="t")
    assert (caught.value.transactional_id, bool(caught.value.remedy)) == ("t", True)


def test_a_lost_connection_is_asked_again_and_a_terminal_error_is_not() -> None:
    errors = [BrokerUnavailableError("lost"), retry.Retry("moved"), AccessError("no")]

    def attempt() -> None:
        raise errors.pop(0)

    with pytest.raises(AccessError):
        retry.until_settled(attempt, what="asking", timeout_s=30)
    assert not errors


def test_pauses_grow_and_never_pass_the_deadline() -> None:
    assert 0.04 <= retry.pause_s(0, 60) <= 0.06
    assert 0.8 <= retry.pause_s(30, 60) <= 1.2
    assert retry.pause_s(30, 0.01) == 0.01
    assert retry.pause_s(30, -1) == 0


def test_retention_goes_by_record_time() -> None:
    week = {"retention.ms": "604800000", "cleanup.policy": "delete"}
    now = 2_000_000_000_000
    assert preflight.fits_retention(week, now - 1000, now)
    assert not preflight.fits_retention(week, now - 604_800_000, now)
    assert preflight.fits_retention({"retention.ms": "-1"}, 0, now)
    assert preflight.fits_retention(week | {"cleanup.policy": "compact"}, 0, now)
    assert not preflight.fits_retention(week | {"cleanup.policy": "compact,delete"}, 0, now)
