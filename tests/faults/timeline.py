"""What each party did, and when: one file for all processes of a run, one JSON object a line."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: taken before any process of ours gets another clock
_now = time.monotonic


@dataclass(frozen=True)
class Timeline:
    """A party's pen. Lines are short, so that appending one is atomic; the clock is the machine's monotonic one."""

    folder: str
    party: str

    def log(self, event: str, **details: Any) -> None:
        line = json.dumps({"t": _now(), "party": self.party, "pid": os.getpid(), "event": event, **details})
        descriptor = os.open(file_of(self.folder), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)


def file_of(folder: str) -> Path:
    return Path(folder) / "timeline.jsonl"


def events(folder: str) -> list[dict[str, Any]]:
    """All of it, by time. A line that is being written is left out."""
    try:
        lines = file_of(folder).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return sorted(found, key=lambda e: e["t"])


def told(folder: str) -> str:
    """For people: seconds since the first event, who, what."""
    found = events(folder)
    begun = found[0]["t"] if found else 0.0
    lines = []
    for event in found:
        rest = {k: v for k, v in event.items() if k not in ("t", "party", "pid", "event")}
        details = " ".join(f"{k}={v}" for k, v in rest.items())
        lines.append(f"{event['t'] - begun:8.3f} {event['party']:<22} [{event['pid']}] {event['event']} {details}")
    return "\n".join(lines)
