"""A load with a cursor in a real Airflow, behind a task of the author's: at once, killed, cleared, backfilled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_kafka_eos.ledger.rows import RangeRow
from airflow_kafka_eos.load import LoadIdentity
from tests.airflow.conftest import Place
from tests.airflow.counting import PARTITIONS, Count, count
from tests.airflow.processes import kill
from tests.airflow.rest import ENDED, Run, wait_for, wait_for_dag

pytestmark = pytest.mark.timeout(1500)

NAME = "reading_on.load"


class Reading(Run):
    """A run of ``reading_on``; its id is its key."""

    def __init__(self, place: Place, run_id: str) -> None:
        super().__init__(place.airflow, "reading_on", run_id)
        self.place = place
        self._here = place.switches / "reading_on" / f"{run_id}.hold"

    def hold(self) -> None:
        self._here.touch()

    def reached(self) -> psutil.Process:
        here = self._here.with_suffix(".here")
        found = wait_for(lambda: here.exists() and here.read_text(), lambda: f"{self.id} at its job: {self.tasks()}")
        return psutil.Process(int(found))

    def go(self) -> None:
        self._here.with_suffix(".go").touch()

    def start_with(self, conf: dict[str, Any]) -> None:
        body = {"dag_run_id": self.id, "logical_date": None, "conf": conf}
        self.airflow.post("/dags/reading_on/dagRuns", body)

    def ranges(self) -> list[RangeRow]:
        return self.place.ledger.ranges(LoadIdentity("airflow", NAME, self.id))

    def read(self) -> tuple[Any, Any]:
        """The one range that all of its attempts had."""
        ((since, until),) = {(r.since, r.until) for r in self.ranges()}
        return since, until


def grow(place: Place, end: int) -> None:
    Path(place.switches, "reading_on", "end").write_text(str(end))


def test_runs_that_are_killed_cleared_and_backfilled_read_each_range_once(place: Place) -> None:
    place.kafka.create_topic("reading_on", partitions=PARTITIONS)
    Path(place.switches, "reading_on").mkdir()
    wait_for_dag(place.airflow, "reading_on")
    grow(place, 100)

    # two at once, and the first is killed while the second waits for it
    first, second = Reading(place, "cursor-first"), Reading(place, "cursor-second")
    first.hold()
    first.start()
    task = first.reached()
    second.start()
    second.wait_task("prepare", "up_for_retry", "success")
    assert second.tasks()["prepare"][0] != "success", "it waits for the first"
    grow(place, 150)
    kill(task)
    first.go()
    assert first.wait() == "success", first.tasks()
    assert (first.read(), len(first.ranges())) == ((0, 100), 2), "the retry reads what the first try did"
    assert second.wait() == "success", second.tasks()
    assert second.read() == (100, 150)

    # cleared as a whole: nothing is read again
    first.clear("begin", downstream=True)
    wait_for(lambda: first.state() in ENDED and first.tasks()["loaded"][0] == "success", lambda: str(first.tasks()))
    assert len(first.ranges()) == 2

    # its job fails for good: aborted, and the next run reads its range
    grow(place, 170)
    failed = Reading(place, "cursor-failed")
    failed.hold()
    failed.start()
    failed.reached()
    failed.mark("prepare", "failed")
    assert failed.wait() == "failed"
    grow(place, 200)
    fourth = Reading(place, "cursor-fourth")
    fourth.start()
    assert fourth.wait() == "success", fourth.tasks()
    assert fourth.read() == (150, 200)

    # a run whose conf names a range of the past, and a backfill whose conf goes to each of its runs: the cursor stays
    named = Reading(place, "cursor-named")
    named.start_with({"cursor_range": {"since": 100, "until": 110}})
    assert named.wait() == "success", named.tasks()
    number = place.airflow.backfill(
        {
            "dag_id": "reading_on",
            "from_date": "2025-03-01T00:00:00Z",
            "to_date": "2025-03-02T00:00:00Z",
            "dag_run_conf": {"cursor_range": {"since": 190, "until": 195}},
        }
    )
    path = f"/backfills/{number}"
    wait_for(lambda: place.airflow.get(path)["completed_at"] is not None, lambda: str(place.airflow.get(path)))

    runs = place.airflow.get("/dags/reading_on/dagRuns?limit=100")["dag_runs"]
    assert sorted(r["state"] for r in runs if r["run_type"] == "backfill") == ["failed", "success"]

    cursor = place.ledger.cursor("airflow", NAME)
    assert cursor is not None and cursor.position == 200
    expected = [f"n{n}" for n in (*range(200), *range(100, 110), *range(190, 195))]

    def right() -> bool:
        return count(place.bootstrap, "reading_on", expected) == Count(len(expected), 0, 0, 0, ())

    wait_for(right, lambda: str(count(place.bootstrap, "reading_on", expected)))
