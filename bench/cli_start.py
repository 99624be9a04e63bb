"""How long a call of the command line takes until it has answered: ``python -m bench.cli_start [--calls N]``.

Each command runs as the installed console script, against a real ledger and a real broker, in a process of its own each
time. Shown are medians: seconds by the clock, and of the processor. On a quiet machine: what it measures are imports.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.sandbox.kafka import LocalKafka

SCRIPT = str(Path(sys.executable).with_name("airflow-kafka-eos"))


def called(arguments: tuple[str, ...], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor, of one call."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    quiet = subprocess.DEVNULL
    subprocess.run([SCRIPT, *arguments], env=environment, check=True, stdout=quiet, stderr=quiet)
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=9, help="of each command; default 9")
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as home, LocalKafka() as kafka:
        Ledger.open(f"sqlite:///{home}/kafka_eos_ledger.db", upgrade=True).close()
        extra = {"bootstrap.servers": kafka.bootstrap_servers}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")} | {
            "AIRFLOW_HOME": home,
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": extra}),
            "PYTHONDONTWRITEBYTECODE": "",
        }
        at = ("--bootstrap-server", kafka.bootstrap_servers)
        print(f"{'command':42} {'clock':>8} {'processor':>10}   (seconds, median of {calls})")
        for arguments in (
            ("--help",),
            ("loads", "list"),
            ("transactions", "list", *at),
            ("transactions", "list"),
            ("ids", "report"),
            ("cleanup", "--dry-run"),
        ):
            called(arguments, environment)  # byte code, and files into memory
            taken = [called(arguments, environment) for _ in range(calls)]
            clock, processor = (statistics.median(column) for column in zip(*taken, strict=True))
            print(f"{' '.join(arguments):42} {clock:8.2f} {processor:10.2f}")


if __name__ == "__main__":
    main()
