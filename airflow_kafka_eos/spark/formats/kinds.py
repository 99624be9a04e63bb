"""The types that a value can be made of, whoever hands over the columns: Spark or Arrow. No I/O.

What a DataFrame's or a stream's columns are is told in these terms once (:mod:`.shaping`, ``arrow/kinds.py``); from
there on both have the same checks, the same schemas, and the same way to fit a registered one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_kafka_eos.errors import ConfigurationError

#: Columns that Kafka has a place for beside the value; they keep their meaning in every format.
BESIDE_VALUE = ("key", "headers", "topic", "partition", "timestamp")

INTEGERS = ("byte", "short", "int", "long")
FLOATS = ("float", "double")
#: ``decimal`` has ``precision`` and ``scale``.
ATOMS = (
    *("string", "binary", "boolean"),
    *INTEGERS,
    *FLOATS,
    *("decimal", "date", "timestamp", "timestamp_ntz"),
)
STRUCT, ARRAY, MAP = "struct", "array", "map"


@dataclass(frozen=True)
class Kind:
    """A type.

    :param name: one of ``ATOMS``, or ``struct``, ``array``, ``map``. Any other cannot be part of a value.
    :param said: what those call it who have it, for errors.
    :param fields: of a struct, in order; of an array its element, of a map its value. A map's keys are strings.
    """

    name: str
    said: str = field(compare=False)
    fields: tuple[Field, ...] = ()
    precision: int = 0
    scale: int = 0

    @property
    def element(self) -> Field:
        """Of an array or a map."""
        (found,) = self.fields
        return found


@dataclass(frozen=True)
class Field:
    """A part of a type: a struct's field, an array's element (no name), a map's value (no name)."""

    name: str
    kind: Kind
    nullable: bool = True


@dataclass(frozen=True)
class Record:
    """What a value has in it.

    :param kind: a struct.
    :param whole: the name of the one struct column that is the value; a null in it is a tombstone. None: the fields
        are columns, and there is a value for every row, also when all of them are null.
    """

    kind: Kind
    whole: str | None


def record(columns: Kind, value_format: str, of: str = "the DataFrame") -> Record:
    """The record that formats ``json`` and ``confluent-*`` send.

    :param columns: all of them, as a struct.
    :param of: what has them, for people.
    :raises ConfigurationError: there is no column for it, or one of a type that the format cannot carry.
    """
    rest = left(columns, value_format, of)
    if len(rest) == 1 and rest[0].name == "value" and rest[0].kind.name == STRUCT:
        found = Record(rest[0].kind, "value")
    else:
        found = Record(Kind(STRUCT, "", rest), None)
    _check_no_twins(found.kind)
    for path, kind in _atoms(found.kind, ""):
        if kind.name not in ATOMS:
            raise ConfigurationError(
                f"column {path!r} has type {kind.said}, which value_format {value_format!r} cannot carry",
                remedy="Cast it (to string, say), or drop it",
            )
    return found


def left(columns: Kind, value_format: str, of: str = "the DataFrame") -> tuple[Field, ...]:
    """The columns that Kafka has no place for.

    :raises ConfigurationError: there are none.
    """
    rest = tuple(field for field in columns.fields if field.name not in BESIDE_VALUE)
    if not rest:
        raise ConfigurationError(
            f"value_format {value_format!r} has no column left to make a value of ({of}'s columns: "
            f"{', '.join(field.name for field in columns.fields) or 'none'}; {', '.join(BESIDE_VALUE)} are not part of "
            "the value)",
            remedy="Select more columns, or give a second name to those that belong into the value too",
        )
    return rest


def _check_no_twins(struct: Kind) -> None:
    for path, one in _parts(struct, ""):
        # Spark finds columns by name without regard to case
        seen: dict[str, str] = {}
        for name in (part.name for part in one.fields if one.name == STRUCT):
            if (twin := seen.get(name.lower())) is not None:
                raise ConfigurationError(
                    f"the value has two fields {_path(one, path, twin)!r} and {_path(one, path, name)!r}",
                    remedy="Rename or drop one of them",
                )
            seen[name.lower()] = name


def _atoms(kind: Kind, path: str) -> Iterator[tuple[str, Kind]]:
    """Each type that has no others in it, and where it is; a struct of nothing too."""
    return ((where, one) for where, one in _parts(kind, path) if not one.fields)


def _parts(kind: Kind, path: str) -> Iterator[tuple[str, Kind]]:
    """Each type in a type, itself too, and where it is."""
    yield path, kind
    for one in kind.fields:
        yield from _parts(one.kind, _path(kind, path, one.name))


def _path(kind: Kind, path: str, name: str) -> str:
    if kind.name == STRUCT:
        return f"{path}.{name}" if path else name
    return path + ("[]" if kind.name == ARRAY else "{}")
