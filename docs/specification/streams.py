"""A streaming query whose micro-batches are loads: the ledger, Spark's checkpoint, and what may come between them.

model.py has one load: its transactions, their ids, who ends them.  Here a load is small (one transaction, prepared,
committed or aborted) and there are many: batch 0, 1, 2 of one query.  Spark keeps two logs in the checkpoint: where
each batch ends in the source (offsets, written before it), and which are done (commits, written behind it).  A run of
the query is a driver; it is killed whenever it is not scheduled again, and comes back late as a zombie.  Searched are
all interleavings of runs, also of two on one checkpoint, with commits under way in the net, a checkpoint that was
deleted, restored or is used as a copy, and a ledger that was restored from a backup.

What must hold: no row is visible twice; a batch that is told as done is visible in the end; what is decided covers the
source without a gap; and a run that has swept leaves nothing open of an earlier one, before which readers would stand.
Behind a ledger that was restored a person gives it a new id, looks which batch is the last one that the topics have, and
says so: that one is passed over when it is asked for.
Left out: what is inside a batch, several transactions of one, slots of ids that are used again (model.py has them); a
restored ledger that has a decision whose rows are not in the topics.

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
    "doubt-stops": "behind a new id of the ledger nothing is begun until a person has said which batch was the last one",
    "only-our-ids": "a run that has opened the ledger under another id is refused",
    "looked-behind-new-id": "the person looks behind the new id, and when no commit is under way any more",
    "said-is-passed-over": "of batches that a person has said to be there, and that the ledger has no decision of, none is "
                           "written: the last one is passed over, those before it are refused",
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
    new_ids: int = 0        # how often a person may give the ledger a new id behind that, and say what the topics have
    one_by_one: bool = True     # the source grows while the query runs; else all is there


class Checkpoint(NamedTuple):
    query: int = 0
    starts: int = 0         # where its batch 0 begins: startingOffsets
    offsets: tuple = ()     # of each batch: its end in the source
    done: int = 0           # so many batches have an entry in the commits


class Ledger(NamedTuple):
    query: int | None = None
    newest: int | None = None       # the run that was bound last
    decided: tuple = ()     # of each batch: (end, attempt); end None: not known, attempt None: a person has said so
    id: int = 0
    doubt: bool = False     # nobody has said yet which batch was the last one
    aborted: frozenset = frozenset()
    known: frozenset = frozenset()      # attempts that were begun


class Attempt(NamedTuple):
    query: int
    batch: int
    first: int
    end: int
    tx: str = "none"        # none, open, prepared, committed, aborted
    id: int = 0             # the ledger's, in its transactional id: as its run has opened it,
    born: int = 0           # and as it was when it was begun


class Run(NamedTuple):
    pc: str = "start"       # start, bound, swept, next, planned, begun, written, decided; refused, dead: nothing follows
    disk: int = 0           # which checkpoint folder
    query: int = 0
    batch: int = 0
    first: int = 0
    end: int = 0
    attempt: int = -1
    id: int = 0             # the ledger's, as the run has opened it


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
    left: tuple = ()        # runs, copies, restored, deleted, ledgers, new ids
    looked: int | None = None   # so many batches a person has seen in the topics


def put(t, i, x):
    return t[:i] + (x,) + t[i + 1:]


class Query:
    def __init__(self, world, rules):
        self.w, self.on = world, rules

    def begin(self):
        w = self.w
        return State(1 if w.one_by_one else ROWS, left=(w.runs, w.copies, w.restored, w.deleted, w.ledgers, w.new_ids))

    def less(self, s, i):
        return put(s.left, i, s.left[i] - 1)

    def decided_as(self, ledger, a):
        return any(attempt == a for _, attempt in ledger.decided)

    def steps(self, s):
        if self.w.one_by_one and s.source < ROWS:
            yield "the source grows", s._replace(source=s.source + 1)
        if s.left[0]:
            for disk in range(len(s.disks)):
                run = Run("start", disk, s.disks[disk].query, id=s.ledger.id)
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
                # of a query that the restored ledger has never seen nobody can say anything (docs/streams.md)
                if s.ledger.query is not None or not self.w.new_ids:
                    yield "the ledger is saved", s._replace(ledger_saved=s.ledger)
            elif s.ledger_saved != s.ledger:
                yield "the ledger is restored", s._replace(ledger=s.ledger_saved, left=self.less(s, 4))
        for a in s.net:
            yield f"commit of {a} arrives", self.ended(s._replace(net=s.net - {a}), a, "committed")
        yield from self.maintenance(s)
        yield from self.person(s)
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
            if one.id != s.ledger.id:
                continue
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

    # ---- a person, behind a ledger that was restored ---------------------------------------------------------------
    def person(self, s):
        ledger = s.ledger
        put_back = self.w.ledgers and not s.left[4]
        if put_back and s.left[5]:
            # what was noted of the offsets is forgotten with it
            forgotten = tuple((None, a) for _, a in ledger.decided)
            renewed = ledger._replace(id=ledger.id + 1, doubt="doubt-stops" in self.on, decided=forgotten)
            yield "the ledger gets a new id", s._replace(ledger=renewed, left=self.less(s, 5))
        settled = self.w.new_ids and not s.left[5]
        if s.looked is None and put_back and (
                (settled and not s.net) or (self.w.new_ids and "looked-behind-new-id" not in self.on)):
            seen = {one.batch for one in s.attempts if one.tx == "committed" and one.query == ledger.query}
            count = next(n for n in range(BATCHES + 1) if n not in seen)
            yield f"a person sees {count} batches in the topics", s._replace(looked=count)
        if s.looked is not None and settled and ledger.doubt and s.looked >= len(ledger.decided):
            said = ledger.decided + ((None, None),) * (s.looked - len(ledger.decided))
            yield f"it is said that {s.looked} batches are there", s._replace(ledger=ledger._replace(decided=said, doubt=False))

    # ---- the driver -----------------------------------------------------------------------------------------------
    def refuse(self, s, r, why):
        return f"run {r} is refused: {why}", s._replace(runs=put(s.runs, r, s.runs[r]._replace(pc="refused")))

    def unknown(self, s, query):
        """What brokers show of the query, and the ledger does not know: attempts, or that one is committed."""
        for a, one in enumerate(s.attempts):
            seen = ("committed",) if a in s.ledger.known else ("open", "prepared", "committed")
            if one.id == s.ledger.id and one.query == query and one.tx in seen and not self.decided_as(s.ledger, a):
                return True
        return False

    def run_steps(self, s, r, run):
        ledger, on = s.ledger, self.on

        def at(pc, s=s, **more):
            return s._replace(runs=put(s.runs, r, s.runs[r]._replace(pc=pc, **more)))

        if run.pc in ("start", "planned", "written") and "only-our-ids" in on and run.id != ledger.id:
            yield self.refuse(s, r, "the ledger has another id")
            return
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
            listed = [a for a, one in enumerate(s.attempts) if one.query == run.query and one.id == ledger.id]
            s2 = s
            if "sweep-at-start" in on:
                s2 = self.end_all(s, () if "sweep-asks-the-ledger" in on else listed)
            still = r == ledger.newest and any(
                one.tx in ("open", "prepared") and one.query == run.query and one.born == ledger.id and a in ledger.known
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
        if ledger.doubt:
            yield self.refuse(s, r, "a person has to say which batch was the last one")
            return
        count = len(ledger.decided)
        if run.batch < count:
            end, attempt = ledger.decided[run.batch]
            if "same-range" in self.on and end not in (None, run.end):
                yield self.refuse(s, r, "the batch was decided with other offsets")
                return
            if attempt is None and "said-is-passed-over" in self.on:
                if run.batch < count - 1 and end is None:
                    yield self.refuse(s, r, "its checkpoint is older than what a person has said")
                    return
                # from here on it is believed with these offsets only
                noted = ledger._replace(decided=put(ledger.decided, run.batch, (run.end, None)))
                yield f"run {r} passes over {run.batch}", s._replace(
                    ledger=noted, runs=put(s.runs, r, run._replace(pc="decided")))
                return
            if attempt is not None and "decided-is-not-written" in self.on:
                yield f"run {r} skips {run.batch}", s._replace(runs=put(s.runs, r, run._replace(pc="decided")))
                return
        elif run.batch > count and "batches-in-turn" in self.on:
            yield self.refuse(s, r, "the ledger lacks the batch before")
            return
        a = len(s.attempts)
        new = Attempt(run.query, run.batch, run.first, run.end, id=run.id, born=ledger.id)
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
        if ledger.doubt:
            yield self.refuse(s, r, "a person has to say which batch was the last one")
            return
        said_so = run.batch < len(ledger.decided) and ledger.decided[run.batch][1] is None
        if "batches-in-turn" in self.on and run.batch != len(ledger.decided) and (
                not said_so or "said-is-passed-over" in self.on):
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
            if a is not None and at is not None and s.attempts[a].first != at:
                return "what is decided has a gap, or overlaps"
            at = end if a is None else s.attempts[a].end
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
    "said":         World(runs=2, ledgers=1, new_ids=1),
    "said-slow":    World(runs=2, ledgers=1, new_ids=1, slow_net=True, one_by_one=False),
}
# what several rules keep is lost with all of them
DROPS = {
    "one-name-one-query+same-range": "deleted", "newest-run-begins": "two-runs",
    "decided-is-not-written+batches-in-turn": "two-runs",
    "same-range": "restored", "decide-by-compare-and-set": "two-runs", "decide-before-kafka": "two-runs",
    "decide-before-done": "two-runs", "sweep-at-start": "two-runs", "sweep-asks-the-ledger": "two-runs",
    "unknown-commit-stops": "ledger",
    "doubt-stops": "said", "only-our-ids": "said", "looked-behind-new-id": "said-slow", "said-is-passed-over": "said",
}
SUITE = [("all/" + n, w, ALL, False) for n, w in WORLDS.items()]
SUITE += [("drop/" + r, WORLDS[n], ALL - set(r.split("+")), True) for r, n in DROPS.items()]


def run(name, world, rules, expect):
    return told(name, Query(world, rules), expect)


if __name__ == "__main__":
    sys.exit(main(SUITE, run))
