"""Positions in a source: where a range begins and ends. JSON values of which one is before the other. No I/O.

Rule: range-has-an-order.

A position is a whole number, a date or a time as an ISO text, or a dict of them by name (offsets by topic and
partition). Other texts have an order that is not the source's: "9" comes behind "10". Numbers with a fraction are not
equal to what a database reads back.
"""

from __future__ import annotations

import functools
import itertools
import json
import operator
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from airflow_kafka_eos.arguments import shown
from airflow_kafka_eos.errors import ConfigurationError

#: Of a position as JSON. Two of them travel on a command line of the application, where Linux takes 131,072 bytes in
#: one argument, beside all else that it is told.
MAX_BYTES = 45_000
_DEPTH = 4
#: Partitions that an error names.
_NAMED = 5
# not fromisoformat's own list, which has "20260101" too
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d(:\d\d)?)?)?", re.ASCII
)
_KINDS = "a whole number, a date or time as an ISO text, or a dict of them"
_AHEAD = "what was named ahead,"
_OF_TIME = {"a date", "a time without a time zone", "a time with its time zone"}


def checked(value: Any, what: str) -> Any:
    """The value as it is kept: dates, times and numbers of other libraries as JSON's.

    :param what: names it, for the error.
    :raises ConfigurationError: it is no position, or too long.
    """
    made = _plain(value, what, _DEPTH)
    if isinstance(made, str) and _moment(made) is None:
        raise _wrong(what, value, "is a text without an order: '9' comes behind '10'")
    size = len(dump(made).encode())
    if size > MAX_BYTES:
        raise ConfigurationError(
            f"{what} has {size:,} bytes as JSON, more than the {MAX_BYTES:,} that a position may have",
            remedy="Let it name fewer partitions: two loads with a cursor each, of some topics each",
        )
    return made


def read(text: Any, what: str) -> Any:
    """The position that a person or a template has written: JSON, or an ISO text as it is.

    :raises ConfigurationError: it is none; or a template that nothing has filled in.
    """
    if text is None or (isinstance(text, str) and text.strip() in ("", "None", "null")):
        raise ConfigurationError(
            f"{what} is {shown(text)}: nothing has filled it in", remedy="Give both ends of the range, since and until"
        )
    if not isinstance(text, str):
        return checked(text, what)
    if "{{" in text or "{%" in text:
        raise ConfigurationError(f"{what} is {shown(text)}: a template that was not rendered", remedy="Correct it")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = text.strip()
    return checked(found, what)


def dump(position: Any) -> str:
    """As the ledger has it: equal positions are equal texts."""
    return json.dumps(position, sort_keys=True, separators=(",", ":"), allow_nan=False)


def is_behind(until: Any, since: Any, what: str) -> bool:
    """Whether a range from the one to the other has anything in it; False: both are the same.

    :param since: None: where the source begins.
    :param what: names the range, for the error.
    :raises ConfigurationError: ``until`` is before ``since``, or of another kind.
    """
    if since is None:
        return True
    order = _order(since, until, what, "")
    if order < 0:
        raise ConfigurationError(
            f"{what} ends at {shown(until)}, before {shown(since)}, where it begins",
            remedy="A range ends where it begins or behind. Is it the max() of a column that updates change? An update "
            "has made that smaller: ask for the database's clock instead (docs/cursors.md, By the time of a change), "
            "and leave the cursor where it is, or rows are read twice. If the source was put back or made anew, set "
            "the cursor: `airflow-kafka-eos cursors set`",
        )
    return order > 0


def is_same(one: Any, other: Any, what: str) -> bool:
    """Whether both are one position, however they are written (time zones).

    :raises ConfigurationError: they are of different kinds.
    """
    if one is None or other is None:
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return dump(one) == dump(other)
    return _order(one, other, what, "") == 0


def overlaps(one: tuple[Any, Any], other: tuple[Any, Any], what: str) -> bool:
    """Whether two ranges, each from since to until, have something in common; of dicts any part.

    Ids in them (of a topic, a table) tell nothing apart: rather a range too many is said to overlap. A range of days
    and one of times are compared by their days, the last one too.

    :param what: names both, for the error.
    :raises ConfigurationError: they are of different kinds.
    """
    (first, end), (second, last) = one, other
    if isinstance(end, Mapping) and isinstance(last, Mapping):
        return any(
            overlaps(((first or {}).get(name), end[name]), ((second or {}).get(name), last[name]), what)
            for name in end.keys() & last.keys()
        )
    kinds = {_kind(value) for value in (first, end, second, last) if value is not None}
    if kinds == {"a text"}:
        return False
    if len(kinds) > 1 and kinds <= _OF_TIME:
        days = [None if value is None else value[: len("2026-01-01")] for value in (first, end, second, last)]
        return (days[0] is None or days[0] <= days[3]) and (days[2] is None or days[2] <= days[1])
    pairs = ((first, end), (second, last), (first, last), (second, end))
    return all(since is None or _order(since, until, what, "") > 0 for since, until in pairs)


