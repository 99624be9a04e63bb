"""A query's checkpoint: where it is by now, what Spark has noted in it, and which rows of its source a batch has."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.faults.facts import Record


@dataclass
class Query:
    """One query, and where its checkpoint is by now."""

    name: str
    topic: str
    each: bool
    folder: Path
    moves: int = 0

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"{self.name}-checkpoint{f'-{self.moves}' if self.moves else ''}"

    def saved(self, what: str) -> Path:
        return self.folder / f"{self.name}-{what}"

    def planned(self) -> list[int]:
        return _numbers(self.checkpoint / "offsets")

    def noted(self) -> list[int]:
        """Batches that Spark has noted as done."""
        return _numbers(self.checkpoint / "commits")

    def rows(self, number: int, source: Sequence[Record]) -> list[str]:
        """The rows of the source behind ``offsets/number``.

        :param source: records of its topic, where it has one.
        """
        end = self._offset(number)
        before = self._offset(number - 1) if number else {}
        if "logOffset" in end:
            files = self._files(before.get("logOffset", -1), end["logOffset"])
            return [row for file in files for row in file.read_text().splitlines()]
        # by topic and partition
        return [
            record.said.decode()
            for record in source
            if before.get(record.topic, {}).get(str(record.partition), 0)
            <= record.offset
            < end[record.topic].get(str(record.partition), 0)
        ]

    def _offset(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.checkpoint / "offsets" / str(number)).read_text().splitlines()[-1])
        return found

    def _files(self, since: int, until: int) -> Iterator[Path]:
        """Of a source of files, by its own log, of which Spark unites ten at a time."""
        log = self.checkpoint / "sources" / "0"
        lines = [line for path in log.iterdir() if path.name[0].isdigit() for line in path.read_text().splitlines()[1:]]
        entries = {entry["path"]: entry["batchId"] for entry in map(json.loads, lines)}
        for path, number in sorted(entries.items()):
            if since < number <= until:
                yield Path(unquote(urlsplit(path).path))


def _numbers(folder: Path) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    return []
