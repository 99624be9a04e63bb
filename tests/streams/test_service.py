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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kafka.open_transactions import wait_until
from tests.spark.conftest import REPOSITORY, kafka_source_jars, spark_environment
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
    """Lines ``<batch>/<number>``, put where the query reads them, some each second."""

    #: the page's, which others put their own in the place of
    read = 'spark.readStream.text("/data/orders")'
    jars: Sequence[Path] = ()

    def __init__(self, place: Place) -> None:
        self.place = place
        self.folder = place.folder / "data"
        self.folder.mkdir()
        self.added = 0
        self._is_over = threading.Event()

    def reads(self) -> str:
        """What the query reads, as the program has it."""
        return self.read.replace("/data/orders", str(self.folder))

    def put(self, lines: list[str]) -> None:
        made = self.folder / f".{self.added}.txt"
        made.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        made.rename(self.folder / f"{self.added}.txt")

    def right(self) -> list[str] | None:
        """All lines so far, sorted; None: the source does not end."""
        return sorted(f"{batch}/{n}" for batch in range(self.added) for n in range(LINES))

    @contextmanager
    def flowing(self) -> Iterator[None]:
        def flow() -> None:
            while not self._is_over.wait(1):
                self.put([f"{self.added}/{n}" for n in range(LINES)])
                self.added += 1

        flows = threading.Thread(target=flow)
        flows.start()
        try:
            yield
        finally:
            self._is_over.set()
            flows.join(60)


class KafkaSource(Source):
    """A topic that others write, at least once; idempotent here, so that what it has is known."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._topic = f"{place.topic}-in"
        place.kafka.create_topic(self._topic, partitions=2)
        self._producer = Producer({"bootstrap.servers": place.kafka.bootstrap_servers, "enable.idempotence": True})
        self.jars = kafka_source_jars()

    def reads(self) -> str:
        servers = self.place.kafka.bootstrap_servers
        return (
            f'spark.readStream.format("kafka").option("kafka.bootstrap.servers", "{servers}")'
            f'.option("subscribe", "{self._topic}").option("startingOffsets", "earliest").load()'
            '.selectExpr("cast(value AS STRING) AS value")'
        )

    def put(self, lines: list[str]) -> None:
        for line in lines:
            self._producer.produce(self._topic, line.encode())
        assert self._producer.flush(60) == 0


class RateSource(Source):
    """Numbers by the clock, from 0: a gap or a second one shows."""

    def reads(self) -> str:
        rate = f'spark.readStream.format("rate").option("rowsPerSecond", {LINES}).load()'
        return rate + '.selectExpr("cast(value AS STRING) AS value")'

    def put(self, lines: list[str]) -> None:
        pass

    def right(self) -> None:
        return None


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


def unit_of(place: Place, source: Source) -> str:
    """The page's unit; its program and its files are made."""
    program, ledger, kafka = (place.folder / name for name in ("orders_stream.py", "ledger", "kafka.json"))
    ledger.write_text(place.ledger_url + "\n", encoding="utf-8")
    kafka.write_text(f'{{"bootstrap.servers": "{place.kafka.bootstrap_servers}"}}\n', encoding="utf-8")
    for secret in (ledger, kafka):
        secret.chmod(0o600)
    written = {
        Source.read: source.reads(), "/checkpoints/orders": str(place.checkpoint),
        '"topic", "orders"': f'"topic", "{place.topic}"',
    }  # fmt: skip
    program.write_text(filled(block("python"), written), encoding="utf-8")
    jars = f"--jars {','.join(map(str, source.jars))} " if source.jars else ""
    here = {
        "/opt/spark/bin": str(BIN), "/opt/orders/venv/bin/python": sys.executable, "spark://spark:7077": "local[2]",
        "/opt/jobs/orders_stream.py": f"{jars}{program}",
        "/etc/orders/ledger": str(ledger), "/etc/orders/kafka.json": str(kafka),
    }  # fmt: skip
    return filled(block("ini"), here)


@pytest.mark.parametrize("kind", [Source, KafkaSource, RateSource], ids=["files", "kafka", "rate"])
def test_each_line_is_there_once_however_often_the_driver_dies(place: Place, kind: type[Source]) -> None:
    source, log = kind(place), place.folder / "log"
    service = Service(unit_of(place, source), log)
    with service.kept():
        with source.flowing():
            for killed in range(1, KILLS + 1):
                # a driver that has done something, so that each death finds work
                seen = len(place.values())
                wait_until(lambda before=seen: len(place.values()) > before, f"rows ({log})", 240)  # type: ignore[misc]
                time.sleep(max(0.0, service.starts[-1] + LIFE_S - time.monotonic()))
                service.kill()
                wait_until(lambda n=killed: len(service.starts) > n, "the service's next start", 60)  # type: ignore[misc]
                values = place.values()
                assert len(set(values)) == len(values), killed
            seen = len(values)
            wait_until(lambda: len(place.values()) > seen, f"rows behind the last death ({log})", 240)
        right = source.right()
        if right is not None:
            wait_until(lambda: len(place.values()) >= len(right), f"the last rows ({log})", 240)
            assert place.values() == right
            with place.session() as session:
                wait_until(lambda: open_ids(session) == [], "the end of what was open", 60)
        on_time = alert(place)
        assert (on_time.returncode, on_time.stdout.strip()) == (0, "no streaming query is late"), on_time.stderr
        late = alert(place, "15m", "1ms")
        assert (late.returncode, NAME in late.stdout) == (1, True), late.stderr
        assert alert(place, NAME, "order").returncode == 2
    values = place.values()
    if right is None:
        assert sorted(map(int, values)) == list(range(len(values)))
    else:
        assert values == right
    print(f"{len(values):,} rows, each once, {len(service.starts)} drivers, {KILLS} of which were killed at work")
