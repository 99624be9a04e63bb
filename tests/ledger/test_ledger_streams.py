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


def decide(
    ledger: Ledger, one: MicroBatch, number: int, run: StreamRun = FIRST, *, committed: bool = True
) -> AttemptRow:
    made = manifest(ledger, number, one.load, full=0)
    prepared = replace(made, attempt=replace(made.attempt, slot=ledger.attempts(one.load)[-1].slot))
    ledger.mark_prepared(prepared)
    row = ledger.decide_commit(
        prepared, decided_by="driver", dual_write=lambda c: streams_.note_decided(c, ledger.ledger_id, one, run)
    )
    return ledger.record_committed(one.load, number) if committed else row


def free(ledger: Ledger, name: str, namespace: str = "team") -> None:
    ledger.set_stream(namespace, name, forget_query=True)


def test_batches_are_decided_in_their_turn(ledger: Ledger) -> None:
    for number in range(3):
        row = begin(ledger, batch(number))
        assert (row.number, row.verdict, row.slot) == (1, None, number)
        assert decide(ledger, batch(number), 1, committed=False).verdict is Verdict.COMMIT
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
    renamed = replace(batch(0), namespace="other", name="re named")
    for _ in range(2):
        assert ledger.bind_stream(renamed, SECOND).decided is None
        with pytest.raises(InDoubtError, match="had another name before") as stopped:
            begin(ledger, renamed, SECOND)
    assert "under 'clicks' in namespace 'team' the last one is 0" in stopped.value.message
    assert "`airflow-kafka-eos streams set 're named' --namespace other --decided N`" in stopped.value.remedy
    ledger.set_stream("other", "re named", decided=0)
    assert ledger.pass_over_batch(renamed, SECOND)


def named(number: int, name: str) -> MicroBatch:
    return replace(batch(number), namespace="team" if name == "clicks" else "other", name=name)


@pytest.mark.parametrize("before", [-1, 0], ids=["nothing decided before", "a batch before"])
def test_a_query_that_comes_back_to_its_name_has_not_forgotten_what_it_decided_under_another_one(
    ledger: Ledger, before: int
) -> None:
    """Its driver died behind the decision: its checkpoint asks for the same batch once more."""
    if before == 0:
        begin(ledger, batch(0))
        decide(ledger, batch(0), 1)
    else:
        ledger.bind_stream(batch(0), FIRST)
    free(ledger, "clicks")
    now = before + 1
    ledger.bind_stream(named(now, "renamed"), SECOND)
    if before == 0:
        ledger.set_stream("other", "renamed", decided=0)
    begin(ledger, named(now, "renamed"), SECOND)
    decide(ledger, named(now, "renamed"), 1, SECOND)
    free(ledger, "renamed", "other")
    third = StreamRun("/checkpoint", "driver 3")
    with pytest.raises(InDoubtError, match="had another name before"):
        begin(ledger, batch(now), third)
    ledger.set_stream("team", "clicks", decided=now)
    assert ledger.pass_over_batch(batch(now), third)
    begin(ledger, batch(now + 1), third)
    decide(ledger, batch(now + 1), 1, third)
    free(ledger, "clicks")
    assert ledger.bind_stream(batch(now + 1), third).decided == now + 1, "no other name has later ones"


def test_of_three_names_the_last_one_counts(ledger: Ledger) -> None:
    runs = [StreamRun("/checkpoint", f"driver {number}") for number in range(4)]
    for number, name in enumerate(("clicks", "second", "third")):
        one = named(number, name)
        bound = ledger.bind_stream(one, runs[number])
        if number:
            assert bound.decided is None
            ledger.set_stream(one.namespace, name, decided=number - 1)
        begin(ledger, one, runs[number])
        decide(ledger, one, 1, runs[number])
        free(ledger, name, one.namespace)
    assert ledger.bind_stream(named(2, "second"), runs[3]).decided is None
    free(ledger, "second", "other")
    assert ledger.bind_stream(named(2, "third"), runs[3]).decided is None, "of 'second' nobody has said anything"


def test_a_frame_that_comes_back_is_not_in_doubt_for_the_others_sake(ledger: Ledger) -> None:
    beside = replace(batch(0), name="beside")
    begin(ledger, batch(0), FUNCTION)
    decide(ledger, batch(0), 1, FUNCTION)
    free(ledger, "clicks")
    ledger.bind_stream(batch(0), FUNCTION)
    assert ledger.bind_stream(beside, FUNCTION).decided == -1, "it has 0, which is another frame's"
    free(ledger, "beside")
    assert ledger.bind_stream(beside, FUNCTION).decided == -1


def test_nothing_is_said_of_a_query_while_a_batch_of_it_is_under_way(ledger: Ledger) -> None:
    """Readers do not see it yet: who looks at the topics finds none, and the query would write it once more."""
    beside = replace(batch(0), name="beside")
    begin(ledger, batch(0), FUNCTION)
    ledger.bind_stream(beside, FUNCTION)
    decide(ledger, batch(0), 1, FUNCTION, committed=False)
    for name in ("clicks", "beside"):
        for what in ({"decided": 0}, {"forget_query": True}):
            with pytest.raises(ConfigurationError, match=r"batch 0 of query .* is decided, and COMMITTING") as refused:
                ledger.set_stream("team", name, **what)
            assert f"`airflow-kafka-eos loads recover {batch(0).load.in_command}`" in refused.value.remedy
    ledger.set_stream("team", "clicks", checkpoint="/checkpoint")
    other = replace(batch(0), namespace="other", query_id=OTHER)
    ledger.bind_stream(other, SECOND)
    ledger.set_stream("other", "clicks", decided=0)
    ledger.record_committed(batch(0).load, 1)
    ledger.set_stream("team", "clicks", decided=-1)
    free(ledger, "clicks")


