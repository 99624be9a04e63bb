"""model.py, where a coordinator may forget to end what it calls ended: what the fault campaign found, and the way out.

A broker that comes up can drop the end markers which its transaction coordinator owes to partitions whose leader is
not known yet, and call the transaction CompleteCommit or CompleteAbort.  The partitions have it open for ever.

    python3 forgotten.py [drop/]     all runs, one line each; only those whose name starts so, with traces: see suite.py

No field is added to State.  World.by_hand is how often a coordinator forgets (nobody writes markers by hand here).  In
Id.held a record that was forgotten is (attempt, task, copy, batch, producer id, epoch); one of four fields belongs to
the transaction that the coordinator has open.  What an id holds in a partition under one producer id is one region: it
begins with its oldest record, shows the epoch of its newest, and one marker ends all of it.  In State.net a request of
five, (x, pid, ep, verdict, partition), is a marker past the coordinator: whoever sends it has judged before it arrives.
Which marker is first behind the records counts.  A transaction whose partitions have different ones is in doubt.
With fanout a load is partly visible for a while in any case (limit/markers-one-by-one in suite.py): here only what
stays so counts, as different markers or as what recovery can no longer settle.

Left out: markers that were dropped and come after all, a repair under the id of an earlier one (in the code each has
its own), persons and their markers, more than two partitions.
"""
import sys
import time
from itertools import chain, combinations

from model import ALL, Model, Repair, World, put
from suite import TWO, WORLDS, search

RULES = {
    "forgotten-markers:commit":
        "commit ends what the coordinator of a decided transaction has forgotten, by markers past it",
    "forgotten-markers:cleanup":
        "cleanup ends what is forgotten and belongs to no decision, by abort markers past the coordinator",
    "forgotten-markers:undecidable": "cleanup does so only when the attempt or repair cannot be decided any more",
    "forgotten-markers:over":
        "a marker is written past a coordinator only when that cannot end the transaction any more",
    "forgotten-markers:log-first":
        "the marker is of the kind that another partition shows; only where none does, the coordinator's",
    "forgotten-markers:agree":
        "where no partition shows a marker, the kind is the coordinator's (without: always abort)",
    "decide-what-is-confirmed:start-offset":
        "decide refuses a transaction that did not begin, in each partition, where its own records do",
    "forgotten-markers:own-region":
        "commit's markers past the coordinator end regions of the decision's own records only",
    # of the environment, not of our code
    "environment:seven-days":
        "no marker past the coordinator is under way for as long as a transactional id takes to expire",
}
MORE = ALL | frozenset(RULES)


def coordinators(c):
    return frozenset(r for r in c.held if len(r) == 4)


def identity(c, r=()):
    return r[4:] or (c.pid - 1 if c.ep == 0 and c.wep else c.pid, c.wep)


def region(c, part, pid):
    return frozenset(r for r in c.held if r[1] == part and identity(c, r)[0] == pid)


def forget(c, recs):
    return frozenset(r[:4] + identity(c, r) for r in recs)


