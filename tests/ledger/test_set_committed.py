"""Loads that a restored ledger has forgotten, taken back or said to be there, in each of the databases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kafka_eos.errors import ConfigurationError, InDoubtError, UndecidableError
from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.manifest import sha256
from airflow_kafka_eos.transaction import Outcome
from tests.ledger.ledger_support import LOAD, OTHER, commit, manifest, prepare
from tests.ledger.test_ledger_streams import QUERY, batch, begin, decide


def test_a_load_that_the_ledger_does_not_know_is_committed_and_written_by_no_run(ledger: Ledger) -> None:
    row = ledger.set_committed(LOAD, by="ann", reason="seen in the topic", cluster_id="c")
    assert (row.number, row.verdict, row.cluster_id, row.records) == (1, Verdict.COMMIT, "c", 0)
    assert (row.responsible, row.reason) == ("ann", "said to be committed: seen in the topic")
    assert row.closed_at is not None
    assert ledger.state(LOAD) is LoadState.COMMITTED
    assert (ledger.transactions(LOAD, 1), ledger.summary(LOAD, 1).topics) == ([], {})
    assert ledger.begin(LOAD, owner="begin", data_interval=("2026-01-01T00:00Z", "2026-01-02T00:00Z")) == row
    assert ledger.submit(LOAD, owner="prepare") == row
    assert ledger.set_committed(LOAD, by="bob", reason="again") == row, "said twice, it is the same"
    assert ledger.state(OTHER) is None
    ledger.new_id(decided_by="ann")
    assert ledger.begin(LOAD, owner="begin") == row


def test_what_was_aborted_of_it_stays_aborted_and_is_still_swept(ledger: Ledger) -> None:
    prepare(ledger)
    ledger.make_undecidable(LOAD, up_to=1, decided_by="ann", reason="restored")
    row = ledger.set_committed(LOAD, by="ann", reason="seen")
    assert row.number == 2
    assert [(a.number, a.verdict, a.closed_at is None) for a in ledger.attempts(LOAD)] == [
        (1, Verdict.ABORT, True),
        (2, Verdict.COMMIT, False),
    ]
    assert [a.number for a in ledger.unfinished(LOAD.namespace)] == [1]
    with pytest.raises(UndecidableError):
        ledger.decide_commit(manifest(ledger, 1), decided_by="late")


def test_nothing_is_said_over_the_head_of_a_run_or_of_a_decision(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="a run")
    with pytest.raises(ConfigurationError, match="attempt 1, which a run has opened") as caught:
        ledger.set_committed(LOAD, by="ann", reason="seen")
    assert (caught.value.load, caught.value.attempt) == (str(LOAD), 1)
    assert ledger.attempts(LOAD)[0].is_undecided
    row = commit(ledger)
    with pytest.raises(ConfigurationError, match="is COMMITTING: it is decided"):
        ledger.set_committed(LOAD, by="ann", reason="seen")
    ledger.record_given_up(LOAD, by="ann", reason="gone")
    with pytest.raises(ConfigurationError, match="is GIVEN_UP"):
        ledger.set_committed(LOAD, by="ann", reason="seen")
    commit(ledger, OTHER)
    ids = [t.transaction.transactional_id for t in ledger.transactions(OTHER, 1)]
    ledger.record_outcomes(OTHER, 1, dict.fromkeys(ids, Outcome.COMMITTED))
    ledger.record_committed(OTHER, 1)
    assert ledger.set_committed(OTHER, by="ann", reason="seen").responsible == row.responsible


@pytest.mark.parametrize("known", [True, False])
def test_micro_batches_are_said_by_their_query(ledger: Ledger, known: bool) -> None:
    if known:
        begin(ledger, batch(0))
        decide(ledger, batch(0), 1)
    loads = [batch(1).load, *([replace(batch(0).load, key="by hand")] if known else [])]
    for load in loads:
        with pytest.raises(ConfigurationError, match="streams set NAME --decided N"):
            ledger.set_committed(load, by="ann", reason="seen")
        assert ledger.load(load) is None
    assert batch(1).load == LoadIdentity("team", "clicks", f"{QUERY}-1")


def test_an_attempt_is_taken_back_with_its_decision(ledger: Ledger) -> None:
    """Two attempts were opened since the backup, and the second one was decided."""
    made = manifest(ledger, 2)
    first, second = (t.transactional_id for t in made.transactions)
    row = ledger.reinstate(made, sha256(made), [first], by="ann", writers_left=False, cluster_id="c")
    outcomes = {t.transaction.transactional_id: t.outcome for t in ledger.transactions(LOAD, 2)}
    assert outcomes == {first: Outcome.COMMITTED, second: None}, "a zombie may have begun anew under what is committed"
    assert (row.number, row.verdict, row.cluster_id, row.records) == (2, Verdict.COMMIT, "c", 20)
    assert ledger.state(LOAD) is LoadState.COMMITTING
    assert [a.verdict for a in ledger.attempts(LOAD)] == [Verdict.ABORT, Verdict.COMMIT]
    assert [t.transaction for t in ledger.transactions(LOAD, 2)] == list(made.transactions)
    assert row.prepared_at == "2026-01-01T00:00:00.000000+00:00", "as its manifest says"
    again = ledger.reinstate(made, sha256(made), [], by="bob", writers_left=False, cluster_id="c")
    assert (again.number, again.decided_by) == (2, "ann"), "the answer to COMMIT may be lost"
    with pytest.raises(UndecidableError, match="attempt 2 is decided to be committed, by ann"):
        ledger.reinstate(manifest(ledger, 1), "0" * 64, [], by="bob", writers_left=False, cluster_id="c")
    with pytest.raises(InDoubtError, match="got another id"):
        ledger.check_cursor(OTHER, None)  # a name whose cursor the backup may lack


def test_cursors_are_in_doubt_then_and_stay_where_they_are(ledger: Ledger) -> None:
    """Also that of the load itself: what has read on since is known to nobody."""
    ledger.begin(LOAD, owner="begin")
    ledger.submit(LOAD, owner="prepare")
    ledger.take_range(LOAD, 1, first_since=0)
    ledger.pin_range(LOAD, 1, 0, 5)
    other = LoadIdentity("team", "other", "k")
    ledger.begin(other, owner="begin")
    ledger.submit(other, owner="prepare")
    ledger.take_range(other, 1, first_since=0)  # its end is not known yet
    for load in (LOAD, other):
        made = manifest(ledger, 1, load)
        ledger.reinstate(made, sha256(made), [], by="ann", writers_left=False, cluster_id=None)
        cursor = ledger.cursor(load.namespace, load.name)
        assert cursor is not None and (cursor.position, "it was restored" in (cursor.doubt or "")) == (0, True)
        assert ledger.state(load) is LoadState.COMMITTING


@pytest.mark.parametrize("so_far", ["begun", "submitted", "prepared"])
def test_what_was_under_way_when_the_backup_was_made_is_decided_as_it_is(ledger: Ledger, so_far: str) -> None:
    ledger.begin(LOAD, owner="begin")
    if so_far != "begun":
        ledger.submit(LOAD, owner="prepare")
    if so_far == "prepared":
        ledger.mark_prepared(manifest(ledger, 1))
    made = manifest(ledger, 1)
    ledger.reinstate(made, sha256(made), [], by="ann", writers_left=True, cluster_id=None)
    assert [(a.number, a.verdict) for a in ledger.attempts(LOAD)] == [(1, Verdict.COMMIT)]


def test_no_attempt_is_taken_back_against_what_the_ledger_has_decided(ledger: Ledger) -> None:
    prepare(ledger)
    ledger.make_undecidable(LOAD, up_to=1, decided_by="ann", reason="cleanup")
    before = ledger.attempts(LOAD)
    with pytest.raises(UndecidableError, match="aborted by ann"):
        ledger.reinstate(manifest(ledger, 1), "0" * 64, [], by="ann", writers_left=False, cluster_id=None)
    assert ledger.attempts(LOAD) == before
    commit(ledger, OTHER)
    with pytest.raises(UndecidableError, match="attempt 1 is decided"):
        ledger.reinstate(manifest(ledger, 1, OTHER), "0" * 64, [], by="ann", writers_left=False, cluster_id=None)
    pooled = manifest(ledger, 1, LoadIdentity("team", "pooled", "k"), full=0)
    pooled = replace(pooled, attempt=replace(pooled.attempt, slot=0))
    with pytest.raises(ConfigurationError, match="pooled ids"):
        ledger.reinstate(pooled, sha256(pooled), [], by="ann", writers_left=False, cluster_id=None)
    stale = manifest(ledger, 1, LoadIdentity("team", "stale", "k"))
    with pytest.raises(ConfigurationError, match="another id by now"):
        ledger.reinstate(
            replace(stale, attempt=replace(stale.attempt, ledger_id="0123456789")), "0" * 64, [], by="ann",
            writers_left=False, cluster_id=None,
        )  # fmt: skip
    with pytest.raises(ConfigurationError, match="micro-batch"):
        of_a_batch = manifest(ledger, 1, batch(3).load)
        ledger.reinstate(of_a_batch, "0" * 64, [], by="ann", writers_left=False, cluster_id=None)
