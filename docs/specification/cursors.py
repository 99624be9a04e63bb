"""Loads that read on from where the last one ended: a cursor in the ledger, that moves with the decision.

model.py has one load, streams.py a query that counts its batches.  Here each load is a key of its own, whichever comes:
it takes a range of the source, from the cursor's position to an end that it chooses, writes it (one transaction), and is
decided.  A run of a load is killed whenever it is not scheduled again, and comes back late as a zombie.  Searched are all
interleavings of two loads with retries, cleanup, a transaction that is lost behind its decision and given up, a ledger
that was restored from a backup (with a new id or without), and a person who sets the cursor by what he saw.

What must hold: no row is visible twice; what lies before the position is decided, without a gap; and a retry reads the
very range of the attempt before it, unless the cursor has moved since.  Left out: what is inside of a load, several
transactions, ids (model.py has them), and named ranges, which do not move it: own loads read nothing of them, unless a
person has said so (tests/ledger/test_named_ranges.py).

    python3 cursors.py [drop/]     all runs, one line each; only those whose name starts so, with traces
"""
import sys
from typing import NamedTuple

from one_partition import main, told

RULES = {
    "cursor-moves-with-the-decision": "decision and position are written in one transaction of the ledger",
    "cursor-moves-with-the-decision:cas": "only while the cursor is where the attempt's range was taken: counted, not compared",
    "cursor-moves-with-the-decision:own": "to the end of that very attempt's range, not of whatever its load has by now",
    "range-is-pinned": "an attempt has the range of the one before it, once that had an end, unless the cursor has moved",
    "one-load-per-cursor": "a range is taken only when no other load is undecided with it, or decided and not verified",
    "cursor-in-doubt-stops": "no range is taken, and none decided, of a cursor in doubt",
    "cursor-in-doubt-stops:give-up": "to give up a load puts its cursor in doubt, back where the range began",
    "cursor-in-doubt-stops:new-id": "a new id of the ledger puts every cursor in doubt",
    "cursor-in-doubt-stops:set": "a person sets a cursor only while it has the position, and the count, that he saw",
    "cursor-in-doubt-stops:closed": "nor while a load that was given up may have something open, which may become visible yet",
    "cursor-in-doubt-stops:count": "what becomes visible, or is over, counts as a move: who has looked before has seen something else",
    "unknown-commit-stops": "no range is taken, and none decided, where brokers have a commit of the load's name that the ledger has not",
}
ALL = frozenset(RULES)
DECIDED = ("commit", "verified", "given-up", "closed")
ROWS = 2


class World(NamedTuple):
    """What the environment may do."""
    runs: tuple = (0, 0, 1)     # the load of each run that will ever start
    losses: int = 0             # how often a decided transaction may be ended by its timeout
    sets: int = 0               # how often a person may set the cursor
    restores: int = 0           # how often the ledger may be put back to what was saved once
    new_id: bool = False        # that comes with a new id of the ledger: brokers' commits of before are nobody's
    cleaners: int = 1           # how often cleanup may abort what is undecided
    one_by_one: bool = True     # the source grows meanwhile


class Range(NamedTuple):
    load: int
    since: int
    moves: int                  # the cursor's count when it was taken
    until: int | None = None
    verdict: str = ""           # "", abort, commit, verified, given-up, closed (given up, and nothing of it is open)


class Ledger(NamedTuple):
    position: int = 0
    moves: int = 0
    held: int | None = None     # the load that took a range last
    doubt: bool = False
    ranges: tuple = ()          # by attempt


class State(NamedTuple):
    source: int
    ledger: Ledger = Ledger()
    txs: tuple = ()             # by attempt, as brokers have them: (tx, since, until); tx: none, prepared, committed, aborted
    runs: tuple = ()            # (pc, load, attempt)
    seen: tuple | None = None   # what a person saw: (position, moves, what is right)
    saved: Ledger | None = None
    known_from: int = 0         # attempts before it are of another id of the ledger
    left: tuple = ()            # runs, losses, sets, restores, cleaners


