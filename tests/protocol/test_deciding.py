"""decide believes the manifest only as far as the broker confirms it, and decides once.

Rule: decide-what-is-confirmed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np
import pytest
from confluent_kafka import TopicPartition as Assignment
from confluent_kafka.admin import AdminClient

from airflow_kafka_eos.errors import (
    CheckFailedError,
    ConfigurationError,
    ManifestError,
    NotFinishedError,
    UndecidableError,
)
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest, dump, load
from airflow_kafka_eos.protocol.stages.begin import begin, submit
from airflow_kafka_eos.protocol.stages.decide import Conditions, undecided_attempt
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState
from tests.protocol.world import RUN, World


def _verdict(world: World, number: int) -> Verdict | None:
    row = world.session.ledger.attempt(world.load, number)
    assert row is not None
    return row.verdict


def test_a_confirmed_manifest_is_decided_with_all_its_states(world: World) -> None:
    manifest = world.prepare(["a", "b"], ["c"])
    row = world.decide(manifest)
    assert row.verdict is Verdict.COMMIT
    rows = world.session.ledger.transactions(world.load, 1)
    assert [t.transaction for t in rows] == list(manifest.transactions)
    assert world.visible() == []  # decided, not committed


def test_a_manifest_survives_its_text(world: World) -> None:
    manifest = world.prepare(["a"], ["b"])
    assert load(dump(manifest), manifest.attempt) == manifest


@pytest.mark.parametrize(
    "checks",
    [
        Conditions(min_records=3),
        Conditions(max_records=1),
        Conditions(check=lambda manifest: False),
        Conditions(check=lambda manifest: "no good"),
        Conditions(check=lambda manifest: ""),
        Conditions(check=lambda manifest: np.bool_(False)),
    ],
)
def test_a_refused_load_is_aborted_and_the_next_attempt_goes_through(world: World, checks: Conditions) -> None:
    with pytest.raises(CheckFailedError) as caught:
        world.decide(world.prepare(["a", "b"]), checks)
    assert (caught.value.load, caught.value.attempt) == (str(world.load), 1)
    assert _verdict(world, 1) is Verdict.ABORT
    world.load_all(["c", "d"])
    assert world.visible() == ["c", "d"]


@pytest.mark.parametrize("answer", [None, True, np.bool_(True)])
def test_none_and_true_accept(world: World, answer: object) -> None:
    world.decide(world.prepare(["a"]), Conditions(check=lambda manifest: answer))


@pytest.mark.parametrize("answer", [0, 1, [], ["a problem"], Conditions])
def test_an_answer_that_could_mean_anything_decides_nothing(world: World, answer: object) -> None:
    manifest = world.prepare(["a"])
    with pytest.raises(ConfigurationError, match="returned"):
        world.decide(manifest, Conditions(check=lambda manifest: answer))
    assert _verdict(world, 1) is None


def test_a_check_that_raises_decides_nothing(world: World) -> None:
    def broken(manifest: Manifest) -> None:
        raise RuntimeError("the control table does not answer")

    manifest = world.prepare(["a"])
    with pytest.raises(RuntimeError):
        world.decide(manifest, Conditions(check=broken))
    assert _verdict(world, 1) is None
    world.decide(manifest)


def test_an_empty_load_is_decided_and_committed(world: World) -> None:
    world.load_all()
    assert world.session.ledger.load(world.load).state is LoadState.COMMITTED  # type: ignore[union-attr]


def test_an_empty_load_below_the_minimum_is_refused(world: World) -> None:
    with pytest.raises(CheckFailedError):
        world.decide(world.prepare(), Conditions(min_records=1))


def _wrong_state(m: Manifest) -> Manifest:
    entry = m.entries[0]
    assert entry.transaction is not None
    state = PreparedTxnState(entry.transaction.state.producer_id, entry.transaction.state.producer_epoch + 1)
    other = PreparedTransaction(entry.transaction.transactional_id, state)
    return dataclasses.replace(m, entries=(dataclasses.replace(entry, transaction=other), *m.entries[1:]))


def _wrong_count(m: Manifest) -> Manifest:
    entry = m.entries[0]
    writes = tuple(dataclasses.replace(w, records=w.records - 1) for w in entry.writes)
    return dataclasses.replace(m, entries=(dataclasses.replace(entry, writes=writes), *m.entries[1:]))


def _missing_partition(m: Manifest) -> Manifest:
    entry = m.entries[0]
    return dataclasses.replace(
        m, entries=(dataclasses.replace(entry, writes=entry.writes[:1]), *m.entries[1:])
    )


def _other_topic(m: Manifest) -> Manifest:
    topics = {n: dataclasses.replace(i, topic_id="AAAAAAAAAAAAAAAAAAAAAA") for n, i in m.topics.items()}
    return dataclasses.replace(m, topics=topics)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_wrong_state, "the manifest has"),
        (_wrong_count, "the manifest says"),
        (_missing_partition, "disagree on partitions"),
        (_other_topic, "deleted or recreated"),
    ],
)
def test_what_the_broker_does_not_confirm_is_aborted(world: World, change: object, says: str) -> None:
    manifest = world.prepare([str(n) for n in range(40)])  # enough keys for both partitions
    with pytest.raises(UndecidableError, match=says):
        world.decide(change(manifest))  # type: ignore[operator]
    assert _verdict(world, 1) is Verdict.ABORT


def test_a_manifest_swapped_since_prepare_is_not_decided_though_the_broker_confirms_it(world: World) -> None:
    manifest = world.prepare(["a"])
    with pytest.raises(UndecidableError, match="not the one that prepare reported"):
        world.decide(dataclasses.replace(manifest, writer="another"))
    assert _verdict(world, 1) is None
    world.decide(manifest)


def test_a_transaction_that_somebody_ended_is_not_decided(world: World) -> None:
    manifest = world.prepare(["a"], ["b"])
    world.session.coordinator.end(manifest.transactions[0], Verdict.ABORT)
    with pytest.raises(UndecidableError, match=r"not Ongoing|open as"):
        world.decide(manifest)
    assert world.visible() == []


def test_a_transaction_without_time_left_is_not_decided(world: World) -> None:
    world.timeout_ms = 20_000
    manifest = world.prepare(["a"])
    with pytest.raises(UndecidableError, match="s left"):
        world.decide(manifest, margin_s=60)


def test_a_load_that_is_refused_for_its_time_starts_over_and_says_so(world: World) -> None:
    """FLIP-319's data loss, avoided: aborted while it still could have been committed, and loaded anew."""
    world.timeout_ms = 20_000
    manifest = world.prepare(["too late"])
    with pytest.raises(UndecidableError, match=r"60 s .*Clear prepare.*raise hold_time"):
        world.decide(manifest, margin_s=60)
    row = world.session.ledger.attempt(world.load, 1)
    assert row is not None and row.verdict is Verdict.ABORT and "60 s" in row.reason
    world.timeout_ms = 600_000
    second = world.prepare(["a"])  # its begin ends what the first has left, long before the broker would
    assert second.attempt.attempt == 2
    assert world.open_ids() == [t.transactional_id for t in second.transactions]
    world.decide(second, margin_s=60)
    world.commit()
    assert world.visible() == ["a"]


