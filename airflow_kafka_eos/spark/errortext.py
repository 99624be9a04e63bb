"""Our own error, found again in what Spark makes of it.

Spark turns an exception of a Python data source into text inside a Java exception, with a long stack of both.
"""

from __future__ import annotations

import re

from airflow_kafka_eos import errors

_PRINTED = re.compile(r"^(\w+): (.+)$", re.MULTILINE)
_OURS = re.compile(r"airflow_kafka_eos\.errors\.(\w+): (.+)")


def own_error(exception: BaseException) -> str | None:
    """``"<class>: <message>"`` of our error, from the exception itself or from its text; None when it has none.

    With several (one of each failed task), the last terminal one: a retried task ends with it.
    """
    if isinstance(exception, errors.KafkaEosError):
        return f"{type(exception).__name__}: {exception}"
    found = [(name, text.strip()) for name, text in _OURS.findall(str(exception)) if name in errors.__all__]
    terminal = [f for f in found if issubclass(getattr(errors, f[0]), errors.TerminalError)]
    if not found:
        return None
    return ": ".join((terminal or found)[-1])


def printed_error(text: str) -> tuple[type[errors.KafkaEosError], str] | None:
    """Class and message of our error that the packaged application printed on a line of its own; the last one."""
    found = [(name, message) for name, message in _PRINTED.findall(text) if name in errors.__all__]
    return (getattr(errors, found[-1][0]), found[-1][1].strip()) if found else None
