"""Two committers at once: the one whose look is older finds the load COMMITTED, which it wanted.

Rule: committed-is-verified.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.find_markers import Evidence
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.protocol.repair.copy import repair
from airflow_kafka_eos.transaction import Marker, TransactionDescription
from tests.protocol.lost import decided, lose, state
from tests.protocol.test_repairing import all_there_once
from tests.protocol.world import World


def test_the_slower_of_two_committers_is_done_when_the_other_has_repaired_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list of the lost is older than the COMMITTED of the other: that is no error, the load is there."""
    manifest = decided(world, 3)
    for t in manifest.transactions:
        lose(world, t)
    seen = list[str]()

    def overtaken(*arguments: Any, **named: Any) -> bool:
        lost = arguments[3].transaction.transactional_id
        if not seen:
            monkeypatch.setattr("airflow_kafka_eos.protocol.stages.commit.repair", repair)
            world.commit()
            monkeypatch.setattr("airflow_kafka_eos.protocol.stages.commit.repair", overtaken)
            assert state(world) is LoadState.COMMITTED
        seen.append(lost)
        return repair(*arguments, **named)

    monkeypatch.setattr("airflow_kafka_eos.protocol.stages.commit.repair", overtaken)
    assert world.commit().closed_at is not None
    assert len(seen) == 3
    all_there_once(world, manifest)
    assert len(world.session.ledger.repairs(world.load)) == 3


def test_a_stale_look_at_mixed_markers_puts_no_committed_load_in_doubt(world: World) -> None:
    """Recorded in doubt, seen to be clear and committed by another, and only then said."""
    manifest = decided(world, 2)
    mixed = manifest.transactions[1]

    class Stale(Partitions):
        def markers_of(self, *arguments: Any) -> Evidence:
            found, error, _ = super().markers_of(*arguments)
            for number, by in enumerate(found.values()):
                for one in by:
                    if one.producer_id == mixed.state.producer_id:
                        by[one] = [Marker.COMMIT, Marker.ABORT][number]
            return Evidence(found, error)

    class Slow(Coordinator):
        def describe(self, ids: Iterable[str]) -> dict[str, TransactionDescription]:
            asked = list(ids)
            if asked == [mixed.transactional_id]:  # for the hint to a person
                world.commit()
            return super().describe(asked)

    with Wire(world.settings, timeout_s=60) as wire:
        slow = Slow(wire, namespace="test", ledger_id=world.session.ledger.ledger_id)
        blind = replace(world.session, partitions=Stale(world.session.partitions.wire), coordinator=slow)
        assert replace(world, session=blind).commit().closed_at is not None
    all_there_once(world, manifest)
