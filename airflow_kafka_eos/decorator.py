"""@exactly_once_load: a function that returns a DataFrame becomes a load."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any, Never, Unpack

from airflow_kafka_eos.arguments import check_json
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import Engine
from airflow_kafka_eos.operators.own_submitter import put_before
from airflow_kafka_eos.signatures import DecoratorArguments, OverridingArguments, check_names
from airflow_kafka_eos.spark.dag_file import JOB, job_args, remember
from airflow_kafka_eos.task_group import ExactlyOnceLoad


class DecoratedLoad:
    """A decorated function. Called inside of a DAG, it makes the task group; Spark calls the function itself.

    :ivar function: the function as it was written, for tests of its own: ``load_orders.function(spark, day="…")``.
    """

    def __init__(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        if not inspect.isfunction(function) or function.__name__ == "<lambda>":
            raise ConfigurationError(
                f"@exactly_once_load cannot decorate {function!r}",
                remedy="Write it above a `def` that takes the Spark session, and give it at least topics: "
                "@exactly_once_load(topics=['orders'])",
            )
        for taken in ("job", "sql", "job_args"):
            if taken in arguments:
                raise ConfigurationError(
                    f"{taken}={arguments[taken]!r} cannot be set on @exactly_once_load: the function is the job",
                    remedy="Pass its arguments where you call it in the DAG",
                )
        check_names(arguments, "@exactly_once_load")
        self.function = function
        self._arguments = dict(arguments)
        update_wrapper(self, function)

    def __call__(self, **job_arguments: Any) -> ExactlyOnceLoad:
        """Make the task group.

        :param job_arguments: what the function gets beside the Spark session: JSON values, no secrets. (templated)
        :raises ConfigurationError: the function does not take them.
        """
        session = () if self._arguments.get("engine") == Engine.ARROW else (None,)
        of_cursor = {} if self._arguments.get("cursor") is None else {"since": None, "until": None}
        if taken := sorted(of_cursor.keys() & job_arguments.keys()):
            raise ConfigurationError(
                f"{self.function.__name__}() is given {taken[0]}, which comes of its cursor",
                remedy=f"Leave it out; or give Cursor(since=…, until=…) for a range by name, not {taken[0]} here",
            )
        try:
            inspect.signature(self.function).bind(*session, **job_arguments, **of_cursor)
        except TypeError as e:
            raise ConfigurationError(
                f"{self.function.__name__}() is called with {sorted([*job_arguments, *of_cursor])}: {e}",
                remedy="Let its first parameter be the Spark session, which you do not pass, and name all others"
                if session
                else "Name all of its parameters, and let it have none for a Spark session: with engine='arrow' there "
                "is none",
            ) from None
        check_json(job_arguments, argument=f"{self.function.__name__}()")
        group = ExactlyOnceLoad(**{"group_id": self.function.__name__} | self._arguments | {"job": JOB})
        dag, file = group.dag, os.path.abspath(group.dag.fileloc)
        group_id = str(group.group_id)
        remember(dag.dag_id, group_id, self.function)
        roots = [os.path.abspath(p) for p in sys.path if p and file.startswith(os.path.abspath(p) + os.sep)]
        group.prepare.job_args = job_args(file, dag.dag_id, group_id, job_arguments, roots)
        if group.submit is not None:  # also behind what these arguments come from
            put_before(group.submit, group.prepare)
        return group

    def override(self, **arguments: Unpack[OverridingArguments]) -> DecoratedLoad:
        """The same function with other arguments of ExactlyOnceLoad: another ``group_id`` for a second call, say.

        What is given takes the place of what was there, ``checks`` and ``transactions`` whole: for one field more of
        theirs, :func:`dataclasses.replace` makes a copy.
        """
        return DecoratedLoad(self.function, self._arguments | arguments)


def exactly_once_load(
    *function: Never, **arguments: Unpack[DecoratorArguments]
) -> Callable[[Callable[..., Any]], DecoratedLoad]:
    """Turn a function that returns a DataFrame into an exactly-once load.

    ::

        DAILY = CronDataIntervalTimetable("@daily", timezone="UTC")  # a run is of a day that is over
        DAY = "{{ data_interval_start | ds }}"

        @exactly_once_load(topics=["orders"], load_key=DAY)
        def load_orders(spark, day):
            return spark.read.parquet(f"/data/orders/{day}").selectExpr("id AS key", "to_json(struct(*)) AS value")

        with DAG("orders", schedule=DAILY, start_date=datetime(2026, 1, 1), catchup=True):
            load_orders(day=DAY)

    The function runs in the Spark driver, which runs the DAG file again to come to it, as Airflow's workers do
    (docs/adr/0017): it may use what its file defines and imports, and the variables around it. It has no Airflow
    context and no connections; what it needs of the run it is called with. The file's code outside of functions runs
    in the driver too: what asks Airflow for variables or connections there is refused when prepare runs. What
    executors call (UDFs) travels by value; own modules that they import are shipped with
    ``spark_args={"py_files": …}``.

    With ``engine="arrow"`` it runs in Airflow's worker, as prepare's own code, without a Spark session, and returns a
    stream of Arrow record batches (docs/arrow-engine.md)::

        @exactly_once_load(topics=["orders"], load_key=DAY, engine="arrow")
        def load_orders(day):
            return pyarrow.dataset.dataset(f"/data/orders/{day}")

    :param arguments: those of :class:`~airflow_kafka_eos.task_group.ExactlyOnceLoad` but ``job``, ``sql`` and
        ``job_args``; ``group_id`` is the function's name, if none is given.
    :raises ConfigurationError: what is decorated is no function, or an argument cannot be set.
    """

    if function:
        raise ConfigurationError(
            f"@exactly_once_load is written without arguments above {function[0]!r}",
            remedy="Give it at least topics: @exactly_once_load(topics=['orders'])",
        )

    def decorate(function: Callable[..., Any]) -> DecoratedLoad:
        return DecoratedLoad(function, arguments)

    return decorate