def put(t, i, x):
    return t[:i] + (x,) + t[i + 1:]


class Cursor:
    def __init__(self, world, rules):
        self.w, self.on = world, rules

    def begin(self):
        w = self.w
        return State(1 if w.one_by_one else ROWS, left=(0, w.losses, w.sets, w.restores, w.cleaners))

    def less(self, s, i):
        return put(s.left, i, s.left[i] - 1)

    def newest(self, ledger, load):
        return max((a for a, r in enumerate(ledger.ranges) if r and r.load == load), default=None)

    def is_committed(self, ledger, load):
        return any(r and r.load == load and r.verdict in DECIDED for r in ledger.ranges)

    # ---- what may happen ------------------------------------------------------------------------------------------
    def steps(self, s):
        w, ledger = self.w, s.ledger
        if w.one_by_one and s.source < ROWS:
            yield "the source grows", s._replace(source=s.source + 1)
        n = s.left[0]
        if n < len(w.runs):
            yield (f"run {n} of load {w.runs[n]} starts",
                   s._replace(runs=s.runs + (("start", w.runs[n], -1),), left=put(s.left, 0, n + 1)))
        for a, r in enumerate(ledger.ranges):
            if r is None:
                continue
            tx, since, until = s.txs[a]
            if s.left[4] and r.verdict == "":
                yield f"cleanup aborts {a}", self.verdict(s, a, "abort")._replace(left=self.less(s, 4))
            if r.verdict == "abort" and tx == "prepared":
                yield f"cleanup ends {a}", self.ended(s, a, "aborted")
            if r.verdict == "commit":
                if tx == "prepared" and a >= s.known_from:
                    yield f"{a} is committed in Kafka", self.ended(s, a, "committed")
                    if s.left[1]:
                        yield f"{a} is lost", self.ended(s, a, "aborted")._replace(left=self.less(s, 1))
                        yield f"{a} is given up as it is", self.gives_up(s, a)._replace(left=self.less(s, 1))
                elif tx == "committed":
                    yield f"{a} is verified", self.verified(s, a)
                    if s.left[1]:
                        yield f"{a} cannot be verified, and is given up", self.gives_up(s, a)._replace(left=self.less(s, 1))
                elif tx == "aborted":
                    yield f"{a} is given up", self.gives_up(s, a)
            if r.verdict == "given-up" and tx == "prepared" and a >= s.known_from:
                # its coordinator has PrepareCommit, or an EndTxn is on its way
                yield f"{a} is committed in Kafka after all", self.ended(s, a, "committed")
                yield f"{a} ends by its timeout", self.ended(s, a, "aborted")
            elif r.verdict == "given-up":
                yield f"cleanup sees that nothing of {a} is open", self.counted(self.verdict(s, a, "closed"))
        if s.left[2]:
            if s.seen is None:
                yield "a person looks", s._replace(seen=(ledger.position, ledger.moves, self.right(s)))
            elif "cursor-in-doubt-stops:set" not in self.on or s.seen[:2] == (ledger.position, ledger.moves):
                new = ledger._replace(position=s.seen[2], moves=ledger.moves + 1, doubt=False)
                waits = ("commit", "given-up") if "cursor-in-doubt-stops:closed" in self.on else ("commit",)
                held = [r for r in ledger.ranges if r and r.load == ledger.held and r.verdict in waits]
                if not held:
                    yield f"and sets it to {s.seen[2]}", s._replace(ledger=new, seen=None, left=self.less(s, 2))
            else:
                yield "and is refused", s._replace(seen=None)
        if s.left[3]:
            if s.saved is None:
                yield "the ledger is saved", s._replace(saved=ledger)
            elif s.saved != ledger:
                back = s.saved._replace(ranges=s.saved.ranges + (None,) * (len(s.txs) - len(s.saved.ranges)))
                s2 = s._replace(ledger=back, left=self.less(s, 3))
                if w.new_id:
                    if any(r and r.verdict in ("commit", "given-up") for r in back.ranges):
                        return  # refused: what is decided has to be through first
                    if "cursor-in-doubt-stops:new-id" in self.on:
                        back = back._replace(doubt=True)
                    gone = tuple(r and r._replace(verdict=r.verdict or "abort") for r in back.ranges)
                    # processes with the old id are refused
                    runs = tuple(("dead", *run[1:]) for run in s.runs)
                    s2 = s2._replace(ledger=back._replace(ranges=gone, moves=back.moves + 1), known_from=len(s.txs), runs=runs)
                yield "the ledger is restored" + (", and gets a new id" if w.new_id else ""), s2
        for n, (pc, load, a) in enumerate(s.runs):
            yield from self.run_steps(s, n, pc, load, a)

    def right(self, s):
        """Where a person who compares topic and source finds that the next range begins."""
        end = 0
        for tx, since, until in sorted(s.txs, key=lambda t: t[1]):
            if tx == "committed" and since <= end:
                end = max(end, until)
        return end

    def ended(self, s, a, how):
        return s._replace(txs=put(s.txs, a, (how, *s.txs[a][1:])))

    def verdict(self, s, a, what):
        return s._replace(ledger=s.ledger._replace(ranges=put(s.ledger.ranges, a, s.ledger.ranges[a]._replace(verdict=what))))

    def verified(self, s, a):
        return self.counted(self.verdict(s, a, "verified"))

    def counted(self, s):
        if "cursor-in-doubt-stops:count" not in self.on:
            return s
        return s._replace(ledger=s.ledger._replace(moves=s.ledger.moves + 1))

    def gives_up(self, s, a):
        s = self.verdict(s, a, "given-up")
        back = s.ledger._replace(position=s.ledger.ranges[a].since, moves=s.ledger.moves + 1)
        return s._replace(ledger=back._replace(doubt="cursor-in-doubt-stops:give-up" in self.on))

    def unknown(self, s):
        return any(tx == "committed" and a >= s.known_from
                   and (s.ledger.ranges[a] is None or s.ledger.ranges[a].verdict not in DECIDED)
                   for a, (tx, _, _) in enumerate(s.txs))

    # ---- a run of a load --------------------------------------------------------------------------------------------
    def run_steps(self, s, n, pc, load, a):
        ledger, on = s.ledger, self.on

        def at(pc, s=s, a=a):
            return s._replace(runs=put(s.runs, n, (pc, load, a)))

        if pc == "start":
            if self.is_committed(ledger, load):
                return
            if "cursor-in-doubt-stops" in on and ledger.doubt:
                yield f"run {n} is refused: in doubt", at("dead")
                return
            if "unknown-commit-stops" in on and self.unknown(s):
                yield f"run {n} is refused: brokers know more", at("dead")
                return
            if "one-load-per-cursor" in on and ledger.held not in (None, load):
                last = self.newest(ledger, ledger.held)
                if last is not None and ledger.ranges[last].verdict in ("", "commit"):
                    return  # it waits
            # in one transaction of the ledger: older attempts aborted, the range taken
            ranges = tuple(r._replace(verdict="abort") if r and r.load == load and r.verdict == "" else r
                           for r in ledger.ranges)
            until = None
            if "range-is-pinned" in on:
                until = next((r.until for r in ranges
                              if r and r.load == load and r.moves == ledger.moves and r.until is not None), None)
            ranges += (Range(load, ledger.position, ledger.moves, until),)
            taken = ledger._replace(held=load, ranges=ranges)
            s2 = s._replace(ledger=taken, txs=s.txs + (("none", ledger.position, -1),))
            yield f"run {n} takes {len(s.txs)} from {ledger.position}", at("taken", s2, len(s.txs))
        elif pc == "taken":
            r = ledger.ranges[a]
            if r is None or r.verdict:
                return
            until = s.source if r.until is None else r.until
            if until > r.since:
                pinned = ledger._replace(ranges=put(ledger.ranges, a, r._replace(until=until)))
                s2 = s._replace(ledger=pinned, txs=put(s.txs, a, ("none", r.since, until)))
                yield f"run {n} reads {r.since} to {until}", at("pinned", s2)
        elif pc == "pinned":
            yield f"run {n} has prepared {a}", at("written", self.ended(s, a, "prepared"))
        elif pc == "written":
            r = ledger.ranges[a]
            if r is None or r.verdict or self.is_committed(ledger, load) or self.newest(ledger, load) != a:
                yield f"run {n} is refused: superseded", at("dead")
                return
            if s.txs[a][0] != "prepared":
                return
            if "cursor-moves-with-the-decision:cas" in on and r.moves != ledger.moves:
                yield f"run {n} is refused: the cursor has moved", at("dead")
                return
            if "cursor-in-doubt-stops" in on and ledger.doubt:
                yield f"run {n} is refused: in doubt", at("dead")
                return
            if "unknown-commit-stops" in on and self.unknown(s):
                yield f"run {n} is refused: brokers know more", at("dead")
                return
            s2 = self.verdict(s, a, "commit")
            if "cursor-moves-with-the-decision" in on:
                yield f"run {n} decides {a}", at("done", self.moved(s2, load, a))
            else:
                yield f"run {n} decides {a}", at("decided", s2)
        elif pc == "decided":
            yield f"run {n} moves the cursor", at("done", self.moved(s, load, a))

    def moved(self, s, load, a):
        ledger = s.ledger
        if "cursor-moves-with-the-decision:own" not in self.on:
            # what the load has read last, by whichever attempt
            a = max((b for b, (_, _, until) in enumerate(s.txs) if ledger.ranges[b] and ledger.ranges[b].load == load
                     and until >= 0), key=lambda b: s.txs[b][2])
        return s._replace(ledger=ledger._replace(position=s.txs[a][2], moves=ledger.moves + 1))

    # ---- what must hold -------------------------------------------------------------------------------------------
    def broken(self, s):
        seen = [row for tx, since, until in s.txs if tx == "committed" for row in range(since, until)]
        if len(seen) != len(set(seen)):
            return "a row is visible twice"
        ledger = s.ledger
        sure = {row for a, (tx, since, until) in enumerate(s.txs) for row in range(since, until)
                if tx == "committed" or (ledger.ranges[a] and ledger.ranges[a].verdict == "commit")}
        if not set(range(ledger.position)) <= sure:
            return "the position is behind a row that nobody has loaded"
        ends = {}
        for r in ledger.ranges:
            if r and r.until is not None and ends.setdefault((r.load, r.moves), r.until) != r.until:
                return "a retry reads another range"
        return ""


