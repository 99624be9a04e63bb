"""End the Spark application when the Airflow task that submitted it is gone.

A task process that dies by SIGKILL leaves its spark-submit behind, which goes on writing for an attempt that a retry
has given up long since. The broker fences what it writes, and cleanup finds it; but cleanup's quiet period is short
only because such a zombie does not live long.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

#: The environment variable with :func:`identity_of` the submitting process.
PARENT_VARIABLE = "AIRFLOW_KAFKA_EOS_PARENT"
EXIT_CODE = 75
POLL_SECONDS = 0.5


def identity_of(pid: int) -> str:
    """``<pid>:<start time>``: a pid alone may be somebody else's later. The start time is empty without /proc."""
    return f"{pid}:{_started(pid) or ''}"


def is_alive(identity: str) -> bool:
    """Whether that very process still runs."""
    pid, _, started = identity.partition(":")
    if started:
        try:
            return _started(int(pid)) == started
        except OSError:
            return True  # out of file descriptors, say: not being able to look is no proof of death
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def end_with_parent(environment: Mapping[str, str]) -> None:
    """Watch the submitting process from a thread, and leave at once when it is gone.

    Nothing is watched without the variable, nor where that process cannot be seen from here to begin with: behind
    another PID namespace, or as another user with hidepid.
    """
    identity = environment.get(PARENT_VARIABLE)
    if identity and is_alive(identity):
        threading.Thread(target=_watch, args=(identity,), name="end-with-parent", daemon=True).start()


def _watch(identity: str) -> None:
    while is_alive(identity):
        time.sleep(POLL_SECONDS)
    print("airflow-kafka-eos: the Airflow task is gone, so this application ends", flush=True)
    # no clean-up of ours: the transactions are the retry's to sweep, and spark-submit ends with its Python driver
    os._exit(EXIT_CODE)


def _started(pid: int) -> str | None:
    """The process's start time in clock ticks since boot (proc(5), field 22); None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]
