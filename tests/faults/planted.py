"""Things that must not be, each planted in an observation as it must be (samples.py)."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from tests.faults.facts import Look, Observation, OpenTransaction, Record, Value
from tests.faults.samples import CLOCK_ERROR_S, PARTITIONS, TOPICS, of, with_final
from tests.faults.visible import FOREIGN, LOAD, PLAIN

Plant = Callable[[Observation, random.Random], Observation]


def _changed(
    seen: Observation, rnd: random.Random, party: str, writer: str, change: Callable[[Value], Value]
) -> Observation:
    """One record of a writer says something else."""
    records = list(seen.final)
    n = rnd.choice(of(seen, party, writer))
    value = change(Value.decode(records[n].said))
    records[n] = dataclasses.replace(records[n], key=value.key.encode(), value=value.encode())
    return with_final(seen, rnd, records)


def _without(party: str, which: int = 0) -> Plant:
    def plant(seen: Observation, rnd: random.Random) -> Observation:
        writer = {LOAD: seen.loads[which].key, FOREIGN: "app", PLAIN: "clicks"}[party]
        places = of(seen, party, writer)
        if party == PLAIN:  # acknowledged ones
            places = [n for n in places if Value.decode(seen.final[n].said).number in seen.plain[0].acked]
        if party == FOREIGN:  # fates are in order: transaction 0 is a committed one
            places = [n for n in places if Value.decode(seen.final[n].said).unit == 0]
        gone = rnd.choice(places)
        return with_final(seen, rnd, [r for n, r in enumerate(seen.final) if n != gone])

    return plant


def _twice(party: str) -> Plant:
    def plant(seen: Observation, rnd: random.Random) -> Observation:
        writer = {LOAD: seen.loads[0].key, FOREIGN: "app", PLAIN: "clicks"}[party]
        again = seen.final[rnd.choice(of(seen, party, writer))]
        return with_final(seen, rnd, [*seen.final, again])

    return plant


def _all_gone(seen: Observation, rnd: random.Random) -> Observation:
    gone = set(of(seen, LOAD, seen.loads[0].key))
    return with_final(seen, rnd, [r for n, r in enumerate(seen.final) if n not in gone])


def _stuck_half_way(seen: Observation, rnd: random.Random) -> Observation:
    """Decided, nobody was told, and a part is there for good."""
    return _without(LOAD, 0)(_committing(seen, rnd), rnd)


def _another_attempt(seen: Observation, rnd: random.Random) -> Observation:
    return _changed(seen, rnd, LOAD, seen.loads[0].key, lambda v: dataclasses.replace(v, unit=v.unit + 1))


def _a_loser_beside(seen: Observation, rnd: random.Random) -> Observation:
    """A whole second attempt is there too."""
    load = seen.loads[0]
    mine = [seen.final[n] for n in of(seen, LOAD, load.key)]
    values = [Value.decode(r.said) for r in mine]
    copies = [
        dataclasses.replace(r, value=dataclasses.replace(v, unit=v.unit + 1).encode())
        for r, v in zip(mine, values, strict=True)
    ]
    return with_final(seen, rnd, [*seen.final, *copies])


def _extra(value: Value) -> Plant:
    def plant(seen: Observation, rnd: random.Random) -> Observation:
        topic = next((f.topic for f in seen.foreign if f.unit == value.unit), TOPICS[0])
        record = Record(topic, 0, 0, value.key.encode(), value.encode())
        return with_final(seen, rnd, [*seen.final, record])

    return plant


def _of_the_aborted(seen: Observation, rnd: random.Random) -> Observation:
    """One record of a load that was aborted, or that nobody decided."""
    loads = list(seen.loads)
    loads[2] = dataclasses.replace(loads[2], records=5, reported="ABORTED")
    seen = dataclasses.replace(seen, loads=tuple(loads))
    return with_final(
        seen,
        rnd,
        [*seen.final, Record(loads[2].topics[0], 0, 0, b"k0", Value(LOAD, loads[2].key, 1, "k0", 3).encode())],
    )


def _of_the_undecided(seen: Observation, rnd: random.Random) -> Observation:
    seen = _of_the_aborted(seen, rnd)
    loads = list(seen.loads)
    loads[2] = dataclasses.replace(loads[2], reported=rnd.choice(["PREPARED", "GIVEN_UP", None]))
    return dataclasses.replace(seen, loads=tuple(loads))


def _nobodys(seen: Observation, rnd: random.Random) -> Observation:
    garbage = rnd.choice([b"", b"\xff\xff", b"load|x", b"load|x|1|k0|one|", Value(LOAD, "x", 1, "k0", 0).encode()])
    return with_final(seen, rnd, [*seen.final, Record(TOPICS[0], 0, 0, b"k0", garbage)])


def _with_a_rich_one(spoil: Callable[[Record], Record]) -> Plant:
    """One record of a load has a time, headers and no value, as it was written; then something of it is changed."""

    def plant(seen: Observation, rnd: random.Random) -> Observation:
        records = list(seen.final)
        n = rnd.choice(of(seen, LOAD, seen.loads[0].key))
        records[n] = spoil(rich(records[n]))
        return with_final(seen, rnd, records)

    return plant


def rich(record: Record) -> Record:
    """The same record, as it were with a time of its own."""
    value = dataclasses.replace(Value.decode(record.said), at_ms=1_700_000_000_000)
    data = value.encode() if value.has_value else None
    return dataclasses.replace(record, value=data, headers=value.headers, timestamp_ms=value.at_ms)


def _strayed(seen: Observation, rnd: random.Random) -> Observation:
    """A record is in a topic that is not its load's."""
    records = list(seen.final)
    n = rnd.choice(of(seen, LOAD, seen.loads[0].key))
    records[n] = dataclasses.replace(records[n], topic="elsewhere")
    return with_final(seen, rnd, records)


def _another_key(seen: Observation, rnd: random.Random) -> Observation:
    records = list(seen.final)
    n = rnd.choice(of(seen, LOAD, seen.loads[0].key))
    records[n] = dataclasses.replace(records[n], key=rnd.choice([None, b"", b"other"]))
    return with_final(seen, rnd, records)


def _swapped(party: str) -> Plant:
    """Numbers 0 and 1 have one key."""

    def plant(seen: Observation, rnd: random.Random) -> Observation:
        writer = {LOAD: seen.loads[1].key, FOREIGN: "app", PLAIN: "clicks"}[party]
        values = {n: Value.decode(seen.final[n].said) for n in of(seen, party, writer)}
        first, second = (n for n, v in values.items() if v.number < 2 and (party != FOREIGN or v.unit == 0))
        records = list(seen.final)
        records[first], records[second] = records[second], records[first]
        return with_final(seen, rnd, records)

    return plant


def _half_of_unknown(seen: Observation, rnd: random.Random) -> Observation:
    """Transaction 2 is one that its client could not tell: the first half of it is there."""
    fact = seen.foreign[2]
    others = [r for r in seen.final if (v := Value.decode(r.said)).party != FOREIGN or v.unit != fact.unit]
    half = [
        Record(fact.topic, 0, 0, b"k0", Value(FOREIGN, fact.producer, fact.unit, "k0", n).encode())
        for n in range(rnd.randint(1, fact.records - 1))
    ]
    return with_final(seen, rnd, [*others, *half])


def _ended_by_others(seen: Observation, rnd: random.Random) -> Observation:
    """Committed by somebody else, as its client would have: all of it is there."""
    first, *others = seen.foreign
    return dataclasses.replace(seen, foreign=(dataclasses.replace(first, was_ended=True), *others))


def _open(seen: Observation, rnd: random.Random) -> Observation:
    one = OpenTransaction(rnd.choice(seen.loads).prefix + "1-0-1", ((TOPICS[0], 0),), 1_700_000_000_000)
    return dataclasses.replace(seen, open=(one,))


def _short(seen: Observation, rnd: random.Random) -> Observation:
    """And another application's transaction is open, but elsewhere."""
    place = rnd.choice(TOPICS), rnd.randrange(PARTITIONS)
    theirs = OpenTransaction("app-1", (("elsewhere", place[1]),), 1_700_000_000_000)
    return dataclasses.replace(seen, stable_short={place: (3, 7)}, open=(theirs,))


def _fact(which: int, **changes: object) -> Plant:
    def plant(seen: Observation, rnd: random.Random) -> Observation:
        loads = list(seen.loads)
        loads[which] = dataclasses.replace(loads[which], **changes)  # type: ignore[arg-type]
        return dataclasses.replace(seen, loads=tuple(loads))

    return plant


