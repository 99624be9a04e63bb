"""A streaming query whose micro-batches are loads: the ledger, Spark's checkpoint, and what may come between them.

model.py has one load: its transactions, their ids, who ends them.  Here a load is small (one transaction, prepared,
committed or aborted) and there are many: batch 0, 1, 2 of one query.  Spark keeps two logs in the checkpoint: where
each batch ends in the source (offsets, written before it), and which are done (commits, written behind it).  A run of
the query is a driver; it is killed whenever it is not scheduled again, and comes back late as a zombie.  Searched are
all interleavings of runs, also of two on one checkpoint, with commits under way in the net, a checkpoint that was
deleted, restored or is used as a copy, and a ledger that was restored from a backup.

What must hold: no row is visible twice; a batch that is told as done is visible in the end; what is decided covers the
source without a gap; and a run that has swept leaves nothing open of an earlier one, before which readers would stand.
Left out: what is inside a batch, several transactions of one, slots of ids that are used again (model.py has them).

    python3 streams.py [drop/]     all runs, one line each; only those whose name starts so, with traces
"""
import sys
from typing import NamedTuple

from one_partition import main, told

RULES = {
    "one-name-one-query": "a ledger's name of a query is bound to the query id of its checkpoint: another is refused",
    "newest-run-begins": "only the run that was bound last begins attempts: what an older one began before is marked",
    "batches-in-turn": "a batch is begun and decided only when the ledger has decided the one before it, and no other",
    "decided-is-not-written": "a batch that the ledger has decided is not written again: Spark only hears that it is done",
    "same-range": "a decided batch is believed only with the very offsets that it was decided with",
    "decide-by-compare-and-set": "a batch is decided only while its attempt is neither aborted nor unknown in the ledger",
    "decide-before-kafka": "a transaction is ended only after the ledger has the decision",
    "decide-before-done": "Spark hears that a batch is done only behind its decision",
    "sweep-at-start": "a run that starts marks what earlier runs left undecided as aborted, and ends it",
    "sweep-asks-the-ledger": "a sweep ends what the ledger has marked by then, not all that was listed",
    "unknown-commit-stops": "nothing is decided where brokers, asked behind what was prepared, have a commit or an attempt "
                            "of this query that the ledger has not",
}
ALL = frozenset(RULES)
ROWS, BATCHES = 3, 3


class World(NamedTuple):
    """What the environment may do."""
    runs: int = 2           # drivers that will ever start
    copies: int = 0         # how often a run may start on a copy of the checkpoint
    restored: int = 0       # how often the checkpoint may be put back to what was saved once
    deleted: int = 0        # how often it may be deleted
    ledgers: int = 0        # how often the ledger may be put back to what was saved once
    slow_net: bool = False  # a commit that was asked for may arrive late
    one_by_one: bool = True     # the source grows while the query runs; else all is there


class Checkpoint(NamedTuple):
    query: int = 0
    starts: int = 0         # where its batch 0 begins: startingOffsets
    offsets: tuple = ()     # of each batch: its end in the source
    done: int = 0           # so many batches have an entry in the commits


class Ledger(NamedTuple):
    query: int | None = None
    newest: int | None = None       # the run that was bound last
    decided: tuple = ()     # of each batch: (end, attempt)
    aborted: frozenset = frozenset()
    known: frozenset = frozenset()      # attempts that were begun


class Attempt(NamedTuple):
    query: int
    batch: int
    first: int
    end: int
    tx: str = "none"        # none, open, prepared, committed, aborted


class Run(NamedTuple):
    pc: str = "start"       # start, bound, swept, next, planned, begun, written, decided; refused, dead: nothing follows
    disk: int = 0           # which checkpoint folder
    query: int = 0
    batch: int = 0
    first: int = 0
    end: int = 0
    attempt: int = -1


class State(NamedTuple):
    source: int
    disks: tuple = (Checkpoint(),)
    ledger: Ledger = Ledger()
    attempts: tuple = ()
    runs: tuple = ()
    net: frozenset = frozenset()        # attempts whose commit is under way
    disk_saved: Checkpoint | None = None
    ledger_saved: Ledger | None = None
    still: bool = False     # a run that has swept leaves readers before what an earlier one has open
    told: int = 0           # the source's rows that Spark has noted as done, in any checkpoint of the bound query
    left: tuple = ()        # runs, copies, restored, deleted, ledgers


