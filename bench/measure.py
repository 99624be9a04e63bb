"""One timed write: topic, run, commit, check, delete. The same steps for every contestant."""

from __future__ import annotations

import itertools
import sys
import time
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from bench import jvm
from bench.broker import Broker
from bench.cases import TIMEOUT_MS, Case, Contestant, kafka_settings
from bench.data import Dataset
from bench.host import Host
from bench.identity import LEDGER, NAMESPACE
from bench.logcheck import NotWhatWasWritten, check
from bench.stats import Run

REPOSITORY = Path(__file__).resolve().parent.parent
READ_SECONDS = 120.0


class NotAvailable(Exception):
    """A contestant of ours that this version of the package does not have."""


class Stage:
    """Everything that one measurement needs.

    :param root: the cache: logs, records and what Maven built.
    :param work: for what is of this run only.
    """

    def __init__(self, broker: Broker, root: Path, work: Path, partitions: int) -> None:
        self.broker = broker
        self.root = root
        self.manifests = str(work / "manifests")
        self.partitions = partitions
        self._number = 0

    def start(self, kind: str) -> Host:
        """A fresh process for ``spark``, ``arrow``, ``flink`` or ``java``."""
        log = self.root / f"{kind}.log"
        if kind == "arrow":
            return Host([sys.executable, "-m", "bench.arrow_host"], log, {"PYTHONPATH": str(REPOSITORY)})
        if kind == "spark":
            environment = {
                "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1",
                "PYTHONDONTWRITEBYTECODE": "",
            }  # fmt: skip
            jars = jvm.spark_sink(self.root, version("pyspark"))
            return Host([sys.executable, "-m", "bench.spark_host", str(jars)], log, environment)
        java = jvm.built(self.root)
        if kind == "flink":
            return Host(jvm.flink_command(java), log)
        return Host(jvm.producer_command(java, self.broker.version), log)

    def load(self, host: Host, kind: str, records: Dataset) -> None:
        """Tell a process of this kind which records it will write."""
        files = {"files": ",".join(map(str, records.parquet_files))}
        host.ask("load", files if kind in ("spark", "arrow") else {"file": records.java_file})

    def write(self, host: Host, contestant: Contestant, case: Case, records: Dataset, round_: int) -> Run:
        """Have a contestant write all records, commit them, and check the log.

        :raises NotAvailable: ours only, see there.
        :raises HostFailed: it failed.
        :raises NotWhatWasWritten: it did not write what it should.
        """
        if not contestant.writes:
            return self._floor(host, contestant, case, records, round_)
        if not contestant.keyed:
            records = records.without_keys()
        ref = self.attempt(contestant)
        topic = self.broker.create_topic(self.partitions)
        try:
            given = self.given(contestant, case, topic, ref)
            host.ask("settle")
            client, broker = host.cpu_seconds, self.broker.cpu_seconds
            seconds = float(host.ask("run", given)["seconds"])
            commit_seconds = commit_cpu = 0.0
            if contestant.is_ours:
                commit_seconds, commit_cpu = self._commit(ref, records)
            client_cpu = host.cpu_seconds - client + commit_cpu
            broker_cpu = self.broker.cpu_seconds - broker
            self.broker.wait_ended(topic, self.partitions)
            found = self.broker.scan(topic, self.partitions)
            check(found, records.wanted, transactional=contestant.transactional)
            if round_ < 0:
                check_content(self.broker.bootstrap_servers, topic, self.partitions, records)
            log_bytes = sum(one.bytes for one in found)
            return Run(
                case.name, contestant.key, round_, seconds + commit_seconds, commit_seconds, client_cpu, broker_cpu,
                records.records, records.bytes, log_bytes // max(1, sum(one.batches for one in found)), log_bytes,
                max(one.transactions for one in found),
            )  # fmt: skip
        finally:
            self.broker.delete_topic(topic)

    def _floor(self, host: Host, contestant: Contestant, case: Case, records: Dataset, round_: int) -> Run:
        host.ask("settle")
        client = host.cpu_seconds
        seconds = float(host.ask("run", contestant.given)["seconds"])
        client_cpu = host.cpu_seconds - client
        return Run(case.name, contestant.key, round_, seconds, 0.0, client_cpu, 0.0, records.records, records.bytes)

    def attempt(self, contestant: Contestant) -> AttemptRef:
        """Each write is a load of its own."""
        self._number += 1
        return AttemptRef(LoadIdentity(NAMESPACE, contestant.name, str(self._number)), LEDGER, 1)

    def given(self, contestant: Contestant, case: Case, topic: str, ref: AttemptRef) -> dict[str, str]:
        """What a contestant's process is told.

        :raises NotAvailable: ours only, see there.
        """
        settings = kafka_settings(contestant, case, self.broker.bootstrap_servers)
        given = {**{f"kafka.{key}": value for key, value in settings.items()}, **contestant.given}
        if contestant.is_ours:
            return self._options(ref, topic, given)
        return given | {"topic": topic, "id": f"bench-{ref.load.key}"}

    def manifest(self, ref: AttemptRef) -> Manifest:
        """What our write has reported."""
        return ManifestStore(self.manifests).read(ref)

    def _options(self, ref: AttemptRef, topic: str, given: Mapping[str, str]) -> dict[str, str]:
        """The data source's options, each as ``option.<name>`` beside ``kafka.<key>``."""
        own = {
            "topic": topic, "load.namespace": NAMESPACE, "load.name": ref.load.name, "load.key": ref.load.key,
            "load.attempt": "1", "ledger.id": LEDGER, "manifest.dir": self.manifests,
            "transaction.timeout.ms": str(TIMEOUT_MS), "deadline.ms": str(int(time.time() * 1000) + TIMEOUT_MS),
        }  # fmt: skip
        return available({**given, **{f"option.{k}": v for k, v in own.items()}})

    def _commit(self, ref: AttemptRef, records: Dataset) -> tuple[float, float]:
        """Seconds and CPU seconds that the commit takes, from a connection that is yet to be made."""
        manifest = self.manifest(ref)
        if manifest.records != records.records:
            raise NotWhatWasWritten(f"the manifest has {manifest.records} records")
        begun, cpu = time.perf_counter(), time.process_time()
        with Wire(self.broker.settings) as wire:
            coordinator = Coordinator(wire, namespace=NAMESPACE, ledger_id=LEDGER)
            coordinator.end_many(manifest.transactions, Verdict.COMMIT)
        return time.perf_counter() - begun, time.process_time() - cpu


