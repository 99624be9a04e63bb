"""What the page shows, from rows of the ledger, answers of brokers and what Airflow has of runs. No I/O.

JSON values: times are UTC ISO texts, ages are milliseconds.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, assert_never

from airflow_kafka_eos import position
from airflow_kafka_eos.generation import first_key
from airflow_kafka_eos.ledger.rows import (
    AttemptRow,
    CursorRow,
    LoadRow,
    RangeRow,
    RepairRow,
    TransactionRow,
    reason_of_load,
)
from airflow_kafka_eos.load import REPAIR_THROWN_AWAY, LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.micro_batch import is_driver
from airflow_kafka_eos.operators.base import dag_and_run_of, dag_of
from airflow_kafka_eos.protocol.guards.id_caps import IdsReport, NameIds
from airflow_kafka_eos.protocol.hanging import HangingTransaction, what_to_do
from airflow_kafka_eos.transaction import TopicPartition, TransactionDescription

#: Rows in one answer.
MOST_LOADS = 200
MOST_TRANSACTIONS = 1000
#: Characters of a position: offsets of a thousand partitions are nothing that anybody reads.
MOST_OF_POSITION = 200
#: A worker has the task, or is about to have it, or the triggerer waits for it.
_AT_WORK = ("running", "restarting", "queued", "deferred", "up_for_reschedule")
_FAILED = ("failed", "upstream_failed")
_ENDED = ("success", "failed")


class Prospect(str, Enum):
    """Whether a run goes on with a load; the values are what the page shows."""

    AT_WORK = "at work"
    WAITS_FOR_RETRY = "waits for its retry"
    QUEUED = "waits for its turn"
    #: of its run, cleanup is still to come
    FAILED = "failed"
    PAUSED = "DAG paused"
    RUN_ENDED = "run has ended"
    RUN_DELETED = "run deleted"
    DAG_DELETED = "DAG deleted"
    #: in no DAG file any more: the scheduler lets no task of it begin
    DAG_GONE = "DAG not found"
    UNKNOWN = "not known"


#: No run goes on with it.
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


Outlook = tuple[Prospect, str] | None
#: By the owner that answers for an attempt; None where it names no run.
Runs = Mapping[str, RunSeen | None]


class ActionName(str, Enum):
    """What a button does."""

    RECOVER = "recover"
    CLEANUP = "cleanup"
    GIVE_UP = "give-up"

    def command(self, load: LoadIdentity) -> str:
        """The command of that name, but for the connections; to be pasted into a shell."""
        match self:
            case ActionName.RECOVER:
                return f"airflow-kafka-eos loads recover {load.in_command}"
            case ActionName.CLEANUP:
                return f"airflow-kafka-eos cleanup {load.in_command}"
            case ActionName.GIVE_UP:
                return f"airflow-kafka-eos loads give-up {load.in_command} --reason …"
        assert_never(self)


@dataclass(frozen=True)
class Action:
    """A button.

    :param warning: what to know before it is done; empty: nothing to warn of.
    :param wants_name: the user types the load's name.
    :param wants_reason: the user says why.
    :param if_open: only worth showing while something of the load is open.
    """

    name: ActionName
    title: str
    warning: str = ""
    wants_name: bool = False
    wants_reason: bool = False
    if_open: bool = False


class Standing(str, Enum):
    """Whether an open transaction will be ended by a run, or is left for somebody to end."""

    UNDECIDED = "undecided"
    #: the same, and nothing of its run goes on until a person unpauses the DAG
    PAUSED = "undecided, DAG paused"
    #: the same, and no run will decide it: its run or its DAG is deleted, or has ended
    ABANDONED = "undecided, abandoned"
    DECIDED = "to be committed"
    #: no longer decidable (FLIP-511's word): cleanup ends it
    LINGERING = "lingering"
    #: of this ledger by its name, and unknown to it: the ledger was restored from a backup?
    UNKNOWN = "unknown to the ledger"


def loads(
    rows: Iterable[tuple[LoadRow, AttemptRow | None] | tuple[LoadRow, AttemptRow | None, str]],
    paused: Container[str] = (),
    runs: Runs | None = None,
    *,
    more: bool = False,
) -> dict[str, Any]:
    """The list, what changed last first.

    :param rows: each load with its newest attempt, and its :func:`note`.
    :param paused: DAGs.
    :param runs: those of the unfinished ones.
    :param more: there are others.
    """
    every = sorted(rows, key=lambda of: of[0].updated_at, reverse=True)
    return {
        "loads": [load(*of, paused=paused, runs=runs) for of in every[:MOST_LOADS]],
        "more": more or len(every) > MOST_LOADS,
    }


def note(newest: AttemptRow | None, same: Sequence[AttemptRow], run: str | None) -> str:
    """What a person should know of a load that looks well; empty: nothing.

    :param newest: its newest attempt.
    :param same: committed attempts of its name whose job was asked for the same as this one's.
    :param run: how owners of the run begin whose loads are shown; None: all loads are.
    """
    if newest is None or newest.verdict is Verdict.ABORT:
        return ""
    notes = []
    if run is not None and newest.verdict is Verdict.COMMIT and not newest.responsible.startswith(run):
        notes.append(
            f"Already committed by {newest.responsible}, decided at {newest.decided_at}: this run has written nothing."
        )
    keys = sorted({a.load.key for a in same if first_key(a.load.key) != first_key(newest.load.key)})
    if keys:
        more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
        notes.append(
            f"Its job had the same arguments as that of {', '.join(keys[:3])}{more}, committed too: is load_key finer "
            "than what the job reads?"
        )
    return " ".join(notes)


def load(
    row: LoadRow,
    newest: AttemptRow | None,
    note: str = "",
    *,
    paused: Container[str] = (),
    runs: Runs | None = None,
) -> dict[str, Any]:
    """A load in the list."""
    outlook = outlook_of(row, newest, runs)
    named = None if newest is None else dag_and_run_of(newest.responsible)
    return {
        **asdict(row.load),
        "state": row.state,
        "attempt": row.newest_attempt,
        "decision": None if newest is None else newest.verdict,
        "decided_by": None if newest is None else newest.decided_by,
        "decided_at": None if newest is None else newest.decided_at,
        "note": note,
        "records": None if newest is None else newest.records,
        "how": "" if newest is None else newest.how,
        "reason": reason_of_load(row, newest),
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "dag_id": None if named is None else named[0],
        "run_id": None if named is None else named[1],
        "waits_for_paused_dag": waits_for_paused_dag(newest, paused),
        "prospect": None if outlook is None else outlook[0],
        "outlook": "" if outlook is None else outlook[1],
    }


def waits_for_paused_dag(attempt: AttemptRow | None, paused: Container[str]) -> bool:
    """Whether what is prepared waits until a person unpauses its DAG, or maintenance ends it (ADR 23)."""
    if attempt is None or not attempt.is_undecided or not attempt.is_prepared:
        return False
    return dag_of(attempt.responsible) in paused


def load_in_full(
    row: LoadRow,
    attempts: Sequence[AttemptRow],
    transactions: Sequence[tuple[AttemptRow, TransactionRow]],
    repairs: Iterable[RepairRow],
    *,
    hidden: int,
    may_act: bool,
    paused: Container[str] = (),
    runs: Runs | None = None,
    note: str = "",
    ranges: Sequence[RangeRow] = (),
    cursor: CursorRow | None = None,
) -> dict[str, Any]:
    """One load with all that the ledger knows.

    :param attempts: those that the user may see.
    :param hidden: how many others there are.
    :param ranges: what its attempts read; none for a load without a cursor.
    :param cursor: of its name.
    :param note: see :func:`note`.
    """
    newest = attempts[-1] if attempts else None
    allowed = actions(row, attempts, outlook_of(row, newest, runs)) if may_act else []
    return {
        "load": load(row, newest, note, paused=paused, runs=runs),
        "attempts": [_attempt(a, row.state, reads) for a, reads in _with_ranges(attempts, ranges)],
        "cursor": None if cursor is None else _cursor(cursor),
        "hidden_attempts": hidden,
        "transactions": [_transaction(a, t) for a, t in transactions[:MOST_TRANSACTIONS]],
        "transactions_left_off": max(0, len(transactions) - MOST_TRANSACTIONS),
        "repairs": [_repair(r) for r in repairs],
        "actions": [asdict(a) for a in allowed],
        "may_act": may_act,
    }


def _with_ranges(
    attempts: Sequence[AttemptRow], ranges: Sequence[RangeRow]
) -> Iterator[tuple[AttemptRow, RangeRow | None]]:
    by_number = {one.attempt: one for one in ranges}
    return ((attempt, by_number.get(attempt.number)) for attempt in attempts)


def _reads(row: RangeRow) -> str:
    until = "where its job says" if row.until is None else _position(row.until)
    return f"reads from {_position(row.since)} to {until}{', as was named' if row.is_named else ''}"


def _cursor(row: CursorRow) -> dict[str, Any]:
    """Texts: a browser would round what is large."""
    return {
        "position": _position(row.position),
        "moves": row.moves,
        "doubt": row.doubt,
        "held_by": str(row.holder) if row.is_held else None,
        "moved_at": row.moved_at,
        "moved_by": row.moved_by,
        "reason": row.reason,
    }


def _position(found: Any) -> str:
    text = position.dump(found)
    return text if len(text) <= MOST_OF_POSITION else f"{text[: MOST_OF_POSITION - 1]}…"


def _attempt(row: AttemptRow, state: LoadState, reads: RangeRow | None) -> dict[str, Any]:
    moments = (
        ("begun", row.opened_at),
        ("submitted", row.submitted_at),
        ("prepared", row.prepared_at),
        ("decided", row.decided_at),
        (_end(row, state), row.closed_at),
    )
    return {
        "number": row.number,
        "by": row.responsible,
        "decision": row.verdict,
        "decided_by": row.decided_by,
        "reason": row.reason,
        "records": row.records,
        "bytes": row.bytes,
        "how": row.how,
        "pruned_at": row.pruned_at,
        "reads": None if reads is None else _reads(reads),
        "timeline": [{"what": what, "at": at} for what, at in moments if at is not None],
    }


def _end(row: AttemptRow, state: LoadState) -> str:
    """What has closed it; of a load that was given up cleanup does, and nothing of it is called committed."""
    match row.verdict:
        case Verdict.COMMIT:
            return "swept" if state is LoadState.GIVEN_UP else "committed"
        case Verdict.ABORT | None:
            return "swept"
    assert_never(row.verdict)


def _transaction(attempt: AttemptRow, row: TransactionRow) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "transactional_id": row.transaction.transactional_id,
        "prepared_txn_state": str(row.transaction.state),
        "spark_partition": row.spark_partition,
        "topic_partitions": [str(w.topic_partition) for w in row.writes],
        "records": row.records,
        "outcome": row.outcome,
    }


def _repair(row: RepairRow) -> dict[str, Any]:
    return {
        "number": row.number,
        "attempt": row.attempt,
        "state": row.state,
        "lost": row.lost_transactional_id,
        "replacement": row.transactional_id,
        "opened_at": row.opened_at,
        "opened_by": row.opened_by,
        "reason": row.reason,
    }


def open_transaction(
    seen: TransactionDescription,
    attempt: AttemptRow | None,
    row: LoadRow | None,
    *,
    is_decided: bool,
    now_ms: int,
    paused: Container[str] = (),
    runs: Runs | None = None,
) -> dict[str, Any]:
    """One that is open at its coordinator.

    :param attempt: whose it is; None: the ledger does not know.
    :param row: that attempt's load.
    :param is_decided: that very identity is decided to be committed.
    """
    return {
        "transactional_id": seen.transactional_id,
        "prepared_txn_state": str(seen.state),
        "coordinator_state": seen.coordinator_state,
        "standing": standing(attempt, row, is_decided=is_decided, paused=paused, runs=runs),
        "running_ms": max(0, now_ms - seen.start_time_ms) if seen.start_time_ms >= 0 else None,
        "two_phase_commit": seen.is_two_phase,
        "time_left_ms": None if seen.is_two_phase else seen.time_left_ms(now_ms),
        "topic_partitions": [str(tp) for tp in sorted(seen.partitions)],
        "attempt": None if attempt is None else attempt.number,
        "load": None if attempt is None else asdict(attempt.load),
    }


def standing(
    attempt: AttemptRow | None,
    row: LoadRow | None,
    *,
    is_decided: bool,
    paused: Container[str] = (),
    runs: Runs | None = None,
) -> Standing:
    """What an open transaction of ours waits for."""
    if attempt is None:
        return Standing.UNKNOWN
    if attempt.verdict is None:
        outlook = outlook_of(row, attempt, runs)
        if outlook is not None and outlook[0] in DEAD:
            return Standing.ABANDONED
        return Standing.PAUSED if waits_for_paused_dag(attempt, paused) else Standing.UNDECIDED
    if is_decided and row is not None and row.state.is_unverified:
        return Standing.DECIDED
    return Standing.LINGERING


def lag(by_partition: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    """Where readers wait because of us, most first."""
    pairs = sorted(by_partition.items(), key=lambda pair: (-pair[1], pair[0]))
    return [{"topic_partition": str(tp), "records": records} for tp, records in pairs]


def hanging(found: HangingTransaction, bootstrap_servers: str) -> dict[str, Any]:
    """One that no coordinator will end, or where ``doubt`` says why that is not proven."""
    return {
        "topic_partition": str(found.producer.partition),
        "producer": str(found.producer.state),
        "start_offset": found.producer.txn_start_offset,
        "why": found.why,
        "idle_ms": found.idle_ms,
        "whose": found.whose,
        "transactional_id": found.transactional_id,
        "load": None if found.attempt is None else str(found.attempt.load),
        "proven": found.is_proven,
        "doubt": None if found.doubt is None else found.doubt.message,
        "what_to_do": what_to_do(found, bootstrap_servers),
    }


def ids(report: IdsReport, names: Sequence[NameIds]) -> dict[str, Any]:
    """:param names: of the report, those that the user may see."""
    return {
        "namespace": report.namespace,
        "expiration_ms": report.expiration_ms,
        "names": [
            asdict(n) | {"ids": n.ids, "oldest_s": None if n.oldest_s is None else round(n.oldest_s)} for n in names
        ],
    }


def actions(row: LoadRow, attempts: Sequence[AttemptRow], outlook: Outlook = None) -> list[Action]:
    """What may be done for a load as it is now; that it is allowed to a user is another question.

    :param outlook: see :func:`outlook_of`.
    """
    found = []
    if row.state.is_unverified:
        found.append(Action(ActionName.RECOVER, "Recover"))
    if attempts:
        found.append(_cleanup(row, attempts, outlook))
    if row.state.is_unverified:
        warning = (
            "It is decided to be committed. Readers keep what is committed of it, the rest is never completed, and "
            "its key never loads again. There is no way back. Clean up then names what is still open; what is missing "
            "is certain only once it finds the load clean: compare, and write by hand, behind that."
        )
        found.append(Action(ActionName.GIVE_UP, "Give up", warning, wants_name=True, wants_reason=True))
    return found


def _cleanup(row: LoadRow, attempts: Sequence[AttemptRow], outlook: Outlook) -> Action:
    if row.state is LoadState.REPAIRING:
        return Action(ActionName.CLEANUP, "Clean up", f"{REPAIR_THROWN_AWAY}.", wants_name=True)
    newest = attempts[-1]
    if newest.is_undecided:
        work = "a run may be working on it." if outlook is None else outlook[1]
        warning = f"Attempt {newest.number} is undecided: {work} It is aborted, and cannot be committed afterwards."
        return Action(ActionName.CLEANUP, "Clean up", warning, wants_name=True)
    return Action(ActionName.CLEANUP, "Clean up", if_open=all(a.closed_at for a in attempts))


def is_unfinished(row: LoadRow) -> bool:
    """Whether a run may go on with it: only then Airflow is asked which."""
    return not row.state.is_ended and row.state is not LoadState.IN_DOUBT


def outlook_of(row: LoadRow | None, newest: AttemptRow | None, runs: Runs | None) -> Outlook:
    """What will become of an unfinished load; None for others, and where Airflow was not asked.

    :param runs: None: Airflow was not asked.
    """
    if row is None or newest is None or runs is None or newest.responsible not in runs:
        return None
    return prospect_of(row, newest, runs[newest.responsible])


def prospect_of(row: LoadRow, newest: AttemptRow | None, seen: RunSeen | None) -> tuple[Prospect, str] | None:
    """What will become of it, and a text that says so; None for a load that is finished, or left to a person.

    :param seen: None where the attempt names no run of Airflow's, or its name is too long to be kept whole.
    """
    if newest is None or not is_unfinished(row):
        return None
    if seen is None:
        return Prospect.UNKNOWN, f"It belongs to {newest.responsible}, which is no run of this Airflow."
    kind, why = _kind_of(newest, seen)
    return kind, f"{why} {_outlook(newest, kind)}".strip()


def _kind_of(newest: AttemptRow, seen: RunSeen) -> tuple[Prospect, str]:
    if not seen.has_dag:
        return Prospect.DAG_DELETED, (
            f"The DAG {seen.dag_id} is deleted in Airflow, so no run finishes it, and its Kafka connection is not "
            "known here: a button answers with the command to run."
        )
    if seen.state is None:
        return Prospect.RUN_DELETED, f"The run {seen.run_id} is deleted in Airflow, so no run finishes it."
    work = [t for t in seen.tries if t.state in _AT_WORK and _goes_on(t, seen)]
    if work:
        return Prospect.AT_WORK, _at_work(work)
    if seen.state in _ENDED:
        return Prospect.RUN_ENDED, f"Its run has ended ({seen.state}) without finishing it."
    if seen.is_paused:
        return Prospect.PAUSED, f"The DAG {seen.dag_id} is paused: no task of the run begins until it is unpaused."
    if seen.is_stale:
        return Prospect.DAG_GONE, f"No DAG file has the DAG {seen.dag_id} any more: no task of the run begins."
    retries = [t for t in seen.tries if t.state == "up_for_retry"]
    if retries:
        return Prospect.WAITS_FOR_RETRY, f"{_listed(retries)} failed, and is tried again."
    failed = [t for t in seen.tries if t.state == "failed"]
    if failed:
        return Prospect.FAILED, f"{_listed(failed)} failed."
    if any(t.state in _FAILED for t in seen.tries):
        return Prospect.FAILED, "A task before it failed."
    return Prospect.QUEUED, f"Its run is {seen.state}, and none of its tasks is running right now."


def _goes_on(one: Try, seen: RunSeen) -> bool:
    """A paused DAG's deferred task is not resumed, and one that waits for its next look does not look."""
    return one.state not in ("deferred", "up_for_reschedule") or not seen.is_paused


