"""Opening, submitting, preparing and sweeping attempts (rules: one-decision-per-load, one-application-per-attempt)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kafka_eos.errors import ConfigurationError, InvalidNameError, UndecidableError
from airflow_kafka_eos.ledger import AttemptRow, Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionScope, Verdict
from airflow_kafka_eos.manifest import sha256
from airflow_kafka_eos.transaction import Outcome
from tests.ledger.ledger_support import (
    LOAD,
    OTHER,
    commit,
    manifest,
    prepare,
    ref,
    shared_manifest,
    sql,
    transaction,
)

DAY = ("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00")


def state(ledger: Ledger) -> LoadState:
    row = ledger.load(LOAD)
    assert row is not None
    return row.state


def test_begin_opens_the_first_attempt(ledger: Ledger) -> None:
    row = ledger.begin(LOAD, owner="dag/run/begin/1")
    assert (row.load, row.number, row.owner) == (LOAD, 1, "dag/run/begin/1")
    assert row.is_undecided
    assert not row.is_submitted
    assert not row.is_prepared
    assert ledger.attempts(LOAD) == [row]
    assert state(ledger) is LoadState.PREPARING


def test_begin_again_before_submit_is_the_same_attempt(ledger: Ledger) -> None:
    assert ledger.begin(LOAD, owner="a") == ledger.begin(LOAD, owner="b")


def test_begin_keeps_a_good_prepared_attempt(ledger: Ledger) -> None:
    row = prepare(ledger)
    assert ledger.begin(LOAD, owner="cleared") == row
    assert state(ledger) is LoadState.PREPARED


def test_begin_after_a_lost_application_aborts_it_and_opens_the_next(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="a")
    ledger.submit(LOAD, owner="a")
    row = ledger.begin(LOAD, owner="b")
    first, second = ledger.attempts(LOAD)
    assert (first.verdict, first.decided_by, row) == (Verdict.ABORT, "b", second)
    assert "attempt 2" in first.reason
    assert second.is_undecided
    assert state(ledger) is LoadState.PREPARING


def test_begin_after_an_abort_opens_the_next(ledger: Ledger) -> None:
    prepare(ledger)
    ledger.decide_abort(ref(ledger, 1), decided_by="c", reason="killed")
    assert ledger.begin(LOAD, owner="b").number == 2
    ledger.make_undecidable(LOAD, up_to=2, decided_by="c", reason="killed")
    ledger.record_swept(LOAD, 2)
    assert ledger.begin(LOAD, owner="b").number == 3


def test_a_committed_load_gets_no_new_attempt(ledger: Ledger) -> None:
    row = commit(ledger)
    assert ledger.begin(LOAD, owner="x") == ledger.submit(LOAD, owner="x") == row
    assert len(ledger.attempts(LOAD)) == 1
    assert state(ledger) is LoadState.COMMITTING


def test_loads_do_not_meet(ledger: Ledger) -> None:
    commit(ledger)
    assert prepare(ledger, OTHER).number == 1
    assert [r.load for r in ledger.loads()] == [LOAD, OTHER]
    assert [r.load for r in ledger.loads("team", "load_orders")] == [LOAD, OTHER]
    assert ledger.loads("other team") == ledger.loads(name="other") == []


def test_names_are_compared_byte_by_byte(ledger: Ledger, url: str) -> None:
    keys = ["a", "A", "ä", "a\u0308", "a "]
    if url.startswith(
        "mysql"
    ):  # it pads with spaces when it compares: refused, never taken for the other load
        with pytest.raises(ConfigurationError, match="cannot tell the load from n/l/a"):
            [ledger.begin(LoadIdentity("n", "l", key), owner="x") for key in ("a", keys.pop())]
    for key in keys:
        assert ledger.begin(LoadIdentity("n", "l", key), owner="x").number == 1
    assert len(ledger.loads("n")) == len(keys)


def test_begin_refuses_a_load_whose_ids_would_be_too_long(ledger: Ledger) -> None:
    with pytest.raises(InvalidNameError):
        ledger.begin(LoadIdentity("n", "l", "k" * 250), owner="x")
    assert ledger.loads() == []


def test_begin_records_the_data_interval_in_utc(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="x", data_interval=("2026-01-01T02:00:00+02:00", "2026-01-02T00:00:00Z"))
    ledger.begin(LOAD, owner="x", data_interval=DAY)
    ledger.begin(LOAD, owner="x")  # a manual run asks nothing
    row = ledger.load(LOAD)
    assert row is not None
    assert row.data_interval == tuple(d.replace("00+", "00.000000+") for d in DAY)


def test_begin_without_an_interval_first(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="x")
    ledger.begin(LOAD, owner="x", data_interval=DAY)
    row = ledger.load(LOAD)
    assert row is not None
    assert row.data_interval is not None


HOUR = (DAY[0], "2026-01-01T01:00:00+00:00")


def test_begin_refuses_another_data_interval_of_a_load_that_is_not_decided(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="x", data_interval=DAY)
    with pytest.raises(ConfigurationError, match=r"load_key='\{\{ data_interval_start \| ts \}\}'.*another load_name"):
        ledger.begin(LOAD, owner="x", data_interval=HOUR)
    row = prepare(ledger)
    for interval in (None, DAY):
        assert ledger.begin(LOAD, owner="x", data_interval=interval) == row
    with pytest.raises(ConfigurationError, match="one key would stand for two loads"):
        ledger.begin(LOAD, owner="x", data_interval=HOUR)
    assert ledger.attempts(LOAD) == [row], "nothing was opened or aborted"
    # what would be opened anew is compared as well
    ledger.decide_abort(ref(ledger, row.number), decided_by="x", reason="test")
    with pytest.raises(ConfigurationError, match="one key would stand for two loads"):
        ledger.begin(LOAD, owner="x", data_interval=HOUR)
    assert ledger.begin(LOAD, owner="x", data_interval=DAY).number == 2


def test_a_committed_load_is_that_of_every_data_interval(ledger: Ledger) -> None:
    """Nothing is written for either: there is nothing to protect."""
    ledger.begin(LOAD, owner="x", data_interval=DAY)
    row = commit(ledger)
    assert ledger.begin(LOAD, owner="x", data_interval=HOUR) == row
    known = ledger.load(LOAD)
    assert known is not None and known.data_interval == tuple(d.replace("00+", "00.000000+") for d in DAY)


def test_committed_attempts_that_were_asked_for_the_same_are_found_by_name(ledger: Ledger) -> None:
    for load, arguments in ((LOAD, "a" * 64), (OTHER, "a" * 64)):
        ledger.begin(load, owner="begin")
        number = ledger.submit(load, owner="prepare", arguments_sha256=arguments).number
        assert ledger.with_same_arguments(load, "a" * 64) == ledger.attempts(LOAD)[: load is OTHER]
        ledger.mark_prepared(manifest(ledger, number, load))
        ledger.decide_commit(manifest(ledger, number, load), decided_by="decide")
    assert [a.load for a in ledger.with_same_arguments(LOAD, "a" * 64)] == [LOAD, OTHER]
    assert ledger.with_same_arguments(LOAD, "b" * 64) == []
    assert ledger.with_same_arguments(LoadIdentity("team", "another", LOAD.key), "a" * 64) == []


@pytest.mark.parametrize("bad", ["2026-01-01T00:00:00", "yesterday"])
def test_begin_refuses_a_data_interval_without_a_zone(ledger: Ledger, bad: str) -> None:
    with pytest.raises(ConfigurationError, match="data interval"):
        ledger.begin(LOAD, owner="x", data_interval=(bad, DAY[1]))


def test_submit_never_gives_one_attempt_twice(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="x")
    rows = [ledger.submit(LOAD, owner=f"try {n}") for n in (1, 2, 3)]
    assert [(r.number, r.submitted_by, r.is_submitted) for r in rows] == [
        (1, "try 1", True),
        (2, "try 2", True),
        (3, "try 3", True),
    ]
    assert [a.verdict for a in ledger.attempts(LOAD)] == [Verdict.ABORT, Verdict.ABORT, None]
    assert ledger.attempt(LOAD, 3) == rows[2]


def test_submit_after_prepared_opens_the_next(ledger: Ledger) -> None:
    prepare(ledger)
    assert ledger.submit(LOAD, owner="cleared prepare").number == 2
    assert [a.verdict for a in ledger.attempts(LOAD)] == [Verdict.ABORT, None]
    assert state(ledger) is LoadState.PREPARING


def test_submit_opens_nothing_behind_an_abort(ledger: Ledger) -> None:
    """The run's cleanup may be over: nobody would sweep an attempt that a late prepare opens. begin opens it."""
    ledger.begin(LOAD, owner="a")
    ledger.make_undecidable(LOAD, up_to=1, decided_by="cleanup", reason="over")
    with pytest.raises(UndecidableError, match="Clear begin"):
        ledger.submit(LOAD, owner="a")
    assert len(ledger.attempts(LOAD)) == 1
    assert ledger.begin(LOAD, owner="a").number == ledger.submit(LOAD, owner="a").number == 2


