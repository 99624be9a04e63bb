"""ExactlyOnceLoad: the task group that a DAG author writes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import TaskGroup

from airflow_kafka_eos.argument_groups import spread
from airflow_kafka_eos.arguments import check_assets, check_mapping, check_text
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import OnCommitted
from airflow_kafka_eos.mapped import MappedLoads
from airflow_kafka_eos.operators.base import DEFAULT_LOAD_KEY
from airflow_kafka_eos.operators.begin import BeginLoadOperator
from airflow_kafka_eos.operators.collect import CollectLoadOperator
from airflow_kafka_eos.operators.commit import CommitLoadOperator
from airflow_kafka_eos.operators.decide import DecideLoadOperator
from airflow_kafka_eos.operators.own_submitter import OwnSubmitter, check_shared, put_before
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.operators.preparing import PreparingOperator
from airflow_kafka_eos.sensors import CleanupLoadSensor, LoadedSensor
from airflow_kafka_eos.signatures import (
    GroupArguments,
    LoadArguments,
    PartialArguments,
    arguments_of,
    check_names,
    check_no_spark,
    check_spark_args,
)

if TYPE_CHECKING:
    from airflow.sdk import XComArg


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

    All of it is checked when the DAG is parsed; what is templated, again when it is rendered. What is marked (section)
    is None by default: then the option of that name in Airflow's section ``[kafka_eos]`` says it
    (:mod:`airflow_kafka_eos.config`).

    :param group_id: the group's id; part of the default load name.
    :param topics: the topics it may write to; with one, the DataFrame needs no ``topic`` column. A load that was
        committed into others does not pass for it. (templated)
    :param job: ``file.py``, ``file.py:function`` or ``package.module:function`` (function ``load`` when none is given),
        called as ``function(spark, **job_args)``, returns a DataFrame. (templated)
    :param sql: instead of a job, a Spark SQL query whose result is the DataFrame. (templated)
    :param job_args: keyword arguments for the job; JSON values, no secrets: they show in Spark's UI. (templated)
    :param load_name: one for all of its keys; default ``<dag id>.<group id>``. (templated)
    :param load_key: what names one load of that name; one key loads once. Best the template that tells the job what to
        read (docs/load-keys.md). Default: the run's partition key, else its logical date, else its run id. (templated)
    :param on_committed: what happens with a load that is committed already. ``skip``, the default: it passes as done,
        nothing is written again. ``fail``: begin fails, unless this run's own group committed it; so a clear of that
        passes as done. ``reload``: it is written once more, as a load with the key ``<load_key>~reload-<n>``. Clearing
        the whole group, or ``prepare`` with what is downstream, reloads; clearing less of it does not, nor does a
        retry, but for one that comes when another run has committed meanwhile (docs/adr/0016). (templated)
    :param item: in a mapped group, what tells this load from the others: a text, or a list of topics. Its name is put
        behind ``load_key``, so that no load is known by the position of its map index. See also :meth:`partial`.
        (templated)
    :param namespace: separates loads that may share a name; first part of every transactional id. (section, templated)
    :param kafka_conn_id: connection of the Kafka provider's type ``kafka``. (section, templated)
    :param ledger_conn_id: connection of the ledger's database; without, the embedded SQLite file beside Airflow's home.
        (section, templated)
    :param spark_conn_id: Spark connection; default ``spark_default``. One of type ``spark_connect`` names a server that
        runs already: prepare is its client (docs/spark-connect.md).
    :param transactions: how its Kafka transactions are written, and how long they may stay open:
        :class:`~airflow_kafka_eos.argument_groups.Transactions`.
    :param checks: what must be true of what prepare wrote: :class:`~airflow_kafka_eos.argument_groups.Checks`.
    :param dual_write_sql: SQL that runs in the database transaction that records the decision, so that its rows and the
        Kafka records become true together (docs/dual-write.md): a statement, or a list of statements and of pairs
        (statement, parameters). Needs ``ledger_conn_id``, the database with the author's tables; wants
        ``Transactions(two_phase_commit="required")``. (templated)
    :param dual_write: a callable for the same; gets the SQLAlchemy connection and the manifest, runs behind
        ``dual_write_sql``.
    :param decide_at_once: prepare decides the load as soon as all is prepared, in its own task: a DAG that is paused
        meanwhile then holds no reader back. Left out by itself where a task of yours stands before decide, such as a
        person's approval. False: only the task decide decides.
    :param value_format: how values are made of the DataFrame's columns: ``raw`` (the default), ``string``, ``json``,
        ``confluent-avro`` or ``confluent-json``, or a mapping of the parameters of
        :class:`~airflow_kafka_eos.spark.formats.settings.ValueFormat`.
    :param registry_conn_id: connection of type ``http`` to the schema registry, for the formats ``confluent-*``;
        settings of confluent-kafka's ``SchemaRegistryClient`` may stand in its extra.
    :param manifest_dir: what workers and the Spark driver share: a folder, or ``s3://bucket/folder`` and the like, also
        with an Airflow connection for the worker, ``s3://conn_id@bucket/folder``. (section, templated)
    :param deferrable: let cleanup and loaded wait in the triggerer. None: as the section says, else the environment
        variable ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE``, else yes. (section)
    :param outlets: further assets that a visible load updates.
    :param asset_events: a visible load updates the assets ``kafka://<asset_server>/<topic>`` too, of the topics that it
        has written to (docs/assets.md). False: ``outlets`` alone.
    :param asset_server: one ``host:port`` or a name of the cluster; None: the connection's first bootstrap server.
    :param spark_args: further keyword arguments of SparkSubmitOperator, such as ``conf`` or ``driver_memory``.
    :param cursor: the load reads on from where the last one of its name ended:
        :class:`~airflow_kafka_eos.cursor.Cursor`. The job gets ``since`` and ``until``.
    :param engine: ``spark``, the default: prepare is a spark-submit. ``arrow``: the job runs in the worker, is called
        as ``function(**job_args)``, and returns what has the Arrow C stream protocol (docs/arrow-engine.md).
    :param max_batch_bytes: engine ``arrow``: a batch of that stream above it fails prepare; default 256 MiB.
    :param submit: another operator than spark-submit that runs the application, as ``Submit(LivyOperator, …)``: the
        group then has ``begin >> submit >> collect >> decide`` (docs/any-submitter.md).
    :param arguments: and keyword arguments of TaskGroup, such as ``tooltip`` or ``default_args``.
    """

    def __init__(
        self, group_id: str, *, topics: Sequence[str] | XComArg, **arguments: Unpack[LoadArguments]
    ) -> None:
        check_names(arguments, "ExactlyOnceLoad")
        given = spread({"topics": topics, **arguments})
        spark_args = given.get("spark_args")
        if spark_args is not None:
            check_mapping("spark_args", spark_args)
            check_spark_args(spark_args)
        check_no_spark(given)
        check_mapping("default_args", given.get("default_args", {}))
        if given.get("item") is not None and given.get("cursor") is not None:
            raise ConfigurationError(
                "item=… with a cursor: all map indexes would share the cursor, and each range would go to one of them",
                remedy="Write an ExactlyOnceLoad for each, in a loop: each load name has a cursor of its own",
            )
        outlets = given.get("outlets", ())
        check_assets("outlets", outlets)
        spark_conn_id = given.get("spark_conn_id", SparkSubmitHook.default_conn_name)
        check_text("spark_conn_id", spark_conn_id, required=True)
        super().__init__(group_id=group_id, **{k: v for k, v in given.items() if k in GroupArguments.__annotations__})
        if self.dag.dagrun_timeout is not None:
            warnings.warn(
                f"DAG {self.dag.dag_id} has a dagrun_timeout: when it passes, Airflow skips all tasks, cleanup too: "
                "what is prepared stays open until its hold_time, with two-phase commit until begin or cleanup of this "
                "load runs again; better set execution_timeout on tasks",
                stacklevel=2,
            )
        # whatever default_args say: each step stands on the one before, and only loaded says that the load is there
        of_load: dict[str, Any] = {
            "load_name": given.get("load_name") or f"{self.dag.dag_id}.{self.group_id}",
            "load_key": given.get("load_key", DEFAULT_LOAD_KEY),
            **{name: given.get(name) for name in ("namespace", "kafka_conn_id", "ledger_conn_id")},
        }
        waiting: dict[str, Any] = {"deferrable": given.get("deferrable")}
        with self:
            of_begin = arguments_of(BeginLoadOperator, given)
            self.begin = BeginLoadOperator(task_id="begin", outlets=[], **of_begin, **of_load)
            if of_begin["item"] is not None or of_begin["on_committed"] not in (OnCommitted.SKIP, OnCommitted.FAIL):
                # which key it is, begin finds out
                begun = f"ti.xcom_pull(task_ids='{self.begin.task_id}', map_indexes=ti.map_index)"
                of_load["load_key"] = f"{{{{ {begun}['load_key'] }}}}"
            after = of_load | {"trigger_rule": "all_success"}
            submit = given.get("submit")
            #: the operator of the author's own that submits the application
            self.submit: OwnSubmitter | None = None if submit is None else submit.task()
            #: what has the load's arguments: prepare; or collect, behind that operator
            self.prepare: PreparingOperator
            if self.submit is None:
                self.prepare = PrepareLoadOperator(
                    task_id="prepare",
                    conn_id=spark_conn_id,
                    outlets=[],
                    **arguments_of(PrepareLoadOperator, given),
                    **after,
                    **(spark_args or {}),
                )
            else:
                self.prepare = CollectLoadOperator(
                    task_id="collect", outlets=[], **arguments_of(CollectLoadOperator, given), **after
                )
                check_shared(self.submit, self.prepare)
            self.decide = DecideLoadOperator(
                task_id="decide", outlets=[], **arguments_of(DecideLoadOperator, given), **after
            )
            if self.decide.margin >= self.prepare.hold_time:
                raise ConfigurationError(
                    f"margin={self.decide.margin} does not fit hold_time={self.prepare.hold_time}",
                    remedy="Set hold_time to more than the margin; both are timedeltas, or seconds",
                )
            self.commit = CommitLoadOperator(
                task_id="commit", outlets=[], **arguments_of(CommitLoadOperator, given), **after
            )
            self.cleanup = CleanupLoadSensor(
                task_id="cleanup", outlets=[], **arguments_of(CleanupLoadSensor, given), **waiting, **of_load
            )
            self.loaded = LoadedSensor(
                task_id="loaded", outlets=list(outlets), **arguments_of(LoadedSensor, given), **waiting, **after
            )
        self.begin >> (self.submit or self.prepare)
        if self.submit is not None:
            put_before(self.submit, self.prepare)
        self.prepare >> self.decide >> self.commit >> [self.cleanup, self.loaded]
        self.cleanup.as_teardown(setups=self.begin, on_failure_fail_dagrun=True)

    @classmethod
    def partial(cls, group_id: str, **arguments: Unpack[PartialArguments]) -> MappedLoads:
        """The arguments that mapped loads share; then ``.expand(topic=[...])`` or ``.expand_kwargs([...])``.

        See :class:`~airflow_kafka_eos.mapped.MappedLoads`.
        """
        return MappedLoads(group_id, arguments, cls)
