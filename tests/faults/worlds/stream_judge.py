"""What must be true behind a stream world, and for how long its readers stood still. No I/O, nothing of our package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.faults.facts import Violation

#: how a plain record of another application begins, that shows whether readers stand still
BEAT = "beat|"


@dataclass(frozen=True)
class Batch:
    """A batch as the ledger has it at the end.

    :param attempts: how many were decided to be committed.
    """

    number: int
    state: str
    records: int
    attempts: int


@dataclass(frozen=True)
class QueryFact:
    """One query at the end.

    :param expected: rows of its source, each once.
    :param final: values that a fresh read_committed reader has found.
    :param tailed: those that one had got who followed all the while.
    :param decided: the last batch that the ledger has counted as decided; None: it does not know.
    :param unfinished: attempts that nobody has closed, for people.
    :param open: transactional ids, behind the last maintenance.
    :param forgotten: batches that the ledger has lost when it was put back, and a person has said to be there, with
        how many rows each has.
    """

    name: str
    expected: Sequence[str]
    final: Sequence[str]
    tailed: Sequence[str]
    batches: Sequence[Batch]
    decided: int | None
    unfinished: Sequence[str] = ()
    open: Sequence[str] = ()
    forgotten: Mapping[int, int] = field(default_factory=dict)


def judge(fact: QueryFact) -> Iterator[Violation]:
    """All that is wrong with a query."""
    final, due = Counter(fact.final), Counter(fact.expected)
    yield from _some("lost", fact, "not visible", due - final)
    yield from _some("duplicate", fact, "visible more than once", +Counter({v: n - 1 for v, n in final.items()}))
    yield from _some("undecided_visible", fact, "of nobody's source", {v: n for v, n in final.items() if v not in due})
    if Counter(fact.tailed) != final:
        both = (Counter(fact.tailed) - final) + (final - Counter(fact.tailed))
        yield from _some("reader_differs", fact, "seen by one of two readers only", both)
    for name in fact.open:
        yield Violation("left_open", f"query {fact.name}: {name} is open")
    for text in fact.unfinished:
        yield Violation("left_open", f"query {fact.name}: {text} is not closed")
    # an attempt of a forgotten one may be known, and no more
    known = [batch for batch in fact.batches if batch.number not in fact.forgotten]
    for batch in fact.batches:
        if batch in known and batch.state != "COMMITTED":
            yield Violation("unfinished", f"query {fact.name}: batch {batch.number} is {batch.state}")
        if batch.attempts != (batch in known):
            text = f"batch {batch.number} is decided {batch.attempts} times"
            yield Violation("reported_wrong", f"query {fact.name}: {text}")
    numbers = sorted([*(batch.number for batch in known), *fact.forgotten])
    if numbers != list(range(len(numbers))) or fact.decided != len(numbers) - 1:
        text = f"its ledger has batches {numbers}, and {fact.decided} as the last decided one"
        yield Violation("reported_wrong", f"query {fact.name}: {text}")
    said = sum(batch.records for batch in known) + sum(fact.forgotten.values())
    if said != len(fact.final):
        yield Violation("reported_wrong", f"query {fact.name}: {said} rows by its ledger, {len(fact.final)} visible")


def _some(kind: str, fact: QueryFact, what: str, found: Mapping[str, int]) -> Iterator[Violation]:
    if found:
        few = ", ".join(sorted(found)[:5])
        yield Violation(kind, f"query {fact.name}: {len(found)} rows {what}, such as {few}")


@dataclass(frozen=True)
class Beat:
    """A plain record of another application: when it was acknowledged, and when a read_committed reader got it."""

    written: float
    seen: float


def standing(beats: Iterable[Beat], downs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Seconds that readers stood still at most; and at most beyond the time in which something was down.

    :param downs: from the death of something to its being there again, in any order.
    """
    apart = _union(downs)
    longest = beyond = 0.0
    for beat in beats:
        waited = beat.seen - beat.written
        excused = sum(max(0.0, min(end, beat.seen) - max(begin, beat.written)) for begin, end in apart)
        longest, beyond = max(longest, waited), max(beyond, waited - excused)
    return longest, beyond


def _union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def torn_s(arrivals: Iterable[tuple[float, str]], rows: int) -> float:
    """For so many seconds at most a part of a file was visible, which is in one batch whole.

    :param arrivals: monotonic seconds, and a value ``file-row``.
    """
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    count: Counter[str] = Counter()
    for at, value in arrivals:
        file = value.partition("-")[0]
        first.setdefault(file, at)
        count[file] += 1
        if count[file] <= rows:
            last[file] = at
    return max((last[file] - first[file] for file in first), default=0.0)
