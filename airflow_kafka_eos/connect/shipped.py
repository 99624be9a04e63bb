"""What travels to a Spark Connect server by value: a function that looks at the package there before it uses it.

Nothing of pyspark's client comes along: executors need neither gRPC nor ``pyspark.sql.connect``, and a server that was
installed for JVM clients has no gRPC. What is wrong with the package is said in a text that the client knows again
(:mod:`airflow_kafka_eos.spark.errortext`), for an executor without the package has no class for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

Batches = Iterator[Any]
_PACKAGE = "airflow_kafka_eos"


def own_version() -> str:
    """This package's, on this side."""
    # by its name: the package's own names lead to everything that it has
    return str(importlib.import_module(_PACKAGE).__version__)


def shipped(function: str, work: bytes) -> Callable[[Batches], Batches]:
    """A function for ``mapInArrow``: calls one of this package's on the executor, where it is of this side's version.

    What travels beside is pickled by classes of that, so that none but the same will do.

    :param function: ``module:name``; called as ``name(work, batches)``.
    :param work: pickled; not looked at before the version was.
    """

    version = own_version()

    # all that it uses is imported inside: it runs where nothing of ours may be. Spark's plans show its name
    def kafka_eos(batches: Batches) -> Batches:
        import importlib
        import socket
        import sys

        where = f"the Python of the server's executors ({sys.executable} on {socket.gethostname()})"
        said = "airflow_kafka_eos.errors.ConfigurationError: "
        remedy = (
            f"pip install airflow-kafka-eos=={version} there (docs/spark-connect.md), and restart the server"
        )
        try:
            package = importlib.import_module("airflow_kafka_eos")
        except ImportError as e:
            raise RuntimeError(f"{said}{where} has no airflow_kafka_eos ({e}). {remedy}.") from None
        there = getattr(package, "__version__", "unknown")
        if there != version:
            raise RuntimeError(
                f"{said}{where} has airflow-kafka-eos {there}, Airflow's worker has {version}. {remedy}."
            )
        module, _, name = function.partition(":")
        try:
            run = getattr(importlib.import_module(module), name)
        except ImportError as e:
            raise RuntimeError(
                f"{said}{where} cannot import {module}: {e}. pip install airflow-kafka-eos=={version} there, with what "
                "it requires (docs/spark-connect.md), and restart the server."
            ) from None
        yield from run(work, batches)

    return kafka_eos
