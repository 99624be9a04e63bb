"""Everything that a person can click or kill, in a real Airflow: see scenarios.py for the table.

The scenarios are played side by side, as many at a time as the machine can take; each test waits for its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from tests.airflow.conftest import Place
from tests.airflow.held import Held
from tests.airflow.playing import play
from tests.airflow.rest import GIVEN_UP, wait_for_dag
from tests.airflow.scenarios import SCENARIOS, Scenario
from tests.airflow.stories import STORIES

AT_A_TIME = int(os.environ.get("AT_A_TIME", "4"))


def played_from_the_table(scenario: Scenario, place: Place) -> None:
    play(scenario, Held(place, scenario.name, scenario.dag))


PLAYS: Mapping[str, Callable[[Place], None]] = {
    s.name: partial(played_from_the_table, s) for s in SCENARIOS
} | dict(STORIES)


@pytest.fixture(scope="module")
def played(place: Place, request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[None]]]:
    """All plays that are asked for, on their way."""
    wanted = [name for item in request.session.items if (name := _play_of(item)) is not None]
    wait_for_dag(place.airflow, "clicks")
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        try:
            yield {name: pool.submit(PLAYS[name], place) for name in wanted}
        finally:
            GIVEN_UP.set()
            pool.shutdown(cancel_futures=True)
            GIVEN_UP.clear()


def _play_of(item: pytest.Item) -> str | None:
    call = getattr(item, "callspec", None)
    return call.params.get("play_name") if call is not None else None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("play_name", PLAYS)
def test_what_is_done_to_a_run_loses_and_doubles_nothing(
    played: Mapping[str, Future[None]], play_name: str
) -> None:
    """One copy, whatever is cleared by hand and killed by SIGKILL; and no failed load in a successful run."""
    played[play_name].result()
