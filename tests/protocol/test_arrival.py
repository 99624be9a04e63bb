"""What a committed load has put into its topics, as those who are told of it get it."""

from __future__ import annotations

import pytest

from airflow_kafka_eos.errors import UndecidableError
from airflow_kafka_eos.protocol.repair.recover import recover
from airflow_kafka_eos.protocol.stages.visible import arrival_of
from tests.protocol.lost import lose, read
from tests.protocol.world import RUN, World


def spans(world: World) -> dict[str, list[int]]:
    """The first and the last offset that an independent reader sees, by partition."""
    offsets: dict[str, list[int]] = {}
    for message in read(world, "read_committed"):
        offsets.setdefault(str(message[0]), []).append(message[1])
    return {partition: [of[0], of[-1]] for partition, of in offsets.items()}


def test_records_and_offsets_of_all_transactions_are_put_together(world: World) -> None:
    world.load_all([str(n) for n in range(20)], [str(n) for n in range(20, 50)])
    found = arrival_of(world.session, world.load)
    assert (found["load"], found["attempt"], found["by"]) == (str(world.load), 1, RUN)
    assert (found["records"], found["repaired"], list(found["topics"])) == (50, 0, [world.topic])
    of_topic = found["topics"][world.topic]
    assert (of_topic["records"], of_topic["offsets"]) == (50, spans(world))
    assert of_topic["bytes"] == 2 * sum(len(str(n)) for n in range(50))  # key and value


def test_what_a_repair_has_replaced_does_not_count(world: World) -> None:
    """Its offsets are those of aborted records: who reads there finds nothing (rule: repair-replaces-lost-row)."""
    manifest = world.prepare([str(n) for n in range(20)])
    world.decide(manifest)
    lose(world, manifest.transactions[0])
    recover(world.session, world.load, by=RUN, deadline_s=60)
    found = arrival_of(world.session, world.load)
    assert (found["records"], found["repaired"]) == (20, 1)
    assert found["topics"][world.topic]["records"] == 20
    assert found["topics"][world.topic]["offsets"] == spans(world)


def test_a_load_without_records_has_no_topics(world: World) -> None:
    world.decide(world.prepare())
    world.commit()
    found = arrival_of(world.session, world.load)
    assert (found["records"], found["topics"]) == (0, {})


def test_what_is_not_decided_has_not_arrived(world: World) -> None:
    world.prepare(["a"])
    with pytest.raises(UndecidableError):
        arrival_of(world.session, world.load)
