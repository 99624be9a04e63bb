"""A load whose ledger is put back: what it has forgotten, who may give that up, and how it is taken back.

model.py's ledger never forgets.  Here it is saved at any moment and put back at any later one: a backup, or a failover that
loses the last commits while runs are at work.  One load, two transactions an attempt, retries, decide, commit whose EndTxn is
under way for as long as it likes, and cleanup; each step of one asks brokers and writes the ledger at once.  An attempt is opened, submitted to
an application, and written by it once; one that is forgotten is opened or submitted again, and has the same ids then.  A coordinator
that is away hides its ids from whoever lists, not from whoever names them.  Then a person:
takes the load back by its manifest, ends what is open, writes by hand what is missing, gives the ledger a new id, and says
that the topics have the load.

What must hold: no record is visible twice; nothing of ours ends a transaction of an attempt that was decided and is visible
in part; a load that the ledger reports as committed is whole.  Left out: pooled ids, zombies, timeouts that
pass, cursors (cursors.py), several loads.

    python3 restored.py [drop/]     all runs, one line each; only those whose name starts so, with traces
"""
import sys
from typing import NamedTuple

from one_partition import main, told

STOPS = "unknown-commit-stops"
RULES = {
    STOPS + ":begin": "begin opens no attempt where brokers show a commit that the ledger has not decided",
    STOPS + ":retry": "nor does prepare's retry, which supersedes an attempt",
    STOPS + ":sweep": "cleanup makes no attempt undecidable then",
    STOPS + ":end": "nor ends what is open of one that is aborted",
    STOPS + ":decide": "decide aborts no attempt of which a transaction is committed",
    STOPS + ":others": "and decides none where brokers show a commit of another, or anything of one that is not known",
    STOPS + ":opened": "an attempt that was only opened, and not submitted, has no writers: what is open of it is not known",
    STOPS + ":hidden": "while a coordinator is away nothing is opened or decided, nor ended",
    STOPS + ":named": "but by cleanup what the ledger knows by name, all that can be decided of its attempts",
    STOPS + ":proof": "a load is taken back only where each transaction that its manifest names is committed or open",
    STOPS + ":said": "what cannot be taken back, a person says behind the new id, before a run begins",
    "one-key-loads-once": "a load that is decided, or said to be there, gets no new attempt",
    "one-application-per-attempt": "an attempt's claim outlives the ledger: a second application of its number writes nothing",
}
ALL = frozenset(RULES)
TASKS = (0, 1)


class World(NamedTuple):
    """What the environment may do."""
    attempts: int = 2           # that runs may open in all
    restores: int = 1           # how often the ledger may be put back
    losses: int = 0             # how often a broker may end what is open, by its timeout
    hides: int = 0              # how often the coordinator of one task's ids may be away
    person: bool = False        # somebody stops the DAGs and goes through the steps, at any moment behind a restore


class Ledger(NamedTuple):
    verdicts: tuple = ()        # of each attempt that was opened: "", abort, commit
    submitted: frozenset = frozenset()
    prepared: frozenset = frozenset()
    done: bool = False          # COMMITTED
    base: int = 0               # attempts before this one have the old id, and are nobody's


class State(NamedTuple):
    ledger: Ledger = Ledger()
    saved: Ledger | None = None
    txs: tuple = ()             # of each attempt ever opened, by task: "", open, committed, aborted, copied
    manifests: frozenset = frozenset()
    net: frozenset = frozenset()        # EndTxn (commit) under way: (attempt, task)
    truth: frozenset = frozenset()      # attempts that some ledger has decided to commit
    hand: frozenset = frozenset()       # tasks whose records a person has written
    apps: tuple = ()            # of each attempt: applications that have it, and have not written
    gone: tuple = (0, 0)        # by task: visible transactions whose id was used again, so that no coordinator shows them
    hidden: frozenset = frozenset()     # tasks whose coordinator is away
    stopped: bool = False       # no run is at work: a person is
    left: tuple = (0, 0, 0, 0)  # attempts, restores, losses, hides
    bad: str = ""


def put(t, i, v):
    return t[:i] + (v,) + t[i + 1:]


