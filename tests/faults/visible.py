"""Visible records by who wrote them: each value says so itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tests.faults.facts import Record, Value

LOAD, FOREIGN, PLAIN = "load", "foreign", "plain"


class Seen(NamedTuple):
    """A record and what its value says."""

    value: Value
    record: Record


class Visible:
    """What one reader saw, in its order.

    :ivar nobodys: records that no party of the run can have written so: what they say of themselves cannot be read, or
        their key is not the one that they name.
    :ivar changed: records that are not as their writer wrote them: another time, other headers, a value for null.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.nobodys: list[Record] = []
        self.changed: list[Record] = []
        self._writers: dict[tuple[str, str], dict[int, list[Seen]]] = defaultdict(lambda: defaultdict(list))
        for record in records:
            try:
                value = Value.decode(record.said)
            except ValueError:
                self.nobodys.append(record)
                continue
            if record.key != value.key_bytes:
                self.nobodys.append(record)
            else:
                if not value.is_as_written(record):
                    self.changed.append(record)
                self._writers[value.party, value.writer][value.unit].append(Seen(value, record))

    @property
    def writers(self) -> set[tuple[str, str]]:
        """(party, writer) of all records."""
        return set(self._writers)

    def units(self, party: str, writer: str) -> Mapping[int, list[Seen]]:
        """By attempt or transaction number, the records of one writer. A number without records is not there."""
        return self._writers.get((party, writer), {})

    def unit(self, party: str, writer: str, number: int) -> list[Seen]:
        return self.units(party, writer).get(number, [])

    def all_of(self, party: str, writer: str) -> list[Seen]:
        """Of all units, one unit after the other."""
        return [one for unit in self.units(party, writer).values() for one in unit]
