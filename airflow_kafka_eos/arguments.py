"""Checks of what authors give as arguments, when a DAG is parsed, and again where a template was rendered. No I/O.

What does not pass is a ConfigurationError that names the argument, its value and what to write in its place. A value
that Airflow fills in later (a text with a template, what an earlier task returns, an item of a mapped group) passes
where the argument is templated, and is refused where nothing would ever fill it in. True and False are no numbers.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeGuard

from airflow_kafka_eos.errors import ConfigurationError

#: A duration as authors write it: a timedelta, or seconds, as in Airflow's section ``[kafka_eos]``.
Duration = float | timedelta

#: More than anything here takes, and less than a date can be away.
_LONGEST = timedelta(days=36_525)
_SHORTEST = timedelta(milliseconds=1)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_SHOWN = 200


def is_filled_in_later(value: Any) -> bool:
    """Whether Airflow makes another value of it before the task runs: a template, or what an earlier task returns."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    # Airflow's ResolveMixin, which cannot be imported here: XComArg, MappedArgument, literal()
    return callable(getattr(value, "iter_references", None))


def duration(
    argument: str, value: object, *, zero: bool = False, below: timedelta = _LONGEST, none_would: str = ""
) -> timedelta:
    """A timedelta, of seconds too.

    :param zero: whether none at all is a duration here.
    :param none_would: what comes of none at all, for the error.
    :param below: it must be shorter.
    """
    if isinstance(value, timedelta):
        made = value
    elif _is_number(value):
        # what a timedelta cannot hold is out of bounds either way
        made = timedelta(seconds=max(-1, min(value, _LONGEST.total_seconds())))
    else:
        raise _wrong(argument, value, "no duration", "Set it to seconds as a number, or to a timedelta")
    if made < (timedelta(0) if zero else _SHORTEST):
        wanted = "0 or more" if zero else "more than 0"
        problem = "too short" + (f": it would {none_would}" if none_would else "")
        raise _wrong(argument, value, problem, f"Set it to {wanted}: seconds as a number, or a timedelta")
    if made >= below:
        raise _wrong(argument, value, "too long", f"Set it to less than {below}: seconds as a number, or a timedelta")
    return made


def a_day_or_more(argument: str, value: object) -> timedelta:
    """A duration, of a day at least."""
    made = duration(argument, value)
    if made < timedelta(days=1):
        raise _wrong(argument, value, "less than a day", "Set it to a day or more: seconds as a number, or a timedelta")
    return made


def check_whole_number(argument: str, value: object, *, least: int = 0, required: bool = False) -> None:
    """A whole number from ``least`` on; or None for no limit, where it is not ``required``."""
    if value is None and not required:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        remedy = "Set it to one" if required else "Set it to one, or to None for no limit"
        raise _wrong(argument, value, f"no whole number from {least} on", remedy)


def check_bool(argument: str, value: object) -> None:
    """True or False: a text such as "no" would count as True."""
    if not isinstance(value, bool):
        raise _wrong(argument, value, "neither True nor False", "Set it to one of them")


def check_text(
    argument: str,
    value: object,
    *,
    required: bool = False,
    remedy: str = "Set it to a text of one or more characters",
) -> None:
    """A text that may be a template; or None, where it is not ``required``."""
    if (value is None and not required) or is_filled_in_later(value):
        return
    if not isinstance(value, str) or not value.strip():
        raise _wrong(argument, value, "no text", remedy)


def check_callable(argument: str, value: object, *parameters: str) -> None:
    """None, or what can be called with these ``parameters``."""
    if value is None:
        return
    wanted = f"Set it to a function of {' and '.join(parameters)}"
    if not callable(value):
        raise _wrong(argument, value, "no function", wanted)
    if inspect.iscoroutinefunction(value):
        raise _wrong(argument, value, "an async function: nobody awaits it", wanted)
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some builtins have none
        return
    try:
        signature.bind(*parameters)
    except TypeError as e:
        raise _wrong(argument, value, f"called with {' and '.join(parameters)}: {e}", wanted) from None


