"""``doctor`` on the command line: what it prints for people and for programs, and what its exit codes mean."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_kafka_eos.cli import main
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from tests.doctor.patients import new_ledger

SECRET = "hunter2-never-shown"
NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def ledger_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = new_ledger(tmp_path)
    monkeypatch.setenv(LEDGER_VARIABLE, url)
    return url


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """The command silences loggers for good: its process ends with it, this one does not."""
    loggers = [logging.getLogger(name) for name in ("kafka", "alembic")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def test_without_an_error_the_exit_code_is_0_and_each_warning_comes_with_its_remedy(
    kafka: LocalKafka, topic: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "client.conf"
    config.write_text("# as for loads\n\nmessage.max.bytes = 900000\n")
    name = topic(1)
    arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--command-config", str(config), "--topic", name]
    # a namespace of its own: other tests' ledgers have ids in the default one
    arguments += ["--namespace", name, "--spark-conf", "spark.executor.cores=2"]
    assert main(["doctor", *arguments]) == 0
    out = capsys.readouterr().out
    head, _, *rows = out.splitlines()
    assert head.split() == ["check", "result", "subject", "seen"]
    assert ["cluster-reachable", "ok", "Kafka", kafka.bootstrap_servers] in [row.split()[:4] for row in rows]
    assert "message.max.bytes=900000" in out
    assert f"\nwarning: topic-replication, topic {name}\n  replicas: 1, brokers: 1\n  Too few copies" in out
    assert "  -> Run 3 brokers or more; doctor then prints the command that makes 3 replicas" in out


def test_with_an_error_it_is_1_and_programs_read_json(
    kafka: LocalKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"bootstrap.servers": kafka.bootstrap_servers}
    monkeypatch.setenv("AIRFLOW_CONN_HERE", json.dumps({"conn_type": "kafka", "extra": extra}))
    spark = {"conn_type": "spark", "extra": {"spark.speculation": "true", "queue": "x"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps(spark))
    arguments = ["--kafka-conn-id", "here", "--topic", "nowhere", "--spark-conn-id", "spark", "--scope", "load"]
    assert main(["doctor", *arguments, "--output", "json"]) == 1
    found = {f["id"]: f for f in json.loads(capsys.readouterr().out)}
    assert found["topic-exists"] == {
        "id": "topic-exists",
        "severity": "error",
        "subject": "topic nowhere",
        "seen": "there is no such topic",
        "means": "Loads into it fail in prepare",
        "remedy": f"kafka-topics.sh --bootstrap-server {kafka.bootstrap_servers} --create --topic nowhere "
        "--partitions 6 --replication-factor 1",
    }
    assert found["spark-speculation"]["severity"] == "error"


def test_nothing_reached_is_3(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEDGER_VARIABLE, f"postgresql://someone:{SECRET}@127.0.0.1:1/x")
    assert main(["doctor", "--bootstrap-server", NOBODY, "--timeout", "1"]) == 3
    out = capsys.readouterr().out
    assert "error: cluster-reachable" in out and "error: ledger-reachable" in out
    assert SECRET not in out


def test_the_ledger_alone_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--bootstrap-server", NOBODY, "--timeout", "1"]) == 1
    assert "error: cluster-reachable" in capsys.readouterr().out


def test_without_arguments_it_looks_at_kafka_default(
    kafka: LocalKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    assert main(["doctor"]) == 2
    assert "'kafka_default': Airflow has no such connection here" in capsys.readouterr().err
    extra = {"bootstrap.servers": kafka.bootstrap_servers}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    main(["doctor"])
    rows = [row.split()[:4] for row in capsys.readouterr().out.splitlines()]
    assert ["cluster-reachable", "ok", "Kafka", kafka.bootstrap_servers] in rows


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--command-config <here>/none", "--command-config <here>/none cannot be read: No such file"),
        ("--command-config <here>/bad.conf", "line 2 of --command-config <here>/bad.conf is not key=value"),
        ("--command-config <here>/typo.conf", "<here>/typo.conf: the Kafka setting acks is '0'"),
        ("--bootstrap-server nowhere", "--bootstrap-server: the Kafka setting bootstrap.servers is 'nowhere'"),
        ("--kafka-conn-id nowhere", "--kafka-conn-id 'nowhere': Airflow has no such connection"),
        ("--spark-conf spark.speculation", "--spark-conf: entry 1 is not key=value"),
    ],
)
def test_bad_usage_is_2(arguments: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.conf").write_text(f"bootstrap.servers={NOBODY}\n{SECRET}\n")
    (tmp_path / "typo.conf").write_text(f"bootstrap.servers={NOBODY}\nacks=0\n")
    assert main(["doctor", *arguments.replace("<here>", str(tmp_path)).split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"ConfigurationError: {says.replace('<here>', str(tmp_path))}" in line
    assert SECRET not in line
