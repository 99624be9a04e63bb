"""Ctrl-C ends a command wherever it is.

kafka-python keeps what is raised inside of its tasks as their result, KeyboardInterrupt too: Ctrl-C at such a moment
(seen: while a connection is made) was lost, and the command went on to its deadline. It is held back until that step is
over.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_S = 0.05
#: functions of kafka/net/selector.py that catch all that is raised below them
_CATCHING = ("Task.__call__", "NetworkSelector._process_events")


@contextmanager
def interruptible() -> Iterator[None]:
    """Only where Python's own way to handle SIGINT is in place."""
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_qualname in _CATCHING and "kafka" in frame.f_code.co_filename:
            later = threading.Timer(_AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, number))
            later.daemon = True
            later.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt
