"""prepare waits for an application that runs elsewhere, and outlives the task's process: in the triggerer, or here.

A retry finds the application that an earlier try has submitted, and waits on (docs/adr/0035). It is this very attempt's
application, by the note beside its claim: never one of before a clear, of another run, or of an attempt that is over
(rule: reattach-to-its-own). Whoever comes back from the triggerer takes what is there, or waits here: it defers no
more, and submits nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException

from airflow_kafka_eos.errors import ManifestError, StoppedError, SupersededError
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.operators.application_watch import ApplicationWatch, Status
from airflow_kafka_eos.operators.base import no_retry_of_terminal_errors, owner_of, task_of
from airflow_kafka_eos.operators.preparing import PreparingOperator, Taken
from airflow_kafka_eos.operators.submitting import for_airflow, manifest_store, what_it_said
from airflow_kafka_eos.triggers import OVER, ApplicationTrigger

if TYPE_CHECKING:
    from airflow_kafka_eos.hooks import Resolved
    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.manifest import AttemptRef, Manifest
    from airflow_kafka_eos.operators.base import Step
    from airflow_kafka_eos.protocol.session import Session
    from airflow_kafka_eos.spark.manifest_store import ManifestStore


@dataclass(frozen=True)
class Waited:
    """An attempt whose application runs elsewhere.

    :param application: its id on its platform.
    :param until: past that it is given up: none of its writers may begin any more.
    """

    taken: Taken
    application: str
    until: datetime


class ReattachingOperator(PreparingOperator):
    """Waits for an application by its id, and for one that an earlier try has submitted."""

    #: seconds between two looks, at least
    shortest_poll_s: ClassVar[float] = 10.0
    deferrable: bool
    #: set while it waits here: nothing is ended by whoever sets it
    _stop_waiting: threading.Event | None = None

    def status_of(self) -> Callable[[str], Status]:
        """What asks the platform, from here."""
        raise NotImplementedError

    def platform(self) -> dict[str, Any] | None:
        """What the triggerer needs to ask the platform, without secrets; None: it cannot."""
        raise NotImplementedError

    @property
    def poll_s(self) -> float:
        """Seconds between two looks."""
        return self.shortest_poll_s

    def reattached(
        self, context: Any, step: Step, resolved: Resolved, store: ManifestStore, go: str
    ) -> Waited | None:
        """The attempt of an earlier try, where its application is at work or done; else None.

        Nothing is written, in the ledger neither.

        :param go: see :func:`this_go`.
        :raises TransientError: it is not known, so nothing may be submitted.
        """
        with resolved.session(self.namespace) as session:
            found = self._submitted_before(session, store, go)
            if found is None:
                return None
            row, ref, application = found
            step.attempt = row.number
            waited = self._waited(session, context, row, ref, application)
        watch = ApplicationWatch(store, ref, application, self.status_of())
        waits = watch.look(patient=False)
        if waits is None and not is_good(store, ref):
            return None
        if waits is not None and waited.until < datetime.now(UTC):
            return None
        self.log.info("load %s: an earlier try has submitted %s, which is waited for", ref, application)
        return waited

    def _submitted_before(
        self, session: Session, store: ManifestStore, go: str
    ) -> tuple[AttemptRow, AttemptRef, str] | None:
        from airflow_kafka_eos.protocol.stages.begin import reference

        rows = session.ledger.attempts(self.load_identity)
        row = rows[-1] if rows else None
        if row is None or not row.is_undecided or not row.is_submitted:
            return None
        ref = reference(session, row)
        noted = store.submitted(ref)
        if noted is None or noted[1] != go:
            return None
        return row, ref, noted[0]

    def handed_over(self, taken: Taken, application: str) -> Waited:
        """What is waited for behind a submission, once that is noted beside the claim."""
        return Waited(taken, application, self._until(taken.row))

    def waited_for(
        self,
        context: Any,
        step: Step,
        resolved: Resolved,
        store: ManifestStore,
        waited: Waited,
        *,
        may_defer: bool,
    ) -> dict[str, Any]:
        """Wait until the application is over, here or in the triggerer, and take over what it has left.

        :raises TaskDeferred: the triggerer waits on.
        """
        watch = ApplicationWatch(store, waited.taken.ref, waited.application, self.status_of())
        waits = watch.look()
        platform = self.platform() if may_defer and self.deferrable else None
        if waits is not None and platform is not None:
            self._defer(waited, waits, platform)
        told = ""
        self._stop_waiting = threading.Event()
        while waits is not None:
            if waits != told:  # once: it may stay so for hours
                self.log.info("waits: %s", waits)
                told = waits
            if datetime.now(UTC) > waited.until:
                raise AirflowException(
                    f"the application {waited.application} has not finished until {waited.until}, when it had to "
                    f"(writer_deadline and hold_time, or execution_timeout): {waits}. A retry opens a new attempt"
                )
            if self._stop_waiting.wait(self.poll_s):
                raise StoppedError(
                    f"prepare was told to stop while it waited for the application {waited.application}, which goes on",
                    remedy="A retry waits for it again. Cleared, the task opens a new attempt, and that one's driver "
                    "is told to stop; so does cleanup of a run that has failed",
                    **waited.taken.ref.ids,
                )
            waits = watch.look()
        return self._taken_over(context, step, resolved, store, waited, watch.lost)

    def _defer(self, waited: Waited, waits: str, platform: dict[str, Any]) -> None:
        ref = waited.taken.ref
        self.log.info("load %s: waits in the triggerer: %s", ref, waits)
        self.defer(
            trigger=ApplicationTrigger(
                namespace=ref.load.namespace,
                load_name=ref.load.name,
                load_key=ref.load.key,
                ledger_id=ref.ledger_id,
                attempt=ref.attempt,
                manifest_dir=self.manifest_dir,
                application=waited.application,
                platform=platform,
                poll_s=self.poll_s,
            ),
            method_name=self.collected.__name__,
            kwargs={"attempt": ref.attempt},
            timeout=max(waited.until - datetime.now(UTC), timedelta(seconds=1)),
        )

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """Airflow's own. Behind a trigger that has failed, or a timeout, it looks by itself."""
        if next_method == self.collected.__name__:
            return super().resume_execution(next_method, next_kwargs, context)
        self.log.warning("the triggerer has not waited to the end, this worker looks: %s", next_kwargs)
        return self.collected(context, None)

    def collected(self, context: Any, event: dict[str, Any] | None, attempt: int | None = None) -> dict[str, Any]:
        """Behind a deferral: what was submitted before it, and nothing else, is waited for and taken over.

        :param attempt: the one that has waited; None: the newest of this go.
        """
        with self.as_step(context) as step, no_retry_of_terminal_errors():
            resolved, store = self._resolve(), manifest_store(self.manifest_dir)
            with resolved.session(self.namespace) as session:
                row, ref, application = self._own(session, store, context, attempt)
                step.attempt = row.number
                waited = self._waited(session, context, row, ref, application)
            if waited.taken.is_done:
                return self.was_decided(step, waited.taken)
            found = event or {}
            if found.get("status") == OVER and found.get("lost") is not None:
                return self._taken_over(context, step, resolved, store, waited, str(found["lost"]))
            if event is not None and found.get("status") != OVER:
                self.log.warning("THE TRIGGERER CANNOT WAIT, this worker does: %s", found.get("error"))
            # what the triggerer has seen, this host may see later
            return self.waited_for(context, step, resolved, store, waited, may_defer=False)

    def _own(
        self, session: Session, store: ManifestStore, context: Any, attempt: int | None
    ) -> tuple[AttemptRow, AttemptRef, str]:
        """
        :raises SupersededError: what was waited for is over: aborted, or not this go's.
        """
        from airflow_kafka_eos.protocol.stages.begin import reference

        rows = session.ledger.attempts(self.load_identity)
        row = next((row for row in rows if row.number == attempt), None) if attempt else (rows[-1] if rows else None)
        noted = None if row is None else store.submitted(reference(session, row))
        if row is None or noted is None or noted[1] != this_go(context, self) or row.verdict is Verdict.ABORT:
            why = "" if row is None or row.decided_at is None else (
                f": aborted by {row.decided_by} at {row.decided_at}: {row.reason}"
            )  # fmt: skip
            raise SupersededError(
                f"the attempt that this task has waited for is over, or not its own{why}. Nothing of it can become "
                "visible",
                remedy="If another run loads the same key, let it go on. Else clear this task: it opens a new attempt",
                load=str(self.load_identity),
                attempt=attempt,
            )
        return row, reference(session, row), noted[0]

    def _waited(
        self, session: Session, context: Any, row: AttemptRow, ref: AttemptRef, application: str
    ) -> Waited:
        warned = self.warned(session, row, owner_of(context))
        return Waited(Taken(row, ref, warned=warned), application, self._until(row))

    def _until(self, row: AttemptRow) -> datetime:
        """Past it nothing of the attempt is waited for: its writers may begin nothing, and what is open has timed out;
        or the author gives no application more time.
        """
        now = datetime.now(UTC)
        writers = now + self.writer_deadline if row.writers_until is None else moment(row.writers_until)
        until = writers + self.hold_time
        if self.execution_timeout is None or row.submitted_at is None:
            return until
        return min(until, moment(row.submitted_at) + self.execution_timeout)

    def _taken_over(
        self, context: Any, step: Step, resolved: Resolved, store: ManifestStore, waited: Waited, lost: str | None
    ) -> dict[str, Any]:
        manifest = left(store, waited.taken.ref, waited.application, lost)
        return self.record(context, step, resolved, store, waited.taken, manifest)


