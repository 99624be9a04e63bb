"""Where a person would click: Airflow's own UI under Chromium, on runs that a scheduler works on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.airflow.clicked import Clicked
from tests.airflow.conftest import Place
from tests.airflow.held import right
from tests.airflow.playing import play
from tests.airflow.rest import TASKS, wait_for_dag
from tests.airflow.scenarios import At, Leg, Scenario, clear, clear_from, mark, mark_run, told
from tests.browser import Browser, chromium


@pytest.fixture(scope="module")
def browser(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield Browser(driver, place.airflow.url)


def shows(load_state: str) -> At:
    """Our tab, while the run waits behind prepare."""

    def look(run: Clicked, moment: str) -> None:
        run.shows(load_state)

    return At("before-decide", look)  # type: ignore[arg-type]


MARKS = Scenario(
    "clicked-marks",
    (
        Leg("failed", whole=False, at=(At("writing", told(mark("prepare", "failed"))),)),
        Leg("failed", False, (At("checking", told(mark_run("failed"))),), clear_from("begin")),
        Leg("success", True, (shows("PREPARED"), At("before-commit", told(mark("commit", "success")))), clear(*TASKS)),
    ),
)
CLEARS = Scenario(
    "clicked-clears",
    (
        Leg("success", True, (At("writing", told(clear("prepare"))), At("before-commit", told(clear("commit"))))),
        Leg("success", whole=True, click=clear_from("prepare"), attempts=2),
        Leg("success", whole=True, click=clear(*TASKS), attempts=2),
    ),
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", [MARKS, CLEARS], ids=lambda s: s.name)
def test_what_a_person_clicks_loses_and_doubles_nothing(place: Place, browser: Browser, scenario: Scenario) -> None:
    """Whatever is clicked: one copy. A deleted run leaves its load as it is; a new one of that name loads nothing."""
    wait_for_dag(place.airflow, "clicks")
    run = Clicked(place, scenario.name, browser)
    play(scenario, run)
    run.shows("COMMITTED")
    attempts = run.attempts()
    run.delete()
    run.start()
    assert run.wait() == "success", run.tasks()
    assert (run.count(whole=True), run.attempts()) == (right(whole=True), attempts)
