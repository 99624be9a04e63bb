"""CPU seconds of a process and all of its children, from /proc. Linux only."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class CpuMeter:
    """User and system time of a process and its descendants, dead ones too, as far as they were seen alive.

    Children that have ended cannot be had from their parent: PySpark's daemon ignores SIGCHLD, so nobody waits for
    its workers and their time is lost. So the last figure of everybody who was ever seen is kept. Whoever lives only
    between two looks is missed; Spark keeps its workers for a minute.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[tuple[int, str], int] = {}

    @property
    def seconds(self) -> float:
        """So far; it never falls."""
        for one in [self._pid, *descendants(self._pid)]:
            stat = _stat(one)
            if stat is not None:
                self._seen[one, stat[19]] = int(stat[11]) + int(stat[12])  # start time; utime and stime
        return sum(self._seen.values()) / _TICKS


def descendants(pid: int) -> list[int]:
    """All children, their children and so on."""
    by_parent = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(int(entry))) is not None:
            by_parent[int(stat[1])].append(int(entry))
    found, left = [], [pid]
    while left:
        mine = by_parent[left.pop()]
        found += mine
        left += mine
    return found


def find_child(word: str) -> int:
    """The only descendant of this process that has ``word`` among the arguments of its command.

    :raises LookupError: there is none, or more than one.
    """
    found = [pid for pid in descendants(os.getpid()) if word in _arguments(pid) and "java" in _arguments(pid)[0]]
    if len(found) != 1:
        raise LookupError(f"{len(found)} child processes have {word} in their command")
    return found[0]


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name, so the state is field 0."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]
