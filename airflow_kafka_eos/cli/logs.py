"""What is logged while a command runs: stdout is for its answer alone, which a program may read."""

from __future__ import annotations

import logging
import sys


class _Stderr:
    """``sys.stderr`` as it is at the moment of writing."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def to_stderr() -> None:
    """Warnings go to stderr, and the Kafka client's say nothing that our errors do not.

    Call it behind each import of Airflow: it sends every library's INFO to stdout.
    """
    root = logging.getLogger()
    root.setLevel(max(root.level, logging.WARNING))
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    for handler in root.handlers:
        if type(handler) is logging.StreamHandler and handler.stream is not sys.stderr:
            handler.setStream(_Stderr())
