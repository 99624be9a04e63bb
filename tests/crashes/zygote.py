"""A process that has imported everything and does nothing but fork: a victim starts in milliseconds, not in a second.

It has one thread and no connection but the socket where orders come in, so that a fork of it is as good as a process of
its own. Each order gets a nurse, who waits for its victim and tells how it ended.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
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
    """Starts victims; any number of threads may ask at a time."""

    def __init__(self, address: str) -> None:
        self._address = address

    def kill_at(self, order: Order) -> Ended:
        """Run a victim to its end."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(120)
            asking.connect(self._address)
            with asking.makefile("rw") as line:
                line.write(json.dumps(order.as_dict()) + "\n")
                line.flush()
                return Ended(*json.loads(line.readline()))


@contextmanager
def zygote() -> Iterator[Zygote]:
    with tempfile.TemporaryDirectory(prefix="zygote-") as folder:
        address = f"{folder}/socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(64)
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.crashes.zygote", str(listener.fileno())],
                cwd=ROOT,
                pass_fds=[listener.fileno()],
            )
        try:
            yield Zygote(address)
        finally:
            process.kill()
            process.wait()


def _serve(listener: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nurses are nobody's to wait for
    while True:
        asking, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _nurse(asking)
            os._exit(0)
        asking.close()


def _nurse(asking: socket.socket) -> None:
    with asking, asking.makefile("rw") as line:
        order = Order(**json.loads(line.readline()))
        errors = Path(order.folder) / "errors"
        errors.write_text("")
        victim = os.fork()
        if victim == 0:
            _victim(order, errors)
        _, status = os.waitpid(victim, 0)
        killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        line.write(json.dumps(Ended(killed_by, errors.read_text())) + "\n")


def _victim(order: Order, errors: Path) -> None:
    try:
        run(order)
    except BaseException:
        errors.write_text(traceback.format_exc())
    finally:
        os._exit(1)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
