"""What Airflow does after a task was killed, and what must be true then, counted by other clients than ours."""

from __future__ import annotations

from enum import Enum

from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.protocol.cleanup.poll import VisiblePoll
from airflow_kafka_eos.protocol.stages.begin import begin
from tests.crashes.reader import Reader
from tests.crashes.victim import ALL, PARTS, Place
from tests.protocol.world import RUN


class Recovery(str, Enum):
    """Who comes first."""

    #: the task's own retry, or a person who clears it
    RETRY = "retry"
    #: the run's teardown; the run is cleared afterwards
    CLEANUP = "cleanup"


def recover(world: Place, first: Recovery) -> None:
    """Whatever the state of the load: every step again, none of them told what happened."""
    if first is Recovery.CLEANUP:
        world.clean()
    row = begin(world.session, world.load, owner=RUN)
    if row.verdict is not Verdict.COMMIT:
        world.decide(world.kept(row.number) if row.is_prepared else world.prepare_all())
    world.commit()
    world.clean()
    visible = VisiblePoll(world.load)
    world.until_done(lambda: visible(world.session))


def check_all_is_well(world: Place, reader: Reader) -> None:
    """Nothing lost, nothing doubled, nothing of ours open, and the ledger says so."""
    assert reader.committed(world.topic, len(PARTS)) == ALL
    assert reader.held_back(world.topic, len(PARTS)) == {}
    assert world.open_ids() == []
    row = world.session.ledger.load(world.load)
    assert row is not None and row.state is LoadState.COMMITTED
    attempts = world.session.ledger.attempts(world.load)
    assert [a.number for a in attempts if a.verdict is Verdict.COMMIT] == [attempts[-1].number]
    assert [a.number for a in attempts if a.closed_at is None] == []
    # no time ran out here: what was repaired, somebody of ours had aborted behind the decision
    assert world.session.ledger.repairs(world.load) == []
