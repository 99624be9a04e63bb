"""What Airflow does after a task was killed, and what must be true then, counted by other clients than ours."""

from __future__ import annotations

from enum import Enum

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.protocol.opening import begin
from airflow_kafka_eos.protocol.polling import VisiblePoll
from tests.crashes.victim import ALL, Place
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


def check_all_is_well(world: Place) -> None:
    """Nothing lost, nothing doubled, nothing of ours open, and the ledger says so."""
    assert world.visible() == ALL
    assert held_back(world) == {}
    assert world.open_ids() == []
    row = world.session.ledger.load(world.load)
    assert row is not None and row.state is LoadState.COMMITTED
    attempts = world.session.ledger.attempts(world.load)
    assert [a.number for a in attempts if a.verdict is Verdict.COMMIT] == [attempts[-1].number]
    assert [a.number for a in attempts if a.closed_at is None] == []


def held_back(world: Place) -> dict[int, tuple[int, int]]:
    """Partitions whose last stable offset is not their end, as librdkafka is told: a transaction is open there."""
    admin = AdminClient({"bootstrap.servers": world.settings.for_librdkafka()["bootstrap.servers"]})
    asked = {TopicPartition(world.topic, p): OffsetSpec.latest() for p in _partitions(world)}
    ends = []
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        answers = admin.list_offsets(asked, isolation_level=level)
        ends.append({tp.partition: future.result(30).offset for tp, future in answers.items()})
    stable, end = ends
    return {p: (stable[p], end[p]) for p in end if stable[p] != end[p]}


def _partitions(world: Place) -> range:
    return range(world.session.partitions.topic_info([world.topic])[world.topic].partitions)
