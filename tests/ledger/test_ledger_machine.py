"""Hypothesis drives the ledger through any order of operations; the rules hold after each."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.ledger import AttemptRow, Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.transaction import FINAL, Outcome
from tests.ledger.ledger_support import LOAD, OTHER, manifest, ref

LOADS = st.sampled_from([LOAD, OTHER])
NUMBERS = st.integers(1, 4)
#: only adopting a repair makes one superseded
SEEN = [o for o in Outcome if o is not Outcome.SUPERSEDED]


class LedgerMachine(RuleBasedStateMachine):
    """``template`` is an upgraded, empty SQLite file."""

    template: Path

    @initialize()
    def open(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="kafka-eos-machine-"))
        self.ledger = Ledger.open(f"sqlite:///{shutil.copy(self.template, self.home / 'ledger.db')}")
        self.raw = sqlite3.connect(self.home / "ledger.db")
        self.seen: dict[tuple[LoadIdentity, int], AttemptRow] = {}
        self.handed_out: set[tuple[LoadIdentity, int]] = set()
        self.prepared: dict[tuple[LoadIdentity, int], Manifest] = {}

    def teardown(self) -> None:
        if hasattr(self, "home"):
            self.ledger.close()
            self.raw.close()
            shutil.rmtree(self.home)

    def attempt_to(self, call: Callable[[], object]) -> bool:
        """Operations may refuse; nothing but this package's own errors may come out."""
        try:
            call()
        except KafkaEosError:
            return False
        return True

    @rule(load=LOADS)
    def begin(self, load: LoadIdentity) -> None:
        row = self.ledger.begin(load, owner="b")
        assert row.is_undecided or row.verdict is Verdict.COMMIT

    @rule(load=LOADS)
    def submit(self, load: LoadIdentity) -> None:
        rows: list[AttemptRow] = []
        if self.attempt_to(lambda: rows.append(self.ledger.submit(load, owner="s"))) and rows[0].is_undecided:
            assert (load, rows[0].number) not in self.handed_out
            self.handed_out.add((load, rows[0].number))

    @rule(load=LOADS, number=NUMBERS)
    def mark_prepared(self, load: LoadIdentity, number: int, full: int = 2) -> None:
        document = manifest(self.ledger, number, load, full=full)
        if self.attempt_to(lambda: self.ledger.mark_prepared(document)):
            assert self.prepared.setdefault((load, number), document) == document

    @rule(load=LOADS, number=NUMBERS)
    def mark_prepared_otherwise(self, load: LoadIdentity, number: int) -> None:
        self.mark_prepared(load, number, full=3)

    @rule(load=LOADS)
    def prepare_newest(self, load: LoadIdentity) -> None:
        """Brings examples far enough: chance alone seldom prepares the right number."""
        rows = self.ledger.attempts(load)
        if rows:
            self.mark_prepared(load, rows[-1].number)

    @rule(load=LOADS, number=NUMBERS, full=st.sampled_from([2, 2, 2, 3]))
    def decide_commit(self, load: LoadIdentity, number: int, full: int) -> None:
        before = self.ledger.attempt(load, number)
        document = manifest(self.ledger, number, load, full=full)
        if self.attempt_to(lambda: self.ledger.decide_commit(document, decided_by="d")):
            assert self.prepared[load, number] == document
            assert before is not None
            assert before.is_prepared
            assert before.verdict is not Verdict.ABORT

    @rule(load=LOADS, number=NUMBERS)
    def decide_abort(self, load: LoadIdentity, number: int) -> None:
        self.attempt_to(
            lambda: self.ledger.decide_abort(ref(self.ledger, number, load), decided_by="a", reason="r")
        )

    @rule(load=LOADS, number=NUMBERS)
    def make_undecidable(self, load: LoadIdentity, number: int) -> None:
        beyond = [r for r in self.ledger.attempts(load) if r.number > number]
        rows = self.ledger.make_undecidable(load, up_to=number, decided_by="c", reason="r")
        assert not any(r.is_undecided for r in rows)
        assert self.ledger.attempts(load) == rows + beyond

    @rule(load=LOADS, number=NUMBERS, partition=st.integers(0, 1), outcome=st.sampled_from(SEEN))
    def record_outcome(self, load: LoadIdentity, number: int, partition: int, outcome: Outcome) -> None:
        rows = self.ledger.transactions(load, number)
        if rows:
            name = rows[partition].transaction.transactional_id
            now: list[Outcome] = []
            done = self.attempt_to(
                lambda: now.append(self.ledger.record_outcomes(load, number, {name: outcome})[name])
            )
            assert done is self.is_committed(load, number)
            expected = rows[partition].outcome if rows[partition].outcome in FINAL else outcome
            assert now in ([], [expected])

    @rule(load=LOADS, number=NUMBERS)
    def record_committed(self, load: LoadIdentity, number: int) -> None:
        done = self.attempt_to(lambda: self.ledger.record_committed(load, number))
        rows = self.ledger.transactions(load, number)
        assert done is (self.is_committed(load, number) and all(r.outcome is Outcome.COMMITTED for r in rows))

    @rule(load=LOADS, number=NUMBERS, outcome=st.sampled_from(SEEN))
    def record_and_close(self, load: LoadIdentity, number: int, outcome: Outcome) -> None:
        """It closes what is verified, and what it is told is kept whatever it finds."""
        rows = self.ledger.transactions(load, number)
        names = [r.transaction.transactional_id for r in rows]
        found: list[bool] = []
        done = self.attempt_to(
            lambda: found.append(
                self.ledger.record_and_close(load, number, dict.fromkeys(names, outcome))[1] is not None
            )
        )
        assert done is self.is_committed(load, number)
        now = self.ledger.transactions(load, number)
        if done:
            assert [r.outcome for r in now] == [r.outcome if r.outcome in FINAL else outcome for r in rows]
            assert found == [all(r.outcome is Outcome.COMMITTED for r in now)]

    def is_committed(self, load: LoadIdentity, number: int) -> bool:
        row = self.ledger.attempt(load, number)
        return row is not None and row.verdict is Verdict.COMMIT

    @rule(load=LOADS, number=NUMBERS)
    def finish(self, load: LoadIdentity, number: int) -> None:
        rows = self.ledger.transactions(load, number)
        if self.is_committed(load, number):
            names = [r.transaction.transactional_id for r in rows]
            self.ledger.record_outcomes(load, number, dict.fromkeys(names, Outcome.COMMITTED))

    @rule(load=LOADS, number=NUMBERS)
    def record_in_doubt(self, load: LoadIdentity, number: int) -> None:
        self.attempt_to(lambda: self.ledger.record_in_doubt(load, number, "r"))

    @rule(load=LOADS, number=NUMBERS)
    def record_swept(self, load: LoadIdentity, number: int) -> None:
        self.attempt_to(lambda: self.ledger.record_swept(load, number))

    @invariant()
    def rules_hold(self) -> None:
        if not hasattr(self, "ledger"):
            return
        unverified = 0
        for load in (LOAD, OTHER):
            rows = self.ledger.attempts(load)
            row = self.ledger.load(load)
            assert [r.number for r in rows] == list(range(1, len(rows) + 1))
            if row is None:
                assert rows == []
                continue
            assert row.newest_attempt == len(rows)
            committed = [r for r in rows if r.verdict is Verdict.COMMIT]
            undecided = [r for r in rows if r.is_undecided]
            assert len(committed) <= 1, "one commit per load"
            assert undecided in ([], rows[-1:]), "opening aborts what is undecided"
            assert bool(committed) is row.state.is_decided
            if committed:
                assert committed == rows[-1:], "no new attempt"
            self.state_fits(load, row.state, rows)
            for r in rows:
                self.decided_never_changes(r)
                known = self.ledger.transactions(load, r.number)
                prepared = self.prepared[load, r.number].transactions if r.is_prepared else ()
                assert [t.transaction for t in known] == list(prepared), "known by name"
                decided = r.verdict is Verdict.COMMIT
                assert all(self.ledger.is_decided_commit(t.transaction) is decided for t in known)
                assert decided or all(t.outcome is None for t in known)
                unverified += len(known) if decided and row.state is not LoadState.COMMITTED else 0
        assert self.raw.execute("SELECT count(*) FROM kafka_transaction_state").fetchone() == (unverified,)

    def decided_never_changes(self, row: AttemptRow) -> None:
        old = self.seen.get((row.load, row.number), row)
        if old.verdict is not None:
            assert (old.verdict, old.decided_at, old.decided_by) == (
                row.verdict,
                row.decided_at,
                row.decided_by,
            )
        self.seen[(row.load, row.number)] = row

    def state_fits(self, load: LoadIdentity, state: LoadState, rows: list[AttemptRow]) -> None:
        newest = rows[-1]
        if newest.is_undecided:
            assert state is (LoadState.PREPARED if newest.is_prepared else LoadState.PREPARING)
        elif newest.verdict is Verdict.ABORT:
            assert state is (LoadState.ABORTED if newest.closed_at else LoadState.ABORTING)
        else:
            assert (state is LoadState.COMMITTED) is (newest.closed_at is not None)
        if state is LoadState.COMMITTED:
            assert all(t.outcome is Outcome.COMMITTED for t in self.ledger.transactions(load, newest.number))


def test_any_order_of_operations(sqlite_template: Path) -> None:
    machine = type("Machine", (LedgerMachine,), {"template": sqlite_template})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
