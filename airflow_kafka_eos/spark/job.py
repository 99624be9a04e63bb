"""The author's job: found, called, and its answer checked."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.airflow_here import questions_refused
from airflow_kafka_eos.spark.spec import DEFAULT_FUNCTION, ApplicationSpec

#: The name that a job file has as a module.
_FILE_MODULE = "airflow_kafka_eos_job"


def run_job(spec: ApplicationSpec, spark: SparkSession) -> DataFrame:
    """Run the job or the SQL text. What the author's code raises passes through.

    :raises ConfigurationError: the job is not found, asks Airflow for something, or did not return a DataFrame.
    """
    if spec.sql is not None:
        return spark.sql(spec.sql, args=dict(spec.job_args)) if spec.job_args else spark.sql(spec.sql)
    job = spec.job or ""
    with questions_refused(f"the job {job}"):
        found = find_job(job)(spark, **spec.job_args)
    if not isinstance(found, DataFrame):
        raise ConfigurationError(
            f"the job {job} returned {'nothing' if found is None else type(found).__name__}, not a Spark DataFrame",
            remedy="Return the DataFrame that is to be loaded; the application writes it",
        )
    return found


def find_job(job: str) -> Callable[..., Any]:
    """The function that ``file.py``, ``file.py:function`` or ``module:function`` names.

    :raises ConfigurationError: there is no such file, module or function.
    """
    place, _, name = job.rpartition(":") if not job.endswith(".py") else (job, "", "")
    name = name or DEFAULT_FUNCTION
    if not place:
        raise _not_found(job, "it names neither a Python file nor module:function")
    module = load_file(Path(place), job) if place.endswith(".py") else _import(place, job)
    function = getattr(module, name, None)
    if not callable(function):
        raise _not_found(job, f"{place} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def load_file(path: Path, job: str) -> ModuleType:
    if not path.is_file():
        raise _not_found(job, f"there is no file {path} where the Spark driver runs")
    spec = importlib.util.spec_from_file_location(_FILE_MODULE, path)
    if spec is None or spec.loader is None:
        raise _not_found(job, f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name; executors cannot, so what is in it travels by value
    sys.modules[_FILE_MODULE] = module
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def _import(name: str, job: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name is not None and (name == e.name or name.startswith(f"{e.name}.")):
            raise _not_found(job, f"there is no module {name} where the Spark driver runs") from e
        raise  # an import inside the author's module: his error


def _not_found(job: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"the job {job!r} cannot be found: {problem}",
        remedy="Use file.py, file.py:function or module:function; ship files of yours with files or py_files",
    )