def _visible_before_its_decision(seen: Observation, rnd: random.Random) -> Observation:
    """EndTxn went out, its process died before it had recorded the decision, and the retry did."""
    begun = next(look.at for look in seen.looks if look.seen.get(seen.loads[0].key))
    return _fact(0, deciding_at=begun + CLOCK_ERROR_S + 0.002 + rnd.random())(seen, rnd)


def _told_before_all_is_visible(seen: Observation, rnd: random.Random) -> Observation:
    """The last marker is written by somebody else, later."""
    load = seen.loads[0]
    full = next(look.at for look in seen.looks if look.seen.get(load.key, 0) >= load.records)
    return _fact(0, told_at=full - CLOCK_ERROR_S - 0.002 - rnd.random())(seen, rnd)


def _decided_and_lost(expect: str, reported: str) -> Plant:
    """Nothing of it is visible, and nobody was told that it is."""

    def plant(seen: Observation, rnd: random.Random) -> Observation:
        lost = {"decided": 1, "records": 5, "reported": reported, "acked": False, "expect": expect}
        return _fact(2, **lost)(seen, rnd)

    return plant


def _spread(seen: Observation, rnd: random.Random) -> Observation:
    """Of two records of one key the later one is in another partition."""
    records = list(seen.final)
    places = of(seen, LOAD, seen.loads[1].key)
    (n,) = (n for n in places if Value.decode(records[n].said).number == 1)
    records[n] = dataclasses.replace(records[n], partition=(records[n].partition + 1) % PARTITIONS)
    return with_final(seen, rnd, records)


def _error(seen: Observation, rnd: random.Random) -> Observation:
    return dataclasses.replace(seen, errors=("decide of dag/run-0: TypeError: no",))


def _committing(seen: Observation, rnd: random.Random) -> Observation:
    return _fact(0, reported="COMMITTING", acked=False, expect="either")(seen, rnd)


def _long_in_part(seen: Observation, rnd: random.Random) -> Observation:
    load = seen.loads[1]
    looks = [Look(10.0, {}), Look(11.0, {load.key: load.records - 1}), Look(20.0, {load.key: load.records})]
    return _fact(1, told_at=20.0)(dataclasses.replace(seen, looks=tuple(looks)), rnd)


def _last_look_in_part(seen: Observation, rnd: random.Random) -> Observation:
    load = seen.loads[1]
    return dataclasses.replace(seen, looks=(*seen.looks, Look(100.0, {load.key: load.records - 1})))


def _reader_missed(seen: Observation, rnd: random.Random) -> Observation:
    gone = rnd.randrange(len(seen.tailed))
    return dataclasses.replace(seen, tailed=seen.tailed[:gone] + seen.tailed[gone + 1 :])


def _reader_doubled(seen: Observation, rnd: random.Random) -> Observation:
    return dataclasses.replace(seen, tailed=(*seen.tailed, rnd.choice(seen.tailed)))


def _saw_what_is_gone(seen: Observation, rnd: random.Random) -> Observation:
    """The tailing reader saw a record that is not there in the end."""
    more = Record(TOPICS[0], 0, 1_000_000, b"k0", Value(PLAIN, "clicks", 0, "k0", 1_000_000).encode())
    return dataclasses.replace(seen, tailed=(*seen.tailed, more))


def _java_missed(seen: Observation, rnd: random.Random) -> Observation:
    gone = rnd.randrange(len(seen.final))
    return dataclasses.replace(seen, others={"Java's": seen.final[:gone] + seen.final[gone + 1 :]})


