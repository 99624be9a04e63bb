"""The author's function in a DAG file: how the Spark driver comes to it (``@exactly_once_load``).

As Airflow's own workers do it: the file is run again, and the DAG's load is looked up by its ids. So closures, loops
and the file's own factories give the driver the very function that they gave Airflow; nothing is pickled on its way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError

#: The job of such a load, as ``module:function``.
JOB = f"{__name__}:load"
#: Airflow's own: a file that makes many DAGs may make this one only (``airflow.sdk.get_parsing_context``).
_PARSING_DAG, _PARSING_TASK = "_AIRFLOW_PARSING_CONTEXT_DAG_ID", "_AIRFLOW_PARSING_CONTEXT_TASK_ID"

_functions: dict[tuple[str, str], Callable[..., Any]] = {}


def remember(dag_id: str, group_id: str, function: Callable[..., Any]) -> None:
    """Keep the function of a load, for whoever runs the DAG file."""
    _functions[dag_id, group_id] = function


def job_args(
    file: str, dag_id: str, group_id: str, arguments: Mapping[str, Any], path: Sequence[str]
) -> dict[str, Any]:
    """What :func:`load` wants: where the DAG file is on this host, and the author's own arguments."""
    return {
        "file": file,
        "dag_id": dag_id,
        "group_id": group_id,
        "arguments": dict(arguments),
        "path": list(path),
    }


def shown_job(job: str | None, arguments: Mapping[str, Any]) -> str:
    """A job for people: of a DAG file's own its file and function, which the author knows, as ``file.py:function``.

    :param arguments: of the job. Before the file is run here, its function goes by the name of its load.
    """
    if job != JOB:
        return job or ""
    function = _functions.get((arguments["dag_id"], arguments["group_id"]))
    return f"{arguments['file']}:{getattr(function, '__name__', arguments['group_id'])}"


def function_here(job_args: Mapping[str, Any]) -> Callable[..., Any]:
    """The function of a load in prepare's own process, which has run the DAG file to come to its task.

    :param job_args: as :func:`job_args` makes them.
    :raises ConfigurationError: the file has made no such load this time.
    """
    function = _functions.get((job_args["dag_id"], job_args["group_id"]))
    if function is None:
        raise ConfigurationError(
            f"the DAG file {job_args['file']} has no load {job_args['group_id']!r} of DAG {job_args['dag_id']!r} when "
            "prepare's worker reads it",
            remedy="The file must define the same loads wherever it is read, and not by the host, the time or a random "
            "number",
        )
    return function


def load(
    spark: Any,
    file: str,
    dag_id: str,
    group_id: str,
    arguments: Mapping[str, Any],
    path: Sequence[str],
    **of_cursor: Any,
) -> Any:
    """Run the DAG file, and call the function of one load as ``function(spark, **arguments)``.

    :param of_cursor: ``since`` and ``until`` of a load with a cursor; the function gets them too.
    :param path: folders of the worker's ``sys.path`` that the file is in: a DAG bundle's root, the DAGs folder.
    :returns: what the function returns; a DataFrame if it is right.
    :raises ConfigurationError: there is no such file here, no Airflow, or no such load in the file.
    """
    return _find(file, dag_id, group_id, path)(spark, **arguments, **of_cursor)


def _find(file: str, dag_id: str, group_id: str, path: Sequence[str]) -> Callable[..., Any]:
    from airflow_kafka_eos.spark.find_job import by_value, load_file

    sys.path[:0] = [folder for folder in path if folder not in sys.path]
    os.environ |= {_PARSING_DAG: dag_id, _PARSING_TASK: f"{group_id}.prepare"}
    try:
        load_file(Path(file), file, by_value)
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] != "airflow":
            raise
        raise ConfigurationError(
            f"the DAG file {file} cannot be read where the Spark driver runs: there is no Airflow",
            remedy="Use deploy mode client, where the driver runs beside the Airflow task; or put the function into a "
            "file without DAG, and name it with job='file.py:function'",
        ) from e
    finally:
        del os.environ[_PARSING_DAG], os.environ[_PARSING_TASK]
    if (dag_id, group_id) not in _functions:
        found = ", ".join(f"{group} of DAG {dag}" for dag, group in sorted(_functions)) or "none"
        raise ConfigurationError(
            f"the DAG file {file} has no load {group_id!r} of DAG {dag_id!r} when the Spark driver reads it "
            f"(it has: {found})",
            remedy="Call DAG(...) in the DAG file itself, not in a factory of another module: the driver runs the "
            "file in which it is called. The file must define the same loads wherever it is read, and not by the "
            "host, the time or a random number",
        )
    return _functions[dag_id, group_id]
