"""A person's word that the topics have a load, in each of the databases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kafka_eos.errors import ConfigurationError, UndecidableError
from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
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
