"""Observations as they must be: what the checkers' tests feed on, and plant what must not be in (planted.py)."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tests.faults.facts import Fate, ForeignFact, LoadFact, Look, Observation, PlainFact, Record, Value
from tests.faults.visible import FOREIGN, LOAD, PLAIN

TOPICS = ("orders", "returns")
PARTITIONS = 3
OURS = "eos.{}."
CLOCK_ERROR_S = 0.05

_Unit = tuple[str, list[Value]]


def clean(rnd: random.Random) -> Observation:
    """A run without a fault in it: committed, aborted and given up loads of both scopes, transactions of others with
    each fate, a plain producer. Committed ones have two records of one key at least, so that all can be planted."""
    loads = [_load(rnd, n, expect) for n, expect in enumerate(["committed", "committed", "absent", "either"])]
    loads[0] = dataclasses.replace(loads[0], scope="task")
    loads[1] = dataclasses.replace(loads[1], scope="load")
    foreign = [
        ForeignFact("app", unit, rnd.choice(TOPICS), rnd.randint(2, 9), fate, "app-1")
        for unit, fate in enumerate([*Fate, *rnd.choices(list(Fate), k=3)])
    ]
    plain = PlainFact("clicks", TOPICS[0], tuple(range(rnd.randint(2, 30))))
    units: list[_Unit] = []
    for load in loads:
        if load.reported == "COMMITTED" and load.decided is not None:
            units.append((load.topics[0], _values(rnd, LOAD, load.key, load.decided, load.records)))
    for fact in foreign:
        if fact.fate is Fate.COMMITTED or (fact.fate is Fate.UNKNOWN and rnd.random() < 0.5):
            units.append((fact.topic, _values(rnd, FOREIGN, fact.producer, fact.unit, fact.records)))
    # some were written although nobody could tell the producer
    units.append((plain.topic, _values(rnd, PLAIN, plain.producer, 0, len(plain.acked) + rnd.randint(0, 3))))
    final = _log(rnd, units)
    looks = _looks(rnd, loads)
    return Observation(
        loads=tuple(_timed(load, looks) for load in loads),
        foreign=tuple(foreign),
        plain=(plain,),
        tailed=tailed(rnd, final),
        final=final,
        open=(),
        stable_short={},
        looks=looks,
        clock_error_s=CLOCK_ERROR_S,
    )


def tailed(rnd: random.Random, final: Sequence[Record]) -> tuple[Record, ...]:
    """The same records as they came: partitions mixed, each in its order."""
    waiting: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in final:
        waiting[record.topic, record.partition].append(record)
    turns = [tp for tp, records in waiting.items() for _ in records]
    rnd.shuffle(turns)
    streams = {tp: iter(records) for tp, records in waiting.items()}
    return tuple(next(streams[tp]) for tp in turns)


def with_final(seen: Observation, rnd: random.Random, records: Iterable[Record]) -> Observation:
    """Both readers saw these; offsets are given anew, in the order of the records."""
    ends: dict[tuple[str, int], int] = defaultdict(int)
    final = []
    for record in records:
        place = record.topic, record.partition
        final.append(dataclasses.replace(record, offset=ends[place]))
        ends[place] += 1
    return dataclasses.replace(seen, final=tuple(final), tailed=tailed(rnd, final))


def of(seen: Observation, party: str, writer: str) -> list[int]:
    """Places of a writer's records in ``final``."""
    values = [Value.decode(r.said) for r in seen.final]
    return [n for n, v in enumerate(values) if (v.party, v.writer) == (party, writer)]


def _load(rnd: random.Random, number: int, expect: str) -> LoadFact:
    committed = expect == "committed" or (expect == "either" and rnd.random() < 0.5)
    decided = rnd.randint(1, 3) if committed else None
    return LoadFact(
        key=f"2026-01-0{number + 1}",
        topics=(rnd.choice(TOPICS),),
        scope=rnd.choice(["task", "load"]),
        records=rnd.randint(2, 40) if committed else rnd.randint(0, 40),
        reported="COMMITTED" if committed else rnd.choice(["ABORTED", "GIVEN_UP", None]),
        decided=decided,
        acked=committed and (expect == "committed" or rnd.random() < 0.5),
        expect=expect,
        prefix=OURS.format(number),
    )


def _timed(load: LoadFact, looks: Sequence[Look]) -> LoadFact:
    """Decided before it is visible and told behind it, as far as clocks tell."""
    begun = next((look.at for look in looks if look.seen.get(load.key)), None)
    full = next((look.at for look in looks if look.seen.get(load.key, 0) >= load.records), None)
    if load.decided is None or begun is None or full is None:
        return load
    apart = CLOCK_ERROR_S * 0.9
    return dataclasses.replace(load, deciding_at=begun + apart, told_at=full - apart if load.acked else None)


def _values(rnd: random.Random, party: str, writer: str, unit: int, count: int) -> list[Value]:
    keys = [f"k{n}" for n in range(rnd.randint(1, 5))]
    # the first two have one key, so that they can change places
    return [Value(party, writer, unit, keys[0] if n < 2 else rnd.choice(keys), n) for n in range(count)]


def _log(rnd: random.Random, units: Sequence[_Unit]) -> tuple[Record, ...]:
    """Units mixed, each in its order; every key has its partition. Markers leave gaps in the offsets."""
    turns = [n for n, (_, values) in enumerate(units) for _ in values]
    rnd.shuffle(turns)
    streams = [iter(values) for _, values in units]
    ends: dict[tuple[str, int], int] = defaultdict(int)
    records = []
    for n in turns:
        value = next(streams[n])
        place = units[n][0], int(value.key[1:]) % PARTITIONS
        ends[place] += rnd.choice([1, 1, 1, 2])
        records.append(Record(*place, ends[place], value.key.encode(), value.encode(rnd.choice([0, 60]))))
    return tuple(sorted(records, key=lambda r: (r.topic, r.partition, r.offset)))


def _looks(rnd: random.Random, loads: Sequence[LoadFact]) -> tuple[Look, ...]:
    """Each committed load comes in up to three steps, a few ms apart."""
    looks, at, seen = [Look(0.0, {})], 1.0, dict[str, int]()
    for load in loads:
        if load.reported == "COMMITTED":
            parts = sorted(rnd.randint(0, load.records) for _ in range(rnd.randint(0, 2)))
            for count in [*parts, load.records]:
                at += rnd.random() / 20
                seen[load.key] = count
                looks.append(Look(at, dict(seen)))
        at += 5
    return tuple(looks)
