"""Each operator's own ``execute`` on real connections, ledger, broker and Spark; only the context is made by hand."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_eos import manifest as m
from airflow_kafka_eos.errors import AccessError, ConfigurationError
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionScope
from airflow_kafka_eos.naming import TransactionalId, prefix
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.manifest_store import ManifestStore

OWNER = "dag/run#group=load"


class Instance(SimpleNamespace):
    """A task instance with XComs, and no Airflow behind it."""

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[self.task_id, key] = value

    def xcom_pull(self, task_ids: str, key: str = "return_value", map_indexes: Any = None) -> Any:
        return self.xcoms.get((task_ids, key))


CONTEXT: Any = {
    "dag": SimpleNamespace(task_ids=["load.step", "another.step"]),
    "ti": SimpleNamespace(
        dag_id="dag", run_id="run", map_index=-1, task_id="load.step", get_task_states=lambda **_: {}
    ),
    "dag_run": SimpleNamespace(
        logical_date=None, data_interval_start=None, data_interval_end=None, run_type="manual"
    ),
}


def in_try(number: int, xcoms: dict[tuple[str, str], Any] | None = None) -> Any:
    """The context of a try that may be deferred, or come back: these XComs are kept for it."""
    ti = Instance(**vars(CONTEXT["ti"]) | {"try_number": number, "xcoms": {} if xcoms is None else xcoms})
    return CONTEXT | {"ti": ti}


LOAD = "a.b/ü %"
STEPS = ("begin", "prepare", "decide", "commit", "cleanup")


def connection(monkeypatch: pytest.MonkeyPatch, name: str, conn_type: str, **fields: Any) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": conn_type} | fields))


def operator(step: str, key: str, **arguments: Any) -> Any:
    from airflow_kafka_eos.operators.begin import BeginLoadOperator
    from airflow_kafka_eos.operators.commit import CommitLoadOperator
    from airflow_kafka_eos.operators.decide import DecideLoadOperator
    from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
    from airflow_kafka_eos.sensors import CleanupLoadSensor, LoadedSensor

    if step == "prepare":
        query = None if "job" in arguments else "select 'v' value"
        arguments = {"topics": ["orders"], "sql": query} | arguments
    if step in ("cleanup", "loaded"):
        arguments = {"deferrable": False, "poke_interval": 0.2} | arguments
    if step == "cleanup":
        arguments = {"quiet_period": timedelta(seconds=1)} | arguments
    if step == "loaded":  # no events: there is no run that they could be of
        arguments = {"asset_events": False} | arguments
    kind = {
        "begin": BeginLoadOperator,
        "prepare": PrepareLoadOperator,
        "decide": DecideLoadOperator,
        "commit": CommitLoadOperator,
        "cleanup": CleanupLoadSensor,
        "loaded": LoadedSensor,
    }[step]
    return kind(**{"task_id": step, "load_name": LOAD, "load_key": key} | arguments)


def shares_its_broker() -> None:
    """For a process of its own, what the fixture ``home`` does here: one broker has what all tests have loaded, each
    with a ledger of its own.
    """
    from airflow_kafka_eos.ledger.ledger import Ledger

    Ledger.is_embedded = False  # type: ignore[assignment,method-assign]


def run(step: str, key: str, **arguments: Any) -> Any:
    return operator(step, key, **arguments).execute(CONTEXT)


def refused(step: str, key: str, **arguments: Any) -> str:
    """The text with which a step fails for good, without retries."""
    from airflow.providers.common.compat.sdk import AirflowFailException

    # behind the decision giving up loses the load to the broker's timeout: these are tried again, it may be mended
    kinds: tuple[type[Exception], ...] = (AirflowFailException,)
    if step in ("commit", "cleanup", "loaded"):
        kinds += (AccessError, ConfigurationError)

    with pytest.raises(kinds) as caught:
        run(step, key, **arguments)
    return str(caught.value)


def session(ledger_conn_id: str | None = None) -> Any:
    from airflow_kafka_eos.hooks import KafkaEosHook

    return KafkaEosHook(ledger_conn_id=ledger_conn_id).resolve().session("airflow", timeout_s=20)


def open_ids(key: str) -> list[str]:
    with session() as opened:
        found: list[str] = opened.coordinator.list_open(
            prefix(LoadIdentity("airflow", LOAD, key), opened.ledger.ledger_id)
        )
        return found


def a_prepared_load(
    home: Path,
    kafka: LocalKafka,
    key: str,
    topic_name: str,
    records: int,
    *,
    ledger_conn_id: str | None = None,
    second: tuple[str, int] | None = None,
    name: str = LOAD,
    owner: str = OWNER,
) -> tuple[Any, Path]:
    """Begun, submitted and prepared as Spark would; returns the attempt and where its manifest is.

    :param second: another topic, and how many records go there.
    :param name: the load's.
    :param owner: the part of a run that loads.
    """
    from airflow_kafka_eos.hooks import KafkaEosHook
    from airflow_kafka_eos.kafka.producer.confluent import ConfluentWriter
    from airflow_kafka_eos.kafka.producer.interface import TopicLimits, WriteTarget
    from airflow_kafka_eos.kafka.producer.writers import describe_once
    from airflow_kafka_eos.protocol.stages.begin import begin, record_prepared, reference, submit

    load = LoadIdentity("airflow", name, key)
    with session(ledger_conn_id) as opened:
        begin(opened, load, owner=owner)
        ref = reference(opened, submit(opened, load, owner=owner))
        names = [topic_name] * records + ([second[0]] * second[1] if second else [])
        topics = opened.partitions.topic_info(sorted({topic_name, *names}))
        entry = m.ManifestEntry(0, None, ())
        if records:
            import pyarrow as pa

            its_id = TransactionalId(ref.load, ref.ledger_id, ref.attempt, 0, 0)
            target = WriteTarget(its_id, {t: TopicLimits(1, 10**6) for t in topics}, None, 600_000,
                                 int(time.time() * 1000) + 60_000)  # fmt: skip
            settings = KafkaEosHook().resolve().settings
            writer = ConfluentWriter(settings, target, lambda _: describe_once(settings, its_id))
            writer.open()
            writer.write(pa.RecordBatch.from_pydict({"value": ["v"] * len(names), "topic": names}))
            entry = m.ManifestEntry(0, *writer.prepare())
            writer.close()
        document = m.Manifest(
            ref, "2026-01-01T00:00:00+00:00", "confluent", TransactionScope.TASK, False, 600_000, "test", topics,
            (entry,),
        )  # fmt: skip
        store = ManifestStore(str(home / "kafka_eos_manifests"))
        store.write(ref, m.dump(document))
        record_prepared(opened, document)
    return ref, Path(store.path(ref))


def state(key: str) -> LoadState:
    with session() as opened:
        row = opened.ledger.load(LoadIdentity("airflow", LOAD, key))
        assert row is not None
        found: LoadState = row.state
        return found
