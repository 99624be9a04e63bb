"""Everything that a person can click or kill, in a real Airflow: see scenarios.py for the table.

The scenarios are played side by side, as many at a time as the machine can take; each test waits for its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from airflow_kafka_eos.load import LoadState
from tests.airflow.conftest import Place
from tests.airflow.held import Held, right
from tests.airflow.rest import GIVEN_UP, wait_for_dag
from tests.airflow.scenarios import SCENARIOS, Scenario
from tests.airflow.stories import STORIES

AT_A_TIME = int(os.environ.get("AT_A_TIME", "4"))


def play(scenario: Scenario, place: Place) -> None:
    """One run from start to end; asserts on the way."""
    run = Held(place, scenario.name, scenario.dag)
    for number, leg in enumerate(scenario.legs):
        said = f"{scenario.name}, leg {number}"
        for at in leg.at:
            run.hold(at.moment)
        leg.click(run)
        for at in leg.at:
            run.reached(at.moment)
            at.do(run, at.moment)
            run.go(at.moment)
        ended = run.wait()
        assert ended == leg.ends, f"{said}: {run.tasks()}"
        assert run.count(whole=leg.whole) == right(whole=leg.whole), f"{said}: {run.tasks()}"
        row = place.ledger.load(run.load)
        committed = row is not None and row.state is LoadState.COMMITTED
        assert committed == leg.whole, f"{said}: {row}"
        assert committed or ended != "success", f"{said}: a load that is not there shows as a successful run"
        assert leg.attempts in (None, run.attempts()), said
        print(f"{time.strftime('%X')} {said}: {run.tasks()}, {run.attempts()} attempts", flush=True)


PLAYS: Mapping[str, Callable[[Place], None]] = {s.name: partial(play, s) for s in SCENARIOS} | STORIES


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
    """Rules 1 to 5, 9 and 10, by hand and by SIGKILL; and no failed load in a successful run."""
    played[play_name].result()
