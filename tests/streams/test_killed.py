"""The driver dies at a step of a batch, and its successor goes on: each row is there once.

The rows are those of Spark's own source, and the count is confluent-kafka's.
"""

from __future__ import annotations

import pytest

from tests.streams.conftest import NAME, NAMESPACE, Place
from tests.streams.killing import EVERY

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.parametrize("step", EVERY)
def test_killed_at_a_step_of_a_batch(place: Place, step: str) -> None:
    died = place.run(3, kill=f"{step}/1")
    assert died.returncode == -9, died.stdout + died.stderr
    assert (place.folder / "killed").exists()
    assert "done 0" in died.stdout
    assert "done 1" not in died.stdout
    went_on = place.run(3, kill=f"{step}/1")
    assert went_on.returncode == 0, went_on.stdout + went_on.stderr
    count = place.check_exactly(3)
    with place.session() as session:
        row = session.ledger.stream(NAMESPACE, NAME)
        assert row is not None
        assert (row.decided, row.newest_run) == (count - 1, 2)
