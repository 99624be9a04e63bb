"""Each command in docs/, README and our own messages is one: Kafka's are run by its real tools, ours are parsed."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from airflow_kafka_eos.cli import parser
from airflow_kafka_eos.kafka.admin.open_producers import open_producers
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import TopicPartition
from tests.cli.conftest import Command
from tests.cli.test_docs import EVERY
from tests.kafka.open_transactions import wait_until
from tests.kafka_tools import CLASSES, Shell
from tests.protocol.world import World

ROOT = Path(__file__).parents[2]
OURS = ("airflow-kafka-eos ", "airflow kafka-eos ")
#: What a person puts in the place of these.
FILLED = {
    "NAME": "orders", "KEY": "2026-01-01", "SLOT": "7", "ID": "an-id", "T": "orders", "P": "0", "N": "0", "…": "x",
    "PATH": "/x",
}  # fmt: skip


class Written(NamedTuple):
    """A command as a page has it. ``whole``: it stands in a block, to be pasted."""

    page: str
    text: str
    whole: bool

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def written() -> list[Written]:
    found: list[Written] = []
    for page in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]:
        text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
        blocks = re.sub(r"\\\n\s*", "", text)
        found += [Written(page.name, line.strip(), True) for line in re.findall(r"(?m)^ {4}(\S.*)$", blocks)]
        inline = (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text))
        found += [Written(page.name, code, False) for code in inline]
    return list(dict.fromkeys(found))


KAFKAS = [w for w in written() if re.match(r"kafka-[a-z-]+\.sh ", w.text)]
COMMANDS = [w for w in written() if w.text.startswith(OURS) and "COMMAND" not in w.text]
#: `loads give-up NAME KEY --reason …` and the like: a command's name, and something behind it
SHORT = [
    w for w in written() for name in EVERY
    if not w.whole and w.text.startswith(f"{name} ") and re.search(r" (--[a-z]|[A-Z]+( |$))", w.text)
]  # fmt: skip


def in_messages() -> Iterator[Written]:
    """Commands of ours between backticks in any text of the code; what is filled in is ``x``."""
    for path in sorted((ROOT / "airflow_kafka_eos").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(map(_filled_in, node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
                text = node.value
            else:
                continue
            for code in re.findall(r"`([^`]+)`", text):
                if code.startswith(OURS):
                    yield Written(str(path.relative_to(ROOT)), " ".join(code.split()), False)


def _filled_in(part: ast.expr) -> str:
    match part:
        case ast.Constant(value=text):
            return str(text)
        case ast.FormattedValue(value=ast.Attribute(attr="in_command")):  # of LoadIdentity
            return "NAME KEY --namespace x"
    return "x"


def words(text: str) -> list[str]:
    for start in OURS:
        text = text.removeprefix(start)
    return [FILLED.get(word, word) for word in shlex.split(text)]


def refused(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What argparse has against it; a mere name of a command may lack what the command needs."""
    given = words(text)
    try:
        parser().parse_args(given)
    except SystemExit as e:
        said = capsys.readouterr().err
        is_a_name = " ".join(w for w in given if not w.startswith("-") and w != "x") in EVERY
        if e.code and not (is_a_name and "the following arguments are required" in said):
            return said
    return ""


@pytest.mark.parametrize("command", [*COMMANDS, *SHORT], ids=str)
def test_each_command_of_ours_in_docs_is_one(command: Written, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(command.text, capsys) == ""


def test_each_command_of_ours_in_a_message_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    found = [w for w in in_messages() if not re.search(r"eos (x|COMMAND|…)", w.text)]
    assert len(found) > 15
    assert [f"{w}: {said}" for w in found if (said := refused(w.text, capsys))] == []


def test_there_are_some_of_each() -> None:
    assert {w.text.split()[0] for w in KAFKAS} <= set(CLASSES)
    assert len(KAFKAS) >= 6 and len(COMMANDS) >= 30 and len(SHORT) >= 10


HARMLESS = ("loads list", "loads show", "transactions list", "transactions describe", "transactions hanging",
            "ids report", "ledger check", "doctor")  # fmt: skip


@pytest.mark.broker
def test_what_only_looks_works_as_it_is_written(world: World, command: Command, at: tuple[str, str]) -> None:
    """With the names of a real load, cluster and ledger in place of the page's."""
    manifest = world.load_all(["a"])
    real = {
        "an-id": manifest.transactions[0].transactional_id,
        "orders": world.load.name,
        "2026-01-01": world.load.key,
        "orders.load_orders": world.load.name,
        "2026-01-01T00:00:00+00:00": world.load.key,
    }
    ran = 0
    for one in [*COMMANDS, *SHORT]:
        given = [real.get(word, word) for word in words(one.text)]
        name = next((n for n in HARMLESS if " ".join(given).startswith(n)), None)
        needs = {"loads show": 4, "transactions describe": 3}.get(name or "", 0)
        if name is None or len(given) < needs or any("conn-id" in w or w in ("--help", "client.conf") for w in given):
            continue
        if "--topic" in given:
            given[given.index("--topic") + 1] = world.topic
        reads_kafka = name not in ("loads list", "loads show", "ledger check")
        answer = command(*given, *(at if reads_kafka and "--bootstrap-server" not in given else ()))
        assert answer.code in (0, 1), (one, answer)
        ran += 1
    assert ran >= 8


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """With an authorizer, and transaction version 1."""
    from tests.transaction_version import finalize

    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with LocalKafka(broker_settings=settings, data_dir=tmp_path_factory.mktemp("broker")) as running:
        running.create_topic("orders", partitions=1)
        finalize(running.bootstrap_servers, 1)
        yield running


_numbers = itertools.count(1)


@pytest.mark.broker
@pytest.mark.parametrize("command", KAFKAS, ids=str)
def test_each_of_kafkas_commands_in_docs_does_what_is_said(command: Written, broker: LocalKafka, shell: Shell) -> None:
    name = f"foreign-{next(_numbers)}"
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders", b"v")
    assert producer.flush(30) == 0
    place = TopicPartition("orders", 0)
    with Wire(KafkaSettings.from_mapping({"bootstrap.servers": broker.bootstrap_servers})) as wire:
        (before,) = open_producers(wire, [place])
        filled = {
            "--bootstrap-server …": f"--bootstrap-server {broker.bootstrap_servers}",
            "--topic T ": "--topic orders ",
            "--partition P ": "--partition 0 ",
            "--start-offset OFFSET": f"--start-offset {before.txn_start_offset}",
            "--transactionalId ID": f"--transactionalId {name}",
        }
        text = command.text
        for placeholder, real in filled.items():
            text = text.replace(placeholder, real)
        assert "…" not in text and not re.search(r" [A-Z]+$", text), text
        ran = shell(text)
        assert ran.code == 0, ran
        ends = "abort" in text or "forceTerminate" in text
        if ends:
            wait_until(lambda: open_producers(wire, [place]) == [], "the end of the transaction")
        else:
            assert len(open_producers(wire, [place])) == 1
            producer.abort_transaction(30)
    if "kafka-acls" in text:
        listed = shell(f"kafka-acls.sh --bootstrap-server {broker.bootstrap_servers} --list")
        for operation in re.findall(r"--operation (\w+)", text):
            named = re.sub("(?<!^)(?=[A-Z])", "_", operation).upper()
            assert re.search(rf"principal=User:loads.*operation={named}", listed.out), listed
