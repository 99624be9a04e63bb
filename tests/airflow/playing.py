"""Plays a scenario of scenarios.py, and counts after each of its legs."""

from __future__ import annotations

import time

from airflow_kafka_eos.load import LoadState
from tests.airflow.held import Held, right
from tests.airflow.scenarios import Scenario


def play(scenario: Scenario, run: Held) -> None:
    """One run from start to end; asserts on the way."""
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
        row = run.place.ledger.load(run.load)
        committed = row is not None and row.state is LoadState.COMMITTED
        assert committed == leg.whole, f"{said}: {row}"
        assert committed or ended != "success", f"{said}: a load that is not there shows as a successful run"
        assert leg.attempts in (None, run.attempts()), said
        print(f"{time.strftime('%X')} {said}: {run.tasks()}, {run.attempts()} attempts", flush=True)