def test_submit_needs_a_load(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="does not know this load"):
        ledger.submit(LOAD, owner="x")


def test_mark_prepared_twice_gives_the_same_answer(ledger: Ledger) -> None:
    row = prepare(ledger)
    assert (row.records, row.bytes, state(ledger)) == (20, 800, LoadState.PREPARED)
    assert ledger.mark_prepared(manifest(ledger, 1)) == row == ledger.attempt(LOAD, 1)
    decided = ledger.decide_commit(manifest(ledger, 1), decided_by="d")
    assert ledger.mark_prepared(manifest(ledger, 1)) == decided


def test_a_prepared_attempts_transactions_are_known_by_name(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="x")
    ledger.submit(LOAD, owner="x")
    assert ledger.transactions(LOAD, 1) == []
    document = manifest(ledger, 1)
    row = ledger.mark_prepared(document)
    assert row.manifest_sha256 == sha256(document)
    rows = ledger.transactions(LOAD, 1)
    assert [(r.spark_partition, r.transaction, r.writes, r.outcome) for r in rows] == [
        (e.spark_partition, e.transaction, e.writes, None) for e in document.entries if e.transaction
    ]
    assert rows[0].topic_ids == {"orders": "id-of-orders"}
    ledger.decide_abort(ref(ledger, 1), decided_by="cleanup", reason="killed")
    assert ledger.transactions(LOAD, 1) == rows
    prepare(ledger)
    assert [r.transaction for r in ledger.transactions(LOAD, 2)] == [
        transaction(ledger, 2, p) for p in (0, 1)
    ]


