"""Durations and sizes in words."""

from __future__ import annotations

import pytest

from airflow_kafka_eos.amounts import duration_text, size_text


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(0, "0.0 s"), (3.24, "3.2 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s"),
     (80, "1 min 20 s"), (3599.6, "1 h 0 min"), (3725, "1 h 2 min")],
)  # fmt: skip
def test_a_duration_in_words(seconds: float, says: str) -> None:
    assert duration_text(seconds) == says


@pytest.mark.parametrize(
    ("count", "says"),
    [(0, "0 bytes"), (999, "999 bytes"), (9_949, "9.9 kB"), (999_499, "999 kB"), (999_500, "1.0 MB"),
     (3_200_000_000_000, "3,200 GB")],
)  # fmt: skip
def test_bytes_in_words(count: int, says: str) -> None:
    assert size_text(count) == says
