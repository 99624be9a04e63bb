"""A ledger restored to before a repair repairs nothing again: the broker knows the repair.

Rule: unknown-commit-stops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import InDoubtError, NotFinishedError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.protocol.repair.recover import recover
from airflow_kafka_eos.protocol.repair.reprepare import adopt_all, open_repreparation
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.begin import submit
from tests.protocol.lost import decided, lose, read, state
from tests.protocol.test_repreparing import gone, opened, same, written
from tests.protocol.test_restored import backup, checkpoint, restored
from tests.protocol.test_restored import own as own
from tests.protocol.world import RUN, World

pytestmark = pytest.mark.broker


def copied(own: World, folder: Path) -> None:
    manifest = decided(own, 3)
    checkpoint(own)
    backup(folder)
    lose(own, manifest.transactions[1])
    own.commit()


def prepared_again(own: World, folder: Path) -> None:
    manifest = decided(own, 3)
    gone(own, manifest, 1)
    checkpoint(own)
    backup(folder)
    again = opened(own)
    adopt_all(own.session, again, written(own, again, same(3)))
    own.commit()


@pytest.mark.parametrize("repaired", [copied, prepared_again])
def test_what_was_repaired_behind_the_backup_is_not_repaired_again(
    own: World, tmp_path: Path, repaired: Callable[[World, Path], None]
) -> None:
    repaired(own, tmp_path)
    assert state(own) is LoadState.COMMITTED
    before = read(own, "read_committed")
    old = restored(own, tmp_path)
    behind = replace(own, session=old)
    for work in (
        behind.commit,
        lambda: recover(old, own.load, by="ada", deadline_s=30),
    ):
        with pytest.raises(InDoubtError, match=r"has not decided what the broker shows.*give-up") as caught:
            work()
        assert caught.value.load == str(own.load)
    # a cleared prepare leaves it to a person
    assert open_repreparation(old, submit(old, own.load, owner=RUN), by="prepare", hold_time_ms=600_000) is None
    assert old.ledger.repairs(own.load) == []
    assert (own.open_ids(), read(own, "read_committed")) == ([], before)
    old.ledger.close()


def test_a_repair_that_is_open_and_unknown_is_not_ended_by_another(own: World, tmp_path: Path) -> None:
    """It may be decided: whoever adopted it sends EndTxn any moment."""
    manifest = decided(own, 2)
    gone(own, manifest, 1)
    checkpoint(own)
    backup(tmp_path)
    again = opened(own)
    made = written(own, again, same(2))
    old = restored(own, tmp_path)
    with pytest.raises(InDoubtError, match="has given 1 attempts"):
        replace(own, session=old).commit()
    assert own.open_ids() == [made.transactions[0].transactional_id]
    old.ledger.close()
    adopt_all(own.session, again, made)
    own.commit()


class Moving(Coordinator):
    """One is away, and what it has is on no listing."""

    def epochs(self) -> None:
        return None

    def list_committed(self, prefix: str) -> list[str]:
        return []


def test_a_listing_that_may_hide_a_repair_is_no_leave_to_repair(own: World, tmp_path: Path) -> None:
    copied(own, tmp_path)
    old: Session = restored(own, tmp_path)
    moving = Moving(own.session.partitions.wire, namespace="test", ledger_id=own.session.ledger.ledger_id)
    with pytest.raises(NotFinishedError, match="moving or away"):
        replace(own, session=replace(old, coordinator=moving)).commit(deadline_s=1)
    assert old.ledger.repairs(own.load) == []
    old.ledger.close()