def test_the_ledger_says_how_an_attempt_was_written(ledger: Ledger) -> None:
    assert ledger.begin(LOAD, owner="x").how == ""
    row = prepare(ledger)
    assert (row.scope, row.two_phase_commit, row.writer, row.digest_algorithm) == (
        TransactionScope.TASK, False, "test", "test",
    )  # fmt: skip
    assert row.how == "scope task, with a timeout, writer test"
    assert ledger.attempt(LOAD, row.number) == row


def test_scope_load_is_one_transaction_with_the_writes_of_all_spark_partitions(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="begin")
    ledger.submit(LOAD, owner="prepare")
    document = shared_manifest(ledger, 1)
    row = ledger.mark_prepared(document)
    assert ledger.attempt(LOAD, 1) == row
    assert row.how == "scope load, two-phase commit, writer test"
    (known,) = ledger.transactions(LOAD, 1)
    assert (known.transaction, known.spark_partition, known.records) == (document.transactions[0], None, 20)
    assert [str(w.topic_partition) for w in known.writes] == ["orders-0", "orders-1"]
    ledger.decide_commit(document, decided_by="decide")
    assert ledger.is_decided_commit(known.transaction)
    ledger.record_outcomes(LOAD, 1, {known.transaction.transactional_id: Outcome.COMMITTED})
    assert ledger.record_committed(LOAD, 1).closed_at


def test_mark_prepared_refuses_another_manifest_of_the_attempt(ledger: Ledger) -> None:
    row = prepare(ledger)
    rows = ledger.transactions(LOAD, 1)
    for other in (manifest(ledger, 1, full=3), replace(manifest(ledger, 1), writer="another")):
        with pytest.raises(UndecidableError, match="another manifest"):
            ledger.mark_prepared(other)
    assert (ledger.attempt(LOAD, 1), ledger.transactions(LOAD, 1)) == (row, rows)
    ledger.decide_commit(manifest(ledger, 1), decided_by="d")
    with pytest.raises(UndecidableError, match="another manifest"):
        ledger.mark_prepared(manifest(ledger, 1, full=3))


def test_an_id_of_another_attempt_is_refused_whole(ledger: Ledger) -> None:
    prepare(ledger)
    ledger.begin(OTHER, owner="x")
    submitted = ledger.submit(OTHER, owner="x")
    mixed = (manifest(ledger, 1, OTHER).entries[0], manifest(ledger, 1, LOAD).entries[1])
    with pytest.raises(UndecidableError, match="belongs to another attempt") as caught:
        ledger.mark_prepared(replace(manifest(ledger, 1, OTHER), entries=mixed))
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert (ledger.attempt(OTHER, 1), ledger.transactions(OTHER, 1)) == (submitted, [])
    assert [r.state for r in ledger.loads()] == [LoadState.PREPARED, LoadState.PREPARING]