class Forgetful(Model):
    # ---- broker ------------------------------------------------------------------------------------------------
    def end(self, s, x, pid, parts, verdict):
        """Markers in these partitions end all that is open there under the producer id."""
        c = s.ids[x]
        gone = frozenset(r for part in parts for r in region(c, part, pid))
        left, log = c.held - gone, s.log
        visible = s.visible | (frozenset(r[:4] for r in gone) if verdict == "commit" else frozenset())
        for who in {identity(c, r) for r in gone} - {identity(c, r) for r in left}:
            r = next(r for r in gone if identity(c, r) == who)
            seen = sum(v[0] == r[0] and v[2] == r[2] and (self.w.scope == "load" or v[1] == r[1]) for v in visible)
            whole = self.w.batches * (self.w.tasks if self.w.scope == "load" else 1)
            alike = seen == whole if verdict == "commit" else not seen
            if alike and not any(m[:3] == (x, *who) for m in log):
                log = log | {(x, *who, verdict)}
            elif not alike and self.w.fanout:
                s = s._replace(bad=f"partitions of the transaction {(x, *who)} have different markers")
        return s._replace(ids=put(s.ids, x, c._replace(held=left)), log=log, visible=visible)

    def abort_open(self, s, x, by, bump=True, zombie=False):
        c = s.ids[x]
        s2 = super().abort_open(s, x, by, bump, zombie)
        if not c.held:
            return s2
        done = self.end(s, x, c.pid, {r[1] for r in coordinators(c)}, "abort")
        ids = put(s2.ids, x, s2.ids[x]._replace(held=done.ids[x].held))
        return s2._replace(ids=ids, log=done.log, bad=s2.bad or done.bad)

    def produce(self, s, x, pid, ep, rec):
        """Also beside, and behind, what is forgotten; and past the coordinator where the partition has it open so."""
        c = s.ids[x]
        old = c.held - coordinators(c)
        s2 = super().produce(s._replace(ids=put(s.ids, x, c._replace(held=c.held - old))), x, pid, ep, rec)
        if s2:
            return s2._replace(ids=put(s2.ids, x, s2.ids[x]._replace(held=s2.ids[x].held | old)))
        past = max((identity(c, r) for r in region(c, rec[1], pid)), default=()) == (pid, ep)
        return s._replace(ids=put(s.ids, x, c._replace(held=c.held | {(*rec, pid, ep)}))) if past else None

    def broker(self, s):
        past = frozenset(m for m in s.net if len(m) == 5)
        for what, s2 in super().broker(s._replace(net=s.net - past)):
            late = ("environment:seven-days" in self.on and what[0] == "broker forgets id"
                    and any(m[0] == what[1] for m in past))
            if what[0] not in ("markers", "a person writes abort markers") and not late:     # below, or not at all
                yield what, s2._replace(net=s2.net | past)
        for x, c in enumerate(s.ids):
            own = coordinators(c)
            parts = sorted({r[1] for r in own})
            if c.st != "PrepareCommit":
                continue
            for some in [[p] for p in parts] or [[]] if self.w.fanout else [parts]:
                s2 = self.end(s, x, identity(c)[0], some, "commit")
                if not coordinators(s2.ids[x]):
                    s2 = s2._replace(ids=put(s2.ids, x, s2.ids[x]._replace(st="CompleteCommit")))
                yield ("markers", x, *sorted(s2.visible - s.visible, key=str)), s2
            if own and s.by_hand:
                ids = put(s.ids, x, c._replace(st="CompleteCommit", held=c.held - own | forget(c, own)))
                yield ("coordinator forgets commit markers", x, *parts), s._replace(ids=ids, by_hand=s.by_hand - 1)
        for m in past:
            x, pid, ep, verdict, part = m
            newest = max((identity(s.ids[x], r) for r in region(s.ids[x], part, pid)), default=())
            hit = newest == (pid, ep)       # the leader refuses an older epoch
            s2 = self.end(s, x, pid, [part], verdict) if hit else s
            yield ("marker arrives", m, "ends it" if hit else "ends nothing"), s2._replace(net=s2.net - {m})

    def steps(self, s):
        for what, s2 in super().steps(s):
            yield what, s2              # and the same where the coordinator forgets the abort markers
            for x, c in enumerate(s.ids):
                c2, parts = s2.ids[x], sorted({r[1] for r in coordinators(c)})
                if not s.by_hand or (c.st, c2.st) != ("Ongoing", "CompleteAbort") or not parts:
                    continue
                sizes = range(1, len(parts) + 1) if self.w.fanout else [len(parts)]
                for some in chain.from_iterable(combinations(parts, n) for n in sizes):
                    kept = forget(c, (r for part in some for r in region(c, part, c.pid)))
                    still = {(x, *r[4:]) for r in kept}
                    yield (*what, "| coordinator forgets abort markers", x, *some), s2._replace(
                        ids=put(s2.ids, x, c2._replace(held=c2.held | kept)), by_hand=s2.by_hand - 1,
                        log=s.log | frozenset(m for m in s2.log if m[:3] not in still))

    # ---- decide, commit, cleanup, repair ---------------------------------------------------------------------------
    def decide(self, s):
        for what, s2 in super().decide(s):
            rows = s.attempts[int(what[0].split()[1])].manifest
            own = all(len(r) == 4 for row in rows for part in self.parts(row)
                      for r in region(s.ids[row.x], part, row.pid))
            if what[1] != "checks" or own or "decide-what-is-confirmed:start-offset" not in self.on:
                yield what, s2

    def parts(self, row):
        return range(self.w.tasks) if self.w.scope == "load" else [row.task]

    def commit(self, s):
        yield from super().commit(s)
        for a, at in enumerate(s.attempts if "forgotten-markers:commit" in self.on else ()):
            for r in at.rows if at.status == "commit" else ():
                c, who, owed = s.ids[r.x], (r.pid, r.ep), set()
                over = c.st not in ("Ongoing", "PrepareCommit") or "forgotten-markers:over" not in self.on
                kind = self.kind(s, a, r) if over and r.st == "todo" and not self.evidence(s, r) else None
                for part in self.parts(r) if kind else ():
                    there = {identity(c, h) for h in region(c, part, r.pid)}
                    if there and max(there) == who and (len(there) == 1 or "forgotten-markers:own-region" not in self.on):
                        owed.add((r.x, *who, kind, part))
                if not owed <= s.net:
                    yield (f"commit {a}", "sends past the coordinator", *sorted(owed)), s._replace(net=s.net | owed)

    def kind(self, s, a, row):
        """Of which kind the markers are that a decided transaction is owed; None: in doubt, a person has it."""
        c, seen = s.ids[row.x], set()
        copy = f"r{row.x - self.w.pool}.{row.ep}" if row.x >= self.w.pool else ""
        for part in self.parts(row):
            if any(v[:2] == (a, part) and (v[2] == copy if copy else not isinstance(v[2], str)) for v in s.visible):
                seen.add("commit")
            elif not any(identity(c, h) == (row.pid, row.ep) for h in region(c, part, row.pid)):
                seen.add("abort")
        if seen and "forgotten-markers:log-first" in self.on:
            return seen.pop() if len(seen) == 1 else None
        return "commit" if c.st == "CompleteCommit" and "forgotten-markers:agree" in self.on else "abort"

    def cleanup(self, s):
        yield from super().cleanup(s)
        for x, c in enumerate(s.ids if "forgotten-markers:cleanup" in self.on else ()):
            for part, pid in sorted({(r[1], r[4]) for r in c.held - coordinators(c)}):
                newest = max(region(c, part, pid), key=lambda r: (identity(c, r), str(r)))
                if len(newest) == 4:
                    continue        # the coordinator has it
                who, holder = identity(c, newest), c.lease if x >= self.w.pool else newest[0]
                m, asks = (x, *who, "abort", part), "forgotten-markers:undecidable" in self.on
                s2 = self.undecidable(s, holder) if asks else s
                if not (self.must_keep(s2, holder, x, *who) if asks else self.decided(s, x, *who)) and m not in s.net:
                    yield ("cleanup", "sends past the coordinator", m), s2._replace(net=s2.net | {m})

    def repair(self, s):
        for what, s2 in super().repair(s):      # each repair has an id of its own: none that another may still need
            n = int(what[0].split()[1])
            x, c = self.w.pool + n, s.ids[self.w.pool + n]
            needed = c.held != coordinators(c) or (c.st == "Ongoing" and self.decided(s, x, c.pid, c.ep))
            if s.repairs[n] != Repair() or not needed:
                yield what, s2

    # ---- what must hold ------------------------------------------------------------------------------------------
    def broken(self, s):
        wrong = super().broken(s)
        return "" if self.w.fanout and "partly visible" in wrong else wrong

    def settled(self, s):
        return super().settled(s) and not any(c.held for c in s.ids)


