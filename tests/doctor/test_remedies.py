"""What the doctor prints is pasted into a shell, with Kafka's real tools, and mends what it is about."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_kafka_eos.cli import main
from airflow_kafka_eos.doctor.commands import ADMIN_CONFIG, Commands, in_remedy
from airflow_kafka_eos.doctor.examine import Examination
from airflow_kafka_eos.doctor.finding import Finding, Severity
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from tests.acls import allow_exactly
from tests.doctor.patients import NAMESPACE, asked, broken_broker, examined, new_ledger, of, settings_of
from tests.doctor.test_access import ALL, CASES, PRINCIPAL, TOPIC, Case
from tests.kafka_tools import Shell
from tests.secured import Secured

pytestmark = pytest.mark.broker


@pytest.fixture
def at(
    secured: Secured, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """How the doctor is asked as ``loader``; an administrator's login is where the commands look for it."""
    monkeypatch.setenv(LEDGER_VARIABLE, new_ledger(tmp_path))
    config = tmp_path / "client.conf"
    config.write_text("".join(f"{key}={value}\n" for key, value in secured.loader_extra().items()))
    (shell.folder / ADMIN_CONFIG).write_text(secured.admin_properties())
    yield ["--command-config", str(config), "--namespace", NAMESPACE, "--topic", TOPIC]
    (shell.folder / ADMIN_CONFIG).unlink()
    allow_exactly(secured.plain, PRINCIPAL, ())


def said(at: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["doctor", *at])
    return code, capsys.readouterr().out


def printed(out: str) -> list[str]:
    """The commands in it, as people copy them."""
    lines = (line.removeprefix("  -> ").strip() for line in out.splitlines() if line.startswith(("  -> ", "     ")))
    return list(dict.fromkeys(line for line in lines if line.startswith(("kafka-", "airflow-kafka-eos"))))


def about(out: str, case: Case) -> bool:
    """Whether it says of one of the checks what the missing ACL makes it say."""
    return any(f"\n{case.severity.value}: {id}, " in out for id in case.ids)


@pytest.mark.parametrize("name", CASES)
def test_each_acl_that_is_missing_is_granted_by_what_is_printed(
    name: str, secured: Secured, shell: Shell, at: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    allow_exactly(secured.plain, PRINCIPAL, ALL - case.taken)
    _, out = said(at, capsys)
    assert about(out, case), out
    commands = printed(out)
    assert commands and f"{ADMIN_CONFIG} has the login of an administrator" in out
    for _ in range(3):  # what was hidden by the first may need another
        for command in commands:
            ran = shell(command)
            assert ran.code == 0, ran
        code, out = said(at, capsys)
        commands = [c for c in printed(out) if c.startswith("kafka-acls.sh")]
        if not commands:
            break
    assert code == 0 and not about(out, case), out


def test_whoever_has_not_all_is_helped_from_nothing(
    secured: Secured, shell: Shell, at: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    allow_exactly(secured.plain, PRINCIPAL, ())
    for _ in range(4):
        code, out = said(at, capsys)
        for command in [c for c in printed(out) if c.startswith("kafka-acls.sh")]:
            ran = shell(command)
            assert ran.code == 0, ran
    assert code == 0 and "acl-" not in "".join(line for line in out.splitlines() if ": acl-" in line), out


def settled(found: Examination, ids: set[str]) -> list[Finding]:
    return [f for f in found.findings if f.id in ids and f.severity is not Severity.OK]


def test_what_is_wrong_with_a_broker_and_its_topics_is_mended(shell: Shell, tmp_path: Path) -> None:
    """All findings of the broken broker that one command can mend."""
    url = new_ledger(tmp_path)
    with broken_broker(tmp_path / "broker", "0123456789") as (kafka, _):
        settings = settings_of(kafka.bootstrap_servers)
        question = asked("sick", "nowhere")
        found = examined(settings, url, question)
        commands = [command for f in found.findings for command in in_remedy(f.remedy)]
        ids = {f.id for f in found.findings if in_remedy(f.remedy)}
        assert ids >= {"transaction-version", "topic-exists", "topic-min-insync", "topic-unclean-election",
                       "topic-retention", "topic-retention-bytes", "topic-message-size"}  # fmt: skip
        for command in commands:
            ran = shell(command)
            assert ran.code == 0, ran
        assert settled(examined(settings, url, question), ids - {"topic-replication"}) == []


def test_more_replicas_are_made(shell: Shell, tmp_path: Path) -> None:
    url = new_ledger(tmp_path)
    with LocalKafka(brokers=3) as kafka:
        new = NewTopic("single", num_partitions=4, replication_factor=1)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([new])["single"].result(30)
        settings = settings_of(kafka.bootstrap_servers)
        finding = of(examined(settings, url, asked("single")), "topic-replication", "single")
        assert finding.severity is Severity.ERROR
        (command,) = in_remedy(finding.remedy)
        ran = shell(command)
        assert ran.code == 0, ran
        for _ in range(60):
            after = of(examined(settings, url, asked("single")), "topic-replication", "single")
            if after.severity is Severity.OK:
                break
        assert after.seen == "replicas: 3, brokers: 3"


def test_a_ledger_without_tables_is_made_by_what_is_printed(
    kafka: LocalKafka,
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    connection = {"conn_type": "sqlite", "host": str(tmp_path / "ledger.db")}
    monkeypatch.setenv("AIRFLOW_CONN_MY_LEDGER", json.dumps(connection))
    where = ["--bootstrap-server", kafka.bootstrap_servers, "--namespace", tmp_path.name]
    asked = ["doctor", "--conn-id", "my_ledger", *where]
    assert main(asked) == 1
    (command,) = (line for line in printed(capsys.readouterr().out) if line.startswith("airflow-kafka-eos ledger"))
    assert command == "airflow-kafka-eos ledger upgrade --conn-id my_ledger"
    ran = shell(command)
    assert ran.code == 0, ran
    assert main(asked) == 0


@pytest.mark.parametrize(
    ("extra", "principal"),
    [
        ({}, "User:ANONYMOUS"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "al; ice"},
            "'User:al; ice'",
        ),
        ({"security.protocol": "SSL"}, "PRINCIPAL"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "PRINCIPAL"),
    ],
)
def test_the_principal_is_named_or_asked_for(extra: dict[str, str], principal: str, shell: Shell) -> None:
    commands = Commands.of(KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1", **extra}))
    command = commands.allow("WRITE", "topic", "orders")
    assert principal in command
    if principal == "PRINCIPAL":
        ran = shell(command)
        assert ran.code != 0 and "set it to the name that brokers log this login by" in ran.err
        assert shell(f"PRINCIPAL='CN=loads'; printf '<%s>' {command}").out.count("<User:CN=loads>") == 1
    assert shell(f"printf '<%s>' {command}", PRINCIPAL="x").out.startswith("<kafka-acls.sh><--bootstrap-server>")