def _at_work(work: Iterable[Try]) -> str:
    told = {"queued": "is queued", "deferred": "waits in the triggerer", "up_for_reschedule": "waits for its next look"}
    return " ".join(f"{one} {told.get(str(one.state), 'is running')}." for one in work)


def _listed(tries: Iterable[Try]) -> str:
    return ", ".join(map(str, tries))


def _outlook(newest: AttemptRow, kind: Prospect) -> str:
    """What comes next, by itself or by a person."""
    match newest.verdict:
        case Verdict.COMMIT:
            of_query = is_driver(newest.submitted_by) and kind is not Prospect.AT_WORK
            return _DECIDED_BATCH if of_query else _DECIDED.get(kind, "")
        case Verdict.ABORT:
            return _ABORTED.get(kind, "")
        case None:
            return _outlook_undecided(newest, kind)
    assert_never(newest.verdict)


def _outlook_undecided(newest: AttemptRow, kind: Prospect) -> str:
    if kind in (Prospect.AT_WORK, Prospect.QUEUED):
        return "There is nothing to do."
    writes = "run" if is_driver(newest.submitted_by) else "prepare"
    if kind is Prospect.WAITS_FOR_RETRY:
        return f"The retry of {writes} aborts this attempt, and opens a new one." if not newest.is_prepared else ""
    if kind is Prospect.FAILED:
        return "Cleanup of the run aborts it."
    if kind is Prospect.PAUSED:
        if newest.is_prepared:
            return f"Readers wait meanwhile. Unpause it; or {_BUTTON}. Maintenance does so after paused_after."
        return "The run goes on when it is unpaused."
    if kind is Prospect.RUN_ENDED:
        step = "decide" if newest.is_prepared and writes == "prepare" else writes
        return f"Clear {step} to let the run go on; or {_BUTTON}; {_BY_ITSELF}"
    if kind in DEAD:
        return f"It can never be committed: {_BUTTON}; {_BY_ITSELF}"
    return ""


