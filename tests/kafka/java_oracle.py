"""Kafka's own Java client, asked over pipes: see tests/java/Oracle.java."""

from __future__ import annotations

import base64
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from airflow_kafka_eos.sandbox.jars import find_java, kafka_jars
from tests.kafka.writers_support import Record

SOURCE = Path(__file__).parent.parent / "java" / "Oracle.java"
_PATIENCE_S = 90.0


class JavaOracle:
    """One resident JVM. Needs a JDK: the program is compiled as it starts."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self._rest = b""

    def partitions(self, keys: Sequence[bytes], count: int) -> list[int]:
        """Where the Java client sends these keys, in a topic of ``count`` partitions."""
        if not keys:
            return []
        return [int(word) for word in self._ask("partitions", str(count), *map(_text, keys)).split()]

    def read(
        self, bootstrap_servers: str, topic: str, starts: Mapping[int, int], isolation: str = "read_committed"
    ) -> list[Record]:
        """All records from these offsets (by partition) on, as far as the isolation level sees now."""
        self._send("read", bootstrap_servers, isolation, topic, *(f"{p}:{o}" for p, o in starts.items()))
        records = []
        while (line := self._line()) != ".":
            partition, offset, stamp, key, value, *headers = line.split(" ")
            pairs = zip(headers[::2], headers[1::2], strict=True)
            named = tuple(((_bytes(k) or b"").decode(), _bytes(v)) for k, v in pairs)
            records.append(Record(int(partition), int(offset), _bytes(key), _bytes(value), named, int(stamp)))
        return records

    def _ask(self, *words: str) -> str:
        self._send(*words)
        return self._line()

    def _send(self, *words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write((" ".join(words) + "\n").encode())
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        until = time.monotonic() + _PATIENCE_S
        pieces = [self._rest]
        while b"\n" not in pieces[-1]:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
            more = self._process.stdout.read1(1 << 20) if ready else b""  # type: ignore[attr-defined]
            assert more, f"the Java client said nothing more; its log: {self._log.read_text()[-2000:]}"
            pieces.append(more)
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        text = line.decode()
        assert not text.startswith("error:"), text
        return text


@contextmanager
def java_oracle(version: str = "4.4.0") -> Iterator[JavaOracle]:
    jars = kafka_jars(version, print)
    command = [find_java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
    command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{jars}/*", str(SOURCE)]
    with tempfile.TemporaryDirectory(prefix="java-oracle-") as folder:
        log = Path(folder) / "log"
        with open(log, "wb") as stderr:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
        try:
            yield JavaOracle(process, log)
        finally:
            # it ends with its input
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _text(data: bytes | None) -> str:
    return "-" if data is None else base64.b64encode(data).decode() or "="


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else b"" if text == "=" else base64.b64decode(text)
