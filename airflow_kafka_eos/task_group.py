"""ExactlyOnceLoad: the task group that a DAG author writes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import TaskGroup

from airflow_kafka_eos.arguments import Duration, a_text, assets, duration, mapping
from airflow_kafka_eos.config import setting
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import (
    NamingText,
    OnCommitted,
    OnCommittedText,
    ScopeText,
    TwoPhaseCommitText,
    WriterText,
)
from airflow_kafka_eos.operators.base import DEFAULT_LOAD_KEY
from airflow_kafka_eos.operators.begin import BeginLoadOperator
from airflow_kafka_eos.operators.commit import CommitLoadOperator
from airflow_kafka_eos.operators.decide import DecideLoadOperator
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.sensors.cleanup import CleanupLoadSensor
from airflow_kafka_eos.sensors.loaded import LoadedSensor
from airflow_kafka_eos.signatures import (
    GroupArguments,
    PartialArguments,
    refuse_unknown,
    refuse_unknown_of_spark,
)
from airflow_kafka_eos.spark.formats.settings import FormatText, ValueFormatArguments

if TYPE_CHECKING:
    from airflow.sdk import XComArg

    from airflow_kafka_eos.mapped import MappedLoads


class ExactlyOnceLoad(TaskGroup):
    """Turns a Spark job into an exactly-once Kafka load.

    ::

        DAILY = CronDataIntervalTimetable("@daily", timezone="UTC")  # a run is of a day that is over
        DAY = "{{ data_interval_start | ds }}"

        with DAG("orders", schedule=DAILY, start_date=datetime(2026, 1, 1), catchup=True):
            ExactlyOnceLoad("load", job="jobs/orders.py", job_args={"day": DAY}, load_key=DAY, topics=["orders"])

    ::

        begin (setup) >> prepare >> decide >> commit >> cleanup (teardown)
                                              commit >> loaded (leaf, carries the outlets)

    The wiring is part of the guarantee: cleanup is the teardown of begin, so that failing, killing, marking or
    clearing any task brings it along; ``loaded`` is the leaf, so that a failed load never shows a successful run.
    ``default_args`` reach every task, but for what the wiring stands on.

    All of it is checked when the DAG is parsed; what is templated, again when it is rendered. A duration is a
    timedelta, or seconds. Where an argument's default is None, the option of that name in Airflow's section
    ``[kafka_eos]`` says it (:mod:`airflow_kafka_eos.config`).

    :param group_id: the group's id; part of the default load name.
    :param job: ``file.py``, ``file.py:function`` or ``package.module:function`` returning a DataFrame. (templated)
    :param sql: instead of a job, a Spark SQL query. (templated)
    :param job_args: keyword arguments for the job; JSON values, no secrets. (templated)
    :param topics: the topics it may write to; with one, the DataFrame needs no ``topic`` column.
    :param load_name: default ``<dag id>.<group id>``.
    :param load_key: what names one load of that name; best the template that tells the job what to read
        (docs/load-keys.md). Default: the run's partition key, else its logical date, else its run id. (templated)
    :param on_committed: with a load that is committed already: ``skip`` it, ``fail``, or ``reload`` it under a key of
        its own; see :class:`~airflow_kafka_eos.operators.begin.BeginLoadOperator`. (templated)
    :param item: in a mapped group, what tells this load from the others; put behind ``load_key``. See also
        :meth:`partial`. (templated)
    :param namespace: first part of every transactional id.
    :param kafka_conn_id: connection of the Kafka provider's type ``kafka``.
    :param ledger_conn_id: metadata DB; without, the embedded SQLite file.
    :param spark_conn_id: Spark connection.
    :param min_records: refuse a load with fewer records; 0 or None: one without any is committed, too, and takes its
        key.
    :param max_records: refuse a load with more records.
    :param check: callable on the manifest; False or a text refuses the load.
    :param dual_write_sql: SQL that decide runs in the database transaction that records the decision
        (docs/dual-write.md). Needs ``ledger_conn_id``; wants ``two_phase_commit="required"``. (templated)
    :param dual_write: the same as a callable on the SQLAlchemy connection and the manifest.
    :param decide_at_once: prepare decides the load as soon as all is prepared, in its own task: a DAG that is paused
        meanwhile then holds no reader back. Left out by itself where a task of yours stands before decide, such as a
        person's approval. False: only the task decide decides.
    :param hold_time: the time from a Spark task's first record until the load is decided, at most the broker's
        ``transaction.max.timeout.ms``; a task that writes longer than this fails. Two-phase commit has no such limit.
    :param margin: time that decide wants left of it.
    :param scope: ``task``: one Kafka transaction per Spark task; ``load``: one for the whole load, so that one request
        decides all of it. Then each Kafka partition is written by one Spark task, and a task that fails fails prepare.
    :param two_phase_commit: ``auto``: where the broker grants it (Kafka 4.1 or newer with
        ``transaction.two.phase.commit.enable``), no transaction ever times out, and ``hold_time`` does not count;
        ``required``: prepare fails where it is not granted; ``off``: never asked for.
    :param writer: ``arrow``, ``confluent`` (every authentication that librdkafka has, row by row), or ``auto``.
    :param transaction_naming: ``incrementing``: transactional ids are never used again, and brokers keep each for
        ``transactional.id.expiration.ms``; ``pooling``: later loads of the name use them again.
    :param max_transactional_ids: prepare warns near so many ids of the load's name at the brokers, and fails where it
        would add to them; None: no cap.
    :param max_transactional_ids_of_namespace: the same for all names of the namespace.
    :param value_format: ``raw``, ``string``, ``json``, ``confluent-avro`` or ``confluent-json``, or a mapping; see
        :class:`~airflow_kafka_eos.spark.formats.settings.ValueFormat`.
    :param registry_conn_id: connection of type ``http`` to the schema registry, for the formats ``confluent-*``.
    :param quiet_period: see :class:`~airflow_kafka_eos.sensors.cleanup.CleanupLoadSensor`.
    :param manifest_dir: a folder that workers and Spark drivers share. (templated)
    :param deferrable: let cleanup and loaded wait in the triggerer; None: as the deployment says, else yes.
    :param outlets: further assets that a visible load updates.
    :param asset_events: a visible load updates the assets ``kafka://<asset_server>/<topic>`` too (docs/assets.md).
    :param asset_server: one ``host:port`` or a name of the cluster; None: the connection's first bootstrap server.
    :param spark_args: further keyword arguments of SparkSubmitOperator, such as ``conf`` or ``driver_memory``.
    :param group_args: further keyword arguments of TaskGroup, such as ``tooltip`` or ``default_args``.
    """

    def __init__(
        self,
        group_id: str,
        *,
        topics: Sequence[str] | XComArg,
        job: str | XComArg | None = None,
        sql: str | XComArg | None = None,
        job_args: Mapping[str, Any] | XComArg | None = None,
        load_name: str | None = None,
        load_key: str = DEFAULT_LOAD_KEY,
        on_committed: OnCommittedText | str = "skip",
        item: Any = None,
        namespace: str | None = None,
        kafka_conn_id: str | None = None,
        ledger_conn_id: str | None = None,
        spark_conn_id: str = "spark_default",
        min_records: int | None = 1,
        max_records: int | None = None,
        check: Callable[..., Any] | None = None,
        dual_write_sql: Any = None,
        dual_write: Callable[[Any, Any], object] | None = None,
        decide_at_once: bool = True,
        hold_time: Duration | None = None,
        margin: Duration | None = None,
        quiet_period: Duration | None = None,
        scope: ScopeText = "task",
        two_phase_commit: TwoPhaseCommitText | None = None,
        writer: WriterText = "auto",
        transaction_naming: NamingText | None = None,
        max_transactional_ids: int | None = 10_000,
        max_transactional_ids_of_namespace: int | None = 100_000,
        value_format: FormatText | ValueFormatArguments = "raw",
        registry_conn_id: str | None = None,
        manifest_dir: str | None = None,
        deferrable: bool | None = None,
        outlets: Sequence[Any] = (),
        asset_events: bool = True,
        asset_server: str | None = None,
        spark_args: Mapping[str, Any] | None = None,
        **group_args: Unpack[GroupArguments],
    ) -> None:
        refuse_unknown(group_args, "ExactlyOnceLoad")
        if spark_args is not None:
            mapping("spark_args", spark_args)
            refuse_unknown_of_spark(spark_args)
        mapping("default_args", group_args.get("default_args", {}))
        assets("outlets", outlets)
        a_text("spark_conn_id", spark_conn_id, required=True)
        held = duration("hold_time", setting("hold_time", hold_time))
        left = duration("margin", setting("margin", margin), none_would="leave no time to record the decision")
        if left >= held:
            raise ConfigurationError(
                f"margin={left} does not fit hold_time={held}",
                remedy="Set hold_time to more than the margin; both are timedeltas, or seconds",
            )
        of_group: dict[str, Any] = {**group_args}
        super().__init__(group_id=group_id, **of_group)
        if self.dag.dagrun_timeout is not None:
            warnings.warn(
                f"DAG {self.dag.dag_id} has a dagrun_timeout: when it passes, Airflow skips all tasks, cleanup too: "
                "what is prepared stays open until its hold_time, with two-phase commit until begin or cleanup of this "
                "load runs again; better set execution_timeout on tasks",
                stacklevel=2,
            )
        load: dict[str, Any] = {
            "load_name": load_name or f"{self.dag.dag_id}.{self.group_id}",
            "load_key": load_key,
            "namespace": namespace,
            "kafka_conn_id": kafka_conn_id,
            "ledger_conn_id": ledger_conn_id,
        }
        # whatever default_args say: each step stands on the one before, and only loaded says that the load is there
        after: dict[str, Any] = load | {"trigger_rule": "all_success"}
        with self:
            self.begin = BeginLoadOperator(
                task_id="begin", on_committed=on_committed, item=item, topics=topics, outlets=[], **load
            )
            if item is not None or on_committed not in (OnCommitted.SKIP, OnCommitted.FAIL):
                # which key it is, begin finds out
                begun = f"ti.xcom_pull(task_ids='{self.begin.task_id}', map_indexes=ti.map_index)"
                chosen = {"load_key": f"{{{{ {begun}['load_key'] }}}}"}
                load, after = load | chosen, after | chosen
            silent = after | {"outlets": []}
            self.prepare = PrepareLoadOperator(
                task_id="prepare",
                job=job,
                sql=sql,
                job_args=job_args,
                topics=topics,
                hold_time=held,
                scope=scope,
                two_phase_commit=two_phase_commit,
                writer=writer,
                transaction_naming=transaction_naming,
                max_transactional_ids=max_transactional_ids,
                max_transactional_ids_of_namespace=max_transactional_ids_of_namespace,
                value_format=value_format,
                registry_conn_id=registry_conn_id,
                decide_at_once=decide_at_once,
                manifest_dir=manifest_dir,
                conn_id=spark_conn_id,
                **silent,
                **(spark_args or {}),
            )
            self.decide = DecideLoadOperator(
                task_id="decide",
                min_records=min_records,
                max_records=max_records,
                check=check,
                dual_write_sql=dual_write_sql,
                dual_write=dual_write,
                margin=left,
                manifest_dir=manifest_dir,
                **silent,
            )
            self.commit = CommitLoadOperator(task_id="commit", **silent)
            self.cleanup = CleanupLoadSensor(
                task_id="cleanup", quiet_period=quiet_period, deferrable=deferrable, outlets=[], **load
            )
            self.loaded = LoadedSensor(
                task_id="loaded",
                deferrable=deferrable,
                topics=topics,
                outlets=list(outlets),
                asset_events=asset_events,
                asset_server=asset_server,
                **after,
            )
        self.begin >> self.prepare >> self.decide >> self.commit >> [self.cleanup, self.loaded]
        self.cleanup.as_teardown(setups=self.begin, on_failure_fail_dagrun=True)

    @classmethod
    def partial(cls, group_id: str, **arguments: Unpack[PartialArguments]) -> MappedLoads:
        """The arguments that mapped loads share; then ``.expand(topic=[...])`` or ``.expand_kwargs([...])``.

        See :class:`~airflow_kafka_eos.mapped.MappedLoads`.
        """
        from airflow_kafka_eos.mapped import MappedLoads

        return MappedLoads(group_id, arguments)