def test_mark_prepared_refuses_what_was_superseded(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="x")
    ledger.submit(LOAD, owner="x")
    ledger.submit(LOAD, owner="retry")
    with pytest.raises(UndecidableError, match=r"aborted by retry .*superseded by attempt 2"):
        ledger.mark_prepared(manifest(ledger, 1))
    assert ledger.mark_prepared(manifest(ledger, 2)).is_prepared


def test_mark_prepared_refuses_a_prepared_attempt_that_was_aborted_since(ledger: Ledger) -> None:
    prepare(ledger)
    ledger.decide_abort(ref(ledger, 1), decided_by="cleanup", reason="killed")
    with pytest.raises(UndecidableError, match="killed"):
        ledger.mark_prepared(manifest(ledger, 1))


def test_mark_prepared_refuses_what_was_never_submitted(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="x")
    with pytest.raises(UndecidableError, match="submitted"):
        ledger.mark_prepared(manifest(ledger, 1))


def test_mark_prepared_refuses_what_is_not_the_newest(ledger: Ledger, url: str) -> None:
    ledger.begin(LOAD, owner="x")
    ledger.submit(LOAD, owner="x")
    ledger.submit(LOAD, owner="y")
    sql(url, "DELETE FROM kafka_eos_decisions")  # as if opening had not aborted it
    with pytest.raises(UndecidableError, match="attempt 2, opened by y"):
        ledger.mark_prepared(manifest(ledger, 1))


def test_an_attempt_of_another_ledger_is_refused(ledger: Ledger) -> None:
    prepare(ledger)
    foreign = ref(ledger, 1).__class__(LOAD, "0" * 10, 1)
    document = replace(manifest(ledger, 1), attempt=foreign)
    for call in (
        lambda: ledger.mark_prepared(document),
        lambda: ledger.decide_commit(document, decided_by="x"),
        lambda: ledger.decide_abort(foreign, decided_by="x", reason="x"),
    ):
        with pytest.raises(ConfigurationError, match="ledger 0000000000"):
            call()


def test_unknown_attempts(ledger: Ledger) -> None:
    assert ledger.attempts(LOAD) == []
    assert ledger.attempt(LOAD, 1) is None
    assert ledger.load(LOAD) is None
    assert ledger.make_undecidable(LOAD, up_to=3, decided_by="x", reason="x") == []
    ledger.begin(LOAD, owner="x")
    with pytest.raises(ConfigurationError, match="no attempt 2"):
        ledger.record_swept(LOAD, 2)


def test_swept_closes_and_moves_the_load(ledger: Ledger) -> None:
    prepare(ledger)
    ledger.decide_abort(ref(ledger, 1), decided_by="x", reason="x")
    assert state(ledger) is LoadState.ABORTING
    closed = ledger.record_swept(LOAD, 1)
    assert closed.closed_at is not None
    assert state(ledger) is LoadState.ABORTED
    assert ledger.record_swept(LOAD, 1) == closed == ledger.attempt(LOAD, 1)


def test_sweeping_an_older_attempt_leaves_the_load_alone(ledger: Ledger) -> None:
    prepare(ledger)
    ledger.submit(LOAD, owner="y")
    ledger.decide_abort(ref(ledger, 2), decided_by="x", reason="x")
    ledger.record_swept(LOAD, 1)
    assert state(ledger) is LoadState.ABORTING


def test_an_undecided_attempt_cannot_have_been_swept(ledger: Ledger) -> None:
    prepare(ledger)
    with pytest.raises(ConfigurationError, match="cannot have been swept"):
        ledger.record_swept(LOAD, 1)


def test_sweeping_a_decided_load_does_nothing_until_it_is_given_up(ledger: Ledger) -> None:
    row: AttemptRow = commit(ledger)
    assert ledger.record_swept(LOAD, 1) == row == ledger.attempt(LOAD, 1)
    assert state(ledger) is LoadState.COMMITTING
    # nobody completes it any more, so nothing but a sweep closes it
    ledger.record_given_up(LOAD, by="ada", reason="x")
    closed = ledger.record_swept(LOAD, 1)
    assert closed.closed_at is not None
    assert ledger.record_swept(LOAD, 1) == closed == ledger.attempt(LOAD, 1)
    assert state(ledger) is LoadState.GIVEN_UP


def test_notes_that_databases_refuse_do_not_stop_a_decision(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="\x00\ud800" + "o" * 900)
    assert ledger.decide_abort(ref(ledger, 1), decided_by="x" * 900, reason="\x00" * 9000)
    row = ledger.attempt(LOAD, 1)
    assert row is not None
    assert len(row.owner) == 500
    assert len(row.reason) == 4000
