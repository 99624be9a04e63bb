"""Why an application failed: our own error, found again in what Spark makes of it, or the cause of any other.

Spark turns an exception of a Python data source into text inside a Java exception, with a long stack of both. Airflow
keeps the last 20 lines of what spark-submit prints, which are frames of that stack, and in cluster mode nothing of it
(YARN, Kubernetes). So what is found is printed last, and left beside the attempt's claim, too.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from airflow_kafka_eos import errors
from airflow_kafka_eos.kafka.client.settings import is_secret_name, json_object
from airflow_kafka_eos.reasons import noted
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE, SETTINGS_VARIABLE, handed_over
from airflow_kafka_eos.spark.formats.settings import REGISTRY_VARIABLE
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.spec import ApplicationSpec

_PRINTED = re.compile(r"^(\w+): (.+)$", re.MULTILINE)
#: What is imported before a task can look itself (:mod:`.python_env`).
_NOT_THERE = re.compile(r"ModuleNotFoundError: No module named '(airflow_kafka_eos|kafka|xxhash|numpy|pyarrow)[.']")
_OURS = re.compile(r"airflow_kafka_eos\.errors\.(\w+): (.+)")
_TRACEBACK = "Traceback (most recent call last):"
_CAUSED_BY = "Caused by: "
#: How the application prints the lines of an error that is not ours.
FAILED = "airflow-kafka-eos: failed: "
#: How a claimant's name begins that is this process; a second driver has nothing to say of the first one's attempt.
THIS_PROCESS = f"{socket.gethostname()} process {os.getpid()}, "
_MAX_LINES = 6
_MAX_LENGTH = 500


def own_error(exception: BaseException, install: str = "") -> str | None:
    """``"<class>: <message>"`` of our error, from the exception itself or from its text; None when it has none.

    With several (one of each failed task), the last terminal one: a retried task ends with it.

    :param install: what to do where executors lack a package; empty: as with spark-submit.
    """
    if isinstance(exception, errors.KafkaEosError):
        return f"{type(exception).__name__}: {exception}"
    found = [(name, text.strip()) for name, text in _OURS.findall(_text(exception)) if name in errors.__all__]
    terminal = [f for f in found if issubclass(getattr(errors, f[0]), errors.TerminalError)]
    if not found:
        # the executors have not even our errors
        missing = _NOT_THERE.search(_text(exception))
        return None if missing is None else f"{errors.ConfigurationError.__name__}: {_no_package(missing[1], install)}"
    return ": ".join((terminal or found)[-1])


def printed_error(text: str) -> tuple[type[errors.KafkaEosError], str] | None:
    """Class and message of our error that the packaged application printed on a line of its own; the last one."""
    found = [(name, message) for name, message in _PRINTED.findall(text) if name in errors.__all__]
    return (getattr(errors, found[-1][0]), found[-1][1].strip()) if found else None


def printed_cause(text: str) -> list[str]:
    """The lines of :func:`cause` that the packaged application printed."""
    return [line.partition(FAILED)[2].strip() for line in text.splitlines() if FAILED in line]


def cause(exception: BaseException) -> list[str]:
    """What an exception that is not ours comes from, in at most 6 lines of its own text. No I/O but ``str``.

    Its type and the first line of its message (py4j's second, too, where Java's begins), what Python code of the
    executors raised first and last, and the innermost of Java's causes. A line above 500 characters is cut between two
    words: Airflow masks a secret only where it is whole.
    """
    lines = _text(exception).splitlines()
    message = [line for line in lines if line.strip()]
    kind = type(exception)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    name = module + kind.__qualname__
    found = [f"{name}: {message[0].strip()}" if message else name]
    found += [line[2:] for line in message[1:2] if line.startswith(": ")]
    raised = _raised(lines)
    found += raised[:1] + raised[1:][-1:]
    causes = [line for line in lines if line.startswith(_CAUSED_BY) and not line.rstrip().endswith(_TRACEBACK)]
    innermost = list(dict.fromkeys(reversed(causes)))[: _MAX_LINES - len(found)]
    found += reversed(innermost)
    return [_cut(line.strip()) for line in found]


def gist(lines: list[str]) -> str:
    """The most telling of :func:`cause`'s lines: what Python code of the executors raised last, where it did; else the
    error itself, by Java's word where it is Java's, and the innermost of its causes. No I/O.
    """
    causes = [line for line in lines[1:] if line.startswith(_CAUSED_BY)]
    java = [line.removeprefix(": ") for line in lines[1:] if line.startswith(": ")]
    raised = [line for line in lines[1:] if not line.startswith((_CAUSED_BY, ": "))]
    if raised:
        return raised[-1]
    return " ".join([*(java or lines[:1]), *causes[-1:]])


def _raised(lines: list[str]) -> list[str]:
    """The line behind the frames of each Python traceback, each once."""
    found: dict[str, None] = {}
    inside = False
    for line in lines:
        if line.rstrip().endswith(_TRACEBACK):
            inside = True
        elif inside and not line.startswith(" "):
            inside = False
            if line.strip() and not line.startswith("\t"):  # Java's frames: the traceback was cut
                found[line] = None
    return list(found)


def _cut(line: str) -> str:
    if len(line) <= _MAX_LENGTH:
        return line
    return line[: _MAX_LENGTH - 1].rpartition(" ")[0] + " …"


def _text(exception: BaseException) -> str:
    try:
        return str(exception)
    except Exception:  # py4j asks the JVM for it, which may be gone
        return ""


def _no_package(name: str, install: str) -> errors.ConfigurationError:
    remedy = f"pip install {name} on every executor, and where the driver runs (docs/spark.md)"
    if name in ("airflow_kafka_eos", "kafka"):
        remedy = (
            "Write an archive with airflow-kafka-eos spark-archive OUT.zip and ship it with "
            "spark_args={'py_files': 'OUT.zip'}, or install airflow-kafka-eos there"
        )
    return errors.ConfigurationError(
        f"the Python of Spark's executors (spark.pyspark.python) has no package {name}", remedy=install or remedy
    )


def leave(spec_text: str, text: str, environ: Mapping[str, str]) -> None:
    """Leave a text without secrets, where this process has claimed the attempt.

    :param text: as the application prints it, for it is read in the same way.
    :raises Exception: whatever the place raises: it is tried once, behind the error itself.
    """
    spec = ApplicationSpec.from_json(spec_text)
    store = ManifestStore(spec.options.manifest_dir)
    if not (store.claimant(spec.options.attempt) or "").startswith(THIS_PROCESS):
        return
    store.note_failed(spec.options.attempt, noted(text, secrets_of(environ)))


def secrets_of(environ: Mapping[str, str]) -> list[str]:
    """What the driver was handed over that nobody may read in its log; a job's own error may have it in its message."""
    found = [
        str(value)
        for variable in (SETTINGS_VARIABLE, REGISTRY_VARIABLE)
        for key, value in (json_object(handed_over(environ, variable) or "") or {}).items()
        if is_secret_name(key)
    ]
    password = urlsplit((handed_over(environ, LEDGER_VARIABLE) or "").strip()).password
    return found if not password else [*found, password, unquote(password)]
