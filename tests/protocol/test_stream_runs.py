"""What a run of Airflow's has to do with a query's batches, at a real broker and a real ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kafka_eos.errors import NotFinishedError, UndecidableError
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.micro_batch import StreamRun
from airflow_kafka_eos.protocol.repair.recover import give_up
from airflow_kafka_eos.protocol.stages import batches
from airflow_kafka_eos.protocol.stages.begin import record_prepared
from airflow_kafka_eos.protocol.stages.stream_runs import (
    BatchesPoll,
    arrival_of_batches,
    committed_batches,
    left_by,
    sweep_left,
)
from tests.protocol.lost import lose
from tests.protocol.test_batches import Died, Query, died, nothing_open
from tests.protocol.test_batches import query as query

pytestmark = pytest.mark.broker

A, B = "dag/a#group=load", "other/b#group=load"
OF_A, OF_B = StreamRun("/checkpoint", "driver 1", A), StreamRun("/checkpoint", "driver 2", B)


def test_a_batch_names_the_run_that_has_started_its_driver(query: Query) -> None:
    batch = query.batch(0)
    row = query.begin(batch, OF_A)
    assert (row.owner, row.submitted_by, row.responsible) == (A, "stream driver 1", A)
    record_prepared(query.world.session, query.write(row, ["a"]), writers_left=True)
    again = query.begin(batch, OF_B)  # behind one that is prepared, whose driver has died
    assert (again.number, again.responsible, again.submitted_by) == (2, B, "stream driver 2")
    by_itself = query.begin(batch, StreamRun("/checkpoint", "driver 3"))
    assert by_itself.responsible == "stream driver 3"


def test_a_run_ends_what_its_own_drivers_have_open_and_nothing_of_another_ones(query: Query) -> None:
    """Rule: up-to-its-own-attempt."""
    ledger, batch = query.world.session.ledger, query.batch(0)
    query.write(query.begin(batch, OF_A), ["dead"])
    at_work = query.begin(batch, OF_B)
    manifest = query.write(at_work, ["b"])
    assert left_by(ledger, "test", query.name, run=A) == {batch.load: 1}
    sweep_left(query.world.session, query.name, run=A, reason="it failed")
    assert sweep_left(query.world.session, query.name, run="", reason="of nobody") == []
    assert [row.verdict for row in ledger.attempts(batch.load)] == [Verdict.ABORT, None]
    query.decide(batch, manifest, OF_B)
    assert query.world.visible() == ["b"]


def test_what_a_dead_driver_has_open_is_undecidable_first_and_then_ended(query: Query) -> None:
    batch = query.batch(0)
    manifest = query.write(query.begin(batch, OF_A), ["a"], ["b"])
    assert len(query.world.open_ids()) == 2
    assert len(sweep_left(query.world.session, query.name, run=A, reason="run failed: killed")) == 2
    nothing_open(query)
    (row,) = query.world.session.ledger.attempts(batch.load)
    assert (row.verdict, row.reason, row.decided_by) == (Verdict.ABORT, "run failed: killed", A)
    with pytest.raises(UndecidableError):
        query.decide(batch, manifest, OF_A)
    assert query.world.visible() == []


def test_what_a_dead_driver_has_decided_is_rolled_forward(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = query.batch(0)
    manifest = query.write(query.begin(batch, OF_A), ["a"])
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(batches, "commit", died)
        query.decide(batch, manifest, OF_A)
    sweep_left(query.world.session, query.name, run=A, reason="it failed")
    nothing_open(query)
    assert query.world.visible() == ["a"]
    assert query.world.session.ledger.attempts(batch.load)[0].verdict is Verdict.COMMIT


def test_the_last_batches_that_are_committed_the_newest_first(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = query.world.session.ledger

    def found(above: int = -1, of: str = "") -> list[int]:
        stream = ledger.stream("test", query.name)
        assert stream is not None

        def go_on(row: AttemptRow) -> bool:
            return row.responsible.startswith(of)

        return [number for number, _ in committed_batches(ledger, stream, above=above, go_on=go_on)]

    query.load(query.batch(0), ["0"], run=OF_A)
    query.load(query.batch(1), ["1"], run=OF_A)
    query.load(query.batch(2), ["2"], run=OF_B)
    assert (found(), found(above=1), found(of="other/"), found(of="dag/")) == ([2, 1, 0], [2], [2], [])
    manifest = query.write(query.begin(query.batch(3), OF_B), ["3"])
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(batches, "commit", died)
        query.decide(query.batch(3), manifest, OF_B)
    assert found() == [2, 1, 0], "the last one is decided, and not there yet"
    with pytest.raises(NotFinishedError):
        arrival_of_batches(query.world.session, "test", query.name, query.query_id, range(2, 4))


def test_one_that_was_given_up_is_passed_over(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    session = query.world.session
    query.load(query.batch(0), ["0"], run=OF_A)
    manifest = query.write(query.begin(query.batch(1), OF_A), ["1"])
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(batches, "commit", died)
        query.decide(query.batch(1), manifest, OF_A)
    for prepared in manifest.prepared:
        lose(query.world, prepared.transaction)
    give_up(session, query.batch(1).load, by="person", reason="gone")
    assert session.ledger.state(query.batch(1).load) is LoadState.GIVEN_UP
    query.load(query.batch(2), ["2"], run=OF_A)
    stream = session.ledger.stream("test", query.name)
    assert stream is not None
    assert [number for number, _ in committed_batches(session.ledger, stream, above=-1)] == [2, 0]
    arrival = arrival_of_batches(session, "test", query.name, query.query_id, range(3))
    assert (arrival["loads"], arrival["records"], arrival["batches"]) == (2, 2, [0, 2])


def test_what_batches_have_brought_together_once_readers_see_it(query: Query) -> None:
    session = query.world.session
    query.load(query.batch(0), ["a", "b"], ["c"], run=OF_A)
    holds = query.write(query.begin(query.batch(1), OF_A), ["held"])
    query.decide(query.batch(1), holds, OF_A)
    poll = BatchesPoll("test", query.name, query.query_id, 0, 1, A)
    assert poll(session) is None
    summary = poll.summary()
    topic = summary["topics"][query.world.topic]
    assert {name: summary[name] for name in ("by", "batches", "loads", "records", "attempts", "query_id")} == {
        "by": A, "batches": [0, 1], "loads": 2, "records": 4, "attempts": 2, "query_id": query.query_id,
    }  # fmt: skip
    assert summary["load"] == f"test/{query.name}/{query.query_id}-0..1"
    assert {batch: of["records"] for batch, of in topic["by_batch"].items()} == {"0": 3, "1": 1}
    assert topic["records"] == 4
    spans = list(topic["by_batch"]["0"]["offsets"].items()) + list(topic["by_batch"]["1"]["offsets"].items())
    for partition, (first, last) in topic["offsets"].items():
        of_it = [span for name, span in spans if name == partition]
        assert [first, last] == [min(s[0] for s in of_it), max(s[1] for s in of_it)]
    none = BatchesPoll("test", query.name, query.query_id, 0, -1, A)
    assert none(session) is None
    assert (none.summary()["batches"], none.summary()["topics"]) == (None, {})


def test_readers_that_are_held_back_are_waited_for(query: Query) -> None:
    other = replace(query, name=f"{query.name}-other", query_id="f" + query.query_id[1:])
    other.write(other.begin(other.batch(0), OF_B), ["a"])  # of the same key, in the same partition
    query.load(query.batch(0), ["a"], run=OF_A)
    poll = BatchesPoll("test", query.name, query.query_id, 0, 0, A)
    assert "readers are held back" in (poll(query.world.session) or "")
    sweep_left(query.world.session, other.name, run=B, reason="it holds")
    nothing_open(query)
    assert poll(query.world.session) is None
