"""prepare waits for an application that runs elsewhere and outlives the task's process: here, or in the triggerer.

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
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow import __version__ as AIRFLOW
from airflow.providers.common.compat.sdk import AirflowException

from airflow_kafka_eos.arguments import duration
from airflow_kafka_eos.config import setting
from airflow_kafka_eos.errors import (
    KafkaEosError,
    ManifestError,
    NotFinishedError,
    StoppedError,
    StorageUnavailableError,
    SupersededError,
    TransientError,
)
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.operators.application_watch import MOST_FAILED, ApplicationWatch, Status
from airflow_kafka_eos.operators.base import no_retry_of_terminal_errors, overridden, owner_of, task_of
from airflow_kafka_eos.operators.begun import check_begun
from airflow_kafka_eos.operators.preparing import PreparingOperator, Taken
from airflow_kafka_eos.operators.submitting import for_airflow, manifest_store, what_it_said
from airflow_kafka_eos.spark.manifest_store import Submitted
from airflow_kafka_eos.triggers import OVER, ApplicationTrigger

if TYPE_CHECKING:
    from airflow_kafka_eos.hooks import Resolved
    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.manifest import AttemptRef, Manifest
    from airflow_kafka_eos.operators.base import Step
    from airflow_kafka_eos.protocol.session import Session
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

T = TypeVar("T")


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
    wait_in_triggerer: bool
    #: set from the submission on: nothing is ended by whoever sets it
    _stop_waiting: threading.Event | None = None

    def from_the_start(self, context: Any) -> dict[str, Any]:
        """What a try does that nothing was deferred in."""
        raise NotImplementedError

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
            row = self._newest(session)
            if row is None or not row.is_undecided or not row.is_submitted:
                return None
            ref = self._ref(session, row)
            noted = store.submitted(ref)
            if noted is None or not is_same_go(noted, context, go):
                return None
            step.attempt = row.number
            waited = self._waited(session, context, row, ref, noted.application)
        self._stop_waiting = threading.Event()
        watch = ApplicationWatch(store, ref, noted.application, self.status_of())
        waits = watch.look(patient=False)
        found = self._against(resolved, store, ref) if waits is None else []
        if found or (waits is not None and waited.until < datetime.now(UTC)):
            self.log.warning("load %s: %s is not waited for: %s", ref, noted.application, waits or "; ".join(found[:3]))
            self._stop_waiting = None
            return None
        self.log.info("load %s: an earlier try has submitted %s, which is waited for", ref, noted.application)
        return waited

    def _against(self, resolved: Resolved, store: ManifestStore, ref: AttemptRef) -> list[str]:
        """What speaks against what an application that is over has left: a retry opens a new attempt then.

        Some time may have gone by since: brokers may have ended it.
        """
        from airflow_kafka_eos.protocol.stages.decide import problems_by_now

        manifest = self._patiently(lambda: store.read(ref) if is_good(store, ref) else None)
        if manifest is None:
            return ["it has left no manifest"]
        margin_s = duration("margin", setting("margin")).total_seconds()
        with resolved.session(self.namespace) as session:
            return problems_by_now(session, manifest, margin_s)

    def _patiently(
        self, read: Callable[[], T], *, passing: tuple[type[TransientError], ...] = (StorageUnavailableError,)
    ) -> T:
        """What is read. A store that is away for a while ends no waiting; nor does :class:`.ApplicationWatch`.

        :param passing: what is tried again, so many times in a row.
        :raises StoppedError: the task was told to stop meanwhile.
        """
        for _ in range(MOST_FAILED - 1):
            try:
                return read()
            except passing as e:
                self.log.warning("load %s: what was left cannot be read for now: %s", self.load_identity, e)
            self._rest()
        return read()

    def _rest(self, application: str = "its application") -> None:
        """Up to the next look.

        :raises StoppedError: the task was told to stop.
        """
        stop = self._stop_waiting or threading.Event()
        if stop.wait(self.poll_s):
            raise StoppedError(
                f"prepare was told to stop while it waited for {application}, which goes on",
                remedy="A retry waits for it again. Cleared, the task opens a new attempt, and that one's driver is "
                "told to stop; so does cleanup of a run that has failed",
                load=str(self.load_identity),
            )

    def _newest(self, session: Session) -> AttemptRow | None:
        rows = session.ledger.attempts(self.load_identity)
        return rows[-1] if rows else None

    def _ref(self, session: Session, row: AttemptRow) -> AttemptRef:
        from airflow_kafka_eos.protocol.stages.begin import reference

        return reference(session, row)

    def handed_over(self, context: Any, store: ManifestStore, taken: Taken, application: str, go: str) -> Waited:
        """What is waited for behind a submission; a retry finds it by the note beside the claim."""
        self._stop_waiting = threading.Event()
        try:
            by = Submitted(application, task_of(context), go, context["ti"].try_number)
            store.note_submitted(taken.ref, by)
        except KafkaEosError as e:  # it runs, and is waited for here
            self.log.warning("load %s: a retry will not find %s, for it cannot be noted: %s", taken.ref, application, e)
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
        stop = self._stop_waiting = self._stop_waiting or threading.Event()
        watch = ApplicationWatch(store, waited.taken.ref, waited.application, self.status_of())
        waits = watch.look()
        # who comes back goes past an execute of the author's
        may_defer = may_defer and self.wait_in_triggerer and not overridden(self, "execute")
        if waits is not None and may_defer and not stop.is_set():
            platform = self.platform()
            if platform is not None and self._is_noted(store, waited.taken.ref):
                self._defer(waited, waits, platform, context["ti"].try_number)
        told = ""
        while waits is not None:
            if waits != told:  # once: it may stay so for hours
                self.log.info("waits: %s", waits)
                told = waits
            if datetime.now(UTC) > waited.until:
                raise AirflowException(
                    f"the application {waited.application} of {waited.taken.ref} has not finished until "
                    f"{waited.until}, when it had to (writer_deadline and hold_time, or execution_timeout): {waits}. "
                    "A retry opens a new attempt"
                )
            self._rest(f"the application {waited.application}")
            waits = watch.look()
        return self._taken_over(context, step, resolved, store, waited, watch.lost)

    def _is_noted(self, store: ManifestStore, ref: AttemptRef) -> bool:
        """Whether the triggerer, and a retry, can see whose the application is. Not to know costs the try nothing."""
        try:
            return store.submitted(ref) is not None
        except KafkaEosError as e:
            self.log.warning("load %s: what is noted of it cannot be read, so this worker waits: %s", ref, e)
            return False

    def _defer(self, waited: Waited, waits: str, platform: dict[str, Any], try_number: int) -> None:
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
            kwargs={
                "attempt": ref.attempt,
                "try_number": try_number,
                "load": [ref.load.namespace, ref.load.name, ref.load.key],
            },
            timeout=max(waited.until - datetime.now(UTC), timedelta(seconds=1)),
        )

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """Airflow's own. Behind a trigger that has failed, or a timeout, it looks by itself.

        A task that was cleared behind its deferral, while it ran, comes back here too, in a later try: it begins anew.
        """
        given = next_kwargs or {}
        if next_method == self.collected.__name__:
            if given.get("try_number") == context["ti"].try_number:
                if "load" in given:  # of a version before there is none
                    with no_retry_of_terminal_errors():
                        check_begun(self.load_identity, LoadIdentity(*given["load"]))
                return self.collected(context, given.get("event"), int(given["attempt"]))
        elif self._has_deferred_in(context):
            self.log.warning("the triggerer has not waited to the end, this worker looks: %s", given)
            return self.collected(context, None, None)
        return self.from_the_start(context)

    def _has_deferred_in(self, context: Any) -> bool:
        """Whether the newest attempt's application is of this try, or of one before it in the same go."""
        store, go = manifest_store(self.manifest_dir), this_go(context, self)
        resolved = self._resolve()

        def look() -> Submitted | None:
            with resolved.session(self.namespace) as session:
                row = self._newest(session)
                return None if row is None else store.submitted(self._ref(session, row))

        noted = self._patiently(look)
        if noted is None or (noted.task, noted.go) != (task_of(context), go):
            return False
        return noted.try_number <= int(context["ti"].try_number)

    def collected(self, context: Any, event: dict[str, Any] | None, attempt: int | None) -> dict[str, Any]:
        """Behind a deferral: what was submitted before it, and nothing else, is waited for and taken over.

        A clear of another task is none of its business.

        :param attempt: the one that has waited; None: the newest, which is known to be this task's.
        """
        self._stop_waiting = threading.Event()
        with self.as_step(context) as step, no_retry_of_terminal_errors():
            resolved, store = self._resolve(), manifest_store(self.manifest_dir)

            def own() -> Waited:
                with resolved.session(self.namespace) as session:
                    row, ref, application = self._own(session, store, context, attempt)
                    step.attempt = row.number
                    return self._waited(session, context, row, ref, application)

            # a folder that hosts share may show the note late
            waited = self._patiently(own, passing=(StorageUnavailableError, NotFinishedError))
            ref, application = waited.taken.ref, waited.application
            if waited.taken.is_done:
                return self.was_decided(step, waited.taken)
            found = event or {}
            if found.get("status") == OVER and found.get("lost") is not None:
                return self._taken_over(context, step, resolved, store, waited, str(found["lost"]))
            if self._patiently(lambda: is_good(store, ref)) and (against := self._against(resolved, store, ref)):
                # it may have waited long to be taken up: for a slot, a scheduler, or in a paused DAG
                raise AirflowException(
                    f"what {application} of {ref} has prepared can no longer be committed: {'; '.join(against[:3])}. A "
                    "retry opens a new attempt"
                )
            if event is not None and found.get("status") != OVER:
                self.log.warning("THE TRIGGERER CANNOT WAIT, this worker does: %s", found.get("error"))
            # what the triggerer has seen, this host may see later
            return self.waited_for(context, step, resolved, store, waited, may_defer=False)

    def _own(
        self, session: Session, store: ManifestStore, context: Any, attempt: int | None
    ) -> tuple[AttemptRow, AttemptRef, str]:
        """
        :raises SupersededError: what was waited for is over: it was aborted.
        :raises NotFinishedError: its note cannot be seen, for now.
        """
        row = session.ledger.attempt(self.load_identity, attempt) if attempt else self._newest(session)
        if row is None:
            raise _over(self.load_identity, attempt, "")
        if row.verdict is Verdict.ABORT:
            why = f": aborted by {row.decided_by} at {row.decided_at}: {row.reason}"
            raise _over(self.load_identity, row.number, why)
        ref = self._ref(session, row)
        noted = store.submitted(ref)
        if noted is None:
            raise NotFinishedError(
                f"what this task has noted of its application is not to be seen in {self.manifest_dir!r}",
                remedy="Look whether that folder is mounted here. A retry that sees the note waits on; one that does "
                "not opens a new attempt, and nothing of this one becomes visible",
                **ref.ids,
            )
        if noted.task != task_of(context):
            raise _over(self.load_identity, row.number, f": {noted.application} was submitted by {noted.task}")
        return row, ref, noted.application

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
        def record() -> dict[str, Any]:
            manifest = left(store, waited.taken.ref, waited.application, lost)
            return self.record(context, step, resolved, store, waited.taken, manifest)

        result = self._patiently(record)  # told to the ledger twice is told once
        self.is_over(waited.application)
        return result

    def is_over(self, application: str) -> None:
        """What is left of an application on its platform, once it is taken over, may be removed. Raises nothing."""


