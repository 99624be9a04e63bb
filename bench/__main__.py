"""``make bench``: everything in one run. The knobs are environment variables, see docs/benchmarks.md."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from airflow_kafka_eos.sandbox.jars import cache_root
from bench import jvm
from bench.broker import Broker
from bench.cases import CONTESTANTS, Case, Contestant, Knobs, takes_part, writes_steadily
from bench.data import Dataset, dataset
from bench.encoding import NoEncoder, encoding
from bench.ending import ending
from bench.environment import environment
from bench.host import Host, HostFailed
from bench.logcheck import NotWhatWasWritten
from bench.measure import NotAvailable, Stage
from bench.report import Results, as_json, markdown
from bench.stats import Run
from bench.window import windows

WARM_UP = -1
COLD = 0
BEGUN = time.monotonic()


def say(text: str) -> None:
    """Progress, with the minutes so far."""
    minutes, seconds = divmod(int(time.monotonic() - BEGUN), 60)
    print(f"[{minutes:2d}:{seconds:02d}] {text}", flush=True)


class Bench:
    """One run of the benchmarks. ``wrong`` counts contestants that did not write what they should."""

    def __init__(self, knobs: Knobs, stage: Stage, root: Path) -> None:
        self.knobs = knobs
        self.stage = stage
        self.root = root
        self.results = Results()
        self.wrong = 0
        self._hosts: dict[str, Host] = {}
        self._loaded: dict[Host, Dataset] = {}

    def records(self, size: str, count: int) -> Dataset:
        """Made when first asked for."""
        return dataset(self.root, size, count, self.knobs.tasks, self.knobs.partitions, self.knobs.parquet)

    def warm_up(self) -> None:
        """Not counted, for compilers and caches: everybody with fewer records, which are read back; then with all."""
        for codec in dict.fromkeys(case.codec for case in self.knobs.chosen_cases()):
            case = Case("small", codec)
            records = self.records("small", self.knobs.warm_up_records)
            for contestant in self._taking_part(case, 1):
                self._measure("warm-up", contestant, case, records, WARM_UP)
        case = self.knobs.chosen_cases()[0]
        records = self.records(case.size, self.knobs.records_of(case.size))
        for contestant in self._taking_part(case, 1):
            if not contestant.slow:
                self._measure("warm-up", contestant, case, records, 0)

    def rounds(self) -> None:
        """Interleaved: in each round each case, in each case everybody; every other round from the end."""
        for round_ in range(1, self.knobs.rounds + 1):
            for case in self.knobs.chosen_cases():
                records = self.records(case.size, self.knobs.records_of(case.size))
                taking_part = self._taking_part(case, round_)
                for contestant in taking_part if round_ % 2 else reversed(taking_part):
                    run = self._measure(f"round {round_}", contestant, case, records, round_)
                    if run is not None:
                        self.results.runs.append(run)

    def steady(self) -> None:
        """Many writes of one contestant, one after the other, then of the next: what changes as a process goes on."""
        for case in self.knobs.chosen_cases():
            records = self.records(case.size, self.knobs.records_of(case.size))
            for contestant in self._taking_part(case, 1):
                if writes_steadily(contestant):
                    for number in range(1, self.knobs.steady + 1):
                        run = self._measure(f"steady {number}", contestant, case, records, number)
                        if run is None:
                            break
                        self.results.steady.append(run)

    def cold(self) -> None:
        """Each in a process of its own, which is ended afterwards."""
        case = self.knobs.chosen_cases()[0]
        records = self.records(case.size, self.knobs.records_of(case.size))
        for contestant in self._taking_part(case, 1):
            if contestant.key != contestant.name:
                continue
            begun = time.perf_counter()
            with self.stage.start(contestant.host) as host:
                host.ask("settle")
                started = time.perf_counter() - begun
                self._load(host, contestant, records)
                run = self._measure("cold", contestant, case, records, COLD, host)
                self._loaded.pop(host, None)
            if run is not None:
                self.results.runs.append(Run(**{**run.__dict__, "start_seconds": started}))

    def encode(self) -> None:
        """Encoding alone, on one core."""
        for size in dict.fromkeys(case.size for case in self.knobs.chosen_cases()):
            records = self.records(size, self.knobs.records_of(size))
            try:
                self.results.extras.append(encoding(records, self.knobs.partitions, say))
            except NoEncoder as error:
                say(f"encoding alone: left out: {error}")
                self.results.skipped["encoding alone"] = str(error)

    def commit(self) -> None:
        """Ending many transactions, and what readers see meanwhile."""
        self.results.extras.append(ending(self.stage.broker, self.knobs.transactions, self.knobs.rounds, say))
        host = self.host("spark")
        self._load(host, CONTESTANTS[0], self.records("small", self.knobs.warm_up_records))
        self.results.extras.append(windows(self.stage, host, self.knobs.rounds, say))

    def close(self) -> None:
        """End the warm processes."""
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()

    def host(self, kind: str) -> Host:
        """The warm process of a kind; started when first asked for, or when the last one has died."""
        if kind not in self._hosts:
            say(f"starting {kind}")
            self._hosts[kind] = self.stage.start(kind)
        return self._hosts[kind]

    def _taking_part(self, case: Case, round_: int) -> list[Contestant]:
        every = [c for c in CONTESTANTS if takes_part(c, case, round_, self.knobs)]
        return [c for c in every if c.key not in self.results.skipped]

    def _load(self, host: Host, contestant: Contestant, records: Dataset) -> None:
        if self._loaded.get(host) != records:
            self.stage.load(host, contestant.host, records)
            self._loaded[host] = records

    def _measure(
        self, what: str, contestant: Contestant, case: Case, records: Dataset, round_: int, host: Host | None = None
    ) -> Run | None:
        name = f"{what}, {case.name}, {contestant.key}"
        try:
            used = host or self.host(contestant.host)
            self._load(used, contestant, records)
            run = self.stage.write(used, contestant, case, records, round_)
        except NotAvailable as error:
            say(f"{name}: left out: {error}")
            self.results.skipped[contestant.key] = str(error)
            return None
        except (HostFailed, NotWhatWasWritten) as error:
            say(f"{name}: FAILED: {error}")
            self.results.skipped[contestant.key] = f"failed: {error}"
            self.wrong += 1
            if host is None and (dead := self._hosts.pop(contestant.host, None)) is not None:
                dead.close()  # whatever it is in now is no fair beginning for the next
                self._loaded.pop(dead, None)
            return None
        rate = run.records / run.seconds / 1e6
        cpu = f"client {run.client_cpu:.1f} s, broker {run.broker_cpu:.1f} s CPU"
        say(f"{name}: {run.seconds:.2f} s, {rate:.2f} M records/s, {cpu}")
        return run


def main() -> int:
    """0 when everything was measured that is there, and all of it was written right."""
    knobs = Knobs.of(os.environ)
    root = cache_root() / "bench"
    root.mkdir(parents=True, exist_ok=True)
    out = Path(knobs.folder)
    out.mkdir(parents=True, exist_ok=True)
    for log in root.glob("*.log"):
        log.unlink()  # of the last run
    say("building what Java needs")
    java, sink = jvm.built(root), jvm.spark_sink(root, version("pyspark"))
    with (
        tempfile.TemporaryDirectory(prefix="run-", dir=root) as work,
        Broker(Path(work) / "broker", knobs.brokers) as broker,
    ):
        bench = Bench(knobs, Stage(broker, root, Path(work), knobs.partitions), root)
        bench.results.environment = environment(knobs, java, sink, broker.version)
        steps: list[Callable[[], None]] = [bench.warm_up, bench.rounds]
        steps += [bench.steady] if knobs.steady else []
        steps += [bench.encode, bench.commit] if knobs.extras else []
        steps += [bench.cold] if knobs.cold else []
        try:
            for step in steps:
                step()
                _write(out, bench.results)
        finally:
            bench.close()
    print(markdown(bench.results))
    say(f"written: {out / 'RESULTS.md'}, {out / 'results.json'}")
    return 1 if bench.wrong else 0


def _write(out: Path, results: Results) -> None:
    (out / "RESULTS.md").write_text(markdown(results), encoding="utf-8")
    (out / "results.json").write_text(as_json(results), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
