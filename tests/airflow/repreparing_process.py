"""prepare of a decided load, in a process that ends or waits at a step: arguments are key, topic, SQL and step."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.protocol.repair import reprepare
from tests.airflow.steps import run

#: step -> what is called then
STEPS: dict[str, tuple[Any, str]] = {
    "its repairs are open": (PrepareLoadOperator, "_application"),
    "Spark has written it": (reprepare, "adopt_all"),
    "it is adopted": (reprepare, "_tell_kafka"),
}


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _waiting(real: Callable[..., None]) -> Callable[..., None]:
    def called(*arguments: Any) -> None:
        Path("waits").touch()
        end = time.monotonic() + 300
        while not Path("go").exists() and time.monotonic() < end:
            time.sleep(0.1)
        real(*arguments)

    return called


def main(key: str, topic: str, sql: str, step: str) -> None:
    of, name = STEPS[step.removeprefix("waits: ")]
    real = getattr(of, name)
    setattr(of, name, _waiting(real) if step.startswith("waits: ") else _die)
    run("prepare", key, topics=[topic], sql=sql)


if __name__ == "__main__":
    main(*sys.argv[1:])
