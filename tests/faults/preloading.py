"""Import, once and before any fork, what parties would else import on their way: it is most of a small task's time."""

from __future__ import annotations

import encodings.idna  # noqa: F401  of every connection's host name
import importlib
import pkgutil

import pandas  # noqa: F401  pyarrow looks for it at its first array
import pyarrow as pa
import pyarrow.compute

from airflow_kafka_eos import kafka, ledger, protocol, spark

#: what only a JVM's Python worker can import, or what nobody here uses
_NOT_HERE = ("spark.formats", "spark.scope", "migrations")


def preload() -> None:
    """No connection is made and no thread is started: forks would share them."""
    for package in (kafka, ledger, protocol, spark):
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not any(part in found.name for part in _NOT_HERE):
                importlib.import_module(found.name)
    pa.array(["pyarrow's own first array"])
