"""A process that has imported everything and does nothing but fork: a victim starts in milliseconds, not in a second.

It has one thread and no connection, so that a fork of it is as good as a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.crashes.victim import Order, run

ROOT = Path(__file__).parents[2]


class Ended(NamedTuple):
    """How a victim ended: the signal that killed it, 0 for none, and what it said when it failed by itself."""

    signal: int
    errors: str


class Zygote:
    """Starts victims, one after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def kill_at(self, order: Order) -> Ended:
        """Run a victim to its end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order.as_dict()) + "\n")
        self._process.stdin.flush()
        return Ended(*json.loads(self._process.stdout.readline()))


@contextmanager
def zygote() -> Iterator[Zygote]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crashes.zygote"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Zygote(process)
    finally:
        process.kill()
        process.communicate()


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    for line in sys.stdin:
        order = Order(**json.loads(line))
        errors = Path(order.folder) / "errors"
        errors.write_text("")
        child = os.fork()
        if child == 0:
            _victim(order, errors)
        _, status = os.waitpid(child, 0)
        killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        answers.write(json.dumps(Ended(killed_by, errors.read_text())) + "\n")
        answers.flush()


def _victim(order: Order, errors: Path) -> None:
    try:
        run(order)
    except BaseException:
        errors.write_text(traceback.format_exc())
    finally:
        os._exit(1)


if __name__ == "__main__":
    _serve()
