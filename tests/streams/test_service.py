"""A query that never ends, as docs/streams.md has it: its program and its unit, started again whenever the driver dies.

``MINUTES=30`` kills it each minute for so long, by default a few times.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.kafka.open_transactions import wait_until
from tests.spark.conftest import REPOSITORY, spark_environment
from tests.streams.conftest import Place, open_ids

MINUTES = float(os.environ.get("MINUTES", "0"))
#: How often it is killed, and seconds from a start to the next death.
KILLS, LIFE_S = (int(MINUTES), 60.0) if MINUTES else (3, 20.0)
LINES = 100
PAGE = (Path(REPOSITORY) / "docs/streams.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## A query that never ends") : PAGE.index("## Where each batch stands")]
NAME = "orders"
BIN = Path(sys.executable).parent

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900 + 90 * KILLS)]


def block(language: str) -> str:
    """The first one of the section."""
    found = re.search(rf"(?ms)^```{language}\n(.*?)^```$", SECTION)
    assert found is not None, language
    return found[1]


class Service:
    """Does with the unit what systemd would."""

    def __init__(self, unit: str, log: Path) -> None:
        parser = configparser.ConfigParser(interpolation=None)
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        parser.read_string(unit)
        service = parser["Service"]
        assert (service["Restart"], service["KillMode"]) == ("always", "control-group")
        self._command = shlex.split(service["ExecStart"])
        self._environ = dict(one.split("=", 1) for one in shlex.split(service["Environment"]))
        self._again_s = float(service["RestartSec"])
        self._log = log
        self._is_over = threading.Event()
        self.starts: list[float] = []
        self.process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """All of its processes, as the loss of its host would."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _keep(self) -> None:
        while not self._is_over.is_set():
            with self._log.open("ab") as log:
                self.process = subprocess.Popen(
                    self._command, env=os.environ | spark_environment() | self._environ, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            self.starts.append(time.monotonic())
            self.process.wait()
            self.kill()
            self._is_over.wait(self._again_s)

    @contextmanager
    def kept(self) -> Iterator[None]:
        keeper = threading.Thread(target=self._keep)
        keeper.start()
        try:
            yield
        finally:
            self._is_over.set()
            self.kill()
            keeper.join(60)


class Source:
    """Files with lines, put there one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_over = threading.Event()
        self.files = 0

    def add(self) -> None:
        made = self._folder / f".{self.files}.txt"
        made.write_text("".join(f"{self.files}/{n}\n" for n in range(LINES)), encoding="utf-8")
        made.rename(self._folder / f"{self.files}.txt")
        self.files += 1

    def right(self) -> list[str]:
        return sorted(f"{file}/{n}" for file in range(self.files) for n in range(LINES))

    @contextmanager
    def flowing(self) -> Iterator[None]:
        def flow() -> None:
            while not self._is_over.wait(1):
                self.add()

        flows = threading.Thread(target=flow)
        flows.start()
        try:
            yield
        finally:
            self._is_over.set()
            flows.join(60)


def alert(place: Place, *changed: str) -> subprocess.CompletedProcess[str]:
    """The command that the page prints."""
    found = re.search(r"(?m)^ {4}airflow-kafka-eos (streams list .*)$", SECTION)
    assert found is not None
    arguments = shlex.split(found[1])
    for old, new in zip(changed[::2], changed[1::2], strict=True):
        arguments[arguments.index(old)] = new
    return subprocess.run(
        [BIN / "airflow-kafka-eos", *arguments], env=os.environ | place.environ, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip


def filled(text: str, here: dict[str, str]) -> str:
    """A block of the page, with this machine's places."""
    for there, own in here.items():
        assert there in text, there
        text = text.replace(there, own)
    return text


def unit_of(place: Place, data: Path) -> str:
    """The page's unit; its program and its files are made."""
    program, ledger, kafka = (place.folder / name for name in ("orders_stream.py", "ledger", "kafka.json"))
    ledger.write_text(place.ledger_url + "\n", encoding="utf-8")
    kafka.write_text(f'{{"bootstrap.servers": "{place.kafka.bootstrap_servers}"}}\n', encoding="utf-8")
    for secret in (ledger, kafka):
        secret.chmod(0o600)
    written = {
        "/data/orders": str(data), "/checkpoints/orders": str(place.checkpoint),
        '"topic", "orders"': f'"topic", "{place.topic}"',
    }  # fmt: skip
    program.write_text(filled(block("python"), written), encoding="utf-8")
    here = {
        "/opt/spark/bin": str(BIN), "spark://spark:7077": "local[2]", "/opt/jobs/orders_stream.py": str(program),
        "/etc/orders/ledger": str(ledger), "/etc/orders/kafka.json": str(kafka),
    }  # fmt: skip
    return filled(block("ini"), here)


def test_each_line_is_there_once_however_often_the_driver_dies(place: Place) -> None:
    data = place.folder / "data"
    data.mkdir()
    source, log = Source(data), place.folder / "log"
    service = Service(unit_of(place, data), log)
    source.add()
    with service.kept():
        with source.flowing():
            for killed in range(1, KILLS + 1):
                # a driver that has done something, so that each death finds work
                seen = len(place.values())
                wait_until(lambda before=seen: len(place.values()) > before, "rows of this driver", 240)  # type: ignore[misc]
                time.sleep(max(0.0, service.starts[-1] + LIFE_S - time.monotonic()))
                service.kill()
                wait_until(lambda n=killed: len(service.starts) > n, "the service's next start", 60)  # type: ignore[misc]
                values = place.values()
                assert len(set(values)) == len(values), killed
        wait_until(lambda: len(place.values()) >= len(source.right()), f"the last rows ({log})", 240)
        values = place.values()
        assert values == source.right()
        on_time = alert(place)
        assert (on_time.returncode, on_time.stdout.strip()) == (0, "no streaming query is late"), on_time.stderr
        late = alert(place, "15m", "1ms")
        assert (late.returncode, NAME in late.stdout) == (1, True), late.stderr
        assert alert(place, NAME, "order").returncode == 2
    with place.session() as session:
        wait_until(lambda: open_ids(session) == [], "the end of what was open", 60)
    assert place.values() == values
