"""What a compacted topic's settings mean for a load, without a broker: what would take a day to see on one."""

from __future__ import annotations

import pytest

from airflow_kafka_eos.kafka.records.scan import is_compacted, marker_kept_ms, may_be_gone, warning

DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000


def config(policy: str = "compact", lag_ms: int = 0, delete_ms: int = DAY_MS) -> dict[str, str]:
    return {"cleanup.policy": policy, "min.compaction.lag.ms": str(lag_ms), "delete.retention.ms": str(delete_ms)}


@pytest.mark.parametrize(
    ("policy", "expected"), [("compact", True), ("compact,delete", True), ("delete,compact", True), ("delete", False)]
)
def test_what_is_compacted(policy: str, expected: bool) -> None:
    assert is_compacted(config(policy)) is expected
    assert not is_compacted({})


def test_a_marker_is_kept_behind_the_lag_for_delete_retention_ms() -> None:
    assert marker_kept_ms(config(lag_ms=5, delete_ms=7)) == 12
    assert marker_kept_ms(config(lag_ms=0, delete_ms=0)) == 0
    for missing in config():
        assert marker_kept_ms({k: v for k, v in config().items() if k != missing}) is None


def test_half_of_that_time_counts_and_without_the_settings_none() -> None:
    assert not may_be_gone(config(), NOW_MS - DAY_MS / 2 + 1, NOW_MS)
    assert may_be_gone(config(), NOW_MS - DAY_MS / 2, NOW_MS)
    assert may_be_gone(config(delete_ms=0), NOW_MS, NOW_MS)
    assert may_be_gone({}, NOW_MS, NOW_MS)


def test_a_warning_says_what_there_is_no_time_for() -> None:
    both = warning("orders", config(delete_ms=60_000))
    assert "topic orders is compacted" in both
    assert "kept for 60 s" in both and "delete.retention.ms=60000" in both and "copied for 0 s" in both
    copies = warning("orders", config(lag_ms=1000))
    assert "end markers" not in copies and "copied for 1 s" in copies
    assert warning("orders", config(lag_ms=DAY_MS, delete_ms=0)) == ""
    assert warning("orders", config("delete", delete_ms=0)) == ""
    assert warning("orders", {}) == ""