def test_what_was_decided_under_another_name_is_not_said_to_be_missing(ledger: Ledger) -> None:
    for number in range(11):
        begin(ledger, batch(number))
        decide(ledger, batch(number), 1)
    free(ledger, "clicks")
    renamed = replace(batch(10), name="renamed")
    ledger.bind_stream(renamed, SECOND)
    for number in (-1, 9):
        with pytest.raises(ConfigurationError, match="under 'clicks' in namespace 'team' batch 10 of the same query"):
            ledger.set_stream("team", "renamed", decided=number)
    for number in (11, 10):
        ledger.set_stream("team", "renamed", decided=number)
    assert ledger.pass_over_batch(renamed, SECOND)
    free(ledger, "renamed")
    ledger.bind_stream(replace(batch(0), name="renamed", query_id=OTHER), StreamRun("/another", "driver 3"))
    ledger.set_stream("team", "renamed", decided=-1)


def test_frames_whose_names_were_set_free_go_on_by_their_old_ones(ledger: Ledger) -> None:
    """The remedy, where the driver died between two frames and all of them were renamed: each is where it was."""
    beside = replace(batch(0), name="beside")
    begin(ledger, batch(0), FUNCTION)
    begin(ledger, beside, FUNCTION)
    decide(ledger, batch(0), 1, FUNCTION)
    free(ledger, "clicks")
    free(ledger, "beside")
    names = ("first", "second")
    renamed = replace(SECOND, beside=frozenset(("team", name) for name in names))
    for name in names:
        ledger.bind_stream(replace(batch(0), name=name), renamed)
    ledger.set_stream("team", "first", decided=0)
    with pytest.raises(ConfigurationError, match="batch 0 of the same query was decided") as refused:
        ledger.set_stream("team", "second", decided=-1)
    assert "let the function write each by its old one" in refused.value.remedy
    for name in names:
        free(ledger, name)
    third = replace(FUNCTION, identity="driver 3")
    for one, decided in ((batch(0), 0), (beside, -1)):
        assert ledger.bind_stream(one, third).decided is None, "of 'second' nobody has said anything"
        ledger.set_stream("team", one.name, decided=decided)
    assert begin(ledger, beside, third).verdict is None


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
    assert "--decided N`, N being 1." in refused.value.remedy


def test_a_frame_that_is_added_is_told_which_batch_is_before_its_first(ledger: Ledger) -> None:
    """With the number of the batch that it comes with, its rows of that one would never be written."""
    added = replace(batch(1), name="added")
    begin(ledger, batch(0), FUNCTION)
    decide(ledger, batch(0), 1, FUNCTION)
    with pytest.raises(InDoubtError, match="is not the next one") as refused:
        begin(ledger, added, FUNCTION)
    assert "Was this frame added to the query?" in refused.value.remedy
    assert "streams set added --namespace team --decided N`, N being 0, and" in refused.value.remedy
    ledger.set_stream("team", "added", decided=0)
    begin(ledger, added, FUNCTION)
    decide(ledger, added, 1, FUNCTION)


def test_so_is_one_that_is_added_where_another_was_set_free(ledger: Ledger) -> None:
    """Nobody knows then whether it had the other one's name, and the topics have its batch, of the other frames."""
    for name in ("clicks", "gone"):
        begin(ledger, replace(batch(0), name=name), FUNCTION)
        decide(ledger, replace(batch(0), name=name), 1, FUNCTION)
    ledger.set_stream("team", "gone", forget_query=True)
    added = replace(batch(1), name="added")
    with pytest.raises(InDoubtError, match="does not know which batches the topics have") as refused:
        begin(ledger, added, FUNCTION)
    assert "Was this frame of foreachBatch added to the query? Then N is 0" in refused.value.remedy


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


def test_behind_a_new_id_an_older_checkpoint_is_known_by_its_offsets(ledger: Ledger) -> None:
    """What it plans anew would be passed over, for the batch is decided: its other rows were never written."""
    for number in range(3):
        begin(ledger, batch(number))
        decide(ledger, batch(number), 1)
    ledger.new_id(decided_by="test")
    ledger.bind_stream(batch(1), SECOND)
    ledger.set_stream("team", "clicks", decided=4)
    assert begin(ledger, batch(1), SECOND).verdict is Verdict.COMMIT
    with pytest.raises(OtherCheckpointError, match="batch 1 of query 'clicks' was decided with other offsets"):
        begin(ledger, batch(1, "others"), SECOND)
    assert begin(ledger, batch(5), SECOND).number == 1


def test_behind_a_new_id_a_run_that_has_opened_the_old_one_is_refused(ledger: Ledger, url: str) -> None:
    """A driver keeps its ledger open from batch to batch."""
    begin(ledger, batch(0))
    decide(ledger, batch(0), 1)
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
