"""``value_format`` under a real spark-submit: the registry's login comes by environment, and is shown nowhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.errortext import printed_error
from airflow_kafka_eos.spark.formats.settings import REGISTRY_VARIABLE, RegistrySettings, ValueFormat
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.spark.formats_registry import Gate, running_registry
from tests.spark.test_application import spark_env, submit

__all__ = ["spark_env"]
SECRET = "registry-word-never-shown"
pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with running_registry(tmp_path) as url:
        made = Gate(url, "user", SECRET)
        yield made
        made.close()


@pytest.fixture
def spec(ref: AttemptRef, tmp_path: Path, topic: Callable[..., str]) -> ApplicationSpec:
    return ApplicationSpec(
        WriteOptions(ref, str(tmp_path / "m"), (topic(1),), 60_000, int(time.time() * 1000) + 120_000),
        sql="select cast(id as string) key, id, 'x' note from range(0, 10, 1, 2)",
        value_format=ValueFormat("confluent-avro"),
    )


def test_the_registry_is_asked_with_the_login_of_the_environment(
    spec: ApplicationSpec, ref: AttemptRef, gate: Gate, kafka: LocalKafka, spark_env: dict[str, str],
    tmp_path: Path,
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    conf = ("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={events.as_uri()}",
            "--conf", "spark.eventLog.compress=false", "--conf", "spark.ui.enabled=false", "--verbose")  # fmt: skip
    right = RegistrySettings.from_mapping({"url": gate.url, "basic.auth.user.info": f"user:{SECRET}"})
    code, out, err = submit(spec, kafka.bootstrap_servers, spark_env | {REGISTRY_VARIABLE: right.to_json()}, *conf)
    assert code == 0, err
    assert ManifestStore(spec.options.manifest_dir).read(ref).records == 10
    logs = [path for path in events.rglob("*") if path.is_file()]
    assert logs
    assert not any(SECRET in text for text in (out, err, *(path.read_text() for path in logs)))


def test_a_refusing_registry_ends_it_before_anything_is_written(
    spec: ApplicationSpec, ref: AttemptRef, gate: Gate, kafka: LocalKafka, spark_env: dict[str, str],
    still_open: Callable[[], list[str]],
) -> None:
    wrong = RegistrySettings.from_mapping({"url": gate.url, "basic.auth.user.info": f"user:not-{SECRET}"})
    code, out, err = submit(
        replace(spec, value_format=ValueFormat("confluent-avro", registration="lookup")),
        kafka.bootstrap_servers, spark_env | {REGISTRY_VARIABLE: wrong.to_json()},
    )  # fmt: skip
    assert code == 1
    kind, said = printed_error(out) or (None, "")
    assert kind is AccessError and "HTTP 401" in said
    assert SECRET not in out + err
    assert still_open() == [] and not ManifestStore(spec.options.manifest_dir).is_written(ref)