def check_mapping(argument: str, value: object) -> None:
    """A dict with texts as keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong(argument, value, "no dict of names and values", f"Write {argument}={{'name': value}}")


def check_topics(topics: Any, *, argument: str = "topics", rendered: bool = False, some: bool = True) -> None:
    """The names of the topics that a load may write to.

    :param rendered: they are what templates were filled in with.
    :param some: there must be one.
    """
    if not rendered and is_filled_in_later(topics):
        return
    _check_list(argument, topics, "no list of topics", f"Pass a list of names: {argument}=['orders']")
    if some and not len(topics):
        raise _wrong(argument, list(topics), "no topic", f"Name one or more: {argument}=['orders']")
    for name in topics:
        if not rendered and is_filled_in_later(name):
            continue
        if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in (".", ".."):
            raise ConfigurationError(
                f"{argument}={shown(list(topics))}: {shown(name)} cannot be the name of a topic",
                remedy="Kafka takes letters, digits, '.', '_' and '-', at most 249 of them",
            )


def check_texts(argument: str, value: Any, *, rendered: bool = False) -> None:
    """A list of one or more texts."""
    if not rendered and is_filled_in_later(value):
        return
    problem, remedy = "no list of one or more texts", f"Pass a list: {argument}=['…']"
    _check_list(argument, value, problem, remedy)
    if not len(value) or not all(isinstance(one, str) and one.strip() for one in value):
        raise _wrong(argument, value, problem, remedy)


def check_job_or_sql(job: Any, sql: Any) -> None:
    """Exactly one of them."""
    if (job is None) == (sql is None):
        raise ConfigurationError(
            f"job={shown(job)} and sql={shown(sql)}: one of them must be set",
            remedy="Set either job=… or sql=…",
        )
    forms = "'file.py', 'file.py:function' or 'package.module:function'"
    if callable(job):
        raise _wrong(
            "job",
            job,
            "a function, and has no way to Spark as an argument",
            f"Write @exactly_once_load(topics=[…]) above it, or name it: {forms}",
        )
    check_text("job", job, remedy=f"Set it to {forms}")
    if isinstance(job, str) and not is_filled_in_later(job) and not (job.endswith(".py") or ":" in job):
        raise _wrong("job", job, "neither a Python file nor a function of a module", f"Set it to {forms}")
    check_text("sql", sql, remedy="Set it to a query: sql='SELECT …'")


def check_json(value: Any, *, argument: str = "job_args") -> None:
    """Keyword arguments that travel as JSON; what is filled in later is looked at when it is."""
    if value is None or is_filled_in_later(value):
        return
    check_mapping(argument, value)
    for place, found in _no_json(value, argument):
        raise ConfigurationError(
            f"{place} is {shown(found)} of type {type(found).__name__}, which cannot be written as JSON",
            remedy="Use texts, numbers, True, False, None, lists and dicts; a date as a text, such as '{{ ds }}'",
        )


def check_assets(argument: str, value: Any) -> None:
    """A list of assets."""
    if not isinstance(value, (list, tuple)) or any(isinstance(one, str) for one in value):
        raise _wrong(argument, value, "no list of assets", f"Pass a list: {argument}=[Asset('name')]")


def _no_json(value: Any, place: str) -> Iterable[tuple[str, Any]]:
    """What in it JSON has no word for, with the place where it stands."""
    if is_filled_in_later(value) or value is None or isinstance(value, (str, int)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            yield place, value
    elif isinstance(value, (list, tuple)):
        for n, one in enumerate(value):
            yield from _no_json(one, f"{place}[{n}]")
    elif isinstance(value, dict):
        for key, one in value.items():
            if not isinstance(key, (str, int, float)) and key is not None:
                yield f"a key of {place}", key
            yield from _no_json(one, f"{place}[{key!r}]")
    else:
        yield place, value


def _is_number(value: object) -> TypeGuard[float]:
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    )


def _check_list(argument: str, value: Any, problem: str, remedy: str) -> None:
    """A list: of a text, the letters would be its items. What mapped tasks return, a sequence that reads when it is
    asked, is one as well.
    """
    if isinstance(value, str):
        raise ConfigurationError(
            f"{argument}={shown(value)} is a text", remedy=f"Pass a list: {argument}=[{value!r}]"
        )
    is_sequence = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    if not is_sequence or isinstance(value, (bytes, Mapping)):
        raise _wrong(argument, value, problem, remedy)


def _wrong(argument: str, value: object, problem: str, remedy: str) -> ConfigurationError:
    if is_filled_in_later(value):
        return ConfigurationError(
            f"{argument}={shown(value)} is filled in when the task runs, and {argument} has to be known when the DAG "
            "is parsed",
            remedy=f"{remedy}. Templates and what earlier tasks return go into the arguments that are templated",
        )
    return ConfigurationError(f"{argument}={shown(value)} is {problem}", remedy=remedy)


def shown(value: object) -> str:
    """A value for an error, cut off where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
