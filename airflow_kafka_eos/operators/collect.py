"""collect: read the manifest of what an operator of the author's has had written, and decide it as prepare does.

The ledger says which attempt that was: the newest that this run's group has submitted (:mod:`.own_submitter`); of what
is prepared again, the newest repair that it has opened. What another run has opened meanwhile is not looked at: then
this one's attempt can never be decided, and collect says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.errors import (
    ManifestError,
    NotFinishedError,
    SupersededError,
    TransientError,
    UndecidableError,
)
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.operators.base import check_no_sibling, no_retry_of_terminal_errors, owner_of
from airflow_kafka_eos.operators.preparing import PreparingOperator, Taken
from airflow_kafka_eos.operators.submitting import manifest_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.manifest import AttemptRef, Manifest
    from airflow_kafka_eos.protocol.repair.reprepare import Repreparation
    from airflow_kafka_eos.protocol.session import Session
    from airflow_kafka_eos.spark.manifest_store import ManifestStore


class CollectLoadOperator(PreparingOperator):
    """Take over what your own operator has had written.

    ::

        submit = submitter_of(LivyOperator)(task_id="submit", args=["--spec", "{{ kafka_eos.spec }}"], …)
        collect = CollectLoadOperator(task_id="collect", load_name="orders", job="jobs/orders.py", topics=["orders"])
        begin >> submit >> collect >> decide

    The arguments of the load are its own: the operator before it opens the attempt with them.
    """

    step_name = "collect"

    def execute(self, context: Context) -> dict[str, Any]:
        """Returns what prepare returns."""
        with self.as_step(context) as step, no_retry_of_terminal_errors():
            resolved = self._resolve()
            store = manifest_store(self.manifest_dir)
            owner = owner_of(context)
            with resolved.session(self.namespace) as session:
                from airflow_kafka_eos.protocol.stages.begin import reference

                row = submitted_attempt(session.ledger.attempts(self.load_identity), owner)
                step.attempt = row.number
                check_no_sibling(row, context)
                again = self._again(session, store, row, owner) if row.verdict is Verdict.COMMIT else None
                ref = reference(session, row) if again is None else again.ref
                taken = Taken(row, ref, again, self.warned(session, row, owner))
            if taken.is_done:
                return self.was_decided(step, taken)
            # an application that is still at work, or a store that is away: the next try looks at the same repair
            with self.giving_up(resolved, taken, but_for=TransientError):
                manifest = left_by_application(store, ref)
            if again is None:  # a repair is let in by its digests
                check_as_asked(store, manifest)
            return self.record(context, step, resolved, store, taken, manifest)

    def _again(self, session: Session, store: ManifestStore, row: AttemptRow, owner: str) -> Repreparation | None:
        """What the operator before was to prepare again, the newest of it: an application was told so."""
        from airflow_kafka_eos.ledger.tables import for_people
        from airflow_kafka_eos.manifest import AttemptRef
        from airflow_kafka_eos.protocol.repair.reprepare import opened_repreparation
        from airflow_kafka_eos.spark.spec import ApplicationSpec

        own = [repair for repair in session.ledger.repairs(row.load) if repair.opened_by == for_people(owner)]
        for repair in reversed(own):
            told = store.spec(AttemptRef(row.load, session.ledger.ledger_id, repair.number))
            if told is not None:
                ref = ApplicationSpec.from_json(told).options.attempt
                wanted = [number for _, number in ref.repairs]
                return opened_repreparation(session, row, wanted, hold_time_ms=self._hold_time_ms)
        return None


def submitted_attempt(rows: Sequence[AttemptRow], owner: str) -> AttemptRow:
    """The attempt that this run has had written, or the one that is decided to be committed. No I/O.

    :param rows: all attempts of the load, oldest first.
    :raises UndecidableError: there is none, or it is aborted.
    """
    for row in rows:
        if row.verdict is Verdict.COMMIT:
            return row
    own = [row for row in rows if row.is_submitted and row.responsible == owner]
    ids: dict[str, Any] = {"load": str(rows[-1].load), "attempt": rows[-1].number} if rows else {}
    if not own:
        raise UndecidableError(
            "no attempt of this load was submitted by this run: the task before has not run, or was marked",
            remedy="Clear it: it opens an attempt, and has it written",
            **ids,
        )
    row = own[-1]
    if row.verdict is Verdict.ABORT:
        raise SupersededError(
            f"attempt {row.number}, which the task before has had written, was aborted by {row.decided_by} at "
            f"{row.decided_at}: {row.reason}. Nothing of it can become visible",
            remedy="If another run loads the same key, let it go on. Else clear the task before, with what is "
            "downstream of it",
            **ids | {"attempt": row.number},
        )
    return row


def check_as_asked(store: ManifestStore, manifest: Manifest) -> None:
    """Of what the packaged application keeps by itself, and a prepare of somebody else's may not: a dual write that
    wants two-phase commit rests on it.

    :raises ManifestError: the application has gone by another specification than it was given.
    """
    from airflow_kafka_eos.spark.options import not_as_asked
    from airflow_kafka_eos.spark.spec import ApplicationSpec

    told = store.spec(manifest.attempt)
    problem = "" if told is None else not_as_asked(manifest, ApplicationSpec.from_json(told).options)
    if problem:
        raise ManifestError(
            f"the application has not kept to its specification: {problem}",
            remedy="Nothing of it is visible, and cleanup ends it. Let the application do what the specification says "
            "(docs/prepare-contract.md), and clear the task before: it opens a new attempt",
            **manifest.attempt.ids,
        )


def left_by_application(store: ManifestStore, ref: AttemptRef) -> Manifest:
    """The manifest; or what its application has left in its place.

    :raises ManifestError: nobody has claimed the attempt, its application has failed, or what it left is not whole.
    :raises NotFinishedError: its application has neither finished nor failed.
    """
    if not store.is_written(ref) and store.failure(ref) is None:
        claimant = store.claimant(ref)
        where = f"there is no manifest at {store.path(ref)}"
        if claimant is None:
            raise ManifestError(
                f"no application has claimed the attempt, though the task before it has succeeded: {where}",
                remedy="Does the application get {{ kafka_eos.spec }} or {{ kafka_eos.spec_file }} of this very try, "
                "does it see the same manifest_dir, does the operator wait for its end? An operator that reattaches "
                "to the application of an earlier try runs none for this one. Then clear it",
                **ref.ids,
            )
        raise NotFinishedError(
            f"the application {claimant} has claimed the attempt, and has neither finished nor said why it failed: "
            f"{where}",
            remedy="Let the operator wait until the application is over, or put a sensor that does behind it. If it "
            "was killed, clear the operator: it opens a new attempt",
            **ref.ids,
        )
    try:
        return store.read(ref)
    except ManifestError as e:
        word = store.failure(ref)
        if word is None:
            raise
        raise ManifestError(
            f"the application has failed, though the task before has succeeded: {word}",
            remedy="Mend that, and clear the task before: it opens a new attempt. Let its operator fail where its "
            "application does",
            **ref.ids,
        ) from e
