"""Run a command and take it down when whoever started this dies.

Run as ``python -I -S watch.py PARENT_PID COMMAND...`` in a session of its own. A process, and not
PR_SET_PDEATHSIG: that signal also comes when merely the *thread* that started the broker ends. Not a pipe
either: children that the parent forks would hold its other end open.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

POLL_SECONDS = 0.2


def main(parent: int, command: Sequence[str]) -> int:
    """Exit code of the command, or death of the whole process group when the parent is gone."""
    # a handler, not SIG_IGN: the command gets the group's signals too, and would inherit "ignore"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave_it_to_the_command)
    child = subprocess.Popen(command)
    while (code := child.poll()) is None:
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return code if code >= 0 else 128 - code


def _leave_it_to_the_command(number: int, frame: FrameType | None) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
