"""The driver dies at a step of a batch, and its successor goes on: each row is there once.

The rows are those of Spark's own source, and the count is confluent-kafka's.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kafka_eos.ledger.ledger import Ledger
from tests.postgresql import PostgreSQL
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


@pytest.mark.parametrize("two_phase", ["required", "off"])
def test_killed_with_a_ledger_in_postgresql(place: Place, postgresql: PostgreSQL, two_phase: str) -> None:
    postgresql.run(f"CREATE DATABASE streams_{two_phase} TEMPLATE template_ledger")
    place = replace(place, ledger_url=postgresql.url(f"streams_{two_phase}"))
    with Ledger.open(place.ledger_url) as ledger:
        ledger.new_id(decided_by="test")  # the template's copies all have the same
    options = {"transaction.two.phase.commit": two_phase}
    for batch, step in enumerate(("before the decision", "between two EndTxn"), 1):
        died = place.run(batch + 2, kill=f"{step}/{batch}", options=options)
        assert died.returncode == -9, f"{step}: {died.stdout} {died.stderr}"
    went_on = place.run(4, options=options)
    assert went_on.returncode == 0, went_on.stdout + went_on.stderr
    place.check_exactly(4)


def test_two_drivers_on_one_checkpoint_write_nothing_twice(place: Place) -> None:
    """Whom Spark's own log or the ledger refuses, one or both, hangs on who has planned what; then one goes on."""
    first = place.start(1000)
    assert first.stdout is not None
    try:
        for line in first.stdout:
            if line.startswith("done 1 "):
                break
        place.run(6)
    finally:
        first.kill()
        first.communicate(timeout=300)  # until its JVM has gone, too
    third = place.run(6)
    assert third.returncode == 0, third.stdout + third.stderr
    place.check_exactly(6)