class Restored:
    def __init__(self, world, rules=ALL):
        self.w, self.on = world, frozenset(rules)

    def begin(self):
        return State(left=(self.w.attempts, self.w.restores, self.w.losses, self.w.hides))

    # ---- what is asked --------------------------------------------------------------------------------------------
    def has(self, part):
        return f"{STOPS}:{part}" in self.on

    def decided(self, s):
        return s.ledger.done or "commit" in s.ledger.verdicts

    def shown(self, s, a):
        """What brokers show of an attempt's ids: by a listing, and by name where the ledger has them."""
        return tuple(x if t not in s.hidden or a in s.ledger.prepared else "" for t, x in zip(TASKS, s.txs[a]))

    def known(self, s, a):
        """Whether the ledger knows that the attempt has writers."""
        return a in s.ledger.submitted if self.has("opened") else a < len(s.ledger.verdicts)

    def forgotten(self, s):
        """Brokers show under the ledger's present id a commit, and it has decided none, or what of no attempt is open."""
        shown = {a: self.shown(s, a) for a in range(s.ledger.base, len(s.txs))}
        if any("open" in tx and not self.known(s, a) for a, tx in shown.items()):
            return True
        return any({"committed", "copied"} & set(tx) for tx in shown.values()) and not self.decided(s)

    def named(self, s):
        """Whether the ledger knows by name all that can be decided of its attempts."""
        return all(a in s.ledger.prepared or verdict == "abort" and set(s.txs[a]) <= {"", "aborted"}
                   for a, verdict in enumerate(s.ledger.verdicts) if a >= s.ledger.base)

    def may(self, s, part, named=False):
        """Whether a step that asks may be done."""
        if not self.has(part):
            return True
        is_hidden = s.hidden and self.has("hidden") and not (named and (self.named(s) or not self.has("named")))
        return not self.forgotten(s) and not is_hidden

    def end(self, s, a, t, by):
        """Abort one that is open."""
        if a in s.truth and {"committed", "copied"} & set(s.txs[a]) and by != "timeout":
            s = s._replace(bad=f"{by} ends what is open of a load that is decided and visible in part")
        return s._replace(txs=put(s.txs, a, put(s.txs[a], t, "aborted")))

    def less(self, s, which):
        return put(s.left, which, s.left[which] - 1)

    # ---- the steps ------------------------------------------------------------------------------------------------
    def steps(self, s):
        yield from self.environment(s)
        if s.stopped:
            yield from self.person(s)
            return
        yield from self.runs(s)
        yield from self.cleanup(s)

    def environment(self, s):
        if s.saved is None and s.left[1]:
            yield "the ledger is saved", s._replace(saved=s.ledger)
        if s.saved not in (None, s.ledger) and s.left[1]:
            yield "the ledger is put back", s._replace(ledger=s.saved, left=self.less(s, 1))
        for a, t in s.net:
            tx = "committed" if s.txs[a][t] == "open" else s.txs[a][t]
            yield f"EndTxn arrives {a}.{t}", s._replace(net=s.net - {(a, t)}, txs=put(s.txs, a, put(s.txs[a], t, tx)))
        for a, tx in enumerate(s.txs):
            for t in TASKS:
                if tx[t] == "open" and s.left[2]:
                    yield f"a timeout ends {a}.{t}", self.end(s, a, t, "timeout")._replace(left=self.less(s, 2))
        for t in () if s.hidden or not s.left[3] else TASKS:
            yield f"the coordinator of {t} is away", s._replace(hidden=frozenset({t}), left=self.less(s, 3))
        if s.hidden:
            yield "it is back", s._replace(hidden=frozenset())
        if self.w.person and not s.stopped and not s.left[1]:
            yield "a person stops the DAGs", s._replace(stopped=True)

    def runs(self, s):
        ledger, newest = s.ledger, len(s.ledger.verdicts) - 1
        if s.left[0] and not ("one-key-loads-once" in self.on and self.decided(s)):
            for part in ("begin", "retry"):
                if part == "retry" and newest not in ledger.submitted or not self.may(s, part):
                    continue
                a, made = newest + 1, ledger._replace(verdicts=tuple(v or "abort" for v in ledger.verdicts) + ("",))
                more = (("", ""),) if a == len(s.txs) else ()   # else it was opened before, and is forgotten
                opened = s._replace(ledger=made, txs=s.txs + more, apps=s.apps + (0,) * len(more), left=self.less(s, 0))
                yield f"{part} opens {a}", self.submit(opened, a) if part == "retry" else opened
        if newest >= ledger.base and ledger.verdicts[newest] == "" and newest not in ledger.submitted:
            if self.may(s, "retry"):
                yield f"submit {newest}", self.submit(s, newest)
        for a, tx in enumerate(s.txs):
            # prepare has swept what older attempts have open, or it fails
            if s.apps[a] and not any("open" in older for older in s.txs[:a]):
                yield from self.write(s, a)
        if newest < 0:
            return
        a, verdict = newest, ledger.verdicts[newest]
        if verdict == "" and a in s.manifests and a not in ledger.prepared and a >= ledger.base:
            yield f"prepared {a}", s._replace(ledger=ledger._replace(prepared=ledger.prepared | {a}))
        if verdict == "" and a in ledger.prepared:
            yield from self.decide(s, a)
        for a, verdict in enumerate(ledger.verdicts):
            if verdict == "commit" and a >= ledger.base:
                yield from self.commit(s, a)

    def submit(self, s, a):
        return s._replace(ledger=s.ledger._replace(submitted=s.ledger.submitted | {a}), apps=put(s.apps, a, s.apps[a] + 1))

    def write(self, s, a):
        """An application writes its attempt: initialising an id ends what is open under it, and hides what was committed."""
        s, tx = s._replace(apps=put(s.apps, a, s.apps[a] - 1)), s.txs[a]
        if tx != ("", ""):
            if "one-application-per-attempt" in self.on:
                yield f"an application of {a} finds its claim", s
                return
            for t in TASKS:
                if tx[t] == "open":
                    s = self.end(s, a, t, "an application with the same ids")
            s = s._replace(gone=tuple(n + (x in ("committed", "copied")) for n, x in zip(s.gone, tx)),
                           net=frozenset(one for one in s.net if one[0] != a))
        yield f"tasks write {a}", s._replace(txs=put(s.txs, a, ("open", "open")), manifests=s.manifests | {a})

    def decide(self, s, a):
        tx, verdicts = s.txs[a], s.ledger.verdicts
        if self.has("hidden") and s.hidden or self.has("decide") and "committed" in tx:
            return
        others = any({"committed", "copied"} & set(self.shown(s, b)) or not self.known(s, b) and "open" in self.shown(s, b)
                     for b in range(s.ledger.base, len(s.txs)) if b != a)
        if tx == ("open", "open"):
            if not (self.has("others") and others):
                yield f"decide {a}: commit", s._replace(
                    ledger=s.ledger._replace(verdicts=put(verdicts, a, "commit")), truth=s.truth | {a})
        else:
            yield f"decide {a}: abort", s._replace(ledger=s.ledger._replace(verdicts=put(verdicts, a, "abort")))

    def commit(self, s, a):
        for t in TASKS:
            if s.txs[a][t] == "open" and (a, t) not in s.net:
                yield f"commit sends EndTxn {a}.{t}", s._replace(net=s.net | {(a, t)})
            if s.txs[a][t] == "aborted":    # what is lost behind the decision is copied
                yield f"commit copies {a}.{t}", s._replace(txs=put(s.txs, a, put(s.txs[a], t, "copied")))
        if set(s.txs[a]) <= {"committed", "copied"} and not s.ledger.done:
            yield f"the ledger has {a} as COMMITTED", s._replace(ledger=s.ledger._replace(done=True))

    def cleanup(self, s):
        ledger = s.ledger
        if "" in ledger.verdicts and not self.decided(s) and self.may(s, "sweep", named=True):
            verdicts = tuple(v or "abort" for v in ledger.verdicts)
            yield "cleanup makes all undecidable", s._replace(ledger=ledger._replace(verdicts=verdicts))
        for a, verdict in enumerate(ledger.verdicts):
            for t in TASKS:
                if (verdict == "abort" and a >= ledger.base and self.shown(s, a)[t] == "open"
                        and self.may(s, "end", named=True)):
                    yield f"cleanup ends {a}.{t}", self.end(s, a, t, "cleanup")

    # ---- a person, with all runs stopped ---------------------------------------------------------------------------
    def person(self, s):
        ledger = s.ledger
        shown = [a for a, tx in enumerate(s.txs) if a >= ledger.base and "committed" in tx]
        unfinished = "commit" in ledger.verdicts and not ledger.done
        if unfinished:
            yield from self.commit(s, ledger.verdicts.index("commit"))
            return
        if not self.decided(s) and ledger.base == 0:
            for a in shown if len(shown) == 1 else ():
                proven = all(x in ("committed", "open") for x in s.txs[a])
                known = ledger.verdicts + ("abort",) * (a + 1 - len(ledger.verdicts))
                if a in s.manifests and known[a] != "abort" or a >= len(ledger.verdicts):
                    if proven or not self.has("proof"):
                        verdicts = put(tuple(v or "abort" for v in known), a, "commit")
                        yield f"{a} is taken back", s._replace(ledger=ledger._replace(verdicts=verdicts))
            for a, tx in enumerate(s.txs):
                for t in TASKS:
                    if tx[t] == "open" and not s.net:
                        yield f"a person ends {a}.{t}", s._replace(txs=put(s.txs, a, put(tx, t, "aborted")))
            there = [t for t in TASKS if s.gone[t] or any(tx[t] in ("committed", "copied") for tx in s.txs)]
            missing = [t for t in TASKS if there and t not in s.hand and t not in there
                       and not any(tx[t] == "open" for tx in s.txs)]
            for t in missing:
                yield f"a person writes {t} by hand", s._replace(hand=s.hand | {t})
            if not any("open" in tx for tx in s.txs) and not s.net:
                verdicts = tuple(v or "abort" for v in ledger.verdicts)
                verdicts += ("abort",) * (len(s.txs) - len(verdicts))
                # applications of the old id stand still with the runs
                yield "a new id", s._replace(ledger=Ledger(verdicts, ledger.submitted, ledger.prepared, False, len(s.txs)),
                                             apps=(0,) * len(s.apps))
        whole = all(t in s.hand or s.gone[t] or any(tx[t] in ("committed", "copied") for tx in s.txs) for t in TASKS)
        nothing = not s.hand and not any(s.gone) and not any({"committed", "copied"} & set(tx) for tx in s.txs)
        if ledger.base and not ledger.done and whole:
            yield "a person says that the topics have it", s._replace(ledger=ledger._replace(done=True))
        if ledger.done or ledger.base and (nothing or not self.has("said")):
            yield "the DAGs run again", s._replace(stopped=False)

    # ---- what must hold --------------------------------------------------------------------------------------------
    def broken(self, s):
        if s.bad:
            return s.bad
        for t in TASKS:
            times = sum(tx[t] in ("committed", "copied") for tx in s.txs) + s.gone[t] + (t in s.hand)
            if times > 1:
                return f"the records of task {t} are visible {times} times"
            if s.ledger.done and not times:
                return f"the ledger says COMMITTED, and the records of task {t} are not visible"
        return ""


