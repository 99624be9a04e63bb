"""The programs of docs/two-phase-commit.md, as printed, on a real broker and ledger."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_kafka_eos import committables
from airflow_kafka_eos.transaction import PreparedTransaction
from tests.protocol.world import World, foreign_transaction

pytestmark = pytest.mark.broker

PAGE = (Path(__file__).parents[2] / "docs" / "two-phase-commit.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LEDGER = "sqlite:////var/lib/airflow/kafka_eos.db"


def run(program: str, world: World, **given: object) -> None:
    """As printed, but for the addresses."""
    servers = world.settings.bootstrap_servers
    assert "broker:9092" in program
    program = program.replace("broker:9092", servers).replace(LEDGER, str(given.pop("ledger", LEDGER)))
    program = program.replace('namespace="airflow"', f'namespace="{world.load.namespace}"')
    exec(compile(program, "docs/two-phase-commit.md", "exec"), dict(given))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with contextlib.chdir(tmp_path):
        yield tmp_path


def test_there_are_two_programs() -> None:
    assert len(PROGRAMS) == 2 and LEDGER in PROGRAMS[0]


def test_a_decided_transaction_is_completed(
    world: World, ledger_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = world.prepare(["a"])
    world.decide(manifest)
    name = manifest.transactions[0].transactional_id
    run(PROGRAMS[0], world, transactional_id=name, ledger=ledger_url)
    assert capsys.readouterr().out == "commit\n"
    assert (world.visible(), world.open_ids()) == (["a"], [])


def test_what_another_sink_has_prepared_is_committed(
    world: World, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"sink-{world.topic}"
    foreign_transaction(world, name, "theirs")
    given = PreparedTransaction(name, world.session.coordinator.describe([name])[name].state)
    body = committables.write(given)
    (folder / "committables.bin").write_bytes(b"\0\0\0\2" + len(body).to_bytes(4, "big") + body)
    run(PROGRAMS[1], world)
    assert capsys.readouterr().out == f"{given} prepared\n"
    assert world.visible() == ["theirs"]
