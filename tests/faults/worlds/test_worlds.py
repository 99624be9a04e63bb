"""A few runs of each world (``make faults WORLD=streams`` plays as many as you want).

Rules: newest-run-begins, batches-in-turn, decided-is-not-written, sweep-at-start, cursor-moves-with-the-decision,
range-is-pinned, one-load-per-cursor.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_kafka_eos.kafka.admin.open_producers import open_producers, write_marker
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import TopicPartition
from tests.faults.environment import Environment
from tests.faults.worlds import stream_plan
from tests.faults.worlds.command import WORLDS, Hands, Tally, chosen, page, told
from tests.faults.worlds.cursor_world import Source
from tests.faults.worlds.outcome import Outcome
from tests.kafka.open_transactions import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(3600)]

#: a worker that dies behind its flush is in the first one, whose transaction nobody had ended; behind the last one's
#: ledger, which is put back, a batch is there in part
STREAMS = (5, 11, 40)
CURSORS = (1, 2)


@pytest.mark.parametrize(
    ("world", "seeds"),
    [
        ("streams", STREAMS),
        pytest.param("streams", (stream_plan.BY_SPARK + 1,), marks=pytest.mark.spark),
        ("cursors", CURSORS),
    ],
    ids=["streams", "streams by Spark", "cursors"],
)
def test_a_few_seeds(world: str, seeds: tuple[int, ...], tmp_path: Path) -> None:
    tally, wrong = Tally(world, len(seeds)), list[str]()

    def note(outcome: Outcome) -> None:
        tally.add(outcome)
        if outcome.violations:
            wrong.append(told(outcome, tally.runs, world))

    with Environment(tmp_path) as environment:
        Hands(WORLDS[world], environment, note).play([WORLDS[world].generate(seed) for seed in seeds], 1)
    assert wrong == [], "\n".join(wrong)
    assert tally.runs == len(seeds)
    assert json.loads(json.dumps(tally.as_values()))["runs"] == len(seeds)
    assert page(tally.as_values()).startswith(f"# World {world}")


def test_what_kafka_takes_back_of_the_source_is_not_due(kafka: LocalKafka, topic: Callable[..., str]) -> None:
    """Its producer was told of a commit, and the partition's log has an abort: no load can have seen the record."""
    at = TopicPartition(topic(partitions=2), 1)
    source = Source(kafka.bootstrap_servers, at.topic)
    source.grow(97)
    wait_until(lambda: len(source.visible()) == 7, "seven records are visible")
    producer = source._producer
    producer.begin_transaction()
    producer.produce(at.topic, "taken back", partition=at.partition)
    producer.flush(60)
    with Wire(KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})) as wire:
        (open_,) = open_producers(wire, [at])
        assert write_marker(wire, open_, Verdict.ABORT)
    producer.commit_transaction(60)
    due = dict(source.committed)
    source.committed[at.partition, open_.txn_start_offset] = "taken back"
    assert source.visible() == due
    source.grow(97)
    wait_until(lambda: len(source.visible()) == 14, "seven more are visible")


def test_seeds_and_scenarios_are_chosen_as_in_a_campaign_of_loads(tmp_path: Path) -> None:
    import random

    world = WORLDS["streams"]
    plans = chosen({"SEED": "7,10..12"}, world, random.Random(1))
    assert [plan.seed for plan in plans] == [7, 10, 11, 12]
    (tmp_path / "one.json").write_text(plans[0].to_json())
    assert chosen({"SCENARIO": str(tmp_path / "one.json")}, world, random.Random(1)) == plans[:1]
    fresh = chosen({"RUNS": "3", "REAL": "2"}, world, random.Random(1))
    assert [plan.engine for plan in fresh] == ["forks"] * 3 + ["spark"] * 2