def available(given: Mapping[str, str]) -> dict[str, str]:
    """The options, or those that a version without a choice of writers knows.

    :raises NotAvailable: what is asked for is more than that.
    """
    for drop in ((), ("option.writer", "option.transaction.scope")):
        kept = {k: v for k, v in given.items() if k not in drop}
        options = {k.removeprefix("option."): v for k, v in kept.items() if k.startswith(("option.", "kafka."))}
        try:
            WriteOptions.parse(options)
        except ConfigurationError as error:
            if given.get("option.writer") != "confluent":
                raise NotAvailable(str(error)) from None
        else:
            return kept
    raise NotAvailable("the options of a plain write are refused")


def check_content(
    bootstrap_servers: str, topic: str, partitions: int, records: Dataset, seconds: float = READ_SECONDS
) -> None:
    """Read everything back as a read_committed reader, and compare the sum over all records' checksums.

    :raises NotWhatWasWritten: they differ.
    """
    wanted = 0
    for file in records.parquet_files:
        table = pq.read_table(file)
        keys = table["key"].to_pylist() if records.keyed else itertools.repeat(b"", table.num_rows)
        pairs = zip(keys, table["value"].to_pylist(), strict=True)
        wanted += sum(zlib.crc32(value, zlib.crc32(key)) for key, value in pairs)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": topic, "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found, count, end = 0, 0, time.monotonic() + seconds
    while count < records.records and time.monotonic() < end:
        for message in consumer.consume(10_000, timeout=1.0):
            if (error := message.error()) is not None:
                raise NotWhatWasWritten(f"reading back: {error}")
            found += zlib.crc32(message.value() or b"", zlib.crc32(message.key() or b""))
            count += 1
    consumer.close()
    if (count, found) != (records.records, wanted):
        raise NotWhatWasWritten(f"read back {count} of {records.records} records, checksums {found} and {wanted}")


