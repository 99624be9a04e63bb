"""What will become of a load that is not through: who is at work on it, or why nobody is, and what to do. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow
from airflow_kafka_eos.load import LoadState, Verdict

#: A worker has the task, or is about to have it, or the triggerer waits for it.
_AT_WORK = ("running", "restarting", "queued", "deferred", "up_for_reschedule")
_FAILED = ("failed", "upstream_failed")
_ENDED = ("success", "failed")


class Prospect(str, Enum):
    """Whether somebody goes on with a load by himself; the values are what the page shows."""

    AT_WORK = "at work"
    WAITS_FOR_RETRY = "waits for its retry"
    QUEUED = "waits for its turn"
    #: of its run, cleanup is still to come
    FAILED = "failed"
    PAUSED = "DAG paused"
    RUN_ENDED = "run has ended"
    RUN_DELETED = "run deleted"
    DAG_DELETED = "DAG deleted"
    #: its file is gone, or does not have it any more: the scheduler lets no task of it begin
    DAG_GONE = "DAG gone"
    UNKNOWN = "not known"


#: Nobody goes on with it by himself.
DEAD = frozenset({Prospect.RUN_ENDED, Prospect.RUN_DELETED, Prospect.DAG_DELETED, Prospect.DAG_GONE})


@dataclass(frozen=True)
class Try:
    """A task instance of the load's group, as Airflow's database has it."""

    task: str
    state: str | None
    number: int
    most: int

    def __str__(self) -> str:
        of = f" of {self.most}" if self.most > 1 else ""
        return f"{self.task} (try {self.number}{of})"


@dataclass(frozen=True)
class RunSeen:
    """What Airflow has of the run that an attempt names.

    :param has_dag: False where the DAG is deleted.
    :param is_stale: the DAG processor does not find the DAG any more.
    :param state: of the run; None where there is none.
    :param tries: of the tasks of the load's group.
    """

    dag_id: str
    run_id: str
    has_dag: bool
    is_paused: bool = False
    is_stale: bool = False
    state: str | None = None
    tries: tuple[Try, ...] = field(default=())


def prospect_of(row: LoadRow, newest: AttemptRow | None, seen: RunSeen | None) -> tuple[Prospect, str] | None:
    """What will become of it, and a text that says so; None for a load that is through, or is a person's already.

    :param seen: None where the attempt names no run of Airflow's, or its name is too long to be kept whole.
    """
    if newest is None or row.state in (LoadState.COMMITTED, LoadState.ABORTED, LoadState.GIVEN_UP, LoadState.IN_DOUBT):
        return None
    if seen is None:
        return Prospect.UNKNOWN, f"It is of {newest.responsible}, which names no run of this Airflow."
    kind, why = _kind_of(newest, seen)
    return kind, f"{why} {_outlook(newest, kind)}".strip()


def _kind_of(newest: AttemptRow, seen: RunSeen) -> tuple[Prospect, str]:
    if not seen.has_dag:
        return Prospect.DAG_DELETED, f"The DAG {seen.dag_id} is deleted in Airflow: nobody goes on with it."
    if seen.state is None:
        return Prospect.RUN_DELETED, f"The run {seen.run_id} is deleted in Airflow: nobody goes on with it."
    work = [t for t in seen.tries if t.state in _AT_WORK and _goes_on(t, seen)]
    if work:
        return Prospect.AT_WORK, _at_work(work)
    if seen.state in _ENDED:
        return Prospect.RUN_ENDED, f"Its run has ended ({seen.state}): nobody goes on with it."
    if seen.is_paused:
        return Prospect.PAUSED, f"The DAG {seen.dag_id} is paused: no task of the run begins until it is unpaused."
    if seen.is_stale:
        return Prospect.DAG_GONE, f"Airflow does not find the DAG {seen.dag_id} any more: no task of the run begins."
    retries = [t for t in seen.tries if t.state == "up_for_retry"]
    if retries:
        return Prospect.WAITS_FOR_RETRY, f"{_listed(retries)} failed, and is tried again."
    failed = [t for t in seen.tries if t.state == "failed"]
    if failed:
        return Prospect.FAILED, f"{_listed(failed)} failed."
    if any(t.state in _FAILED for t in seen.tries):
        return Prospect.FAILED, "A task before it failed."
    return Prospect.QUEUED, f"Its run is {seen.state}, and none of its tasks is at work right now."


def _goes_on(one: Try, seen: RunSeen) -> bool:
    """A paused DAG's deferred task is not resumed, and one that waits for its next look does not look."""
    return one.state not in ("deferred", "up_for_reschedule") or not seen.is_paused


def _at_work(work: Iterable[Try]) -> str:
    told = {"queued": "is queued", "deferred": "waits in the triggerer", "up_for_reschedule": "waits for its next look"}
    return " ".join(f"{one} {told.get(str(one.state), 'is running')}." for one in work)


def _listed(tries: Iterable[Try]) -> str:
    return ", ".join(map(str, tries))


_BUTTON = "Clean up ends it now"
_BY_ITSELF = "else maintenance does after abandoned_after, or the load's next run."


def _outlook(newest: AttemptRow, kind: Prospect) -> str:
    """What comes next, by itself or by a person."""
    if newest.verdict is Verdict.COMMIT:
        return _DECIDED.get(kind, "")
    if newest.verdict is Verdict.ABORT:
        return _ABORTED.get(kind, "")
    if kind in (Prospect.AT_WORK, Prospect.QUEUED):
        return "Nothing is to be done."
    if kind is Prospect.WAITS_FOR_RETRY:
        return "A retry of prepare aborts this attempt, and begins anew." if not newest.is_prepared else ""
    if kind is Prospect.FAILED:
        return "Cleanup of the run aborts it."
    if kind is Prospect.PAUSED:
        if newest.is_prepared:
            return f"Readers wait meanwhile. Unpause it; or {_BUTTON}; maintenance does so after paused_after."
        return "Unpause it, and the run goes on."
    if kind is Prospect.RUN_ENDED:
        step = "decide" if newest.is_prepared else "prepare"
        return f"Clear {step}, and the run goes on; or {_BUTTON}; {_BY_ITSELF}"
    if kind in DEAD:
        return f"It can never be committed. {_BUTTON}; {_BY_ITSELF}"
    return ""


_DECIDED: Mapping[Prospect, str] = {
    Prospect.AT_WORK: "It is decided to be committed.",
    Prospect.QUEUED: "It is decided to be committed, by the task commit of the run.",
    Prospect.WAITS_FOR_RETRY: "It is decided to be committed.",
    Prospect.FAILED: "It is decided to be committed: clear commit, or press Recover.",
    Prospect.PAUSED: "It is decided to be committed: unpause it, or press Recover.",
} | dict.fromkeys(DEAD, "It is decided to be committed, and nothing is lost: Recover does it now, maintenance else.")
_ABORTED: Mapping[Prospect, str] = {
    Prospect.AT_WORK: "It is aborted, and what it has open is ended.",
    Prospect.QUEUED: "It is aborted: cleanup of the run ends what it has open.",
    Prospect.WAITS_FOR_RETRY: "",
    Prospect.FAILED: "It is aborted: cleanup of the run ends what it has open.",
    Prospect.PAUSED: f"It is aborted. {_BUTTON}; maintenance does so too.",
} | dict.fromkeys(DEAD, f"It is aborted. {_BUTTON}; maintenance does so too.")
