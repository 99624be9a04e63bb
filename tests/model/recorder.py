"""Write down what a real run does, event by event, where our code meets ledger, coordinator and writers.

An event is recorded when it is over, but for an EndTxn, which is recorded before it is sent and again when it is
answered: from the first of them on it may arrive at any moment.
A process that will be killed keeps its events in a file: what it had written outlives it.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.kafka.producer.arrow.writer import ArrowWriter
from airflow_kafka_eos.kafka.producer.copier import Copier
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import RepairState
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import CoordinatorState, PreparedTransaction, PreparedTxnState


class Event(NamedTuple):
    """:param kind: a method of :class:`tests.model.replay.Replay`.
    :param what: that method's arguments.
    """

    kind: str
    what: dict[str, Any]


class Recorder:
    """Patches our classes as long as ``patch`` lives; several threads may be recorded.

    :param journal: a file that gets each event too, as it happens.
    """

    def __init__(self, patch: pytest.MonkeyPatch, journal: Path | None = None) -> None:
        self.events: list[Event] = []
        self._patch = patch
        self._journal = None if journal is None else journal.open("ab", buffering=0)
        self._deaf = False
        # what the ledger does is one step: nobody else's event comes between its doing and its record
        self._lock = threading.RLock()
        self._opened = 0
        self._wrap_ledger()
        self._wrap_repairs()
        self._wrap_coordinator()
        self._after(
            ArrowWriter, "prepare", lambda answer, *_, **__: self._note("wrote", transaction=answer[0])
        )

    def of_kind(self, kind: str) -> list[int]:
        """Where events of a kind stand."""
        return [n for n, event in enumerate(self.events) if event.kind == kind]

    def note(self, kind: str, **what: Any) -> None:
        """An event of somebody who is none of our classes, such as a zombie."""
        self._note(kind, **what)

    def go_on_from(self, events: Iterable[Event]) -> None:
        """What another process did before this one."""
        self.events += events
        self._opened = max((e.what["attempt"] for e in self.events if e.kind == "opened"), default=0)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """What is done inside, by our classes too, is done by the environment: the replay is not told."""
        self._deaf = True
        try:
            yield
        finally:
            self._deaf = False

    # -- ledger ----------------------------------------------------------------------------------------------------

    def _wrap_ledger(self) -> None:
        for name in ("begin", "submit"):
            self._after(Ledger, name, lambda row, *_, **__: self._open(row.number))
        self._after(
            Ledger,
            "mark_prepared",
            lambda _, __, manifest, **___: self._note(
                "reported", attempt=manifest.attempt.attempt, transactions=list(manifest.transactions)
            ),
        )
        self._after(
            Ledger, "decide_commit", lambda row, *_, **__: self._note("decided_commit", attempt=row.number)
        )
        self._after(
            Ledger,
            "decide_abort",
            lambda done, _, ref, **__: self._note("decided_abort", attempt=ref.attempt, done=done),
        )
        self._after(
            Ledger,
            "make_undecidable",
            lambda rows, *_, **__: self._note(
                "made_undecidable", verdicts={r.number: r.verdict for r in rows}
            ),
        )
        self._after(
            Ledger,
            "is_decided_commit",
            lambda found, _, transaction: self._note("asked", transaction=transaction, decided=found),
        )
        self._after(Ledger, "decided_among", self._asked_for_all)
        self._after(
            Ledger,
            "record_outcomes",
            lambda recorded, _, load, number, __: self._note(
                "found", attempt=number, outcomes=dict(recorded)
            ),
        )
        self._after(Ledger, "record_and_close", self._found)
        self._after(
            Ledger, "record_committed", lambda row, *_, **__: self._note("committed", attempt=row.number)
        )
        self._after(Ledger, "record_swept", lambda row, *_, **__: self._note("swept", attempt=row.number))

    def _found(self, answer: Any, _: Any, __: Any, number: int, ___: Any) -> None:
        recorded, closed = answer
        self._note("found", attempt=number, outcomes=dict(recorded))
        if closed is not None:
            self._note("committed", attempt=number)

    def _asked_for_all(self, found: Any, _: Any, transactions: Iterable[PreparedTransaction]) -> None:
        for transaction in transactions:
            self._note("asked", transaction=transaction, decided=transaction in found)

    def _open(self, number: int) -> None:
        if number > self._opened:
            self._opened = number
            self._note("opened", attempt=number)

    def _wrap_repairs(self) -> None:
        self._after(
            Ledger,
            "open_repair",
            lambda row, _, __, ___, lost, **____: self._note(
                "repair_opened", lost=lost, repair=None if row is None else row.transactional_id
            ),
        )
        self._after(
            Copier, "copy", lambda copied, *_: self._note("copied", transaction=copied[0])
        )
        self._after(
            Ledger,
            "adopt",
            lambda row, _, __, ___, transaction, *____: self._note(
                "adopted", transaction=transaction, done=row.state is RepairState.ADOPTED
            ),
        )
        self._after(
            Ledger,
            "abandon_repairs",
            lambda _, ledger, load, **__: self._repairs_undecidable(ledger.repairs(load)),
        )
        self._after(
            Ledger, "abandon_repair", lambda row, *_, **__: self._repairs_undecidable([row])
        )
        self._after(
            Ledger,
            "close_repairs",
            lambda _, ledger, load, numbers: self._note(
                "repairs_closed",
                repairs=[r.transactional_id for r in ledger.repairs(load) if r.number in numbers],
            ),
        )

    def _repairs_undecidable(self, rows: Iterable[Any]) -> None:
        over = [r.transactional_id for r in rows if r.state is RepairState.UNDECIDABLE]
        if over:
            self._note("repairs_undecidable", repairs=over)

    # -- Kafka -----------------------------------------------------------------------------------------------------

    def _wrap_coordinator(self) -> None:
        self._after(
            Coordinator,
            "init_producer_id",
            lambda state, _, name, *__, **___: self._note(
                "initialised", transaction=PreparedTransaction(name, state)
            ),
        )
        self._after(
            Coordinator,
            "describe",
            lambda found, *_: self._note(
                "described",
                open=[
                    PreparedTransaction(d.transactional_id, d.state)
                    for d in found.values()
                    if d.coordinator_state is CoordinatorState.ONGOING
                ],
            ),
        )
        end_many = Coordinator.end_many

        def recorded(
            coordinator: Coordinator, transactions: Iterable[PreparedTransaction], verdict: Verdict
        ) -> Any:
            every = list(transactions)
            for transaction in every:
                self._note("sent", transaction=transaction, verdict=verdict)
            answers = end_many(coordinator, every, verdict)
            for transaction in every:
                answer = answers[transaction.transactional_id]
                self._note("answered", transaction=transaction, verdict=verdict, answer=answer)
            return answers

        self._patch.setattr(Coordinator, "end_many", recorded)
        end = Coordinator.end

        def ended(
            coordinator: Coordinator, transaction: PreparedTransaction, verdict: Verdict, **options: Any
        ) -> EndAnswer:
            self._note("sent", transaction=transaction, verdict=verdict)
            answer = end(coordinator, transaction, verdict, **options)
            self._note("answered", transaction=transaction, verdict=verdict, answer=answer)
            return answer

        self._patch.setattr(Coordinator, "end", ended)

    # -- private ---------------------------------------------------------------------------------------------------

    def _after(self, owner: type, name: str, note: Callable[..., None]) -> None:
        original = getattr(owner, name)
        locked = owner is Ledger

        def recorded(*arguments: Any, **options: Any) -> Any:
            if not locked:
                answer = original(*arguments, **options)
                note(answer, *arguments, **options)
                return answer
            with self._lock:
                answer = original(*arguments, **options)
                note(answer, *arguments, **options)
                return answer

        self._patch.setattr(owner, name, recorded)

    def _note(self, kind: str, **what: Any) -> None:
        if self._deaf:
            return
        with self._lock:
            self.events.append(Event(kind, what))
            if self._journal is not None:
                # unbuffered: what the kernel has, SIGKILL does not take
                self._journal.write(pickle.dumps((kind, what)))


def recorded_in(journal: Path) -> list[Event]:
    """The events of a process that was killed."""
    found = []
    with journal.open("rb") as file:
        while file.peek(1):
            found.append(Event(*pickle.load(file)))
    return found


def successor(transaction: PreparedTransaction) -> PreparedTransaction:
    """The same id under the next epoch: an identity that nobody recorded."""
    state = transaction.state
    return PreparedTransaction(
        transaction.transactional_id, PreparedTxnState(state.producer_id, state.producer_epoch + 1)
    )