_BUTTON = "press Clean up to end it now"
_BY_ITSELF = "otherwise maintenance ends it after abandoned_after, or the next run of the load does."
_DECIDED_BATCH = (
    "It is decided to be committed: the next run of its query does so, or maintenance. Press Recover to do it now."
)
_DECIDED: Mapping[Prospect, str] = {
    Prospect.AT_WORK: "It is decided to be committed.",
    Prospect.QUEUED: "It is decided to be committed, by the task commit of the run.",
    Prospect.WAITS_FOR_RETRY: "It is decided to be committed.",
    Prospect.FAILED: "It is decided to be committed: clear commit, or press Recover.",
    Prospect.PAUSED: "It is decided to be committed: unpause it, or press Recover.",
} | dict.fromkeys(DEAD, "It is decided to be committed: press Recover to do it now; otherwise maintenance does.")
_ABORTED: Mapping[Prospect, str] = {
    Prospect.AT_WORK: "It is aborted, and what it has open is ended.",
    Prospect.QUEUED: "It is aborted: cleanup of the run ends what it has open.",
    Prospect.WAITS_FOR_RETRY: "",
    Prospect.FAILED: "It is aborted: cleanup of the run ends what it has open.",
    Prospect.PAUSED: f"It is aborted: {_BUTTON}; otherwise maintenance does.",
} | dict.fromkeys(DEAD, f"It is aborted: {_BUTTON}; otherwise maintenance does.")