def this_go(context: Any, task: Any) -> str | None:
    """Names a task in its run between two clears: the same for a try and its retries, and for nothing else.

    Airflow counts a run's clears, also of tasks that run; ``max_tries`` are the tries until the clear before, and the
    retries of the DAG as it was then.

    :returns: None where Airflow does not say how often the run was cleared: then nobody may reattach.
    """
    cleared = getattr(context.get("dag_run"), "clear_number", None)
    most = getattr(context["ti"], "max_tries", None)
    if cleared is None or most is None:
        return None
    return f"{task_of(context)} cleared {cleared} max_tries {most} retries {task.retries}"


def is_good(store: ManifestStore, ref: AttemptRef) -> bool:
    """Whether an application that is over has left a manifest that can be taken over, and nobody gave it up."""
    if store.superseded_by(ref) is not None:
        return False
    try:
        store.read(ref)
    except ManifestError:
        return False
    return True


def left(store: ManifestStore, ref: AttemptRef, application: str, lost: str | None) -> Manifest:
    """The manifest of an application that is over; or what it has left in its place.

    :param lost: the platform's state of one that has left nothing.
    :raises AirflowException: the application's own error, or that it has none.
    """
    if store.is_written(ref) and not store.is_given_up(ref):
        return store.read(ref)
    # nothing of this is final: the next try opens an attempt of its own, unless the application's error says otherwise
    said = what_it_said(store.failure(ref))
    if said is not None:
        raise said
    by = store.superseded_by(ref)
    if by is not None:
        raise for_airflow(SupersededError, f"the attempt was superseded or aborted: {by}. [{ref}]")
    raise AirflowException(
        f"the application {application} has ended ({lost}), and has not said why: it did not begin, or was killed. See "
        "its platform's logs. A retry opens a new attempt"
    )


def moment(text: str) -> datetime:
    """One of the ledger's times; they are in UTC."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
