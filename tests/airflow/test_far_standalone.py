"""A driver elsewhere, in a real Airflow: its worker or the triggerer is killed, its task is marked or cleared.

The driver is a real Spark's; what stands between it and its task is no YARN, but one of the tests' own (:mod:`.yarn`).
"""

from __future__ import annotations

import pytest

from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from tests.airflow.conftest import Place
from tests.airflow.held import Held, right, wait_gone
from tests.airflow.processes import kill
from tests.airflow.rest import wait_for
from tests.airflow.test_parts_killed import end, start_again

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Far(Held):
    """A run whose driver is at work, and whose task waits for it.

    :param unwatched: the driver does not see that it is superseded, as with a store that is away.
    """

    def __init__(self, place: Place, name: str, dag: str = "far", *, unwatched: bool = False) -> None:
        super().__init__(place, name, dag)
        if unwatched:
            self.be_unwatched()
        self.hold("before-prepare")
        self.hold("writing")
        self.start()
        self.reached("before-prepare")
        #: the process of the first try
        self.task = self.process("before-prepare")
        self.go("before-prepare")
        self.reached("writing", with_open=False)
        wait_for(self.held_back, lambda: f"an open transaction of {self.id}")
        wait_for(self.is_noted, lambda: f"the application of {self.id} is noted: {self.tasks()}")
        if dag == "far":
            self.wait_task("prepare", "deferred")

    def is_noted(self) -> bool:
        """Whether a retry would find it."""
        store = ManifestStore(str(self.place.switches / "manifests"))
        return store.submitted(AttemptRef(self.load, self.place.ledger.ledger_id, 1)) is not None

    def applications(self) -> list[str]:
        return self.place.yarn.applications(f"{self.load.name} {self.id}")

    def wrote_once(self, *, by: int) -> bool:
        """:param by: how many applications."""
        once = self.count(whole=True) == right(whole=True)
        return once and (self.attempts(), len(self.applications())) == (by, by)


@pytest.mark.parametrize("killed", ["task", "supervisor"])
def test_a_worker_that_is_killed_costs_neither_the_driver_nor_the_load(place: Place, killed: str) -> None:
    """Rule: reattach-to-its-own."""
    run = Far(place, f"far-{killed}", "far_here")
    driver = run.jvm()
    if killed == "task":
        kill(run.task)
    else:
        supervisor = run.task.parent()
        assert supervisor is not None and "LocalExecutor" in " ".join(supervisor.cmdline())
        kill(supervisor, run.task)
    wait_for(lambda: run.tasks()["prepare"] == ("running", 2), lambda: f"a second try: {run.tasks()}")
    found = "an earlier try has submitted application_1_"
    wait_for(lambda: found in run.log_of("prepare", 2), lambda: f"{found}: {run.log_of('prepare', 2)}")
    assert driver.is_running()
    run.go("writing")
    assert run.wait() == "success", run.tasks()
    assert run.wrote_once(by=1), (run.applications(), run.count(whole=True))
    assert run.tasks()["prepare"] == ("success", 2)


def test_a_triggerer_that_is_killed_costs_neither(place: Place) -> None:
    run = Far(place, "far-triggerer")
    last = end(place, "triggerer")
    start_again(place, "triggerer", last)
    run.go("writing")
    assert run.wait() == "success", run.tasks()
    assert run.wrote_once(by=1), (run.applications(), run.count(whole=True))


def test_a_task_that_is_marked_failed_in_the_triggerer_ends_its_driver(place: Place) -> None:
    """cleanup gives its attempt up in the ledger, and leaves word for the driver. Cleared, it begins anew."""
    run = Far(place, "far-marked")
    driver = run.jvm()
    run.mark("prepare", "failed")
    assert run.wait() == "failed", run.tasks()
    wait_gone(driver)
    assert run.count(whole=False) == right(whole=False), "cleanup has ended what was open"
    run.clear("prepare", downstream=True)
    assert run.wait() == "success", run.tasks()
    assert run.wrote_once(by=2), (run.applications(), run.count(whole=True))


@pytest.mark.parametrize("dag", ["far", "far_here"])
def test_a_task_that_is_cleared_begins_anew_and_ends_the_driver_of_before(place: Place, dag: str) -> None:
    run = Far(place, f"far-cleared-{dag}", dag)
    driver = run.jvm()
    run.clear("prepare", downstream=True)
    wait_gone(driver)
    assert run.wait() == "success", run.tasks()
    assert run.wrote_once(by=2), (run.applications(), run.count(whole=True))


def test_a_late_driver_that_cannot_be_told_writes_what_nobody_believes(place: Place) -> None:
    run = Far(place, "far-late", unwatched=True)
    run.mark("prepare", "failed")
    assert run.wait() == "failed", run.tasks()
    run.go("writing")
    (late,) = run.applications()
    wait_for(lambda: place.yarn.state(late)[0] != "RUNNING", lambda: f"the end of {late}")
    assert run.count(whole=False).seen == 0
    run.clear("prepare", downstream=True)
    assert run.wait() == "success", run.tasks()
    assert run.wrote_once(by=2), (run.applications(), run.count(whole=True))


def test_a_task_that_is_cleared_behind_the_triggerer_begins_anew(place: Place) -> None:
    """The platform has never answered the triggerer, so a worker waits; Airflow keeps where that one goes on."""
    place.yarn.down = True
    try:
        run = Far(place, "far-behind")
        wait_for(lambda: run.tasks()["prepare"][0] == "running", lambda: f"the worker waits: {run.tasks()}")
        driver = run.jvm()
        run.clear("prepare", downstream=True)
        wait_gone(driver)
    finally:
        place.yarn.down = False
    assert run.wait() == "success", run.tasks()
    assert run.wrote_once(by=2), (run.applications(), run.count(whole=True))
