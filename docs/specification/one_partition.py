"""One partition's log, and what may be read out of its leader's list of aborted transactions (docs/adr/0028).

model.py has a log that always tells.  Here is what one transaction's end is told by when the log is not gone through:
a read_committed Fetch at its last offset, what stands behind an end offset that was known before the end, and the
coordinator's word.  Searched are all histories of a log with ours, a zombie that goes on under our identity, and
another producer; with DeleteRecords and a replica built anew, a log that was cut off, a list that was lost, and an
answer that had no room.  In each state all that is told must be true.

    python3 one_partition.py [drop/]     all runs, one line each; only those whose name starts so, with traces

A log is a tuple of (kind, producer, epoch): "d" data, "c" and "a" markers.  Ours is producer 0, epoch 0; what it writes
first is the load.  Offsets are places in the tuple.  With tv=1 an end leaves the epoch as it is, with tv=2 it raises it.
"""
import sys
import time
from collections import deque
from typing import NamedTuple

RULES = {
    "readers": "nothing is told of what readers are not past",
    "list": "an answer without a list tells nothing",
    "own-batch": "it counts with our own batch at the last offset",
    "own-entry": "an entry counts for its own producer",
    "not-behind": "an entry that begins behind the last record is a later transaction's",
    "any-first": "an entry's first offset need not be the recorded one",
    "word": "a commit by the list alone wants the coordinator's word",
    "ends-first": "decide asks for the end before the leader shows what is open",
    "counted": "an end offset counts only when the leader has counted no more records than the manifest",
    "behind-own-batch": "a marker behind an end offset counts with our own batch at the last offset",
    "first-batch": "behind the end offset the first batch of the producer counts: data is no marker",
}
ALL = frozenset(RULES)
LENGTH = 7


class World(NamedTuple):
    tv: int = 2
    zombie: int = 0     # records that it may write behind the manifest
    others: int = 0     # steps of the other producer
    deletes: int = 0
    cuts: int = 0
    losses: int = 0
    small: bool = False     # answers may have no room


class State(NamedTuple):
    log: tuple = ()
    epoch: int = 0              # of producer 0, as the leader has it
    open: tuple = (None, None)  # first offset of what each producer has open
    counted: int = 0            # of producer 0 and its present epoch
    aborted: frozenset = frozenset()    # (producer, first offset, offset of the marker)
    start: int = 0
    first: int | None = None    # of our first record,
    last: int | None = None     # and of our last one, once prepared
    records: int = 0
    asked: int | None = None    # by decide, and not recorded yet
    end: int | None = None      # recorded
    decided: bool = False
    ended: str = ""             # how the coordinator has ended ours
    left: tuple = ()            # of zombie, others, deletes, cuts, losses


def put(t, i, x):
    return t[:i] + (x,) + t[i + 1:]