def reaches_past(until: Any, at: Any) -> bool:
    """Whether a range that ends at ``until`` has something that one has which begins at ``at``; of dicts any part.

    :param at: None: where the source begins.
    :raises ConfigurationError: they are of different kinds.
    """
    if at is None:
        return True
    if isinstance(until, Mapping) and isinstance(at, Mapping):
        return any(reaches_past(value, at.get(name)) for name, value in until.items())
    if _kind(until) == _kind(at) == "a text":
        return False
    return _order(at, until, "the named range, beside the cursor,", "") > 0


def reached(at: Any, ranges: Sequence[tuple[Any, Any]], where: str = "") -> tuple[Any, list[str]]:
    """How far ranges ahead of a position reach, and what lies between that none of them has; of dicts part by part.

    :param at: None: where the source begins.
    :param ranges: each from since to until; what ``at`` names and they do not stays where it is.
    :return: the end; and the gaps, as texts.
    :raises ConfigurationError: they are of kinds that nobody can compare.
    """
    ends = [until for _, until in ranges]
    if all(isinstance(one, Mapping) for one in ends) and (at is None or isinstance(at, Mapping)):
        end, gaps = dict(at or {}), list[str]()
        for name in sorted({name for until in ends for name in until}):
            parts = [((since or {}).get(name), until[name]) for since, until in ranges if name in until]
            end[name], found = reached(end.get(name), parts, f"{where} of {name}")
            gaps += found
        return end, gaps
    end, gaps = at, []
    for since, until in sorted(ranges, key=functools.cmp_to_key(_which_first)):
        if _kind(until) == "a text":
            _order(until if end is None else end, until, _AHEAD, where)  # all are the same
        elif end is not None and since is not None and _order(since, until, _AHEAD, where) == 0:
            continue  # there is nothing of this part in it
        elif since is not None and (end is None or _order(end, since, _AHEAD, where) > 0):
            gaps.append(f"from {'where the source begins' if end is None else dump(end)} to {dump(since)}{where}")
        if end is None or _order(end, until, _AHEAD, where) > 0:
            end = until
    return end, gaps


def left_out(to: Any, old: Any) -> list[str]:
    """Partitions of Kafka topics that a position does not name, and the one before did: ``topic-partition``.

    They would be read from their oldest record on. Not of a topic that is left out as a whole, or made anew.
    """
    if not isinstance(to, Mapping) or not isinstance(old, Mapping):
        return []
    now, before = to.get("offsets"), old.get("offsets")
    if not isinstance(now, Mapping) or not isinstance(before, Mapping):
        return []
    found = []
    for topic, partitions in before.items():
        named = now.get(topic)
        ids = [of["topic_ids"].get(topic) for of in (to, old) if isinstance(of.get("topic_ids"), Mapping)]
        if isinstance(named, Mapping) and isinstance(partitions, Mapping) and (len(ids) < 2 or ids[0] == ids[1]):
            found += [f"{topic}-{n}" for n in sorted(partitions.keys() - named.keys(), key=lambda n: (len(n), n))]
    return found


def check_no_gaps(to: Any, what: str) -> None:
    """
    :param what: names the position, for the error.
    :raises ConfigurationError: it names a partition of a Kafka topic, and one below that not. How many there are above,
        only brokers know.
    """
    if missing := _gaps(to):
        raise ConfigurationError(
            f"{what} does not name partitions {', '.join(missing[:_NAMED])}{', …' if missing[_NAMED:] else ''}: they "
            "would be read from their first record on",
            remedy="Name each partition of the topic, with the offset where its range begins",
        )


def _gaps(to: Any) -> list[str]:
    offsets = to.get("offsets") if isinstance(to, Mapping) else None
    if not isinstance(offsets, Mapping):
        return []
    found = []
    for topic, partitions in offsets.items():
        if isinstance(partitions, Mapping) and all(str(n).isdecimal() for n in partitions):
            named = {int(n) for n in partitions}
            # by a slip of the pen the highest may be anything
            some = itertools.islice((n for n in range(max(named, default=0)) if n not in named), _NAMED + 1)
            found += [f"{topic}-{n}" for n in some]
    return found


