"""A contestant's own process, told what to do line by line. Its CPU is counted from outside, children included.

A command is a word and ``key=value`` fields, divided by tabs; each is answered by one line that starts with ``@``.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bench import proc

RUN_SECONDS = 900.0


class HostFailed(Exception):
    """A contestant's process answered with an error, ended, or did not answer in time."""


class Host:
    """Start a process and speak to it. A context manager: it ends with the block, with all of its children."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        self._answers: queue.Queue[str | None] = queue.Queue()
        with open(log, "ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, **(environment or {})}, start_new_session=True,
            )  # fmt: skip
        self._meter = proc.CpuMeter(self._process.pid)
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def cpu_seconds(self) -> float:
        """So far, of the process and its children."""
        return self._meter.seconds

    def ask(self, word: str, given: Mapping[str, object] | None = None, seconds: float = RUN_SECONDS) -> dict[str, str]:
        """Send one command and wait for its answer.

        :raises HostFailed: see there.
        """
        line = "\t".join([word, *(f"{key}={value}" for key, value in (given or {}).items())])
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._answers.get(timeout=seconds)
        except (OSError, queue.Empty) as error:
            raise HostFailed(f"{word}: no answer ({type(error).__name__}); see {self.log}") from error
        if answer is None:
            raise HostFailed(f"{word}: the process ended; see {self.log}")
        fields = dict(field.split("=", 1) for field in answer.split("\t")[1:])
        if "error" in fields:
            raise HostFailed(f"{word}: {fields['error'][:600]}")
        return fields

    def close(self) -> None:
        """End the process, asked first; then whoever is left of its process group."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                self._answers.put(line.rstrip("\n"))
        self._answers.put(None)