class Partition:
    def __init__(self, world, rules):
        self.w, self.on = world, rules

    def begin(self):
        w = self.w
        return State(left=(w.zombie, w.others, w.deletes, w.cuts, w.losses))

    def append(self, s, kind, p):
        at, epoch = len(s.log), s.epoch if p == 0 else 0
        if kind == "d":
            first = at if s.open[p] is None else s.open[p]
            return s._replace(log=s.log + ((kind, p, epoch),), open=put(s.open, p, first),
                              counted=s.counted + (p == 0))
        entry = {(p, s.open[p], at)} if kind == "a" and s.open[p] is not None else set()
        raised = p == 0 and self.w.tv == 2
        return s._replace(log=s.log + ((kind, p, epoch + raised),), open=put(s.open, p, None),
                          aborted=s.aborted | entry, epoch=s.epoch + raised, counted=0 if raised else s.counted)

    def steps(self, s):
        zombie, others, deletes, cuts, losses = s.left
        room = len(s.log) < LENGTH
        if s.last is None:
            if room and s.counted < 2:
                s2 = self.append(s, "d", 0)
                yield "we write", s2._replace(last=None)
                yield "we write, prepared", s2._replace(first=s2.open[0], last=len(s.log), records=s2.counted)
        elif not s.decided and not s.ended:
            # decide: two questions, and what lies between them
            if s.asked is None:
                yield "decide asks", s._replace(asked=len(s.log) if "ends-first" in self.on else -1)
            else:
                good = s.open[0] == s.first and (s.counted == s.records or "counted" not in self.on)
                yield "decide is shown", s._replace(decided=good, end=s.asked if good else None, asked=None)
        elif "ends-first" not in self.on and s.decided and s.end == -1:
            yield "decide asks late", s._replace(end=len(s.log))
        if s.last is not None and room and not s.ended:
            for kind in "ca" if s.decided else "a":
                yield f"ended: {kind}", self.append(s, kind, 0)._replace(ended=kind)
        if zombie and room and s.last is not None and (self.w.tv == 1 or s.epoch == 0):
            yield "zombie writes", self.append(s, "d", 0)._replace(left=put(s.left, 0, zombie - 1))
        if zombie and room and s.ended and s.open[0] is not None:
            for kind in "ca":
                yield f"zombie's end: {kind}", self.append(s, kind, 0)
        if others and room:
            less = put(s.left, 1, others - 1)
            yield "other writes", self.append(s, "d", 1)._replace(left=less)
            for kind in "ca" if s.open[1] is not None else "":
                yield f"other's end: {kind}", self.append(s, kind, 1)._replace(left=less)
        if deletes and s.last is not None and s.start <= s.last:
            for start in range(s.start + 1, s.last + 1):
                anew = frozenset((p, max(first, start), at) for p, first, at in s.aborted if at >= start)
                yield f"deleted before {start}", s._replace(start=start, aborted=anew, left=put(s.left, 2, deletes - 1))
        if cuts and s.last is not None and s.decided and not s.ended:
            # the log is cut off, our record lost; others write in its place. Our marker comes all the same
            log = s.log[: s.last] + (("d", 1, 0),)
            yield "cut off", s._replace(log=log, open=(s.first if s.first < s.last else None, s.last), counted=0, aborted=frozenset(),
                                        end=None if s.end is None else min(s.end, len(log)),
                                        left=put(s.left, 3, cuts - 1))
        if losses and s.aborted:
            yield "the list is lost", s._replace(aborted=frozenset(), left=put(s.left, 4, losses - 1))

    # ---- what is told --------------------------------------------------------------------------------------------
    def stable(self, s):
        return min((first for first in s.open if first is not None), default=len(s.log))

    def own(self, s):
        return s.last < len(s.log) and s.log[s.last] == ("d", 0, 0)

    def by_list(self, s, room):
        """commit, abort, or "" when the list tells nothing."""
        if "readers" in self.on and self.stable(s) <= s.last:
            return ""
        if not room and "list" in self.on:
            return ""
        if room and "own-batch" in self.on and not self.own(s):
            return ""
        for p, first, _ in s.aborted if room else ():
            if ("own-entry" not in self.on or p == 0) and ("not-behind" not in self.on or first <= s.last):
                if "any-first" in self.on or first == s.first:
                    return "a"
        if "word" in self.on and s.ended != "c":
            return ""
        return "c"

    def by_tail(self, s):
        """The same by what stands behind the recorded end."""
        if s.end is None or s.end < 0 or ("behind-own-batch" in self.on and not self.own(s)):
            return ""
        for kind, p, _ in s.log[max(s.end, s.last + 1):]:
            if p == 0 and (kind != "d" or "first-batch" in self.on):
                return "" if kind == "d" else kind
        return "open" if s.decided else ""

    def truth(self, s):
        """What a log that is gone through says: the marker, "open", or "doubt"."""
        if not self.own(s):
            return "doubt"
        for kind, p, _ in s.log[s.last + 1:]:
            if p == 0:
                return "doubt" if kind == "d" else kind
        return "open"

    def broken(self, s):
        if s.last is None:
            return ""
        true = self.truth(s)
        fate = next((k for k, p, _ in s.log[s.last + 1:] if p == 0 and k != "d"), "open") if self.own(s) else "doubt"
        for room in (True, False) if self.w.small else (True,):
            told = self.by_list(s, room)
            # data of the same producer behind the manifest is what the list cannot show: the leader's count is for that
            if told and told != fate:
                return f"the list tells {told!r}, the log {fate!r}"
        told = self.by_tail(s)
        return f"what stands behind the end tells {told!r}, the log {true!r}" if told and told != true else ""


WORLDS = {
    "others":    World(others=3),
    "zombie":    World(zombie=1, others=1),
    "zombie-v1": World(tv=1, zombie=2, others=1),
    "deleted":   World(others=2, deletes=1),
    "cut":       World(cuts=1, others=1),
    "cut-v1":    World(tv=1, cuts=1, others=1),
    "lost-list": World(losses=1, others=1),
    "no-room":   World(small=True, others=1),
}
DROPS = {
    "readers+word": "others", "list+word": "no-room", "own-batch": "cut", "own-entry": "others", "not-behind": "zombie-v1",
    "any-first+word": "deleted", "word": "lost-list", "ends-first": "others", "counted": "zombie",
    "behind-own-batch": "cut", "first-batch": "zombie",
}
SUITE = [("all/" + n, w, ALL, False) for n, w in WORLDS.items()]
# where no list is lost, nobody's word is wanted: it stands in for no other rule
SUITE += [("no-word/" + n, w, ALL - {"word"}, False) for n, w in WORLDS.items() if not w.losses]
SUITE += [("drop/" + r, WORLDS[n], ALL - set(r.split("+")), True) for r, n in DROPS.items()]


def search(model):
    """(what is broken, shortest trace, states)."""
    start = model.begin()
    came, todo = {start: None}, deque([start])
    while todo:
        s = todo.popleft()
        for what, s2 in model.steps(s):
            if s2 in came:
                continue
            came[s2] = (what, s)
            if wrong := model.broken(s2):
                trace = []
                while came[s2]:
                    what, s2 = came[s2]
                    trace.append(what)
                return wrong, trace[::-1], len(came)
            todo.append(s2)
    return "", [], len(came)


def told(name, model, expect):
    """(a line, trace, whether the verdict is the expected one)."""
    t0 = time.time()
    verdict, steps, states = search(model)
    ok = bool(verdict) == expect
    said = f"{len(steps)} steps: {verdict}" if verdict else "holds"
    return f"{name:28}{states:>9} states{time.time() - t0:7.1f} s  {said}{'' if ok else '  UNEXPECTED'}", steps, ok


def run(name, world, rules, expect):
    return told(name, Partition(world, rules), expect)


def main(suite, run):
    """All runs of a suite, or with arguments those whose names begin so, with traces; the exit code."""
    args, right = sys.argv[1:], True
    for one in suite:
        if not args or one[0].startswith(tuple(args)):
            line, steps, ok = run(*one)
            print(line, flush=True)
            right &= ok
            for k, step in enumerate(steps if args else (), 1):
                print(f"    {k:2}. {step}")
    return not right


if __name__ == "__main__":
    sys.exit(main(SUITE, run))
