"""The installed demo while it runs: what it has printed so far, and its processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.ctrl_c import heed_ctrl_c

#: what decides where Python and the command line look; the installed package must do without
OURS = ("PYTHONPATH", "VIRTUAL_ENV", "AIRFLOW", "PYSPARK", "SPARK")
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, wanted: str, seconds: float = PATIENCE_SECONDS) -> str:
        """What the pattern's first group has found, or all of it, once it is printed."""
        until = time.monotonic() + seconds
        while (found := re.search(wanted, self.text())) is None:
            assert self.process.poll() is None, f"it has ended without {wanted!r}:\n{self.text()}"
            assert time.monotonic() < until, f"not within {seconds:g} s: {wanted!r}\n{self.text()}"
            time.sleep(0.1)
        return found[1] if found.re.groups else found[0]


@contextlib.contextmanager
def demo(installed: Path, folder: Path, *options: str) -> Iterator[Running]:
    """``airflow-kafka-eos demo`` of an environment, run in a folder with nothing in it."""
    log = folder.with_name(f"{folder.name}.log")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [installed / "airflow-kafka-eos", "demo", *options],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=heed_ctrl_c,
        )
    try:
        yield Running(process, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()


def processes_of(folder: Path) -> Iterator[psutil.Process]:
    """Those that work in the demo's folder, by their arguments or their environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            told = [*process.cmdline(), process.environ().get("AIRFLOW_HOME", "")]
            if process.pid != os.getpid() and any(str(folder / ".demo") in one for one in told):
                yield process


def of_demo(folder: Path, part: str) -> psutil.Process:
    """``airflow <part>`` of the demo, not who watches it."""
    for process in processes_of(folder):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[1:] == ["-m", "airflow", part]:
                return process
    raise AssertionError(f"no airflow {part} of the demo in {folder}")
