"""What a run's timeline says of its loads and processes: when a decision was recorded, who was told what, what died.

Nothing of our package is imported here. Times are monotonic seconds, as the timeline's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]

#: events of a party
BEGINS, DONE, FAILS = "begins", "is done", "fails"
#: it is about to write the commit decision into the ledger
DECIDING = "records its decision"
#: a cleanup knows up to which attempt it is to sweep
SWEEPING = "sweeps"
#: an error that is none of the package's
UNEXPECTED = "UNEXPECTED"
#: a load's people have no patience left
GAVE_UP = "gave up by the clock"
#: what ends a process, and may leave it no time for a word
_DEADLY = ("sigkill", "sigterm")
#: roles that open or end nothing that another one would have to clean up
_LOOKING_ON = ("cleanup", "loaded", "maintenance")


@dataclass
class Process:
    """One process of a run.

    :ivar ended: when it was done, had failed or was killed by a fault; None: nobody has said.
    :ivar up_to: of a cleanup, the number of the last attempt that it sweeps.
    """

    party: str
    role: str
    load: int
    limit_s: float
    begun: float
    ended: float | None = None
    is_well: bool = False
    up_to: int | None = None


def processes(events: Sequence[Event]) -> list[Process]:
    """All that have begun, in the order of their begins."""
    found: list[Process] = []
    newest: dict[int, Process] = {}
    for event in events:
        name, pid = event["event"], event["pid"]
        if name == BEGINS:
            newest[pid] = Process(
                event["party"], event["role"], event["load"], event.get("limit_s", 0.0), event["t"]
            )
            found.append(newest[pid])
        elif pid in newest and newest[pid].party == event["party"]:
            one = newest[pid]
            if name in (DONE, FAILS):
                one.ended, one.is_well = event["t"], name == DONE
            elif name == SWEEPING:
                one.up_to = event["up_to"]
            elif event.get("kind") in _DEADLY:
                one.ended = event["t"]
    return found


def deciding_at(events: Sequence[Event], load_key: str, attempt: int) -> float | None:
    """When somebody first began to record this decision. A write whose outcome nobody has heard may have been the one
    that counts: so it is the first."""
    return next(
        (
            e["t"]
            for e in events
            if e["event"] == DECIDING and (e["load_key"], e["attempt"]) == (load_key, attempt)
        ),
        None,
    )


def told_at(events: Sequence[Event], load: int) -> float | None:
    """When the leaf of a run of this load first succeeded."""
    return next(
        (e["t"] for e in events if e["event"] == DONE and (e["role"], e["load"]) == ("loaded", load)),
        None,
    )


def gave_up_s(events: Sequence[Event], load: int) -> float:
    """After how many seconds its people gave up by the clock; 0: they did not."""
    return next((float(e["after_s"]) for e in events if e["event"] == GAVE_UP and e["load"] == load), 0.0)


def unexpected(events: Sequence[Event]) -> Iterator[str]:
    """Errors that are none of the package's, in whatever thread; and processes that ended without a word, though no
    fault has killed them and their time was not over."""
    for event in events:
        if event["event"] == UNEXPECTED:
            yield f"{event['party']}: {event['kind']}: {event['error']}"
    last = events[-1]["t"] if events else 0.0
    for one in processes(events):
        if one.ended is None and last - one.begun < one.limit_s:
            yield f"{one.party}: ended without a word"


def was_to_clean_all(events: Sequence[Event], load: int, newest_attempt: int) -> bool:
    """Whether a cleanup of the load succeeded that was to sweep all of its attempts, and began when nobody else was
    at work for the load any more, nor was later: then nothing of it may be left."""
    mine = [one for one in processes(events) if one.load == load and one.role != "maintenance"]
    at_work = [one for one in mine if one.role not in _LOOKING_ON]
    over = max((float("inf") if one.ended is None else one.ended for one in at_work), default=float("-inf"))
    return any(
        one.role == "cleanup" and one.is_well and (one.up_to or 0) >= newest_attempt and one.begun > over
        for one in mine
    )
