"""What went wrong last with a load is noted until it goes on, and becomes part of the abort's reason."""

from __future__ import annotations

from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.load import LoadState, Verdict
from tests.ledger.ledger_support import LOAD, OTHER, manifest, prepare, ref, verify

RUN = "dag/run#group=load"


def reason(ledger: Ledger) -> str:
    row = ledger.load(LOAD)
    assert row is not None
    return row.reason


def submitted(ledger: Ledger, by: str = RUN) -> int:
    ledger.begin(LOAD, owner=by)
    return ledger.submit(LOAD, owner=by).number


def test_what_cleanup_aborts_says_why_it_failed(ledger: Ledger) -> None:
    submitted(ledger)
    assert ledger.note_failure(LOAD, by=RUN, reason="prepare failed: ValueError: x")
    (attempt,) = ledger.attempts(LOAD)
    assert attempt.is_undecided, "a note decides nothing"
    assert reason(ledger) == "prepare failed: ValueError: x"
    (attempt,) = ledger.make_undecidable(LOAD, up_to=1, decided_by=RUN, reason="cleanup")
    assert attempt.reason == "cleanup: prepare failed: ValueError: x"
    assert reason(ledger) == ""
    # and what hinders the sweep, until it is through
    assert not ledger.note_failure(LOAD, by=RUN, reason="decide failed: it is aborted")
    assert ledger.note_failure(LOAD, by=RUN, reason="cleanup failed: brokers are away", sweeping=True)
    assert reason(ledger) == "cleanup failed: brokers are away"
    ledger.record_swept(LOAD, 1)
    assert reason(ledger) == ""
    assert ledger.attempts(LOAD)[0].reason == "cleanup: prepare failed: ValueError: x"


def test_a_retry_takes_it_along_and_begins_without(ledger: Ledger) -> None:
    submitted(ledger)
    ledger.note_failure(LOAD, by=RUN, reason="prepare failed: ValueError: x", number=1)
    assert ledger.submit(LOAD, owner=RUN).number == 2
    assert reason(ledger) == ""
    assert ledger.attempts(LOAD)[0].reason == "superseded by attempt 2: prepare failed: ValueError: x"
    # a try that was given up says nothing of the one behind it
    assert not ledger.note_failure(LOAD, by=RUN, reason="prepare failed: killed", number=1)
    assert reason(ledger) == ""


def test_only_who_answers_for_the_newest_attempt_is_heard(ledger: Ledger) -> None:
    assert not ledger.note_failure(LOAD, by=RUN, reason="begin failed")
    submitted(ledger)
    assert not ledger.note_failure(LOAD, by="dag/another#group=load", reason="begin failed")
    assert not ledger.note_failure(OTHER, by=RUN, reason="begin failed")
    assert reason(ledger) == ""


def test_it_goes_with_what_it_spoke_of(ledger: Ledger) -> None:
    prepare(ledger)
    by = ledger.attempts(LOAD)[0].responsible
    ledger.note_failure(LOAD, by=by, reason="decide failed: OSError: away")
    ledger.decide_commit(manifest(ledger, 1), decided_by=by)
    assert reason(ledger) == ""
    assert ledger.note_failure(LOAD, by=by, reason="commit failed: brokers are away")
    row = ledger.load(LOAD)
    assert row is not None and (row.state, row.reason) == (LoadState.COMMITTING, "commit failed: brokers are away")
    verify(ledger)
    assert reason(ledger) == ""
    assert not ledger.note_failure(LOAD, by=by, reason="loaded failed: it took too long")


def test_what_a_person_is_asked_is_not_overwritten(ledger: Ledger) -> None:
    prepare(ledger)
    by = ledger.attempts(LOAD)[0].responsible
    ledger.decide_commit(manifest(ledger, 1), decided_by=by)
    ledger.record_in_doubt(LOAD, 1, "two stories")
    assert not ledger.note_failure(LOAD, by=by, reason="commit failed: two stories")
    assert reason(ledger) == "two stories"


def test_a_refusal_keeps_its_own_reason(ledger: Ledger) -> None:
    prepare(ledger)
    by = ledger.attempts(LOAD)[0].responsible
    ledger.note_failure(LOAD, by=by, reason="decide failed: OSError: away")
    assert ledger.decide_abort(ref(ledger, 1), decided_by=by, reason="check: too few")
    (attempt,) = ledger.attempts(LOAD)
    assert (attempt.verdict, attempt.reason, reason(ledger)) == (Verdict.ABORT, "check: too few", "")
