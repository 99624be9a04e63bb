"""What an own operator's templates see as ``kafka_eos`` until its attempt is open, and what is there then. No I/O."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

from airflow.sdk import BaseOperator

from airflow_kafka_eos.arguments import is_filled_in_later

#: The name in templates, and the key of the XCom that says which attempt a try has opened.
NAME = "kafka_eos"
WORDS = ("spec", "spec_file", "application", "attempt", "python", "token")
# letters and underscores alone: filters, quotes, JSON and YAML leave it as it is
_MARK = re.compile(rf"__{NAME}_({'|'.join(WORDS)})__")


class Marks:
    """What templates see as ``kafka_eos``.

    :ivar spec: the application's ``--spec`` in one word.
    :ivar spec_file: a path or URL of the same in ``manifest_dir``: ``--spec @{{ kafka_eos.spec_file }}``.
    :ivar application: path of the packaged application on this worker.
    :ivar attempt: the attempt's number, another one at each try of one load key; it names nothing by itself.
    :ivar python: path of this worker's Python, which has this package.
    :ivar token: a word that no other try of any load has, for names and idempotency tokens.
    """

    def __init__(self) -> None:
        self.spec, self.spec_file, self.application, self.attempt, self.python, self.token = (
            f"__{NAME}_{word}__" for word in WORDS
        )


def may_have_mark(task: BaseOperator, value: Any) -> bool:
    """Whether a template field that is not rendered yet may bring a mark to the operator."""
    if isinstance(value, str):
        return NAME in value or "{%" in value or value.endswith(tuple(task.template_ext))
    if isinstance(value, Mapping):
        return any(may_have_mark(task, one) for one in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(may_have_mark(task, one) for one in value)
    nested = [getattr(value, name, None) for name in attributes(value)]
    return callable(value) or is_filled_in_later(value) or any(may_have_mark(task, one) for one in nested)


def fill_in(task: BaseOperator, words: Mapping[str, str]) -> set[str]:
    """In all template fields; the marks that were there."""
    found: set[str] = set()

    def word(mark: re.Match[str]) -> str:
        found.add(mark[1])
        return words[mark[1]]

    seen: set[int] = set()
    for field in task.template_fields:
        value = getattr(task, field, None)
        if value is not None:
            setattr(task, field, filled_in(value, word, seen))
    return found


def filled_in(value: Any, word: Callable[[re.Match[str]], str], seen: set[int]) -> Any:
    """A rendered value with words in the place of marks; what Airflow renders, and Kubernetes' own objects, in place.

    :param seen: ids of objects that are done.
    """
    if isinstance(value, str):
        return _MARK.sub(word, value)
    if isinstance(value, dict):
        return {key: filled_in(one, word, seen) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(filled_in(one, word, seen) for one in value))
    if isinstance(value, (list, tuple, set)):
        return type(value)(filled_in(one, word, seen) for one in value)
    if id(value) not in seen:
        seen.add(id(value))
        for name in attributes(value):
            found = getattr(value, name, None)
            if found is not None:
                setattr(value, name, filled_in(found, word, seen))
    return value


def copied(value: Any, done: dict[int, Any] | None = None) -> Any:
    """An argument for one operator alone, containers and what Airflow renders, however deep; else the very same.

    Operators write into what they are given, Databricks' the task's name as that of its run; and so does Airflow, when
    it renders.

    :param done: the copies by the ids of what they are copies of.
    """
    done = {} if done is None else done
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, tuple):
        of_items = [copied(one, done) for one in value]
        return type(value)(*of_items) if hasattr(value, "_fields") else type(value)(of_items)
    names = () if isinstance(value, (BaseOperator, type)) else attributes(value)
    if not names and not isinstance(value, (dict, list, set)):
        return value
    done[id(value)] = own = copy.copy(value)
    if isinstance(value, dict):
        own.update({key: copied(one, done) for key, one in value.items()})
    elif isinstance(value, list):
        own[:] = [copied(one, done) for one in value]
    for name in names:
        found = getattr(value, name, None)
        if found is not None:
            setattr(own, name, copied(found, done))
    return own


def attributes(value: Any) -> tuple[str, ...]:
    """Those of an object that Airflow renders, or that is Kubernetes' (an environment variable of a pod, a pod)."""
    for names in ("template_fields", "openapi_types"):
        found = getattr(type(value), names, None)
        if isinstance(found, (list, tuple, dict)):
            return tuple(found)
    return ()