def test_the_brokers_clock_decides_how_much_time_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose clock is slow believes that there is time; the broker's own clock is asked too."""
    world.timeout_ms = 20_000
    manifest = world.prepare(["a"])
    now = time.time()
    monkeypatch.setattr("airflow_kafka_eos.protocol.stages.decide.time.time", lambda: now - 3600)
    with pytest.raises(UndecidableError, match="by its broker's clock"):
        world.decide(manifest, margin_s=20)


def test_nothing_is_decided_when_the_ledgers_lock_comes_too_late(world: World) -> None:
    manifest = world.prepare(["a"])
    with pytest.raises(NotFinishedError):
        world.session.ledger.decide_commit(manifest, decided_by=RUN, not_after=time.time() - 1)
    assert _verdict(world, 1) is None
    world.decide(manifest)  # a retry of decide


def test_a_topic_that_forgets_before_the_load_is_visible_is_refused(
    world: World, topic: Callable[..., str]
) -> None:
    world.topic = topic(partitions=1, config={"retention.ms": "5000"})
    with pytest.raises(UndecidableError, match="may delete the first records before readers see them"):
        world.decide(world.prepare(["a"]), margin_s=10)


def test_a_load_whose_first_records_are_deleted_already_is_refused(world: World) -> None:
    # what retention.bytes does too: it counts by the high watermark, not by what is committed
    manifest = world.prepare(["a", "b"])
    admin = AdminClient({"bootstrap.servers": world.settings.bootstrap_servers})
    place = manifest.prepared[0].writes[0]
    gone = Assignment(place.topic, place.partition, place.first_offset + 1)
    for future in admin.delete_records([gone]).values():
        future.result(30)
    with pytest.raises(UndecidableError, match=r"are deleted \(retention"):
        world.decide(manifest)
    assert _verdict(world, 1) is Verdict.ABORT


