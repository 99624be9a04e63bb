"""End a server when whoever started it is gone, however that ended: SIGKILL leaves nobody to stop PostgreSQL.

Run as ``python -I -S guarding.py PARENT_PID PID_FILE`` in a session of its own, as ``sandbox/watch.py``, which starts
its command itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_SECONDS = 0.2


@contextmanager
def guarded(server: Path) -> Iterator[None]:
    """
    :param server: a file whose first line is its process id: it may be started again meanwhile, as another process. The
        caller must end it before the end of this.
    """
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(server)], start_new_session=True
    )
    try:
        yield
    finally:
        guard.kill()
        guard.wait()


def main(parent: int, server: Path) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int(server.read_text().splitlines()[0]), signal.SIGQUIT)  # PostgreSQL's immediate shutdown


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
