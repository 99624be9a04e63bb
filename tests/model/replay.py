"""Replay a recorded run in the executable specification: is each event an action that the model allows there?

The model's steps are finer than what can be recorded, and some are nobody's (a marker is written, a request arrives).
So the replay keeps every state that the events so far allow. No state left: the run did what the model does not.
Everything concerns one load; its attempts are numbered from 1 here and from 0 in the model.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import Outcome, PreparedTransaction
from tests.model.recorder import Event

SPECIFICATION = Path(__file__).parents[2] / "docs" / "specification" / "model.py"
#: what a coordinator's answer may have been in the model; 51 is asked again until it is another one
CODES = {
    EndAnswer.DONE: {"ok", "51"},
    EndAnswer.WRONG_STATE: {"48"},
    # behind a timeout the model says 48 and a broker 90; hints both (rule: log-is-the-evidence)
    EndAnswer.FENCED: {"90", "49", "48"},
}
#: "broker times out" stands for whoever has aborted a transaction of ours, and bumped its epoch, without asking us
_NOBODYS = {"markers", "broker times out", "EndTxn arrives", "EndTxn arrives, and again later"}

Label = tuple[Any, ...]


class Refused(AssertionError):
    """The model does not allow what was recorded."""


class Known(NamedTuple):
    """One way in which the run may have gone so far."""

    state: Any
    #: recorded transaction -> (the model's id, producer id, epoch)
    names: frozenset[tuple[PreparedTransaction, tuple[int, int, int]]] = frozenset()
    #: EndTxn requests that have arrived, with their answers
    arrived: frozenset[tuple[Any, str]] = frozenset()

    def name(self, transaction: PreparedTransaction) -> tuple[int, int, int] | None:
        return dict(self.names).get(transaction)


def specification() -> ModuleType:
    """``model.py``, from the project or from where ``EOS_MODEL`` points."""
    path = Path(os.environ.get("EOS_MODEL", SPECIFICATION))
    spec = importlib.util.spec_from_file_location("eos_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Replay:
    """:param world: a ``World`` of the specification: what the environment may do in this run."""

    def __init__(self, model: ModuleType, world: Any) -> None:
        self._model = model.Model(world)
        self._shared = world.scope == "load"
        self._known = {Known(self._model.start())}
        #: the recorded ids of each attempt, in the order in which they were begun
        self._ids: dict[int, list[str]] = {}
        self._parts = 0
        self._attempt = 0
        self._pool: int = world.pool
        #: the recorded ids of the repairs, in the order in which they were opened
        self._repairs: list[str] = []
        self._copied: set[PreparedTransaction] = set()
        #: those of repairs that have learnt that they do not enter the decision
        self._late: set[PreparedTransaction] = set()

    def run(self, events: Sequence[Event]) -> Replay:
        """:raises Refused: naming the first event that cannot have happened."""
        for number, event in enumerate(events):
            known = self._settle(self._known, lambda label: label[0] in _NOBODYS)
            self._known = set()
            for one in known:
                self._known |= getattr(self, event.kind)(one, **event.what)
            if not self._known:
                raise Refused(f"event {number}, {event.kind} {event.what}: the model does not allow it there")
            for one in self._known:
                if broken := self._model.broken(one.state):
                    raise Refused(f"after event {number}, {event.kind} {event.what}: {broken}")
            if event.kind == "opened":
                self._attempt, self._parts = event.what["attempt"] - 1, 0
            self._parts += event.kind == "wrote"
        self._known = self._settle(self._known, lambda label: label[0] in _NOBODYS)
        return self

    def settled(self) -> bool:
        """Whether nothing of ours need be open, and what is decided is committed."""
        return any(self._model.settled(k.state) for k in self._known)

    def visible(self) -> set[frozenset[tuple[int, int]]]:
        """What readers may see now: (attempt from 1 on, task), one set for each way in which it may have gone."""
        settled = [k.state for k in self._known if self._model.settled(k.state)]
        return {frozenset((r[0] + 1, r[1]) for r in state.visible) for state in settled}

    # -- events of the ledger ----------------------------------------------------------------------------------------

    def opened(self, k: Known, attempt: int) -> set[Known]:
        return self._once(k, lambda label: label[1] == f"opens attempt {attempt - 1}")

    def reported(self, k: Known, attempt: int, transactions: list[PreparedTransaction]) -> set[Known]:
        names = [k.name(t) for t in transactions]
        return self._once(
            k,
            lambda label: (
                label[:2] == (f"driver {attempt - 1}", "manifest")
                and [(r.x, r.pid, r.ep) for r in label[2]] == names
            ),
        ) | self._if(k, k.state.attempts[attempt - 1].manifest is not None)

    def decided_commit(self, k: Known, attempt: int) -> set[Known]:
        again = k.state.attempts[attempt - 1].status == "commit"
        return self._once(k, lambda label: label == (f"decide {attempt - 1}", "COMMIT")) | self._if(k, again)

    def decided_abort(self, k: Known, attempt: int, done: bool) -> set[Known]:
        """The model lets an attempt that is never decided stay open until somebody else aborts it."""
        return self._if(k, done is (k.state.attempts[attempt - 1].status != "commit"))

    def made_undecidable(self, k: Known, verdicts: dict[int, Verdict | None]) -> set[Known]:
        """In the model that happens as cleanup lists an open id."""
        attempts = {number - 1 for number in verdicts}
        after = self._settle({k}, lambda label: label[1] == "lists" and label[4] in attempts)
        return {one for one in after if self._agrees(one.state, verdicts)}

    def _agrees(self, state: Any, verdicts: dict[int, Verdict | None]) -> bool:
        for number, verdict in verdicts.items():
            status = state.attempts[number - 1].status
            is_open = any(c.st == "Ongoing" and c.lease == number - 1 for c in state.ids)
            if (status == "commit") is not (verdict is Verdict.COMMIT) or (status == "open" and is_open):
                return False
        return True

    def asked(self, k: Known, transaction: PreparedTransaction, decided: bool) -> set[Known]:
        words = "asks the ledger, leaves" if decided else "asks the ledger, may end"
        name = k.name(transaction)
        return self._settle({k}, lambda label: name is not None and label[1:3] == (words, name[0]))

    def found(self, k: Known, attempt: int, outcomes: dict[str, Outcome]) -> set[Known]:
        ways = {k}
        for name, outcome in outcomes.items():
            ways = {after for one in ways for after in self._found(one, attempt, name, outcome)}
        return ways

    def _found(self, k: Known, attempt: int, name: str, outcome: Outcome) -> set[Known]:
        if outcome is Outcome.OPEN:
            return {k}
        word = {Outcome.COMMITTED: "done", Outcome.LOST: "lost"}.get(outcome)
        at = self._row(k, attempt, name)
        if word is None or at is None:
            return set()
        says = (f"commit {attempt - 1}", f"finds row {at} {word}")
        now = k.state.attempts[attempt - 1].rows[at].st
        return self._once(k, lambda label: label == says) | self._if(k, now == word)

    def _row(self, k: Known, attempt: int, name: str) -> int | None:
        """Which row of the decision has that transactional id."""
        mine = [found[0] for t, found in k.names if t.transactional_id == name]
        at = [n for n, row in enumerate(k.state.attempts[attempt - 1].rows) if row.x in mine]
        return at[0] if len(at) == 1 else None

    def committed(self, k: Known, attempt: int) -> set[Known]:
        said = (f"commit {attempt - 1}", "COMMITTED")
        return self._once(k, lambda label: label == said) | self._if(k, 0 in k.state.committed)

    def swept(self, k: Known, attempt: int) -> set[Known]:
        left = any(c.st == "Ongoing" and c.lease == attempt - 1 for c in k.state.ids)
        return self._if(k, not left and k.state.attempts[attempt - 1].status != "commit")

    # -- events of repairs -------------------------------------------------------------------------------------------

    def repair_opened(self, k: Known, lost: str, repair: str | None) -> set[Known]:
        """In the ledger only; the model's repairers are there from the beginning."""
        if repair is not None and repair not in self._repairs:
            self._repairs.append(repair)
        at = self._row(k, self._decided(k), lost)
        is_lost = at is not None and k.state.attempts[self._decided(k) - 1].rows[at].st == "lost"
        return self._if(k, is_lost is (repair is not None))

    def copied(self, k: Known, transaction: PreparedTransaction) -> set[Known]:
        self._copied.add(transaction)
        n = self._repairs.index(transaction.transactional_id)
        if k.name(transaction) is None:
            return self._prepares_again(k, transaction)
        return self._if(k, k.state.repairs[n].pc != "idle")

    def _prepares_again(self, k: Known, transaction: PreparedTransaction) -> set[Known]:
        """InitProducerId and all that is copied: one step in the model, somewhere between the two events here."""
        n = self._repairs.index(transaction.transactional_id)
        return {
            Known(state, k.names | {(transaction, (self._pool + n, *label[4]))}, k.arrived)
            for label, state in self._steps(k.state)
            if label[:2] == (f"repair {n}", "prepares again") and label[4] != "51"
        }

    def adopted(self, k: Known, transaction: PreparedTransaction, done: bool) -> set[Known]:
        n, name = self._repairs.index(transaction.transactional_id), k.name(transaction)
        me = f"repair {n}"
        if done:
            entered = self._once(
                k,
                lambda label: (
                    label[:2] == (me, "enters the decision")
                    and (label[2].x, label[2].pid, label[2].ep) == name
                    and transaction in self._copied
                ),
            )
            # that moment makes the others undecidable, which the model leaves to whoever lists them
            return self._settle(entered, self._is_listing_repairs({*self._repairs} - {self._repairs[n]}))
        self._late.add(transaction)
        ends = ("is late, aborts its own", "was made undecidable")
        listed = self._settle({k}, self._is_listing_repairs({self._repairs[n]}))
        # the abort is sent in the model's same step, and has an event of its own here
        return {
            after._replace(state=after.state._replace(net=one.state.net))
            for one in listed
            for after in self._once(one, lambda label: label[0] == me and label[1] in ends)
        }

    def repairs_undecidable(self, k: Known, repairs: list[str]) -> set[Known]:
        return self._settle({k}, self._is_listing_repairs(set(repairs)))

    def repairs_closed(self, k: Known, repairs: list[str]) -> set[Known]:
        ids = [k.state.ids[self._pool + self._repairs.index(name)] for name in repairs]
        return self._if(k, not any(c.st == "Ongoing" for c in ids))

    def _is_listing_repairs(self, repairs: set[str]) -> Callable[[Label], bool]:
        leases = {("repair", self._repairs.index(name)) for name in repairs if name in self._repairs}
        return lambda label: label[1] == "lists" and label[4] in leases

    def _decided(self, k: Known) -> int:
        """The decided attempt's number; 0 without one, whose rows are those of nobody."""
        return next((n for n, at in enumerate(k.state.attempts, 1) if at.status == "commit"), 0)

    # -- events of Kafka ---------------------------------------------------------------------------------------------

    def initialised(self, k: Known, transaction: PreparedTransaction) -> set[Known]:
        if transaction.transactional_id in self._repairs:
            return {k} | self._prepares_again(k, transaction)
        ids = self._ids.setdefault(self._attempt, [])
        if transaction.transactional_id not in ids:
            ids.append(transaction.transactional_id)
        task = ids.index(transaction.transactional_id)
        who = f"driver {self._attempt}" if self._shared else f"task {self._attempt}.{task}.0"
        return {
            Known(state, k.names | {(transaction, (label[2], *label[3]))}, k.arrived)
            for label, state in self._model.steps(k.state)
            if label[:2] == (who, "InitProducerId") and label[3] != "51"
        }

    def wrote(self, k: Known, transaction: PreparedTransaction, last: bool = True) -> set[Known]:
        """:param last: of its batches."""
        name = k.name(transaction)
        if name is None:
            return set()
        task = self._parts if self._shared else self._ids[self._attempt].index(transaction.transactional_id)
        me = f"task {self._attempt}.{task}.0"
        started = self._settle({k}, lambda label: label == (me, "starts"))
        return {
            after
            for one in started
            for after in self._once(
                one, lambda label: label == (me, "writes", name[0], "told" if last else "ready")
            )
        }

    def described(self, k: Known, open: list[PreparedTransaction]) -> set[Known]:
        """Reading harms nobody: it may serve decide, cleanup, or nothing."""
        names = [k.name(t) for t in open]

        def reads(label: Label) -> bool:
            return label[1] in ("checks", "leaves") or (label[1] == "describes" and label[2:5] in names)

        return self._settle({k}, reads)

    def sent(self, k: Known, transaction: PreparedTransaction, verdict: Verdict) -> set[Known]:
        name = k.name(transaction)
        if name is None:
            return set()
        if verdict is Verdict.ABORT:
            mine: set[Known] = set()
            ways = {k}
            if transaction in self._late:
                mine = {k._replace(state=k.state._replace(net=k.state.net | {(*name, "abort")}))}
            if transaction.transactional_id in self._repairs:
                # an undecidable repair stays so: that it is, was asked before the Describe
                ways = self._settle(ways, lambda label: label[1:5] == ("asks the ledger, may end", *name))
            return mine.union(
                *(self._once(w, lambda label: label[1] == "sends abort" and label[2:5] == name) for w in ways)
            )
        request = (*name, "commit")
        # sent once more, it is a request that is delivered twice
        return self._once(k, lambda label: label[1:] == ("sends EndTxn", request)) | self._if(
            k, request in k.state.net
        )

    def answered(
        self, k: Known, transaction: PreparedTransaction, verdict: Verdict, answer: EndAnswer
    ) -> set[Known]:
        request = (*(k.name(transaction) or ()), verdict.value)
        return self._if(k, any((request, code) in k.arrived for code in CODES[answer]))

    # -- private -----------------------------------------------------------------------------------------------------

    def _if(self, k: Known, holds: bool) -> set[Known]:
        return {k} if holds else set()

    def _once(self, k: Known, wanted: Callable[[Label], bool]) -> set[Known]:
        return {k._replace(state=state) for label, state in self._steps(k.state) if wanted(label)}

    def _settle(self, known: Iterable[Known], wanted: Callable[[Label], bool]) -> set[Known]:
        """All that can be reached by such steps, in any number and order."""
        reached = set(known)
        todo = list(reached)
        while todo:
            one = todo.pop()
            for label, state in self._steps(one.state):
                if not wanted(label):
                    continue
                arrived = one.arrived
                if label[0].startswith("EndTxn arrives"):
                    arrived |= {(label[1], label[2])}
                after = Known(state, one.names, arrived)
                if after not in reached:
                    reached.add(after)
                    todo.append(after)
        return reached

    def _steps(self, state: Any) -> Iterable[tuple[Label, Any]]:
        steps: Iterable[tuple[Label, Any]] = self._model.steps(state)
        return steps
