"""What was prepared again ends what is not decided of it, whatever becomes of the rest (rule: decide-before-kafka)."""

from __future__ import annotations

import pytest

from airflow_kafka_eos.errors import BrokerUnavailableError, UndecidableError
from airflow_kafka_eos.protocol.repair import reprepare
from airflow_kafka_eos.protocol.repair.reprepare import adopt_all
from tests.kafka.open_transactions import wait_until
from tests.protocol.lost import read, rows, write_rows
from tests.protocol.test_repreparing import lost_and_gone, nothing_is_open, opened, same, written
from tests.protocol.world import World


def test_one_whose_load_is_given_up_meanwhile_says_so_and_leaves_nothing_open(world: World) -> None:
    """Whoever gave it up was killed before Kafka was told."""
    lost_and_gone(world, 1, 0)
    again = opened(world)
    made = written(world, again, same(1))
    world.session.ledger.record_given_up(world.load, by="ada", reason="loaded by hand")
    with pytest.raises(UndecidableError, match="given up"):
        adopt_all(world.session, again, made)
    nothing_is_open(world)


def test_what_other_attempts_left_is_ended_though_the_commit_did_not_succeed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_and_gone(world, 1, 0)
    again = opened(world)
    write_rows(world, again.ref.task_id(0, 7), rows(0, 10))  # type: ignore[arg-type]
    made = written(world, again, same(1))

    def away(*_: object) -> None:
        raise BrokerUnavailableError("nobody answers")

    monkeypatch.setattr(reprepare, "commit_pass", away)
    adopt_all(world.session, again, made)
    wait_until(lambda: world.open_ids() == [made.transactions[0].transactional_id], "the end of the other one")
    world.commit()
    assert len(read(world, "read_committed")) == 40
