"""``ids``: what brokers keep, and a slot in doubt that only a person settles."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_kafka_eos.load import LoadIdentity
from tests.cli.conftest import Command
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.world import World

pytestmark = pytest.mark.broker


@pytest.fixture
def pooled(world: World) -> PooledWorld:
    made = PooledWorld(world.session, world.settings, world.topic, world.load)
    return replace(made, load=LoadIdentity("airflow", f"orders of {world.topic}", "one"))


def test_the_report_counts_by_load_name(pooled: PooledWorld, command: Command, at: tuple[str, str]) -> None:
    assert command("ids", "report", *at).out.startswith("no ids\n")
    pooled.load_all(["a"], ["b"])
    answer = command("ids", "report", "--output", "json", *at)
    report = json.loads(answer.out)
    (row,) = report["names"]
    assert (answer.code, report["ids"], report["expiration_ms"]) == (0, 2, 604_800_000)
    assert {k: v for k, v in row.items() if k not in ("oldest_s", "bytes")} == {
        "name": pooled.load.name, "ids": 2, "pooled": 2, "incrementing": 0,
        "slots": 1, "leased": 0, "quarantined": 0, "in_doubt": 0, "slots_in_doubt": [], "expired": 0,
    }  # fmt: skip
    shown = command("ids", "report", *at).out
    assert pooled.load.name in shown and "2 ids, about 1 KiB" in shown and "7 days" in shown


def test_a_slot_in_doubt_is_settled_by_a_person_only(
    pooled: PooledWorld, command: Command, at: tuple[str, str]
) -> None:
    name = pooled.load.name
    answer = command("ids", "settle", name, "0", "--yes")
    assert (answer.code, "not in doubt" in answer.err) == (2, True)
    pooled.load_all(["a"])
    pooled.session.ledger.put_slot_in_doubt("airflow", name, 0, "committed as 7:8")
    assert command("ids", "report", *at).code == 1
    (row,) = json.loads(command("ids", "report", "--output", "json", *at).out)["names"]
    assert row["slots_in_doubt"] == [0], "the argument of the next command"
    answer = command("ids", "settle", name, "0")
    assert (answer.code, "committed as 7:8" in answer.err) == (2, True)
    assert pooled.slot().doubt is not None
    assert command("ids", "settle", name, "0", "--yes").code == 0
    assert pooled.slot().doubt is None