def put(t, i, x):
    return t[:i] + (x,) + t[i + 1:]


class Query:
    def __init__(self, world, rules):
        self.w, self.on = world, rules

    def begin(self):
        w = self.w
        return State(1 if w.one_by_one else ROWS, left=(w.runs, w.copies, w.restored, w.deleted, w.ledgers))

    def less(self, s, i):
        return put(s.left, i, s.left[i] - 1)

    def decided_as(self, ledger, a):
        return any(attempt == a for _, attempt in ledger.decided)

    def steps(self, s):
        if self.w.one_by_one and s.source < ROWS:
            yield "the source grows", s._replace(source=s.source + 1)
        if s.left[0]:
            for disk in range(len(s.disks)):
                run = Run("start", disk, s.disks[disk].query)
                yield f"run {len(s.runs)} starts on {disk}", s._replace(runs=s.runs + (run,), left=self.less(s, 0))
        if s.left[1] and s.disks[0].offsets:
            yield "the checkpoint is copied", s._replace(disks=s.disks + (s.disks[0],), left=self.less(s, 1))
        if s.left[2]:
            if s.disk_saved is None:
                yield "the checkpoint is saved", s._replace(disk_saved=s.disks[0])
            elif s.disk_saved != s.disks[0]:
                disks = put(s.disks, 0, s.disk_saved)
                yield "the checkpoint is restored", s._replace(disks=disks, left=self.less(s, 2))
        if s.left[3] and s.disks[0].offsets:
            for starts in {0, s.source}:
                new = Checkpoint(s.disks[0].query + 1, starts)
                yield (f"the checkpoint is deleted, and the query begins at {starts}",
                       s._replace(disks=put(s.disks, 0, new), left=self.less(s, 3)))
        if s.left[4]:
            if s.ledger_saved is None:
                yield "the ledger is saved", s._replace(ledger_saved=s.ledger)
            elif s.ledger_saved != s.ledger:
                yield "the ledger is restored", s._replace(ledger=s.ledger_saved, left=self.less(s, 4))
        for a in s.net:
            yield f"commit of {a} arrives", self.ended(s._replace(net=s.net - {a}), a, "committed")
        yield from self.maintenance(s)
        for r, run in enumerate(s.runs):
            if run.pc not in ("dead", "refused"):
                yield from self.run_steps(s, r, run)

    # ---- Kafka and who ends ---------------------------------------------------------------------------------------
    def ended(self, s, a, how):
        """EndTxn: nothing where the transaction has ended, or was never prepared."""
        one = s.attempts[a]
        if one.tx == "prepared" or (one.tx == "open" and how == "aborted"):
            return s._replace(attempts=put(s.attempts, a, one._replace(tx=how)))
        return s

    def end_all(self, s, undecided):
        """What the ledger has decided is committed; ``undecided`` says whose transactions are aborted beside what it
        has marked."""
        for a, one in enumerate(s.attempts):
            if self.decided_as(s.ledger, a):
                s = self.ended(s, a, "committed")
            elif a in s.ledger.aborted or a in undecided:
                s = self.ended(s, a, "aborted")
        return s

    def maintenance(self, s):
        """The sweeper beside the query: it ends what is marked or decided, and never an attempt that may be at work."""
        s2 = self.end_all(s, ())
        if s2 != s:
            yield "maintenance ends what is decided or marked", s2

    # ---- the driver -----------------------------------------------------------------------------------------------
    def refuse(self, s, r, why):
        return f"run {r} is refused: {why}", s._replace(runs=put(s.runs, r, s.runs[r]._replace(pc="refused")))

    def unknown(self, s, query):
        """What brokers show of the query, and the ledger does not know: attempts, or that one is committed."""
        for a, one in enumerate(s.attempts):
            seen = ("committed",) if a in s.ledger.known else ("open", "prepared", "committed")
            if one.query == query and one.tx in seen and not self.decided_as(s.ledger, a):
                return True
        return False

    def run_steps(self, s, r, run):
        ledger, on = s.ledger, self.on

        def at(pc, s=s, **more):
            return s._replace(runs=put(s.runs, r, s.runs[r]._replace(pc=pc, **more)))

        if run.pc == "start":
            if "one-name-one-query" in on and ledger.query not in (None, run.query):
                yield self.refuse(s, r, "the name is another query's")
                return
            # in one transaction of the ledger: bound, and earlier attempts marked
            mark = ledger.aborted
            if "sweep-at-start" in on:
                mark |= {a for a in ledger.known if not self.decided_as(ledger, a)}
            bound = ledger._replace(query=run.query, newest=r, aborted=mark)
            yield f"run {r} is bound", at("bound", s._replace(ledger=bound))
        elif run.pc == "bound":
            # all that brokers list of this query
            listed = [a for a, one in enumerate(s.attempts) if one.query == run.query]
            s2 = s
            if "sweep-at-start" in on:
                s2 = self.end_all(s, () if "sweep-asks-the-ledger" in on else listed)
            still = r == ledger.newest and any(
                one.tx in ("open", "prepared") and one.query == run.query and (a in ledger.known)
                for a, one in enumerate(s2.attempts))
            yield f"run {r} has swept", at("swept", s2._replace(still=still))
        elif run.pc == "swept":
            yield from self.plans(s, r, run, first=True)
        elif run.pc == "next":
            yield from self.plans(s, r, run, first=False)
        elif run.pc == "planned":
            yield from self.begins(s, r, run)
        elif run.pc == "begun":
            one = s.attempts[run.attempt]
            if one.tx == "none":
                yield f"run {r} writes", s._replace(attempts=put(s.attempts, run.attempt, one._replace(tx="open")))
            elif one.tx == "open":
                prepared = put(s.attempts, run.attempt, one._replace(tx="prepared"))
                yield f"run {r} has prepared", at("written", s._replace(attempts=prepared))
            else:
                yield self.refuse(s, r, "its transaction was ended")
        elif run.pc == "written":
            yield from self.decides(s, r, run)
        elif run.pc == "decided":
            # commit() has returned: Spark notes the batch as done
            disk = s.disks[run.disk]
            if run.batch < BATCHES and disk.query == run.query:
                disk = disk._replace(done=max(disk.done, run.batch + 1))
            told = max(s.told, run.end) if run.query == ledger.query else s.told
            noted = s._replace(disks=put(s.disks, run.disk, disk), told=told)
            yield f"run {r} notes {run.batch}", at("next", noted, batch=run.batch + 1, first=run.end)

    def plans(self, s, r, run, first):
        """Which batch comes next, and where it ends: the offsets are written once, whoever comes first."""
        disk = s.disks[run.disk]
        if disk.query != run.query:
            yield self.refuse(s, r, "its checkpoint is gone")
            return
        batch, begins = run.batch, run.first
        if first:
            # Spark goes on with the last batch of the offsets, or behind it where it is noted as done
            batch = len(disk.offsets) - (disk.done < len(disk.offsets))
            begins = disk.offsets[batch - 1] if batch else disk.starts
        if batch >= BATCHES:
            return

        def planned(s, end):
            new = run._replace(pc="planned", batch=batch, first=begins, end=end)
            return s._replace(runs=put(s.runs, r, new))

        if batch < len(disk.offsets):
            if first:
                yield f"run {r} replays {batch}", planned(s, disk.offsets[batch])
            else:
                yield self.refuse(s, r, "another run has planned that batch")
        elif batch == len(disk.offsets) and s.source > begins:
            offsets = put(s.disks, run.disk, disk._replace(offsets=disk.offsets + (s.source,)))
            yield f"run {r} plans {batch}: {begins} to {s.source}", planned(s._replace(disks=offsets), s.source)
        elif batch > len(disk.offsets):
            yield self.refuse(s, r, "its checkpoint was put back")

    def begins(self, s, r, run):
        """On the driver, before the batch's tasks: streamWriter()."""
        ledger = s.ledger
        if "one-name-one-query" in self.on and ledger.query != run.query:
            yield self.refuse(s, r, "the name is another query's")
            return
        if "newest-run-begins" in self.on and ledger.newest != r:
            yield self.refuse(s, r, "a newer run has the query")
            return
        count = len(ledger.decided)
        if run.batch < count:
            if "same-range" in self.on and ledger.decided[run.batch][0] != run.end:
                yield self.refuse(s, r, "the batch was decided with other offsets")
                return
            if "decided-is-not-written" in self.on:
                yield f"run {r} skips {run.batch}", s._replace(runs=put(s.runs, r, run._replace(pc="decided")))
                return
        elif run.batch > count and "batches-in-turn" in self.on:
            yield self.refuse(s, r, "the ledger lacks the batch before")
            return
        a = len(s.attempts)
        new = Attempt(run.query, run.batch, run.first, run.end)
        began = run._replace(pc="begun", attempt=a)
        known = ledger._replace(known=ledger.known | {a})
        yield f"run {r} begins {run.batch} as {a}", s._replace(
            attempts=s.attempts + (new,), ledger=known, runs=put(s.runs, r, began))

    def decides(self, s, r, run):
        ledger, a = s.ledger, run.attempt

        def at(pc, s):
            return s._replace(runs=put(s.runs, r, run._replace(pc=pc)))

        if "decide-before-kafka" not in self.on and s.attempts[a].tx == "prepared":
            yield f"run {r} ends {a} before it is decided", self.ended(s, a, "committed")
        if "decide-before-done" not in self.on:
            yield f"run {r} says that {run.batch} is done", at("decided", s)
        open_in_it = a in ledger.known and a not in ledger.aborted
        if "decide-by-compare-and-set" in self.on and not open_in_it:
            yield self.refuse(s, r, "its attempt was aborted, or is unknown")
            return
        if "unknown-commit-stops" in self.on and self.unknown(s, run.query):
            yield self.refuse(s, r, "brokers know more than the ledger")
            return
        if "batches-in-turn" in self.on and run.batch != len(ledger.decided):
            yield self.refuse(s, r, "another has decided that batch")
            return
        decided = s._replace(ledger=ledger._replace(decided=ledger.decided + ((run.end, a),)))
        if self.w.slow_net:
            yield f"run {r} decides {a}, and asks for its commit", at("decided", decided._replace(net=s.net | {a}))
        else:
            yield f"run {r} decides {a}, and commits it", at("decided", self.ended(decided, a, "committed"))
        yield f"run {r} decides {a}, and dies", at("dead", decided)

    # ---- what must hold -------------------------------------------------------------------------------------------
    def broken(self, s):
        seen = [row for one in s.attempts if one.tx == "committed" for row in range(one.first, one.end)]
        if len(seen) != len(set(seen)):
            return "a row is visible twice"
        if s.still:
            return "readers stand before a transaction of an earlier run"
        at = 0
        for end, a in s.ledger.decided:
            if s.attempts[a].first != at:
                return "what is decided has a gap, or overlaps"
            at = end
        sure = set(seen) | {row for a, one in enumerate(s.attempts) if one.tx == "prepared" for row in range(one.first, one.end)
                            if self.decided_as(s.ledger, a)}
        if not set(range(s.told)) <= sure and self.w.ledgers == 0:
            return "a row is told as done, and is not visible, nor will be"
        return ""


WORLDS = {
    "two-runs":     World(),
    "three-runs":   World(runs=3, one_by_one=False),
    "slow":         World(slow_net=True),
    "copied":       World(copies=1),
    "restored":     World(runs=2, restored=1),
    "deleted":      World(deleted=1),
    "ledger":       World(ledgers=1, slow_net=True, one_by_one=False),
}
# what several rules keep is lost with all of them
DROPS = {
    "one-name-one-query+same-range": "deleted", "newest-run-begins": "two-runs",
    "decided-is-not-written+batches-in-turn": "two-runs",
    "same-range": "restored", "decide-by-compare-and-set": "two-runs", "decide-before-kafka": "two-runs",
    "decide-before-done": "two-runs", "sweep-at-start": "two-runs", "sweep-asks-the-ledger": "two-runs",
    "unknown-commit-stops": "ledger",
}
SUITE = [("all/" + n, w, ALL, False) for n, w in WORLDS.items()]
SUITE += [("drop/" + r, WORLDS[n], ALL - set(r.split("+")), True) for r, n in DROPS.items()]


def run(name, world, rules, expect):
    return told(name, Query(world, rules), expect)


if __name__ == "__main__":
    sys.exit(main(SUITE, run))
