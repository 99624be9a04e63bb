"""The driver dies at a step of a batch, and its successor goes on: each row is there once.

The rows are those of Spark's own source, and the count is confluent-kafka's.
"""

from __future__ import annotations

import pytest

from tests.streams.conftest import NAME, NAMESPACE, Place
from tests.streams.killing import EVERY
from tests.streams.query import ROWS

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(3600)]


def test_killed_at_each_step_of_a_batch(place: Place) -> None:
    """One batch, one death: each driver goes on where the last one has died, and dies in the next batch."""
    for batch, step in enumerate(EVERY, 1):
        died = place.run(batch + 2, kill=f"{step}/{batch}")
        assert died.returncode == -9, f"{step}: {died.stdout} {died.stderr}"
        assert f"done {batch - 1} " in died.stdout, step
        assert f"done {batch} " not in died.stdout, step
        # what is decided is not lost, what is not is not seen, and no reader sees a batch twice
        assert len(place.values()) <= (batch + 1) * ROWS, step
        assert len(set(place.values())) == len(place.values()), step
    went_on = place.run(len(EVERY) + 2)
    assert went_on.returncode == 0, went_on.stdout + went_on.stderr
    count = place.check_exactly(len(EVERY) + 2)
    with place.session() as session:
        row = session.ledger.stream(NAMESPACE, NAME)
        assert row is not None
        assert (row.decided, row.newest_run) == (count - 1, len(EVERY) + 1)
