"""A whole load whose claim and manifest are in an object store; the driver logs in by its environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fsspec.config
import pytest

from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.airflow.conftest import home  # noqa: F401
from tests.airflow.steps import open_ids, run, state
from tests.reading import committed_values
from tests.spark.object_store import SECRET, object_store

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.airflow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("scope", ["task", "load"])
def test_a_load_arrives_once_and_leaves_no_file_and_no_secret(
    home: Path,  # noqa: F811
    kafka: LocalKafka,
    topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    scope: str,
) -> None:
    name, key = topic(2), f"object store {scope}"
    with object_store() as store:
        for variable, value in store.environment.items():
            monkeypatch.setenv(variable, value)
        # fsspec reads its variables when it is first imported, which in this process was long ago
        monkeypatch.setitem(fsspec.config.conf, "s3", store.options)
        folder = {"manifest_dir": store.folder()}
        run("begin", key)
        sql = "select cast(id as string) value from range(0, 30, 1, 3)"
        made = run("prepare", key, topics=[name], sql=sql, scope=scope, verbose=True, **folder)
        assert (made["records"], made["manifest"].startswith(folder["manifest_dir"])) == (30, True)
        run("decide", key, **folder)
        run("commit", key)
        run("cleanup", key)
        names = store.filesystem().find(folder["manifest_dir"])
    assert committed_values(kafka.bootstrap_servers, name, 2) == sorted(map(str, range(30)))
    assert (state(key), open_ids(key)) == (LoadState.COMMITTED, [])
    kinds = {"claim", "writing", "json", "once"} | ({"initialising", "identity"} if scope == "load" else set())
    assert {n.split("/")[-1].split(".")[1] for n in names} - {"probe"} == kinds
    assert not (home / "kafka_eos_manifests").exists()
    assert SECRET not in "".join(capfd.readouterr())
