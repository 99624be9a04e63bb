"""What cannot work in a deploy mode is refused before an attempt is taken, and no secret is shown on the way."""

from __future__ import annotations

import json
import os
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, BaseOperator, XComArg

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.operators.submitting import Deployment
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE, SETTINGS_VARIABLE, handed_over
from airflow_kafka_eos.spark.formats.settings import REGISTRY_VARIABLE, RegistrySettings

SECRET = "hunter2-never-shown"
SECRET_KEY = f"spark.kubernetes.driver.secretKeyRef.{SETTINGS_VARIABLE}"
FOLDER = "s3://bucket/folder"


@pytest.mark.parametrize(
    ("master", "mode", "conf", "folder", "says"),
    [
        ("spark://h:7077", "cluster", {}, FOLDER, "YARN and Kubernetes only.*Use deploy mode 'client'"),
        ("spark://h:7077", None, {"spark.submit.deployMode": "cluster"}, FOLDER, "YARN and Kubernetes only"),
        ("local[2]", "cluster", {}, FOLDER, "YARN and Kubernetes only"),
        ("yarn", "cluster", {}, None, "needs a manifest_dir"),
        ("k8s://https://h:1", "cluster", {}, FOLDER, f"nothing brings the Kafka settings.*{SECRET_KEY}"),
        ("yarn", "client", {f"spark.yarn.appMasterEnv.{SETTINGS_VARIABLE}": "x"}, None, "would show"),
        ("k8s://h", "cluster", {f"spark.kubernetes.driverEnv.{SETTINGS_VARIABLE}": "x"}, FOLDER, "would show"),
        ("spark://h:1", "client", {f"spark.executorEnv.{SETTINGS_VARIABLE}": "x"}, None, "would show"),
        ("yarn", "cluster", {f"spark.yarn.appMasterEnv.{REGISTRY_VARIABLE}": "x"}, FOLDER, "would show.*registry"),
        ("k8s://h", "client", {f"spark.kubernetes.driverEnv.{REGISTRY_VARIABLE}": "x"}, None, "REGISTRY_FILE"),
        ("local[2]", None, {f"spark.executorEnv.{REGISTRY_VARIABLE}": "x"}, None, "would show the schema registry's"),
        ("yarn", "client", {f"spark.yarn.appMasterEnv.{LEDGER_VARIABLE}": "x"}, None, "would show the ledger's URL"),
    ],
)
def test_what_cannot_work_is_refused(
    master: str, mode: str | None, conf: dict[str, str], folder: Any, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Deployment(master, mode, conf).check(folder)


@pytest.mark.parametrize(
    ("master", "mode", "conf", "folder"),
    [
        ("local[2]", None, {}, None),
        ("spark://h:7077", "client", {}, None),
        ("yarn", "client", {}, None),
        ("yarn", "cluster", {}, FOLDER),
        ("k8s://https://h:1", "cluster", {SECRET_KEY: "kafka:settings"}, FOLDER),
        ("k8s://h", "cluster", {f"spark.kubernetes.driverEnv.{SETTINGS_VARIABLE}_FILE": "/s/kafka"}, FOLDER),
        ("k8s://h", "cluster", {"spark.kubernetes.driver.podTemplateFile": "t.yaml"}, FOLDER),
    ],
)
def test_what_can_work_is_not(master: str, mode: str | None, conf: dict[str, str], folder: Any) -> None:
    Deployment(master, mode, conf).check(folder)


def prepare(monkeypatch: pytest.MonkeyPatch, host: str, mode: str, **arguments: Any) -> PrepareLoadOperator:
    connection = {"conn_type": "spark", "host": host, "extra": {"deploy-mode": mode}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    load: dict[str, Any] = {"load_name": "l", "load_key": "k", "topics": ["t"], "sql": "SELECT 1"}
    return PrepareLoadOperator(task_id="prepare", conn_id="spark_default", **load, **arguments)


def test_prepare_refuses_before_it_takes_an_attempt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is no ledger and no broker here: it does not come as far."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    task = prepare(monkeypatch, "spark://127.0.0.1:7077", "cluster", manifest_dir=str(tmp_path))
    with pytest.raises(AirflowFailException, match="YARN and Kubernetes only"):
        task.execute({})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("variable", [SETTINGS_VARIABLE, REGISTRY_VARIABLE, LEDGER_VARIABLE])
@pytest.mark.parametrize(
    ("host", "mode", "where"),
    [
        ("yarn", "cluster", "command line"),
        ("yarn", "client", "command line"),
        ("k8s://https://h:1", "cluster", "command line"),
        ("k8s://https://h:1", "client", "command line"),
        ("spark://yarn-1:7077", "client", "command line"),  # the hook looks for the word alone
        ("spark://h:7077", "client", "Airflow's UI"),
        ("local[2]", "client", "Airflow's UI"),
    ],
)
def test_secrets_in_env_vars_are_refused_before_an_attempt_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str, mode: str, where: str, variable: str
) -> None:
    """The hook makes --conf of them, and Airflow keeps its operators' rendered fields."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    # the hook wants Kubernetes' client for such a master, and makes the command without it
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    given = {variable: SECRET}
    task = prepare(monkeypatch, host, mode, manifest_dir=str(tmp_path), conf={SECRET_KEY: "s:k"}, env_vars=given)
    command = " ".join(task._get_hook()._build_spark_submit_command("app.py"))
    assert (f"{variable}={SECRET}" in command) == (where == "command line")
    assert "env_vars" in task.template_fields
    with pytest.raises(AirflowFailException, match=rf"env_vars: {variable} would show.*{where}.*docs/spark\.md") as e:
        task.execute({})
    assert SECRET not in str(e.value)
    assert list(tmp_path.iterdir()) == []


def test_other_env_vars_are_not_and_a_template_is_looked_at_when_it_is_filled_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"HADOOP_CONF_DIR": "/c", f"{SETTINGS_VARIABLE}_FILE": "k"}
    task = prepare(monkeypatch, "yarn", "client", env_vars=given)
    Deployment.of(task._get_hook(), None).check(None)
    with DAG("d", schedule=None):  # what begin may meet
        task = prepare(monkeypatch, "yarn", "client", env_vars=XComArg(BaseOperator(task_id="before")))
    Deployment.of(task._get_hook(), None).check(None)


@pytest.mark.parametrize(
    ("host", "given", "says"),
    [
        ("yarn", {"yarn_track_via_rm_api": True}, "cannot be waited for.*yarn_resourcemanager_webapp_address"),
        ("yarn", {"track_driver_via_k8s_api": True}, "cannot be waited for.*requires Spark master to be Kubernetes"),
        ("yarn", {"wait_in_triggerer": True}, "cannot be left to itself.*yarn_track_via_rm_api"),
    ],
)
def test_what_cannot_be_waited_for_is_refused_before_an_attempt_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str, given: dict[str, Any], says: str
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    task = prepare(monkeypatch, host, "cluster", manifest_dir=str(tmp_path), **given)
    with pytest.raises(AirflowFailException, match=says):
        task.execute({})
    assert list(tmp_path.iterdir()) == []


def test_on_yarn_the_settings_travel_as_files_that_this_user_alone_may_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the command line nor this process's environment has them; the names alone are shown."""
    settings = KafkaSettings.from_mapping({"bootstrap.servers": "h:9", "sasl.password": SECRET})
    registry = RegistrySettings.from_mapping({"url": "http://h:9", "basic.auth.user.info": f"me:{SECRET}"})
    task = prepare(monkeypatch, "yarn", "cluster", files="mine.txt", conf={"spark.x": "1"})
    before = dict(os.environ)
    with task._handed_over(Deployment.of(task._get_hook(), task.conf), settings, registry):
        task._application("{}")
        assert task._hook is not None
        command = task._hook._build_spark_submit_command(task.application)
        assert dict(os.environ) == before
        assert SECRET not in " ".join(command)
        conf = dict(c.split("=", 1) for flag, c in pairwise(command) if flag == "--conf")
        assert (conf["spark.x"], conf["spark.yarn.maxAppAttempts"]) == ("1", "1")
        mine, *shipped = command[command.index("--files") + 1].split(",")
        assert mine == "mine.txt"
        by_name = {Path(path).name: Path(path) for path in shipped}
        there = {}
        for variable in (SETTINGS_VARIABLE, REGISTRY_VARIABLE):
            path = by_name[conf[f"spark.yarn.appMasterEnv.{variable}_FILE"]]
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            there[f"{variable}_FILE"] = str(path)
        assert KafkaSettings.from_json(handed_over(there, SETTINGS_VARIABLE) or "") == settings
        assert RegistrySettings.from_environment(there) == registry
    assert not [path for path in by_name.values() if path.exists()]
    assert (task.files, task.conf) == ("mine.txt", {"spark.x": "1"})


def test_on_kubernetes_nothing_of_ours_is_shipped() -> None:
    """The driver has them from a Kubernetes secret."""
    settings = KafkaSettings.from_mapping({"bootstrap.servers": "h:9", "sasl.password": SECRET})
    task = PrepareLoadOperator(task_id="p", load_name="l", load_key="k", topics=["t"], sql="SELECT 1")
    before = dict(os.environ)
    with task._handed_over(Deployment("k8s://h", "cluster", {}), settings, None):
        assert (dict(os.environ), task.files) == (before, None)


class TestHandedOver:
    """A text in the environment, or in a file that not everybody may read."""

    def file(self, folder: Path, mode: int = 0o600) -> dict[str, str]:
        (folder / "f").write_text(SECRET)
        (folder / "f").chmod(mode)
        return {"V_FILE": str(folder / "f")}

    def test_a_text_or_a_file_or_neither(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert handed_over({"V": "text"}, "V") == "text"
        assert handed_over(self.file(tmp_path), "V") == SECRET
        assert handed_over({}, "V") is None
        monkeypatch.chdir(tmp_path)  # as YARN leaves it in the container's folder
        assert handed_over({"V_FILE": "f"}, "V") == SECRET

    @pytest.mark.parametrize("mode", [0o604, 0o602, 0o666])
    def test_a_file_that_everybody_may_open_is_refused(self, tmp_path: Path, mode: int) -> None:
        with pytest.raises(ConfigurationError, match=r"everybody may read or write.*chmod 600") as caught:
            handed_over(self.file(tmp_path, mode), "V")
        assert SECRET not in str(caught.value)

    def test_both_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="both set"):
            handed_over(self.file(tmp_path) | {"V": "text"}, "V")

    def test_a_file_that_is_not_there_is_named(self) -> None:
        with pytest.raises(ConfigurationError, match=r"V_FILE names /nowhere, which cannot be read.*No such file"):
            handed_over({"V_FILE": "/nowhere"}, "V")

    def test_a_file_that_is_no_text_is_named(self, tmp_path: Path) -> None:
        environment = self.file(tmp_path)
        (tmp_path / "f").write_bytes(b"\xff")
        with pytest.raises(ConfigurationError, match="not UTF-8"):
            handed_over(environment, "V")