def test_a_superseded_attempt_is_not_decided(world: World) -> None:
    manifest = world.prepare(["a"])
    submit(world.session, world.load, owner="dag/other")
    with pytest.raises(UndecidableError):
        undecided_attempt(world.session, world.load, owner=RUN)
    with pytest.raises(UndecidableError):
        world.decide(manifest)


def test_another_runs_prepared_attempt_is_not_decided(world: World) -> None:
    world.prepare(["a"], owner="dag/other")
    with pytest.raises(UndecidableError, match="another run"):
        undecided_attempt(world.session, world.load, owner=RUN)


def test_a_prepare_marked_success_by_hand_is_no_empty_load(world: World) -> None:
    begin(world.session, world.load, owner=RUN)
    with pytest.raises(UndecidableError, match="not prepared"):
        undecided_attempt(world.session, world.load, owner=RUN)


def test_clearing_only_decide_keeps_the_prepared_attempt(world: World) -> None:
    manifest = world.prepare(["a"])
    assert begin(world.session, world.load, owner=RUN).number == 1  # the setup is cleared along with decide
    assert undecided_attempt(world.session, world.load, owner=RUN).number == 1
    world.decide(manifest)
    world.commit()
    assert world.visible() == ["a"]


@pytest.mark.parametrize("cleared", ["prepare", "decide", "commit"])
def test_clearing_a_task_of_a_committed_load_writes_nothing_again(world: World, cleared: str) -> None:
    manifest = world.load_all(["a"], ["b"])
    before = world.session.partitions.end_offsets(
        sorted({w.topic_partition for e in manifest.entries for w in e.writes})
    )
    assert begin(world.session, world.load, owner=RUN).verdict is Verdict.COMMIT
    if cleared == "prepare":
        assert submit(world.session, world.load, owner=RUN).verdict is Verdict.COMMIT
    if cleared in ("prepare", "decide"):
        assert undecided_attempt(world.session, world.load, owner=RUN).verdict is Verdict.COMMIT
    world.commit()
    assert world.visible() == ["a", "b"]
    assert world.session.partitions.end_offsets(sorted(before)) == before
    assert len(world.session.ledger.attempts(world.load)) == 1


def test_the_manifest_of_another_attempt_is_refused(world: World) -> None:
    manifest = world.prepare(["a"])
    with pytest.raises(ManifestError):
        load(dump(manifest), AttemptRef(world.load, manifest.attempt.ledger_id, 2))


def test_the_broker_timeout_before_the_decision_starts_over(world: World) -> None:
    world.timeout_ms = 1_000
    manifest = world.prepare(["a"])
    until = time.monotonic() + 60
    name = manifest.transactions[0].transactional_id
    while world.session.coordinator.describe([name])[name].is_open:
        assert time.monotonic() < until
        time.sleep(0.2)
    with pytest.raises(UndecidableError):
        world.decide(manifest, margin_s=0)
    world.timeout_ms = 600_000
    world.load_all(["a"])
    assert world.visible() == ["a"]
