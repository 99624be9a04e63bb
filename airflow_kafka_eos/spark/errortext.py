"""Our own error, found again in what Spark makes of it.

Spark turns an exception of a Python data source into text inside a Java exception, with a long stack of both.
"""

from __future__ import annotations

import re

from airflow_kafka_eos import errors

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
