"""What kafka-python logs while it works for us: at DEBUG, whatever level it gives it.

It tells of every connection at INFO, and of every broker that is away at WARNING and ERROR, with a traceback sometimes.
All that comes to us as an exception, is tried again, or becomes an error of ours that names brokers and remedy. So it
is left to who debugs connections: ``logging.getLogger("kafka").setLevel(logging.DEBUG)``, or Airflow's
``logging_level = DEBUG``.

Only our own clients are meant: a task, or another trigger in the same process, may have a client of its own. All of
ours work in the thread that calls them, so a mark on the thread says whose a record is. What no caller hears of, a bug
in a callback for one, keeps its level.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import kafka.net.connection
import kafka.net.manager
import kafka.net.selector  # noqa: F401

P = ParamSpec("P")
T = TypeVar("T")

#: Loggers whose errors nobody else tells.
_OF_BUGS = frozenset({"kafka.future", "kafka.net.selector"})
#: Loggers that write requests and their bytes at DEBUG; those of a login are the password (seen).
_OF_REQUESTS = frozenset({"kafka.net.connection", "kafka.protocol.parser"})


class _Depth(threading.local):
    calls = 0


_ours = _Depth()


def at_debug(work: Callable[P, T]) -> Callable[P, T]:
    """What kafka-python logs inside is logged at DEBUG."""

    @wraps(work)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> T:
        _ours.calls += 1
        try:
            return work(*args, **kwargs)
        finally:
            _ours.calls -= 1

    return quiet


class _AtDebug(logging.Filter):
    """On the logger itself: filters are not inherited, and a handler's would be Airflow's."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return record.name not in _OF_REQUESTS
        if _ours.calls == 0 or (record.name in _OF_BUGS and record.levelno >= logging.ERROR):
            return True
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def loggers() -> list[str]:
    """Names of all that kafka-python's network code logs by, as far as it is imported."""
    return sorted(n for n in list(logging.root.manager.loggerDict) if n.partition(".")[0] == "kafka")


for _name in loggers():
    logging.getLogger(_name).addFilter(_AtDebug())