WORLDS = {
    "at-work":      World(attempts=3),
    "timeouts":     World(attempts=2, losses=2),
    "a-person":     World(attempts=3, person=True),
    "all":          World(attempts=3, losses=1, person=True),
    "away":         World(attempts=2, hides=1),
}
DROPS = {  # the world in which leaving a rule out does harm; None: nothing here needs it beside the others, which stop later
    STOPS + ":begin": None,
    STOPS + ":retry": None,
    STOPS + ":sweep": None,
    STOPS + ":end": "at-work",
    STOPS + ":decide": None,
    STOPS + ":others": "at-work",
    STOPS + ":proof": "all",
    STOPS + ":said": "a-person",
    STOPS + ":opened": None,
    STOPS + ":hidden": "away",
    STOPS + ":named": "away",
    "one-key-loads-once": "a-person",
    "one-application-per-attempt": "at-work",
}
SUITE = [("all/" + n, w, ALL, False) for n, w in WORLDS.items()]
SUITE += [("drop/" + r, WORLDS[n or "a-person"], ALL - set(r.split("+")), bool(n)) for r, n in DROPS.items()]


def run(name, world, rules, expect):
    return told(name, Restored(world, rules), expect)


if __name__ == "__main__":
    sys.exit(main(SUITE, run))
