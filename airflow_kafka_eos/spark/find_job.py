"""The author's job by its name: a function of a file or of a module, where the job runs."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.spec import DEFAULT_FUNCTION

#: Where a job is looked for by default.
DRIVER = "where the Spark driver runs"
#: The name that a job file has as a module.
_FILE_MODULE = "airflow_kafka_eos_job"


def find_job(
    job: str, *, loaded: Callable[[ModuleType], object] = lambda module: None, where: str = DRIVER
) -> Callable[..., Any]:
    """The function that ``file.py``, ``file.py:function`` or ``module:function`` names.

    :param loaded: is told of the module of a file before the file is run.
    :param where: the job is looked for, for people.
    :raises ConfigurationError: there is no such file, module or function.
    """
    place, _, name = job.rpartition(":") if not job.endswith(".py") else (job, "", "")
    name = name or DEFAULT_FUNCTION
    if not place:
        raise _not_found(job, "it names neither a Python file nor module:function", where)
    module = load_file(Path(place), job, loaded, where) if place.endswith(".py") else _import(place, job, where)
    function = getattr(module, name, None)
    if not callable(function):
        raise _not_found(job, f"{place} has no function {name!r}", where)
    return function  # type: ignore[no-any-return]


def load_file(
    path: Path, job: str, loaded: Callable[[ModuleType], object] = lambda module: None, where: str = DRIVER
) -> ModuleType:
    """See :func:`find_job`."""
    if not path.is_file():
        raise _not_found(job, f"there is no file {path.absolute()} {where}", where)
    spec = importlib.util.spec_from_file_location(_FILE_MODULE, path, loader=_AsItStands(_FILE_MODULE, str(path)))
    if spec is None or spec.loader is None:
        raise _not_found(job, f"{path} cannot be loaded", where)
    module = importlib.util.module_from_spec(spec)
    sys.modules[_FILE_MODULE] = module  # dataclasses look their module up by name
    loaded(module)
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


class _AsItStands(SourceFileLoader):
    """Compiles a file each time it is loaded, and keeps nothing beside it.

    Python takes what it once compiled for the same file if size and second of the last change are the same. A file that
    was mended in that second, or that is deployed with its old time, would be run as it was before.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def by_value(module: ModuleType) -> None:
    """Executors cannot import a job's file, so what is in it travels by value."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _import(name: str, job: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name is not None and (name == e.name or name.startswith(f"{e.name}.")):
            raise _not_found(job, f"there is no module {name} {where}", where) from e
        raise  # an import inside the author's module: his error


def _not_found(job: str, problem: str, where: str) -> ConfigurationError:
    ship = "ship files of yours with files or py_files" if where == DRIVER else "name a file by its absolute path"
    return ConfigurationError(
        f"the job {job!r} cannot be found: {problem}",
        remedy=f"Use file.py, file.py:function or module:function; {ship}",
    )
