"""How commands find cluster and ledger: no secret on the command line or in what is printed."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.cli.durations import milliseconds, text_of
from airflow_kafka_eos.cli.target import add_cluster, settings_of
from airflow_kafka_eos.cli.terminal import FOUND, OK, TRANSIENT, USAGE, code_of, worst
from airflow_kafka_eos.errors import (
    AccessError,
    BrokerUnavailableError,
    ConfigurationError,
    InDoubtError,
    LedgerUnavailableError,
    NotFinishedError,
    UndecidableError,
)
from airflow_kafka_eos.kafka.client.client_properties import read_client_properties
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from tests.cli.conftest import Command
from tests.secured import PASSWORD, Secured


def settings(*arguments: str) -> KafkaSettings:
    parser = argparse.ArgumentParser()
    add_cluster(parser)
    return settings_of(parser.parse_args(arguments))


def test_a_file_of_settings_and_an_address(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# a comment\n\n security.protocol = SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.password=a=b \n")
    assert read_client_properties(file) == {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.password": "a=b",
    }  # fmt: skip
    found = settings("--bootstrap-server", "h:1", "--command-config", str(file))
    assert (found.bootstrap_servers, found.sasl_mechanism) == ("h:1", "PLAIN")
    file.write_text("bootstrap.servers=other:2\n")
    assert settings("--command-config", str(file)).bootstrap_servers == "other:2"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sasl.password", "line 1 of --command-config"),
        ("a=b\n=secret-value", "line 2 of --command-config"),
        ("linger.mss=5\nbootstrap.servers=h:1", "the Kafka setting linger.mss is unknown. Did you mean linger.ms."),
        ("transactional.id=x\nbootstrap.servers=h:1", "transactional.id"),
        ("acks=all", "bootstrap.servers"),
    ],
)
def test_a_bad_file_is_named_without_its_values(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        settings("--command-config", str(file))
    assert problem in str(refused.value) and str(file) in str(refused.value)
    assert "secret-value" not in str(refused.value)


def test_a_missing_file_and_two_clusters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        settings("--command-config", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="stands beside --bootstrap-server"):
        settings("--kafka-conn-id", "k", "--bootstrap-server", "h:1")


def test_an_airflow_connection_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": "h:9"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    assert settings().bootstrap_servers == "h:9"
    with pytest.raises(ConfigurationError, match="--kafka-conn-id 'nowhere': Airflow has no such connection here"):
        settings("--kafka-conn-id", "nowhere")


def test_the_variables_of_a_streams_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a service there may be no Airflow: what its driver goes by is enough; what an argument names wins."""
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"extra": {"bootstrap.servers": "airflow:9"}}))
    monkeypatch.setenv("AIRFLOW_KAFKA_EOS_KAFKA", '{"bootstrap.servers": "h:1", "sasl.password": "secret-value"}')
    assert settings().bootstrap_servers == "h:1"
    assert settings("--bootstrap-server", "other:2").bootstrap_servers == "other:2"
    assert settings("--kafka-conn-id", "kafka_default").bootstrap_servers == "airflow:9"
    for text in ("secret-value", '{"bootstrap.servers": "h:1", "linger.mss": "secret-value"}'):
        monkeypatch.setenv("AIRFLOW_KAFKA_EOS_KAFKA", text)
        with pytest.raises(ConfigurationError, match="AIRFLOW_KAFKA_EOS_KAFKA: the Kafka setting") as refused:
            settings()
        assert "secret-value" not in str(refused.value)
    monkeypatch.delenv("AIRFLOW_KAFKA_EOS_KAFKA")
    file = tmp_path / "kafka.json"
    file.write_text('{"bootstrap.servers": "h:3"}')
    monkeypatch.setenv("AIRFLOW_KAFKA_EOS_KAFKA_FILE", str(file))
    file.chmod(0o600)
    assert settings().bootstrap_servers == "h:3"
    file.write_text("bootstrap.servers=h:3")
    with pytest.raises(ConfigurationError, match=f"AIRFLOW_KAFKA_EOS_KAFKA_FILE, {file}: the Kafka settings are not"):
        settings()


def test_without_airflow_it_says_what_else_names_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"\[kafka_eos\] kafka_conn_id 'kafka_default'") as refused:
        settings()
    assert "--bootstrap-server" in str(refused.value) and "AIRFLOW_KAFKA_EOS_KAFKA" in str(refused.value)


@pytest.fixture
def login(secured: Secured, tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "alice.properties"
    file.write_text("".join(f"{k}={v}\n" for k, v in secured.extra().items()))
    yield file


@pytest.mark.broker
def test_a_login_comes_from_the_file_and_is_never_printed(
    secured: Secured, login: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_KAFKA_EOS_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    assert command("ledger", "upgrade").code == 0
    seen = command("transactions", "list", "--command-config", str(login))
    # alice may describe nothing: what she sees may not be all, and is said not to be
    assert (seen.code, seen.out) == (USAGE, "no open transactions that this login may see\n")
    assert "THIS MAY NOT BE ALL" in seen.err
    login.write_text(login.read_text().replace(PASSWORD, "wr0ng-secret"))
    refused = command("transactions", "list", "--command-config", str(login), "--timeout", "5")
    assert refused.code == USAGE and "AccessError" in refused.err
    login.write_text("bootstrap.servers=127.0.0.1:1\n")
    away = command("transactions", "list", "--command-config", str(login), "--timeout", "1")
    assert away.code == TRANSIENT and "BrokerUnavailableError" in away.err
    for answer in (seen, refused, away):
        assert PASSWORD not in answer.out + answer.err and "wr0ng-secret" not in answer.out + answer.err


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("90s", 90_000), ("15m", 900_000), ("2h", 7_200_000), ("7d", 604_800_000)]
)
def test_durations_are_read(text: str, ms: int) -> None:
    assert milliseconds(text) == ms


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "1.5h", "5w", "5S", "٥s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no duration"):
        milliseconds(text)


def test_durations_are_written_in_two_units() -> None:
    shown = [text_of(ms) for ms in (0, 999, 1000, 90_000, 3_600_000, 3_661_000, 90_061_000, -1500)]
    assert shown == ["0ms", "999ms", "1s", "1m30s", "1h", "1h1m", "1d1h", "-1s"]


@given(st.integers(0, 10**12))
def test_what_is_written_never_says_more(ms: int) -> None:
    shown = text_of(ms)
    parts = re.findall(r"\d+(?:ms|s|m|h|d)", shown)
    total = sum(map(milliseconds, parts))
    assert "".join(parts) == shown and total <= ms < total + max(1000, ms // 20 + 1000)


def test_exit_codes_say_of_what_kind_it_was() -> None:
    assert [code_of(kind("x")) for kind in (InDoubtError, UndecidableError)] == [FOUND, FOUND]
    assert [code_of(kind("x")) for kind in (ConfigurationError, AccessError)] == [USAGE, USAGE]
    transient = (BrokerUnavailableError, LedgerUnavailableError, NotFinishedError)
    assert {code_of(kind("x")) for kind in transient} == {TRANSIENT}
    assert [worst(codes) for codes in ([], [TRANSIENT, FOUND], [USAGE, TRANSIENT], [TRANSIENT])] == [
        OK, FOUND, USAGE, TRANSIENT,
    ]  # fmt: skip
