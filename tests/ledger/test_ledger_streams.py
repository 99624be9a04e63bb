"""Queries' names, runs and batches in each of the databases."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from airflow_kafka_eos.errors import (
    ConfigurationError,
    InDoubtError,
    OtherCheckpointError,
    OtherLedgerError,
    SupersededError,
)
from airflow_kafka_eos.ledger import Ledger, migrate, tables
from airflow_kafka_eos.ledger import streams as streams_
from airflow_kafka_eos.ledger.database import Database
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import TransactionNaming, Verdict
from airflow_kafka_eos.micro_batch import MicroBatch, StreamRun
from tests.ledger.ledger_support import manifest, sql

QUERY, OTHER = str(UUID(int=1)), str(UUID(int=2))
FIRST, SECOND = StreamRun("/checkpoint", "driver 1"), StreamRun("/checkpoint", "driver 2")


def batch(number: int, offsets: str = "") -> MicroBatch:
    return MicroBatch("team", "clicks", QUERY, number, offsets or f"o{number}", f"o{number - 1}" if number else None)


def begin(ledger: Ledger, one: MicroBatch, run: StreamRun = FIRST) -> AttemptRow:
    ledger.bind_stream(one, run)
    return ledger.begin_batch(
        one, run, naming=TransactionNaming.POOLING, deadline_ms=2 * 10**12, cluster_id=None
    )


def decide(ledger: Ledger, one: MicroBatch, number: int, run: StreamRun = FIRST) -> AttemptRow:
    made = manifest(ledger, number, one.load, full=0)
    prepared = replace(made, attempt=replace(made.attempt, slot=ledger.attempts(one.load)[-1].slot))
    ledger.mark_prepared(prepared)
    return ledger.decide_commit(
        prepared, decided_by="driver", dual_write=lambda c: streams_.note_decided(c, ledger.ledger_id, one, run)
    )


def test_batches_are_decided_in_their_turn(ledger: Ledger) -> None:
    for number in range(3):
        row = begin(ledger, batch(number))
        assert (row.number, row.verdict, row.slot) == (1, None, number)
        assert decide(ledger, batch(number), 1).verdict is Verdict.COMMIT
    stream = ledger.stream("team", "clicks")
    assert stream is not None
    assert (stream.decided, stream.newest_run, stream.query_id) == (2, 1, QUERY)
    assert ledger.streams("team") == [stream]
    assert begin(ledger, batch(2)).verdict is Verdict.COMMIT
    with pytest.raises(OtherCheckpointError):
        begin(ledger, batch(2, "others"))
    with pytest.raises(InDoubtError):
        begin(ledger, batch(4))
    assert ledger.load(batch(4).load) is None, "what is refused leaves nothing behind"


def test_a_decision_of_an_older_run_is_undone(ledger: Ledger) -> None:
    begin(ledger, batch(0))
    ledger.bind_stream(batch(0), SECOND)
    with pytest.raises(SupersededError):
        decide(ledger, batch(0), 1)
    assert ledger.attempts(batch(0).load)[0].is_undecided
    stream = ledger.stream("team", "clicks")
    assert stream is not None and stream.decided == -1
    with pytest.raises(SupersededError):
        ledger.bind_stream(batch(0), FIRST)


def test_a_name_that_was_set_free_knows_its_old_query_again(ledger: Ledger) -> None:
    begin(ledger, batch(0))
    decide(ledger, batch(0), 1)
    other = MicroBatch("team", "clicks", OTHER, 0, "o0")
    with pytest.raises(OtherCheckpointError):
        ledger.bind_stream(other, FIRST)
    ledger.set_stream("team", "clicks", forget_query=True)
    assert ledger.bind_stream(other, SECOND).decided == -1
    ledger.set_stream("team", "clicks", forget_query=True)
    assert ledger.bind_stream(batch(1), StreamRun("/moved", "driver 3")).decided == 0
    assert ledger.set_stream("team", "none", decided=1) is None
    ledger.set_stream("team", "clicks", forget_query=True)
    with pytest.raises(ConfigurationError, match="is free"):
        ledger.set_stream("team", "clicks", decided=1)


def test_a_run_of_airflows_has_one_name_for_its_query(ledger: Ledger) -> None:
    """Batch 0 is decided, and not noted in the checkpoint; then the DAG is renamed, and the query with it."""
    begin(ledger, batch(0), replace(FIRST, opened_by="dag/run#group=load"))
    decide(ledger, batch(0), 1)
    renamed = replace(batch(0), name="renamed")
    of_airflow = replace(SECOND, opened_by="renamed/run#group=load")
    with pytest.raises(OtherCheckpointError, match="Set load_name='clicks' and namespace='team'"):
        ledger.bind_stream(renamed, of_airflow)
    with pytest.raises(OtherCheckpointError, match="Set load_name='clicks'"):
        ledger.bind_stream(replace(renamed, namespace="other"), of_airflow)
    assert ledger.stream("team", "renamed") is None


def test_a_query_whose_name_was_set_free_begins_under_another_one_where_a_person_says(ledger: Ledger) -> None:
    """Its checkpoint may ask for the very batch that was decided under the old name, and not noted as done."""
    begin(ledger, batch(0))
    decide(ledger, batch(0), 1)
    ledger.set_stream("team", "clicks", forget_query=True)
    renamed = replace(batch(0), name="renamed")
    for _ in range(2):
        assert ledger.bind_stream(renamed, SECOND).decided is None
        with pytest.raises(InDoubtError, match="had another name before"):
            begin(ledger, renamed, SECOND)
    ledger.set_stream("team", "renamed", decided=0)
    assert ledger.pass_over_batch(renamed, SECOND)


def test_a_service_has_one_name_for_its_query(ledger: Ledger) -> None:
    begin(ledger, batch(0))
    decide(ledger, batch(0), 1)
    renamed = replace(batch(0), name="renamed")
    with pytest.raises(OtherCheckpointError, match="Call it 'clicks' in namespace 'team' again"):
        ledger.bind_stream(renamed, SECOND)
    with pytest.raises(OtherCheckpointError, match="Call it 'clicks'") as refused:
        ledger.bind_stream(renamed, replace(SECOND, beside=frozenset({("team", "renamed")})))
    assert "Write that one before it" in refused.value.remedy
    assert ledger.stream("team", "renamed") is None


def test_a_function_of_foreach_batch_may_write_several_frames(ledger: Ledger) -> None:
    begin(ledger, batch(0))
    run = replace(FIRST, beside=frozenset({("team", "clicks"), ("team", "beside")}))
    assert ledger.bind_stream(replace(batch(0), name="beside"), run).decided == -1
    ledger.set_stream("team", "clicks", forget_query=True)
    alone = replace(SECOND, beside=frozenset({("team", "third")}))
    with pytest.raises(OtherCheckpointError, match="known as 'beside'"):
        ledger.bind_stream(replace(batch(0), name="third"), alone)
    ledger.set_stream("team", "beside", forget_query=True)
    assert ledger.bind_stream(replace(batch(0), name="third"), alone).decided == -1


def test_a_deleted_checkpoint_is_told_from_another_querys(ledger: Ledger) -> None:
    """Under another name, all that its source has would be there twice."""
    begin(ledger, batch(0))
    other = replace(batch(0), query_id=OTHER)
    with pytest.raises(OtherCheckpointError, match="the checkpoint was deleted") as deleted:
        ledger.bind_stream(other, FIRST)
    assert "a name of its own" not in deleted.value.remedy
    with pytest.raises(OtherCheckpointError, match=r"with checkpoint /another\. Is it another query") as refused:
        ledger.bind_stream(other, StreamRun("/another", "driver 3"))
    assert "a name of its own" in refused.value.remedy


FUNCTION = replace(FIRST, beside=frozenset({("team", "clicks"), ("team", "beside")}))


@pytest.mark.parametrize(
    ("run", "decided", "goes_back"),
    [(FIRST, 0, False), (FUNCTION, 0, True), (FUNCTION, -1, False)],
    ids=["the data source's", "foreachBatch's", "another sink's before"],
)
def test_how_a_batch_that_was_left_out_is_asked_for_again(
    ledger: Ledger, run: StreamRun, decided: int, goes_back: bool
) -> None:
    """Only where a function has left it out: else the checkpoint is taken back to what was written long since."""
    begin(ledger, batch(0), run)
    if decided == 0:
        decide(ledger, batch(0), 1, run)
    with pytest.raises(InDoubtError, match="is not the next one") as refused:
        begin(ledger, batch(2), run)
    assert ("move commits/1 and offsets/2 out of it" in refused.value.remedy) is goes_back
    assert ("move commits/" in refused.value.remedy) is goes_back


def test_a_batch_that_another_frame_has_behind_it_is_not_asked_for_again(ledger: Ledger) -> None:
    """Spark would plan that one anew, and with other offsets it is refused."""
    beside = [replace(batch(number), name="beside") for number in range(2)]
    begin(ledger, batch(0), FUNCTION)
    for number, one in enumerate(beside):
        begin(ledger, one, FUNCTION)
        decide(ledger, one, 1, FUNCTION)
        if number == 0:
            decide(ledger, batch(0), 1, FUNCTION)
    ledger.set_stream("team", "clicks", decided=-1)
    with pytest.raises(InDoubtError, match="is not the next one") as refused:
        begin(ledger, batch(1), FUNCTION)
    assert "move commits" not in refused.value.remedy
    ledger.set_stream("team", "clicks", decided=0)
    begin(ledger, replace(batch(2), name="beside"), FUNCTION)
    decide(ledger, replace(batch(2), name="beside"), 1, FUNCTION)
    with pytest.raises(InDoubtError, match="is not the next one") as refused:
        begin(ledger, batch(2), FUNCTION)
    assert "Batch 1 cannot be asked for again: 'beside' has later ones" in refused.value.remedy
    assert "--decided 1" in refused.value.remedy


def test_what_a_person_says_of_a_query(ledger: Ledger) -> None:
    for number in range(2):
        begin(ledger, batch(number))
        decide(ledger, batch(number), 1)
    assert not ledger.pass_over_batch(batch(1), FIRST), "the ledger has decided that one itself"
    ledger.set_stream("team", "clicks", decided=3)
    assert not ledger.pass_over_batch(batch(2), FIRST)
    with pytest.raises(InDoubtError, match="older than what a person has said"):
        begin(ledger, batch(2))
    assert ledger.pass_over_batch(batch(3), FIRST)
    assert ledger.pass_over_batch(batch(3), FIRST)
    with pytest.raises(OtherCheckpointError):
        ledger.pass_over_batch(batch(3, "others"), FIRST)
    ledger.bind_stream(batch(3), SECOND)
    with pytest.raises(SupersededError):
        ledger.pass_over_batch(batch(3), FIRST)
    ledger.set_stream("team", "clicks", decided=1)
    for number in (2, 3):
        begin(ledger, batch(number), SECOND)
        decide(ledger, batch(number), 1, SECOND)


def test_behind_a_new_id_a_person_says_which_batch_was_the_last(ledger: Ledger) -> None:
    begin(ledger, batch(0))
    decide(ledger, batch(0), 1)
    ledger.record_committed(batch(0).load, 1)
    ledger.new_id(decided_by="test")
    stream = ledger.stream("team", "clicks")
    assert stream is not None and stream.decided is None
    for number in range(3):
        with pytest.raises(InDoubtError, match="does not know which batches"):
            begin(ledger, batch(number))
    ledger.set_stream("team", "clicks", decided=-1)
    assert begin(ledger, batch(0)).verdict is Verdict.COMMIT, "what is decided is never written again"
    with pytest.raises(InDoubtError):
        begin(ledger, batch(1))
    ledger.set_stream("team", "clicks", decided=0)
    assert begin(ledger, batch(1)).verdict is None


def test_behind_a_new_id_a_run_that_has_opened_the_old_one_is_refused(ledger: Ledger, url: str) -> None:
    """A driver keeps its ledger open from batch to batch."""
    begin(ledger, batch(0))
    decide(ledger, batch(0), 1)
    ledger.record_committed(batch(0).load, 1)
    with Ledger.open(url) as another:
        another.new_id(decided_by="test")
        another.set_stream("team", "clicks", decided=0)
        with pytest.raises(OtherLedgerError, match="new-id"):
            ledger.bind_stream(batch(1), FIRST)
        with pytest.raises(OtherLedgerError, match="new-id"):
            ledger.begin_batch(
                batch(1), FIRST, naming=TransactionNaming.POOLING, deadline_ms=2 * 10**12, cluster_id=None
            )
        assert another.load(batch(1).load) is None
        another.set_stream("team", "clicks", decided=1)
        with pytest.raises(OtherLedgerError, match="new-id"):
            ledger.pass_over_batch(batch(1), FIRST)
        assert another.pass_over_batch(batch(1), FIRST)
        assert begin(another, batch(2), SECOND).verdict is None


def test_a_batch_is_decided_under_the_id_that_its_run_has_opened_only(ledger: Ledger, url: str) -> None:
    """Where the new id comes between the begin and the decision, and did not see the attempt."""
    begin(ledger, batch(0))
    sql(url, "UPDATE kafka_eos_ledger SET ledger_id = 'ffffffffff'")
    with pytest.raises(OtherLedgerError, match="new-id"):
        decide(ledger, batch(0), 1)
    assert ledger.attempts(batch(0).load)[0].is_undecided
    stream = ledger.stream("team", "clicks")
    assert stream is not None and stream.decided == -1


def test_a_doubt_stays_with_its_query_when_the_name_is_set_free(ledger: Ledger) -> None:
    begin(ledger, batch(0))
    decide(ledger, batch(0), 1)
    ledger.record_committed(batch(0).load, 1)
    ledger.put_slot_in_doubt("team", "clicks", 0, "committed, and not decided")
    assert ledger.settle_slot("team", "clicks", 0)
    ledger.set_stream("team", "clicks", forget_query=True)
    ledger.set_stream("team", "clicks", forget_query=True)  # again: nothing happens
    with pytest.raises(InDoubtError, match="does not know which batches"):
        begin(ledger, batch(1))
    ledger.set_stream("team", "clicks", forget_query=True)
    assert begin(ledger, MicroBatch("team", "clicks", OTHER, 0, "o0"), SECOND).verdict is None, "nothing of that one"
    ledger.set_stream("team", "clicks", forget_query=True)
    third = StreamRun("/checkpoint", "driver 3")
    assert ledger.bind_stream(batch(1), third).decided is None
    ledger.set_stream("team", "clicks", decided=0)
    assert begin(ledger, batch(1), third).verdict is None


@pytest.mark.parametrize("by", ["new id", "slot in doubt"])
def test_a_query_whose_name_is_another_ones_is_in_doubt_too(ledger: Ledger, by: str) -> None:
    begin(ledger, batch(0))
    decide(ledger, batch(0), 1)
    ledger.record_committed(batch(0).load, 1)
    ledger.set_stream("team", "clicks", forget_query=True)
    ledger.bind_stream(MicroBatch("team", "clicks", OTHER, 0, "o0"), SECOND)
    if by == "new id":
        ledger.new_id(decided_by="test")
    else:
        ledger.put_slot_in_doubt("team", "clicks", 0, "committed, and not decided")
        assert ledger.settle_slot("team", "clicks", 0)
    ledger.set_stream("team", "clicks", decided=-1)
    ledger.set_stream("team", "clicks", forget_query=True)
    with pytest.raises(InDoubtError, match="does not know which batches"):
        begin(ledger, batch(1), StreamRun("/checkpoint", "driver 3"))


def test_what_a_person_has_said_last_stays_with_the_query(ledger: Ledger) -> None:
    ledger.bind_stream(batch(0), FIRST)
    for decided in (4, 1):
        ledger.set_stream("team", "clicks", decided=decided)
    ledger.set_stream("team", "clicks", forget_query=True)
    assert ledger.bind_stream(batch(2), SECOND).decided == 1


def test_behind_a_slot_in_doubt_a_person_says_which_batch_was_the_last(ledger: Ledger) -> None:
    begin(ledger, batch(0))
    decide(ledger, batch(0), 1)
    ledger.put_slot_in_doubt("team", "clicks", 0, "committed, and not decided")
    with pytest.raises(InDoubtError, match="doubt"):
        begin(ledger, batch(1))
    assert ledger.settle_slot("team", "clicks", 0)
    with pytest.raises(InDoubtError, match="does not know which batches"):
        begin(ledger, batch(1))
    ledger.set_stream("team", "clicks", decided=1)
    assert ledger.pass_over_batch(batch(1), FIRST)


def test_a_ledger_of_revision_0009_gets_the_tables(url: str) -> None:
    for table in (tables.stream_batches, tables.stream_runs, tables.stream_queries, tables.streams):
        sql(url, f"DROP TABLE {table.name}")
    sql(url, f"UPDATE {tables.VERSION_TABLE} SET version_num = '0009'")
    tables.streams.create(Database(url).engine)  # where MySQL was cut off
    migrate.upgrade(url)
    assert migrate.current(url) == tables.REVISION
    with Ledger.open(url) as ledger:
        assert begin(ledger, batch(0)).number == 1