WORLDS = {
    "two-loads":    World(),
    "retries":      World(runs=(0, 0, 0)),
    "given-up":     World(runs=(0, 1, 1), losses=1, cleaners=0, sets=1),
    "set":          World(runs=(0, 1), losses=1, sets=1, cleaners=0),
    "restored":     World(runs=(0, 1), restores=1, one_by_one=False),
    "new-id":       World(runs=(0, 1), restores=1, new_id=True, sets=1, one_by_one=False),
}
CAS, SET = "cursor-moves-with-the-decision:cas", "cursor-in-doubt-stops:set"
DROPS = {
    "cursor-moves-with-the-decision": "two-loads",
    CAS + "+one-load-per-cursor": "two-loads",
    "one-load-per-cursor": "given-up",
    "range-is-pinned": "retries",
    "cursor-moves-with-the-decision:own+range-is-pinned": "retries",
    "cursor-in-doubt-stops": "new-id",
    "cursor-in-doubt-stops:new-id": "new-id",
    SET: "set",
    "cursor-in-doubt-stops:count": "set",
    "cursor-in-doubt-stops:closed": "given-up",
    "cursor-in-doubt-stops:give-up": "given-up",
    "unknown-commit-stops": "restored",
}
SUITE = [("all/" + n, w, ALL, False) for n, w in WORLDS.items()]
SUITE += [("drop/" + r, WORLDS[n], ALL - set(r.split("+")), True) for r, n in DROPS.items()]


def run(name, world, rules, expect):
    return told(name, Cursor(world, rules), expect)


if __name__ == "__main__":
    sys.exit(main(SUITE, run))
