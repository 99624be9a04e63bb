"""Airflow where the Spark driver imports it: with a DAG file (:mod:`.dag_file`), or from a job of the author's.

There it is a library: it has no database, and no supervisor that it could ask for variables and connections.

- Airflow's supervisor puts a URL that no database has (``airflow-db-not-allowed:///``) into the environment of each
  task. What the task starts inherits it, and ``import airflow`` makes an engine of it and fails, which no author can
  mend.
- Without a supervisor ``Variable.get("x", default=1)`` answers 1, whatever Airflow has: the driver would load other
  data than the DAG says, in green. So it is refused. What environment variables and secrets backends have is found as
  in a task.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError

#: Airflow's own switch, for the interpreters that its operators start: ``import airflow`` then configures no database.
NO_DATABASE = "PYTHON_OPERATORS_VIRTUAL_ENV_MODE"
_AIRFLOW = "airflow"
_ASKED = "airflow_kafka_eos_asked"


def prepare_for_airflow(environ: MutableMapping[str, str]) -> None:
    """Let this process import Airflow as a library, whoever does; nothing is imported for those who do not.

    :param environ: this process's own.
    """
    environ.setdefault(NO_DATABASE, "1")
    if _AIRFLOW not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


@contextmanager
def questions_refused(job: str) -> Iterator[None]:
    """Say where the author's code has asked Airflow, and what to do in its place.

    :raises ConfigurationError: it has asked for what only Airflow's supervisor knows.
    """
    try:
        yield
    except (PermissionError, _Refused) as e:
        asked = getattr(e, _ASKED, None)
        if asked is None:
            raise
        what, remedy = asked
        raise ConfigurationError(
            f"{_place(e) or job} asks Airflow for {what} where the Spark driver runs it, which has no way to Airflow",
            remedy=remedy,
        ) from e


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``airflow`` once, as it would be found, and gives it nobody to ask as soon as it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _AIRFLOW:
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(fullname)
        if found is not None and found.loader is not None:
            run: Any = found.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _give_nobody_to_ask()

            found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found


def _give_nobody_to_ask() -> None:
    with suppress(ImportError):  # an Airflow that asks in another way
        from airflow.sdk.execution_time import task_runner

        task_runner.SUPERVISOR_COMMS = _Nobody()  # type: ignore[assignment]


class _Refused(BaseException):
    """For Airflow 3.1, which has no refusal that it keeps to: it takes each Exception for a backend that is down, and
    the default for the answer.
    """


class _Nobody:
    """In the place of the channel to a task's supervisor. Airflow keeps to a refusal, and takes no default then."""

    def send(self, msg: Any) -> None:
        denied: type[BaseException] = _Refused
        with suppress(ImportError):
            from airflow.sdk.exceptions import AirflowSecretsBackendAccessDenied as denied

        kind = type(msg).__name__
        if kind == "MaskSecret":  # no question
            return
        asked = _question(kind, msg)
        refusal = denied(f"there is no way to Airflow from here: {asked[0]}")
        setattr(refusal, _ASKED, asked)
        raise refusal

    async def asend(self, msg: Any) -> None:
        self.send(msg)


def _question(kind: str, msg: Any) -> tuple[str, str]:
    """What is asked for, and what to do in its place."""
    if kind == "GetVariable":
        return (
            f"the variable {msg.key!r}",
            f"Pass it to the function where the DAG calls it, as a template: '{{{{ var.value.{msg.key} }}}}' (it shows "
            "in Spark's UI); code outside of functions must not ask for it, neither with a default. Environment "
            "variables AIRFLOW_VAR_… of the driver are found",
        )
    if kind == "GetConnection":
        return (
            f"the connection {msg.conn_id!r}",
            "Connections are not handed to Spark: use the id alone outside of functions, and let the function find its "
            "logins where the driver runs (an environment variable AIRFLOW_CONN_…, a secrets backend, Spark's own "
            "settings)",
        )
    return kind, "Ask in a task of its own, and pass what it returns to the function where the DAG calls it"


def _place(error: BaseException) -> str | None:
    """The author's line that led to the error: the last one that is neither Airflow's nor ours."""
    packages = [Path(__file__).parents[1], *getattr(sys.modules.get(_AIRFLOW), "__path__", [])]
    inside = tuple(f"{package}{os.sep}" for package in packages)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*inside, "<")):
            return f"{frame.filename}, line {frame.lineno},"
    return None
