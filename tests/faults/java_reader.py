"""What Kafka's own Java consumer reads: tests/java/Oracle.java, one JVM for one reading."""

from __future__ import annotations

import base64
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from airflow_kafka_eos.sandbox.jars import find_java, kafka_jars
from tests.faults.facts import Record

SOURCE = Path(__file__).parent.parent / "java" / "Oracle.java"


def read_java(servers: str, ends: Mapping[tuple[str, int], int], within_s: float = 120) -> tuple[Record, ...]:
    """All that a read_committed reader sees below these offsets. Needs a JDK: the program is compiled as it starts.

    :param ends: by (topic, partition).
    """
    partitions: dict[str, list[int]] = defaultdict(list)
    for topic, partition in ends:
        partitions[topic].append(partition)
    requests = [
        f"read {servers} read_committed {topic} {' '.join(f'{p}:0' for p in found)}\n"
        for topic, found in sorted(partitions.items())
    ]
    command = [find_java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
    command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{kafka_jars('4.4.0', print)}/*", str(SOURCE)]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        # it ends with its input, so it does not outlive us
        watchdog = threading.Timer(within_s, process.kill)
        watchdog.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("".join(requests).encode())
            process.stdin.flush()
            lines = iter(process.stdout)
            found = [record for topic in sorted(partitions) for record in _records(topic, lines)]
        except EOFError as error:
            errors.seek(0)
            raise AssertionError(f"the Java reader failed: {error}; {errors.read()[-2000:]!r}") from error
        finally:
            watchdog.cancel()
            process.kill()
            process.communicate()
    return tuple(r for r in found if r.offset < ends[r.topic, r.partition])


def _records(topic: str, lines: Iterator[bytes]) -> Iterator[Record]:
    for line in lines:
        text = line.decode().rstrip("\n")
        if text == ".":
            return
        if text.startswith("error:"):
            raise EOFError(text)
        partition, offset, stamp, key, value, *rest = text.split(" ")
        names, values = ([_bytes(part) for part in some] for some in (rest[::2], rest[1::2]))
        headers = tuple(((name or b"").decode(), value) for name, value in zip(names, values, strict=True))
        yield Record(topic, int(partition), int(offset), _bytes(key), _bytes(value), headers, int(stamp))
    raise EOFError("it ended before its answer did")


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else b"" if text == "=" else base64.b64decode(text)