def this_go(context: Any, task: Any) -> str | None:
    """What a task's tries have in common between two clears of its run; also a run that is made again is another go.

    Airflow counts a run's clears, from 3.2 on also of tasks that run; ``max_tries`` are the tries until the clear
    before, and the retries of the DAG as it was then. A run that was deleted and made again may have the same id and
    the same counts, but starts at another time. And the job is asked for the same, and that is written in the same way:
    a DAG that was edited meanwhile asks for something else. What a job's file says is not looked at.

    :returns: None where Airflow does not say: then nobody may reattach.
    :raises ConfigurationError: what is asked for cannot be written.
    """
    run = context.get("dag_run")
    cleared, started = getattr(run, "clear_number", None), getattr(run, "start_date", None)
    most = getattr(context["ti"], "max_tries", None)
    if None in (cleared, started, most) or not counts_clears():
        return None
    asked = f"asks {task.written_sha256()}"
    return f"started {started} cleared {cleared} max_tries {most} retries {task.retries} {asked}"


def counts_clears() -> bool:
    """Whether this Airflow counts clears of a run that runs: 3.1 counts only those of finished ones."""
    return tuple(map(int, AIRFLOW.split(".")[:2])) >= (3, 2)


def is_same_go(noted: Submitted, context: Any, go: str) -> bool:
    """Whether an application is that of an earlier try of this task, in the same go (rule: reattach-to-its-own).

    A task instance that was deleted and is made again begins with its first try.
    """
    return (noted.task, noted.go) == (task_of(context), go) and noted.try_number < context["ti"].try_number


def _over(load: LoadIdentity, attempt: int | None, why: str) -> SupersededError:
    return SupersededError(
        f"the attempt that this task has waited for is over, or not its own{why}. Nothing of it can become visible",
        remedy="If another run loads the same key, let it go on. Else clear this task: it opens a new attempt",
        load=str(load),
        attempt=attempt,
    )


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
        f"the application {application} of {ref} has ended ({lost}), and has not said why: it did not begin, or was "
        "killed. See its platform's logs. A retry opens a new attempt"
    )


def moment(text: str) -> datetime:
    """One of the ledger's times; they are in UTC."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
