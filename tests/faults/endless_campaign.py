"""A campaign whose second run lasts until it is told to stop: for the test that ends it by a signal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

from tests.faults import __main__ as command
from tests.faults.campaign import Campaign
from tests.faults.result import Result
from tests.faults.scenario import Scenario


class Endless(Campaign):
    def play(self, scenarios: Iterable[Scenario]) -> None:
        for number, scenario in enumerate(scenarios):
            if self._until == 0:
                return
            if number == 1:
                print("the second run begins", flush=True)
            while number == 1 and self._until:
                time.sleep(0.05)
            self._on_result(Result(scenario, struck=[True for _ in scenario.faults]))


if __name__ == "__main__":
    command.Campaign = Endless  # type: ignore[attr-defined]
    sys.exit(command.main(os.environ))