def extends(more: Any, old: Any) -> bool:
    """Whether ``more`` is ``old``, at most with what ``old`` says nothing of: partitions that were added since."""
    if old is None:
        return True
    if isinstance(old, Mapping) and isinstance(more, Mapping):
        return all(name in more and extends(more[name], value) for name, value in old.items())
    return dump(more) == dump(old)


def _plain(value: Any, what: str, depth: int) -> Any:
    if isinstance(value, (bool, float)) or value is None or type(value).__name__ in ("bool_", "bool"):
        raise _wrong(what, value, "is no position")
    if isinstance(value, datetime):
        if getattr(value, "nanosecond", 0):
            raise _wrong(what, value, "has nanoseconds, and its order is known to the microsecond")
        return value.isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        _check_text(value, what)
        return value
    if isinstance(value, Mapping):
        if not value or not depth or not all(isinstance(name, str) for name in value):
            raise _wrong(what, value, "is no dict of positions by name")
        return {name: _plain(one, f"{what}[{name!r}]", depth - 1) for name, one in value.items()}
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return int(value)
    try:
        return operator.index(value)
    except TypeError:
        raise _wrong(what, value, "is no position") from None


def _check_text(value: str, what: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _wrong(what, value, "is not valid Unicode") from None
    if "\x00" in value:
        raise _wrong(what, value, "contains a NUL character")


def _moment(text: str) -> datetime | date | None:
    if _TIME.fullmatch(text) is None:
        return None
    try:
        return datetime.fromisoformat(text) if len(text) > len("2026-01-01") else date.fromisoformat(text)
    except ValueError:
        return None


def _kind(value: Any) -> str:
    if isinstance(value, int):
        return "a whole number"
    if isinstance(value, Mapping):
        return "a dict"
    moment = _moment(value)
    if moment is None:
        return "a text"
    if not isinstance(moment, datetime):
        return "a date"
    return "a time without a time zone" if moment.tzinfo is None else "a time with its time zone"


def _order(since: Any, until: Any, what: str, at: str) -> int:
    """1, 0 or -1: ``until`` is behind, the same, or before."""
    if (was := _kind(since)) != (now := _kind(until)):
        raise ConfigurationError(
            f"{what} begins at {shown(since)}{at}, {was}, and ends at {shown(until)}, {now}: nobody can tell which is "
            "first",
            remedy="Let both be of one kind; times all with a time zone, or all without",
        )
    if isinstance(since, Mapping):
        return _order_of_dicts(since, until, what, at)
    if isinstance(since, int):
        return _sign(since, until)
    first, second = _moment(since), _moment(until)
    if first is None or second is None:
        if since == until:
            return 0
        raise ConfigurationError(
            f"{what}: {shown(since)}{at} has become {shown(until)}, a text without an order",
            remedy="It names something else now, such as a topic that was made anew. Look what that means for what was "
            "not read yet, then set the cursor: `airflow-kafka-eos cursors set`",
        )
    return _sign(first, second)


def _which_first(one: tuple[Any, Any], other: tuple[Any, Any]) -> int:
    """Of two ranges; one that begins where its source does is before all."""
    if one[0] is None or other[0] is None:
        return int(one[0] is not None) - int(other[0] is not None)
    if _kind(one[0]) == _kind(other[0]) == "a text":
        return 0
    return -_order(one[0], other[0], _AHEAD, "")


def _sign(first: Any, second: Any) -> int:
    return int(second > first) - int(second < first)


def _order_of_dicts(since: Mapping[str, Any], until: Mapping[str, Any], what: str, at: str) -> int:
    missing = sorted(since.keys() - until.keys())
    if missing:
        raise ConfigurationError(
            f"{what} says where {shown(missing[0])}{at} begins, and not where it ends",
            remedy="A range ends with all that it begins with. If it is gone for good, set the cursor without it",
        )
    orders = [_order(since[name], until[name], what, f"{at} of {name}") for name in since]
    if until.keys() - since.keys():
        orders.append(1)
    return -1 if min(orders) < 0 else max(orders)


def _wrong(what: str, value: Any, problem: str) -> ConfigurationError:
    return ConfigurationError(f"{what}={shown(value)} {problem}", remedy=f"A position is {_KINDS}")
