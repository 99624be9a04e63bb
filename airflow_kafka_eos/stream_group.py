"""ExactlyOnceStream: the task group of a streaming query that runs with ``availableNow``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import TaskGroup

from airflow_kafka_eos.arguments import Duration, check_assets, check_mapping, check_text
from airflow_kafka_eos.errors import ConfigurationError, nearest
from airflow_kafka_eos.operators.stream import CleanupStreamOperator, RunStreamOperator
from airflow_kafka_eos.operators.stream_loaded import StreamLoadedSensor
from airflow_kafka_eos.signatures import GroupArguments, check_spark_args

if TYPE_CHECKING:
    from airflow.sdk import XComArg

    from airflow_kafka_eos.load import NamingText, TwoPhaseCommitText, WriterText

#: What no default_args may change: what is promised stands on it.
_ONE_AT_A_TIME = 1


class ExactlyOnceStream(TaskGroup):
    """Runs a streaming query with ``availableNow`` to its end: each of its batches is a load.

    ::

        with DAG("orders", schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False):
            ExactlyOnceStream("orders", job="jobs/orders.py", topics=["orders"], checkpoint="/checkpoints/orders")

    ::

        run >> cleanup (teardown)
        run >> loaded (leaf, carries the outlets)

    Each run takes what the query's sources have then, whatever its date: the checkpoint says where it goes on. So a
    backfill loads what there is by its first run, and the others find nothing (docs/streams.md).

    :param group_id: the group's id; part of the default name of the query.
    :param job: ``file.py``, ``file.py:function`` or ``package.module:function`` (function ``load`` when none is given),
        called as ``function(spark, **job_args)``, returns a streaming DataFrame: ``spark.readStream…``. (templated)
    :param topics: the topics it may write to; with one, the DataFrame needs no ``topic`` column. (templated)
    :param checkpoint: the folder of the query, the same in each run: an absolute path that all workers mount, or a URL.
        (templated)
    :param job_args: keyword arguments for the job; JSON values, no secrets: they show in Spark's UI. (templated)
    :param load_name: the query's name; default ``<dag id>.<group id>``. The ledger binds it to the checkpoint.
        (templated)
    :param namespace: as of :class:`~airflow_kafka_eos.task_group.ExactlyOnceLoad`, as are the connections,
        ``deferrable``, ``outlets``, ``asset_events`` and ``asset_server``. (section, templated)
    :param kafka_conn_id: connection of the Kafka provider's type ``kafka``. (section, templated)
    :param ledger_conn_id: connection of the ledger's database. The driver gets its URL. (section, templated)
    :param spark_conn_id: Spark connection, deploy mode ``client``; default ``spark_default``.
    :param hold_time: from a batch's first record to its decision. (section)
    :param batch_timeout: from a batch's begin to the first record of its last task; default ``hold_time``, and never
        less.
    :param commit_timeout: for so long a batch's commit is waited for; default 120 s.
    :param two_phase_commit: as of :class:`~airflow_kafka_eos.argument_groups.Transactions`, as is ``writer``. (section)
    :param writer: ``auto``, ``arrow`` or ``confluent``.
    :param transaction_naming: ``pooling``, the default, or ``incrementing``.
    :param replay: ``check``, the default: a decided batch that comes again must have as many rows; or ``trust``.
    :param quiet_period: as of :class:`~airflow_kafka_eos.argument_groups.Transactions`. (section)
    :param deferrable: let loaded wait in the triggerer. (section)
    :param outlets: further assets that new batches update.
    :param asset_events: new batches update the assets ``kafka://<asset_server>/<topic>`` too. False: ``outlets`` alone.
    :param asset_server: one ``host:port`` or a name of the cluster; None: the connection's first bootstrap server.
    :param spark_args: further keyword arguments of SparkSubmitOperator, and of the task run, such as ``conf``,
        ``driver_memory``, ``retries`` or ``execution_timeout``.
    :param arguments: and keyword arguments of TaskGroup, such as ``tooltip`` or ``default_args``.
    """

    def __init__(
        self,
        group_id: str,
        *,
        job: str | XComArg,
        topics: Sequence[str] | XComArg,
        checkpoint: str,
        job_args: Mapping[str, Any] | XComArg | None = None,
        load_name: str | None = None,
        namespace: str | None = None,
        kafka_conn_id: str | None = None,
        ledger_conn_id: str | None = None,
        spark_conn_id: str = SparkSubmitHook.default_conn_name,
        hold_time: Duration | None = None,
        batch_timeout: Duration | None = None,
        commit_timeout: Duration = 120.0,
        two_phase_commit: TwoPhaseCommitText | None = None,
        writer: WriterText = "auto",
        transaction_naming: NamingText = "pooling",
        replay: str = "check",
        quiet_period: Duration | None = None,
        deferrable: bool | None = None,
        outlets: Sequence[Any] = (),
        asset_events: bool = True,
        asset_server: str | None = None,
        spark_args: Mapping[str, Any] | None = None,
        **arguments: Unpack[GroupArguments],
    ) -> None:
        _check_names(arguments)
        if spark_args is not None:
            check_mapping("spark_args", spark_args)
            _check_spark_args(spark_args)
        check_mapping("default_args", arguments.get("default_args", {}))
        check_assets("outlets", outlets)
        check_text("spark_conn_id", spark_conn_id, required=True)
        super().__init__(group_id=group_id, **dict[str, Any](arguments))
        if self.dag.dagrun_timeout is not None:
            warnings.warn(
                f"DAG {self.dag.dag_id} has a dagrun_timeout: when it passes, Airflow skips all tasks, cleanup too: "
                "what a batch has open stays open until its hold_time, or until the next run; better set "
                "execution_timeout by spark_args",
                stacklevel=2,
            )
        shared: dict[str, Any] = {
            "load_name": load_name or f"{self.dag.dag_id}.{self.group_id}",
            "namespace": namespace,
            "kafka_conn_id": kafka_conn_id,
            "ledger_conn_id": ledger_conn_id,
        }
        with self:
            self.run = RunStreamOperator(
                task_id="run",
                job=job,
                topics=topics,
                checkpoint=checkpoint,
                job_args=job_args,
                conn_id=spark_conn_id,
                hold_time=hold_time,
                batch_timeout=batch_timeout,
                commit_timeout=commit_timeout,
                two_phase_commit=two_phase_commit,
                writer=writer,
                transaction_naming=transaction_naming,
                replay=replay,
                outlets=[],
                # runs of one query go one behind the other, and those that wait take no worker's slot
                max_active_tis_per_dag=_ONE_AT_A_TIME,
                **shared,
                **(spark_args or {}),
            )
            self.cleanup = CleanupStreamOperator(
                task_id="cleanup", outlets=[], quiet_period=quiet_period, timeout=3600.0, **shared
            )
            self.loaded = StreamLoadedSensor(
                task_id="loaded",
                topics=topics,
                outlets=list(outlets),
                asset_events=asset_events,
                asset_server=asset_server,
                deferrable=deferrable,
                trigger_rule="all_success",
                # of two that have waited for the same readers, the second sees what the first has told
                max_active_tis_per_dag=_ONE_AT_A_TIME,
                **shared,
            )
        self.run >> [self.cleanup, self.loaded]
        # a teardown runs too where somebody marks the whole run; without a setup, whatever became of run
        self.cleanup.as_teardown(on_failure_fail_dagrun=True)


def _check_names(given: Mapping[str, Any]) -> None:
    for name in given:
        if name not in GroupArguments.__annotations__:
            own = [n for n in ExactlyOnceStream.__init__.__annotations__ if n not in ("arguments", "return")]
            near = nearest(name, own)
            raise ConfigurationError(
                f"ExactlyOnceStream has no argument {name!r}",
                remedy=f"Did you mean {near}"
                if near
                else "Its docstring has all of them: help(ExactlyOnceStream); what is of SparkSubmitOperator, or of "
                "the task run, goes into spark_args={…}",
            )


def _check_spark_args(given: Mapping[str, Any]) -> None:
    taken = sorted(given.keys() & {"max_active_tis_per_dag", *ExactlyOnceStream.__init__.__annotations__})
    if taken:
        raise ConfigurationError(
            f"spark_args has {', '.join(taken)}, which run gets from the group",
            remedy="Give it to ExactlyOnceStream itself, where it has it; the Spark connection is spark_conn_id",
        )
    check_spark_args(given, of="ExactlyOnceStream")
