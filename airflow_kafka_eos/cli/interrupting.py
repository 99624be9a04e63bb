"""Ctrl-C ends a command wherever it is.

kafka-python's event loop keeps what is raised inside of its steps as their result, or logs it; KeyboardInterrupt too:
Ctrl-C at such a moment (seen: while a connection is made) was lost, and the command went on to its deadline. It is held
back until the loop waits for the network.
"""

from __future__ import annotations

import selectors
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_S = 0.05


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
    if _would_be_lost(frame):
        later = threading.Timer(_AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, number))
        later.daemon = True
        later.start()
        return
    raise KeyboardInterrupt


def _would_be_lost(frame: FrameType | None) -> bool:
    """Inside of the event loop, and not where it waits."""
    # its other methods are called by steps
    if frame is None or (frame.f_code.co_name, frame.f_code.co_filename) == ("select", selectors.__file__):
        return False
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("kafka.net."):
            return True
        frame = frame.f_back
    return False
