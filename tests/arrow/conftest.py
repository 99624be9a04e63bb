"""A prepare in this process, on the session's broker, and what it left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.arrow.engine import prepare
from airflow_kafka_eos.arrow.stream import Bounds
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.formats.settings import RegistrySettings, ValueFormat
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.kafka.open_transactions import holding_back

# of no other tests on this broker
LEDGER = "00000000ee"
BOUNDS = Bounds(64 * 1024 * 1024)


@dataclass
class Preparing:
    """Prepares of one load.

    :ivar lines: what was said.
    """

    settings: KafkaSettings
    store: ManifestStore
    ref: AttemptRef
    stop: threading.Event = field(default_factory=threading.Event)
    lines: list[str] = field(default_factory=list)

    def __call__(
        self,
        job: Callable[[], Any],
        *topics: str,
        attempt: int = 1,
        value_format: Any = "raw",
        registry: RegistrySettings | None = None,
        bounds: Bounds = BOUNDS,
        **options: Any,
    ) -> Manifest:
        ref = replace(self.ref, attempt=attempt)
        deadline = int(time.time() * 1000) + 120_000
        given = replace(WriteOptions(ref, self.store.base, topics, 60_000, deadline), **options)
        spec = ApplicationSpec(given, job="jobs/rows.py", value_format=ValueFormat.of(value_format))
        prepare(
            ApplicationSpec.from_json(spec.to_json()), self.settings, self.store, job,
            bounds=bounds, stop=self.stop, say=self.lines.append, registry=registry,
        )  # fmt: skip
        return self.store.read(given.attempt)

    def commit(self, manifest: Manifest) -> None:
        """As decide and commit do it."""
        with Wire(self.settings) as wire:
            coordinator = Coordinator(wire, namespace=self.ref.load.namespace, ledger_id=LEDGER)
            coordinator.end_many(manifest.transactions, Verdict.COMMIT)

    def open_ids(self) -> list[str]:
        return holding_back(self.settings, self.ref.load, LEDGER)


@pytest.fixture
def preparing(kafka: LocalKafka, request: pytest.FixtureRequest, tmp_path: Path) -> Preparing:
    ref = AttemptRef(LoadIdentity("tests", "arrow", request.node.name), LEDGER, 1)
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    return Preparing(settings, ManifestStore(str(tmp_path)), ref)
