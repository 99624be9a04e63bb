"""One server for a module, and a prepare by it in this process, on the session's broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.connect.engine import Job, prepare
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.naming import prefix
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.formats.settings import ValueFormat
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.connect.server import Server, server
from tests.kafka.open_transactions import holding_back

# of no other tests on this broker
LEDGER = "00000000cc"


@dataclass
class Preparing:
    """Prepares of one load.

    :ivar lines: what was said.
    """

    server: Server
    settings: KafkaSettings
    store: ManifestStore
    ref: AttemptRef
    stop: threading.Event = field(default_factory=threading.Event)
    lines: list[str] = field(default_factory=list)
    #: other than the ones that the settings lead to
    cluster_id: str | None = None
    #: what the ledger says of the attempt: why it is over
    over: str | None = None
    login: str = "kafka_default"
    conf: dict[str, Any] = field(default_factory=dict)

    def __call__(
        self,
        job: Callable[..., Any] | str,
        *topics: str,
        attempt: int = 1,
        value_format: Any = "raw",
        reads: dict[str, Any] | None = None,
        **options: Any,
    ) -> Manifest:
        """:param job: gets the session, and what it reads of a cursor; or SQL."""
        ref = replace(self.ref, attempt=attempt)
        deadline = int(time.time() * 1000) + 1_800_000
        given = replace(WriteOptions(ref, self.store.base, topics, 900_000, deadline), **options)
        sql = job if isinstance(job, str) else None
        spec = ApplicationSpec(
            given, job=None if sql else "jobs/rows.py", sql=sql, value_format=ValueFormat.of(value_format),
            range=reads,
        )
        with Wire(self.settings) as wire:
            cluster_id = self.cluster_id or wire.cluster_id()
        run = None if isinstance(job, str) else job
        prepare(
            ApplicationSpec.from_json(spec.to_json()), self.settings, self.store, self.server.remote,
            Job(run, self.login, cluster_id, lambda: self.over, self.conf), stop=self.stop, say=self.lines.append,
        )  # fmt: skip
        return self.store.read(given.attempt)

    def commit(self, manifest: Manifest) -> None:
        """As decide and commit do it."""
        with Wire(self.settings) as wire:
            coordinator = Coordinator(wire, namespace=self.ref.load.namespace, ledger_id=LEDGER)
            coordinator.end_many(manifest.transactions, Verdict.COMMIT)

    def begun(self, attempt: int = 1) -> list[str]:
        """Transactional ids of tasks, or of the load, that the broker knows, in whatever state."""
        with Wire(self.settings) as wire:
            coordinator = Coordinator(wire, namespace=self.ref.load.namespace, ledger_id=LEDGER)
            found = coordinator.list_known(prefix(self.ref.load, LEDGER))
        return sorted(
            n for n in found if n.rpartition(".")[2].startswith(f"{attempt}-") and not n.endswith("-probe")
        )

    def open_ids(self) -> list[str]:
        return holding_back(self.settings, self.ref.load, LEDGER)


@pytest.fixture(scope="module")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def preparing(
    connect_server: Server, kafka: LocalKafka, request: pytest.FixtureRequest, tmp_path: Path
) -> Preparing:
    ref = AttemptRef(LoadIdentity("tests", "connect", request.node.name), LEDGER, 1)
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    return Preparing(connect_server, settings, ManifestStore(str(tmp_path)), ref)