#: what is planted -> the kind that must be found
PLANTS: dict[str, tuple[Plant, str]] = {
    "a record of a load of scope task is gone": (_without(LOAD, 0), "lost"),
    "a record of a load of scope load is gone": (_without(LOAD, 1), "lost"),
    "all of a load is gone": (_all_gone, "lost"),
    "a decided load is there in part": (_stuck_half_way, "lost"),
    "part of a load of scope load is all there is": (_without(LOAD, 1), "torn"),
    "a load is committed, and not all is there": (_without(LOAD, 0), "reported_wrong"),
    "an acknowledged plain record is gone": (_without(PLAIN), "lost"),
    "a load's record is there twice": (_twice(LOAD), "duplicate"),
    "and the ledger knows nothing of it": (_twice(LOAD), "reported_wrong"),
    "a record of another application is there twice": (_twice(FOREIGN), "duplicate"),
    "a plain record is there twice": (_twice(PLAIN), "duplicate"),
    "a record of another attempt": (_another_attempt, "aborted_read"),
    "one attempt's record instead of the other's": (_another_attempt, "lost"),
    "two attempts": (_a_loser_beside, "aborted_read"),
    "two whole attempts": (_a_loser_beside, "duplicate"),
    "an attempt beside the decided one": (_a_loser_beside, "reported_wrong"),
    "a record of an aborted load": (_of_the_aborted, "aborted_read"),
    "a record of an aborted transaction of others": (_extra(Value(FOREIGN, "app", 1, "k0", 0)), "aborted_read"),
    "a record of an undecided load": (_of_the_undecided, "undecided_visible"),
    "a record that nobody wrote": (_nobodys, "undecided_visible"),
    "a record of a transaction that there was not": (_extra(Value(FOREIGN, "app", 77, "k0", 0)), "undecided_visible"),
    "a record beyond a transaction's end": (_extra(Value(FOREIGN, "app", 0, "k0", 9)), "undecided_visible"),
    "a record in another topic": (_strayed, "undecided_visible"),
    "another key": (_another_key, "undecided_visible"),
    "a time is another": (
        _with_a_rich_one(lambda r: dataclasses.replace(r, timestamp_ms=(r.timestamp_ms or 0) + 1)),
        "changed",
    ),
    "a header is gone": (_with_a_rich_one(lambda r: dataclasses.replace(r, headers=r.headers[:1] * 2)), "changed"),
    "a header that nobody wrote": (
        _with_a_rich_one(lambda r: dataclasses.replace(r, headers=(*r.headers, ("x", None)))),
        "changed",
    ),
    "null became something, or something null": (
        _with_a_rich_one(lambda r: dataclasses.replace(r, value=r.said if r.value is None else None)),
        "changed",
    ),
    "a load's records change places": (_swapped(LOAD), "order"),
    "records of others change places": (_swapped(FOREIGN), "order"),
    "plain records change places": (_swapped(PLAIN), "order"),
    "a foreign transaction in part": (_without(FOREIGN), "foreign_touched"),
    "a foreign transaction of unknown fate in part": (_half_of_unknown, "foreign_touched"),
    "a foreign transaction was ended by others": (_ended_by_others, "foreign_touched"),
    "a transaction of ours is open": (_open, "left_open"),
    "a last stable offset is short": (_short, "stable_short"),
    "COMMITTED, and nothing is there": (_fact(2, reported="COMMITTED", records=5, decided=1), "reported_wrong"),
    "all is there, and it is not COMMITTED": (_committing, "reported_wrong"),
    "told that it is committed, and it is not": (_fact(2, acked=True), "reported_wrong"),
    "due, and not acked": (_fact(1, acked=False), "unfinished"),
    "all is there, and it is ABORTED": (_fact(1, reported="ABORTED"), "reported_wrong"),
    "due, and ABORTED": (_fact(1, reported="ABORTED"), "unfinished"),
    "arrived, and must not": (_fact(1, expect="absent"), "reported_wrong"),
    "decided and visible, and must not arrive": (_fact(1, expect="absent"), "aborted_read"),
    "a load of scope load in part for long": (_long_in_part, "torn"),
    "a load of scope load in part to the last": (_last_look_in_part, "torn"),
    "visible before its decision": (_visible_before_its_decision, "undecided_visible"),
    "told before all is visible": (_told_before_all_is_visible, "reported_wrong"),
    "told by a run whose cleanup failed": (_fact(2, told_at=1.0), "reported_wrong"),
    "decided, lost, and in doubt": (_decided_and_lost("either", "IN_DOUBT"), "unfinished"),
    "decided, lost, and to be repaired": (_decided_and_lost("either", "REPAIRING"), "unfinished"),
    "decided, lost, and never finished": (_decided_and_lost("either", "COMMITTING"), "unfinished"),
    "decided, and must not arrive": (_decided_and_lost("absent", "COMMITTING"), "reported_wrong"),
    "a key in two partitions": (_spread, "order"),
    "a cleanup leaves a transaction open": (_fact(3, left_by_cleanup=("eos.3.1-0-1",)), "left_open"),
    "an error that is none of the package's": (_error, "unexpected_error"),
    "a reader missed a record": (_reader_missed, "reader_differs"),
    "another reader missed a record": (_java_missed, "reader_differs"),
    "a reader saw a record twice": (_reader_doubled, "reader_differs"),
    "a reader saw what is gone": (_saw_what_is_gone, "reader_differs"),
}
