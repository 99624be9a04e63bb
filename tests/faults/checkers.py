"""What must be true after a run, whatever happened in it: judged by what readers saw and what the parties were told.

Nothing of our package is imported here. Each kind of violation has one function; the kinds are:

- ``lost``: a record of a load that is due, or one that a plain producer was told is written, is not visible.
- ``duplicate``: a record is visible more than once.
- ``aborted_read``: a record of an attempt or of a transaction that was aborted is visible.
- ``undecided_visible``: a record is visible whose attempt nobody decided, or was so before anybody did; or nobody of
  the run has written it.
- ``changed``: a record's value, headers or time are not what its writer wrote.
- ``order``: the records of one key are not in the order in which their writer wrote them, or a load has spread them
  over partitions.
- ``foreign_touched``: another application's transaction is not there as its client was told.
- ``left_open``: a transaction of ours is open after the run, or behind a cleanup that had nothing to wait for.
- ``stable_short``: a last stable offset is short of the end, and no open transaction of others is why.
- ``reported_wrong``: ledger or run say of a load what is not so, or not yet.
- ``unfinished``: a load that was to arrive was not committed, or nobody was told that it is; or one that is decided was
  not rolled forward. Nothing of it is lost, the next retry would write it; but the run had retries enough.
- ``torn``: a part of a load of scope ``load`` was all that is visible, for too long.
- ``reader_differs``: two readers saw different records, or one saw a record twice.
- ``unexpected_error``: a process of ours failed with an error that is none of its own, or died without a word.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.faults.facts import Fate, ForeignFact, LoadFact, Observation, Record, Violation
from tests.faults.visible import FOREIGN, LOAD, PLAIN, Seen, Visible

COMMITTED = "COMMITTED"
#: How long a reader may see a part of a load of scope ``load``, where no broker was down: markers are written
#: partition by partition, and a reader takes its time.
TORN_S = 5.0

#: who looked before a topic was deleted may say so a little later
TOLD_ALREADY_S = 5.0


@dataclass(frozen=True)
class Case:
    """What each check is given: an observation, and its final reading by writers."""

    seen: Observation
    final: Visible
    torn_s: float


def judge(seen: Observation, torn_s: float = TORN_S) -> list[Violation]:
    """All that is wrong; nothing for a run as it must be.

    :param torn_s: seconds that a load of scope ``load`` may be visible in part. While a partition's leader is down its
        marker cannot be written: add how long it was down.
    """
    case = Case(seen, Visible(seen.final), torn_s)
    return [violation for check in CHECKS for violation in check(case)]


def windows(seen: Observation) -> dict[str, float]:
    """By load key, for how many ms a part of the load was visible: from the first look that showed some of it to the
    first that showed all, or to the last look. 0 when some and all came in one look; a load that was never seen is not
    there. Looks of a tailing reader have its own time for reading in them, those of the log's markers have not.
    """
    found = {}
    for load in seen.loads:
        begun = next((look for look in seen.looks if look.seen.get(load.key, 0) > 0), None)
        if begun is not None:
            # what was compacted is in no look of the log's markers
            left = load.compacted and len({v.number for v, _ in Visible(seen.final).all_of(LOAD, load.key)})
            most = left or load.records
            full = (look for look in seen.looks if look.seen.get(load.key, 0) >= most)
            ended = next(full, seen.looks[-1])
            found[load.key] = (ended.at - begun.at) * 1000
    return found


def differing(readings: Mapping[str, Sequence[Record]]) -> list[Violation]:
    """Where readers of other libraries, by name, did not see what the first one saw."""
    (first, expected), *others = readings.items()
    by_partition = _by_partition(expected)
    return [
        Violation("reader_differs", f"{first} and {name}, {text}")
        for name, records in others
        for text in _differences(by_partition, _by_partition(records))
    ]


def lost(case: Case) -> Iterator[Violation]:
    for load in case.seen.loads:
        there = {s.value.number for s in _of_decided(case, load)}
        missing = _missing(case, load)
        # one that is decided only rolls forward: a part of it is as wrong as none of one that is due
        if missing and (_is_due(load) or (there and load.lost_at is None)):
            yield Violation("lost", f"{_named(load)}: not visible {_some(missing)} of {load.records}")
    for plain in case.seen.plain:
        there = {s.value.number for s in case.final.all_of(PLAIN, plain.producer)}
        if missing := set(plain.acked) - there:
            yield Violation("lost", f"plain producer {plain.producer}: acknowledged, not visible {_some(missing)}")


def duplicate(case: Case) -> Iterator[Violation]:
    for load in case.seen.loads:
        yield from _doubled(_named(load), case.final.all_of(LOAD, load.key))
    for fact in case.seen.foreign:
        yield from _doubled(_foreign(fact), case.final.unit(FOREIGN, fact.producer, fact.unit))
    for plain in case.seen.plain:
        yield from _doubled(f"plain producer {plain.producer}", case.final.all_of(PLAIN, plain.producer))


def aborted_read(case: Case) -> Iterator[Violation]:
    for load in case.seen.loads:
        if load.lost_at is not None:  # who decided what, its ledger may not know any more
            continue
        for unit, found in case.final.units(LOAD, load.key).items():
            if load.decided is not None and unit != load.decided:
                why = f"attempt {load.decided} is the decided one"
            elif load.expect == "absent" and load.decided is not None:
                why = "the load must not arrive"
            elif load.decided is None and load.reported == "ABORTED":
                why = "the load was aborted"
            else:
                continue
            yield Violation("aborted_read", f"{_named(load)}: {why}, but visible of attempt {unit} {_numbers(found)}")
    for fact in case.seen.foreign:
        found = case.final.unit(FOREIGN, fact.producer, fact.unit)
        if fact.fate is Fate.ABORTED and found:
            yield Violation("aborted_read", f"{_foreign(fact)}: aborted, but visible {_numbers(found)}")


def undecided_visible(case: Case) -> Iterator[Violation]:
    for load in case.seen.loads:
        found = case.final.all_of(LOAD, load.key)
        if found and load.decided is None and load.reported != "ABORTED" and load.lost_at is None:
            yield Violation("undecided_visible", f"{_named(load)}: nothing was decided, but visible {_numbers(found)}")
        if (early_ms := _undecided_ms(case, load)) > 0:
            text = f"{_named(load)}: visible {early_ms:.0f} ms before anybody recorded its decision"
            yield Violation("undecided_visible", text)
    if nobodys := _nobodys(case):
        text = ", ".join(f"{r.topic}-{r.partition}@{r.offset} {r.said[:60]!r}" for r in nobodys[:3])
        yield Violation("undecided_visible", f"{len(nobodys)} records that nobody of the run has written: {text}")


def changed(case: Case) -> Iterator[Violation]:
    if found := case.final.changed:
        first = found[0]
        where = f"{first.topic}-{first.partition}@{first.offset}"
        yield Violation("changed", f"{len(found)} records are not as they were written, at {where} {first}")


def order(case: Case) -> Iterator[Violation]:
    for writer in sorted(case.final.writers):
        for unit, found in case.final.units(*writer).items():
            if (wrong := _out_of_order(found)) is not None:
                yield Violation("order", f"{'/'.join(writer)} unit {unit}: {wrong}")
            if writer[0] == LOAD and (spread := _spread(found)) is not None:
                yield Violation("order", f"{'/'.join(writer)} unit {unit}: {spread}")


def foreign_touched(case: Case) -> Iterator[Violation]:
    for fact in case.seen.foreign:
        there = {s.value.number for s in case.final.unit(FOREIGN, fact.producer, fact.unit)}
        missing = set(range(fact.records)) - there
        if missing and (fact.fate is Fate.COMMITTED or (fact.fate is Fate.UNKNOWN and there)):
            yield Violation("foreign_touched", f"{_foreign(fact)}: {fact.fate.value}, not visible {_some(missing)}")
        if fact.was_ended:
            yield Violation("foreign_touched", f"{_foreign(fact)}: its client found it ended")


def left_open(case: Case) -> Iterator[Violation]:
    # what only looks like ours is another application's
    theirs = {fact.transactional_id for fact in case.seen.foreign}
    ours = tuple(load.prefix for load in case.seen.loads)
    for one in case.seen.open:
        if one.transactional_id not in theirs and one.transactional_id.startswith(ours):
            where = ", ".join(f"{t}-{p}" for t, p in one.topic_partitions)
            yield Violation("left_open", f"{one.transactional_id} is open since {one.since_ms} on {where}")
    for load in case.seen.loads:
        if left := load.left_by_cleanup:
            text = f"{_named(load)}: cleanup, behind all of its writers, left {len(left)} open: {', '.join(left[:3])}"
            yield Violation("left_open", text)


def stable_short(case: Case) -> Iterator[Violation]:
    theirs = {fact.transactional_id for fact in case.seen.foreign}
    held = {tp for one in case.seen.open if one.transactional_id in theirs for tp in one.topic_partitions}
    for (topic, partition), (stable, end) in sorted(case.seen.stable_short.items()):
        if (topic, partition) not in held:
            yield Violation("stable_short", f"{topic}-{partition}: last stable offset {stable}, end {end}")


def reported_wrong(case: Case) -> Iterator[Violation]:
    for load in case.seen.loads:
        counts = Counter(s.value.number for s in _of_decided(case, load))
        once = set(counts.values()) <= {1} and not counts.keys() - set(range(load.records))
        whole = once and not _missing(case, load) and len(case.final.units(LOAD, load.key)) <= 1
        committed, says = load.reported == COMMITTED, f"the ledger says {load.reported}"
        kept = load.lost_at is None
        wrong = [
            text
            for is_so, text in (
                (
                    committed and not whole and _is_due(load),
                    "the ledger says COMMITTED, but not each record is there once",
                ),
                (not committed and load.records > 0 and whole and kept, f"all is there, but {says}"),
                (_is_told(load) and not committed and kept, f"the run was told that it is committed, {says}"),
                (load.expect == "absent" and committed, f"it must not arrive, but {says}"),
                (load.expect == "absent" and load.decided is not None, "it must not arrive, but it is decided"),
                (_told_early_ms(case, load) > 0, f"told {_told_early_ms(case, load):.0f} ms before all is visible"),
            )
            if is_so
        ]
        if wrong:
            yield Violation("reported_wrong", f"{_named(load)}: {'; '.join(wrong)}")


def unfinished(case: Case) -> Iterator[Violation]:
    for load in case.seen.loads:
        late = f"; gave up by the clock, after {load.gave_up_s:.0f} s" if load.gave_up_s else ""
        if load.lost_at is not None:  # a person has it
            continue
        if load.reported != COMMITTED and (load.expect == "committed" or load.decided is not None):
            why = "it must be" if load.decided is None else f"attempt {load.decided} is decided, it must be"
            text = f"{_named(load)}: {why} COMMITTED, the ledger says {load.reported}{late}"
            yield Violation("unfinished", text)
        elif load.expect == "committed" and not load.acked:
            yield Violation("unfinished", f"{_named(load)}: no run of it has succeeded{late}")


def torn(case: Case) -> Iterator[Violation]:
    shown = windows(case.seen)
    for load in case.seen.loads:
        if load.scope != "load" or load.lost_at is not None:
            continue
        there, all_of_it = len({s.value.number for s in case.final.all_of(LOAD, load.key)}), _in_the_end(case, load)
        if 0 < there < all_of_it:
            yield Violation("torn", f"{_named(load)}: {there} of {all_of_it} records are visible at the end")
        last = case.seen.looks[-1].seen.get(load.key, 0) if case.seen.looks else 0
        if 0 < last < all_of_it:
            yield Violation("torn", f"{_named(load)}: {last} of {all_of_it} records in the last look")
        if shown.get(load.key, 0) > case.torn_s * 1000:
            yield Violation("torn", f"{_named(load)}: visible in part for {shown[load.key]:.0f} ms")


def reader_differs(case: Case) -> Iterator[Violation]:
    # what was compacted while the run went on, who follows it all the while has seen, and who comes at its end has not
    compacted = {topic for load in case.seen.loads if load.compacted for topic in load.topics}
    there = {(r.topic, r.partition, r.offset) for r in case.seen.final}
    tailed = [r for r in case.seen.tailed if r.topic not in compacted or (r.topic, r.partition, r.offset) in there]
    yield from differing({"the final reader": case.seen.final, "the tailing one": tailed, **case.seen.others})


def unexpected_error(case: Case) -> Iterator[Violation]:
    for text in case.seen.errors:
        yield Violation("unexpected_error", text)


CHECKS: tuple[Callable[[Case], Iterator[Violation]], ...] = (
    lost,
    duplicate,
    aborted_read,
    undecided_visible,
    changed,
    order,
    foreign_touched,
    left_open,
    stable_short,
    reported_wrong,
    unfinished,
    torn,
    reader_differs,
    unexpected_error,
)
KINDS = tuple(check.__name__ for check in CHECKS)


def _is_due(load: LoadFact) -> bool:
    """Whether all of it must be there. What a topic took with it when it was deleted is nobody's fault, but for those
    who say behind that moment that it is there; what a ledger says that was put back is as true as before."""
    if load.lost_at:
        return load.told_at is not None and load.told_at > load.lost_at + TOLD_ALREADY_S
    return load.reported == COMMITTED or _is_told(load)


def _is_told(load: LoadFact) -> bool:
    return load.acked or load.told_at is not None


def _first(case: Case, load: LoadFact, count: int) -> float | None:
    """Monotonic seconds of the first look that showed so many records of a load."""
    return next((look.at for look in case.seen.looks if look.seen.get(load.key, 0) >= count), None)


def _undecided_ms(case: Case, load: LoadFact) -> float:
    """How long before anybody began to record the decision its first record became visible, at least."""
    begun, error = _first(case, load, 1), case.seen.clock_error_s
    if begun is None or error is None or load.deciding_at is None:
        return 0.0
    return (load.deciding_at - begun - error) * 1000


def _told_early_ms(case: Case, load: LoadFact) -> float:
    """How long before its last record became visible somebody was told that all are, at least."""
    full, error = _first(case, load, _in_the_end(case, load)), case.seen.clock_error_s
    if full is None or error is None or load.told_at is None or not load.records:
        return 0.0
    return (full - load.told_at - error) * 1000


def _missing(case: Case, load: LoadFact) -> set[int]:
    """Numbers of a load that are to be visible once it is committed, and are not.

    Of a compacted topic those are not missed that a later record of the same key and attempt has superseded.
    """
    found = _of_decided(case, load)
    missing = set(range(load.records)) - {s.value.number for s in found}
    if not load.compacted or not missing:
        return missing
    newest: dict[int, int] = {}
    for value, _ in found:
        place = value.number % load.keys
        newest[place] = max(value.number, newest.get(place, -1))
    return {number for number in missing if number > newest.get(number % load.keys, -1)}


def _in_the_end(case: Case, load: LoadFact) -> int:
    """How many records of a load are to be seen when all of it is."""
    return len({s.value.number for s in _of_decided(case, load)}) if load.compacted else load.records


def _of_decided(case: Case, load: LoadFact) -> list[Seen]:
    """Visible records of the decided attempt. Where none was decided there can be no good ones; a ledger that was put
    back may have known of one, and then all count: of two attempts each would be a duplicate."""
    if load.decided is None:
        return case.final.all_of(LOAD, load.key) if load.lost_at == 0 else []
    return case.final.unit(LOAD, load.key, load.decided)


def _nobodys(case: Case) -> list[Record]:
    """Records whose writer did not exist, or did not write this, or not there."""
    topics = {
        **{(LOAD, f.key): set(f.topics) for f in case.seen.loads},
        **{(PLAIN, f.producer): {f.topic} for f in case.seen.plain},
    }
    numbers: dict[tuple[str, str, int], int] = {}
    for fact in case.seen.foreign:
        topics.setdefault((FOREIGN, fact.producer), set()).add(fact.topic)
        numbers[FOREIGN, fact.producer, fact.unit] = fact.records
    sizes = {f.key: f.records for f in case.seen.loads}
    found = list(case.final.nobodys)
    for party, writer in case.final.writers:
        for unit, records in case.final.units(party, writer).items():
            # what of its records a plain producer was not told about may be there or not
            end = {LOAD: sizes.get(writer, 0), FOREIGN: numbers.get((party, writer, unit), 0)}.get(party)
            for value, record in records:
                known = record.topic in topics.get((party, writer), ())
                if not known or value.number < 0 or (end is not None and value.number >= end):
                    found.append(record)
    return found


def _doubled(name: str, found: Iterable[Seen]) -> Iterator[Violation]:
    counts = Counter(s.value.number for s in found)
    if doubled := {number for number, count in counts.items() if count > 1}:
        yield Violation("duplicate", f"{name}: more than once {_some(doubled)}")


def _out_of_order(found: Iterable[Seen]) -> str | None:
    """By first appearances: what comes a second time is a duplicate, and not judged here."""
    newest: dict[tuple[str, int, str], int] = {}
    met = set()
    for value, record in sorted(found, key=lambda s: (s.record.topic, s.record.partition, s.record.offset)):
        if value.number in met or not value.key:
            continue
        met.add(value.number)
        place = (record.topic, record.partition, value.key)
        if value.number < newest.get(place, -1):
            where = f"{record.topic}-{record.partition}@{record.offset}"
            return f"key {value.key} at {where}: {value.number} comes behind {newest[place]}"
        newest[place] = value.number
    return None


def _spread(found: Iterable[Seen]) -> str | None:
    """Readers have an order within a partition only."""
    places: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for value, record in found:
        if not value.key:  # it may be anywhere
            continue
        places[value.key].add((record.topic, record.partition))
    spread = {key: where for key, where in places.items() if len(where) > 1}
    if not spread:
        return None
    key, where = min(spread.items())
    return f"{len(spread)} keys in several partitions, key {key} in {', '.join(f'{t}-{p}' for t, p in sorted(where))}"


_Partitions = dict[tuple[str, int], list[tuple[Any, ...]]]


def _by_partition(records: Iterable[Record]) -> _Partitions:
    found: _Partitions = defaultdict(list)
    for r in records:
        found[r.topic, r.partition].append((r.offset, r.key, r.value, r.headers, r.timestamp_ms))
    return found


def _differences(one: _Partitions, other: _Partitions) -> Iterator[str]:
    for topic, partition in sorted(one.keys() | other.keys()):
        left, right = one.get((topic, partition), []), other.get((topic, partition), [])
        if left != right:
            same = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
            at = min(len(left), len(right)) if same is None else same
            ends = " and ".join(str(r[at]) if at < len(r) else "nothing" for r in (left, right))
            yield f"{topic}-{partition}: {len(left)} and {len(right)} records, after {at} equal ones {ends}"


def _named(load: LoadFact) -> str:
    return f"load {load.key} (scope {load.scope})"


def _foreign(fact: ForeignFact) -> str:
    return f"transaction {fact.unit} of {fact.producer} ({fact.transactional_id})"


def _numbers(found: Iterable[Seen]) -> str:
    return _some({s.value.number for s in found})


def _some(numbers: set[int]) -> str:
    """``7 (1, 2, 3, 4, 5, …)``."""
    first = ", ".join(map(str, sorted(numbers)[:5]))
    return f"{len(numbers)} ({first}{', …' if len(numbers) > 5 else ''})"