LOAD = World(scope="load", tasks=2, pool=1, fanout=True, repairers=1, by_hand=1)
HERE = {
    "one":        World(tasks=2, by_hand=2, repairers=1), "speculation": World(copies=2, by_hand=1, repairers=1),
    "lost":       World(pool=1, timeouts=1, repairers=1, by_hand=2),
    "lost-v1":    World(tv=1, pool=1, timeouts=1, repairers=1, by_hand=2),
    "clear":      World(begins=TWO, by_hand=1, repairers=1),
    "reuse":      World(begins=TWO, pool=1, by_hand=2, batches=2, repairers=1),
    "reuse-v1":   World(tv=1, begins=TWO, pool=1, by_hand=2, repairers=1),
    "reuse-mixed": World(tv=0, begins=TWO, pool=1, by_hand=1, repairers=1),
    "loads":      World(begins=(0, 1), pool=1, by_hand=2, repairers=1),
    "zombie":     WORLDS["zombie"]._replace(by_hand=1), "zombie-v1": WORLDS["zombie-v1"]._replace(by_hand=1),
    "expiry":     World(begins=(0, 1), pool=1, expiries=1, by_hand=1, repairers=1),
    "load":       LOAD, "load-v1": LOAD._replace(tv=1), "load-lost": LOAD._replace(timeouts=1),
    "load-clear": LOAD._replace(begins=TWO), "load-expiry": LOAD._replace(expiries=1),
}
DROPS = {   # the rules left out, the world, and whether that does harm there; where it does none, none is known
    "forgotten-markers:commit": ("one", True), "forgotten-markers:cleanup": ("clear", True),
    "forgotten-markers:undecidable": ("load-lost", False), "forgotten-markers:over": ("load", True),
    "forgotten-markers:log-first": ("load-expiry", True), "forgotten-markers:agree": ("load-expiry", False),
    "forgotten-markers:own-region": ("reuse", False), "decide-what-is-confirmed:start-offset": ("reuse", True),
    "environment:seven-days": ("load-expiry", True),
    # whoever always writes the same kind may be as late as he likes
    "forgotten-markers:agree+environment:seven-days": ("load-expiry", False),
}
SUITE = [("all/" + n, w, MORE, False) for n, w in HERE.items()]
SUITE += [("drop/" + r, HERE[n], MORE - set(r.split("+")), harm) for r, (n, harm) in DROPS.items()]


def run(name, world, rules, expect):
    """(a line, trace, whether the verdict is the expected one)."""
    t0 = time.time()
    verdict, steps, states, whole = search(Forgetful(world, rules))
    said = f"{len(steps)} steps: {verdict}" if verdict else "holds" if whole else "was not searched to the end"
    said += "" if (ok := whole and bool(verdict) == expect) else "  UNEXPECTED"
    return f"{name:52}{states:>9} states{time.time() - t0:7.1f} s  {said}", steps, ok


if __name__ == "__main__":
    args, right = sys.argv[1:], True
    for one in SUITE:
        if not args or one[0].startswith(tuple(args)):
            line, steps, ok = run(*one)
            print(line, flush=True)
            right &= ok
            for k, step in enumerate(steps if args else (), 1):
                print(f"    {k:2}. {' '.join(map(str, step))}")
    sys.exit(not right)
