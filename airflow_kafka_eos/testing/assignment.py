"""What a prepare under test is given, and what it must give back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol


class NotConforming(AssertionError):
    """A prepare does not keep a clause of the contract. Its text says which, and what was seen."""


@dataclass(frozen=True)
class Gate:
    """Holds the rows back half-way. Its folder must be seen by whoever makes the rows.

    :param folder: ``reached-<first row>`` is there once the first half of a part was handed to its writer; ``open``
        lets the second half go; ``fail`` makes the source raise an error instead.
    """

    folder: Path

    @property
    def reached(self) -> bool:
        """Whether each part that began has handed its first half over; at least one has."""
        return any(self.folder.glob("reached-*"))

    def open(self) -> None:
        """Let the rows go, now and later."""
        (self.folder / "open").touch()

    def fail(self) -> None:
        """Let the source fail."""
        (self.folder / "fail").touch()


@dataclass(frozen=True)
class Assignment:
    """One prepare: what to write, as which attempt.

    :param spec: the application's specification, JSON; holds no secret.
    :param settings: Kafka's settings, JSON; holds the secrets. The packaged application takes them from the
        environment variable ``AIRFLOW_KAFKA_EOS_KAFKA``. Where the place has none, a ``sasl.password`` is made up.
    :param records: how many rows there are: ``rows.value(0)`` and so on, with the keys ``k0`` and so on. The load has
        them all, but where the specification has a range: that has the number of its first row as ``since``, of the
        one behind its last as ``until``; where that is null, it is to end behind the last row that there is.
    :param gate: between the halves of each part.
    """

    spec: str
    settings: str
    records: int
    gate: Gate


class Running(Protocol):
    """A prepare that was started, wherever it runs."""

    def wait(self, timeout_s: float) -> int:
        """
        :returns: 0 where it says that all is prepared; anything else where not.
        :raises TimeoutError: it is still running.
        """

    def kill(self) -> None:
        """End it at once, as SIGKILL does, with all that it has started: it must not come to any code of its own."""

    def output(self) -> str:
        """What it has printed so far; it may show in a log, so it must hold no secret: one that does is refused."""


class Prepare(Protocol):
    """Starts a prepare, and comes back while it runs."""

    def __call__(self, assignment: Assignment) -> Running: ...


@dataclass(frozen=True)
class Place:
    """Where the contract is tried: a cluster that may be written to, a ledger, and a folder that all parts see.

    Topics are made and deleted again; transactional ids begin with the namespace ``conformance``.

    :param settings: of Kafka, as in an Airflow connection.
    :param ledger_url: of SQLAlchemy; its tables are there (``airflow-kafka-eos ledger upgrade``).
    :param manifest_dir: of manifests and gates.
    :param job: what the specification names; see :mod:`.rows`.
    :param patience_s: how long a prepare may take to start, and to end.
    """

    settings: Mapping[str, str]
    ledger_url: str
    manifest_dir: Path
    job: str = "airflow_kafka_eos.testing.rows:spark"
    tasks: int = 2
    records: int = 1000
    patience_s: float = 180


class Process:
    """A :class:`Running` of this machine: a command in a process group of its own."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # it is read as long as this is
        self._process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=self._log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def wait(self, timeout_s: float) -> int:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"it still runs after {timeout_s:g} s") from None

    def kill(self) -> None:
        # the group outlives its leader while the JVM or an executor of it is there
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def output(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")


def wait_for(what: str, done: Callable[[], bool], patience_s: float) -> None:
    """Poll until ``done()`` is true.

    :raises NotConforming: it was not within ``patience_s`` seconds.
    """
    until = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > until:
            raise NotConforming(f"{what}: not within {patience_s:g} s")
        time.sleep(0.05)
