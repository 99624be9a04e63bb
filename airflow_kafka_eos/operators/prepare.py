"""prepare: submit the packaged Spark application that writes the transactions, ask a server to, or write them here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_kafka_eos.arguments import (
    Duration,
    check_bool,
    check_mapping,
    check_whole_number,
    is_filled_in_later,
)
from airflow_kafka_eos.cursor import Cursor
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.hooks import registry_settings
from airflow_kafka_eos.load import (
    Engine,
    EngineText,
    NamingText,
    ScopeText,
    TransactionNaming,
    TwoPhaseCommitText,
    WriterName,
    WriterText,
)
from airflow_kafka_eos.naming import MAX_IDS_OF_NAME, MAX_IDS_OF_NAMESPACE
from airflow_kafka_eos.operators import by_connect
from airflow_kafka_eos.operators.application_watch import Status, status_by_spark_submit
from airflow_kafka_eos.operators.base import Step, no_retry_of_terminal_errors
from airflow_kafka_eos.operators.in_worker import BATCH_BYTES, check_engine, runner
from airflow_kafka_eos.operators.reattaching import ReattachingOperator, Waited, this_go
from airflow_kafka_eos.operators.submitting import (
    NOT_DURABLE,
    Deployment,
    environment,
    manifest_store,
    own_error_first,
    private_files,
)
from airflow_kafka_eos.spark.driver_secrets import FILE_SUFFIX
from airflow_kafka_eos.spark.formats.settings import (
    REGISTRY_VARIABLE,
    FormatText,
    RegistrySettings,
    ValueFormatArguments,
)

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_kafka_eos.hooks import Resolved
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.operators.preparing import Taken
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

#: SparkSubmitOperator's own default, which tells nobody anything
DEFAULT_SPARK_NAME = "arrow-spark"


@dataclass(frozen=True)
class _Runner:
    """What prepares an attempt.

    :param where: how, for people.
    :param stop: ends what runs; None: Spark's own hook does.
    :param has_fence: its writers see Kafka alone.
    """

    run: Callable[[Taken], None]
    where: str
    stop: threading.Event | None = None
    has_fence: bool = False


class PrepareLoadOperator(ReattachingOperator, SparkSubmitOperator):
    """Run the author's job in Spark and leave its DataFrame in prepared transactions.

    ::

        DAY = "{{ data_interval_start | ds }}"

        PrepareLoadOperator(task_id="prepare", load_name="orders", job="jobs/orders.py", topics=["orders"],
                            load_key=DAY, job_args={"day": DAY}, conn_id="spark_default", driver_memory="2g")

    Takes everything that SparkSubmitOperator takes, but for ``application_args`` and ``durable``: reconnecting to any
    application of an earlier try would hand this attempt another one's result (rule: one-application-per-attempt).
    Where the driver runs elsewhere and its platform can be asked for it (``yarn_track_via_rm_api``,
    ``track_driver_via_k8s_api``), a retry goes on with the very attempt that the try before has submitted
    (rule: reattach-to-its-own); with ``wait_in_triggerer=True`` it is waited for in the triggerer (docs/spark.md).

    Where the connection is of type ``spark_connect``, this process is that server's client (:mod:`.by_connect`); of
    SparkSubmitOperator's arguments, ``conf`` is the session's then.

    With ``engine="arrow"`` the job runs in this process (:mod:`.in_worker`), and reading stops behind ``max_records``;
    with Spark, decide alone counts them.

    :param wait_in_triggerer: a driver that is tracked is waited for in the triggerer, without a worker's slot. A paused
        DAG does not take up what such a driver has prepared.
    """

    step_name = "prepare"
    #: engine="arrow", Spark Connect: ends what runs
    _stop: threading.Event | None = None
    #: while spark-submit runs: what is done with the id that it prints
    _note: Callable[[str], None] | None = None
    template_fields: Sequence[str] = tuple(
        dict.fromkeys((*ReattachingOperator.template_fields, *SparkSubmitOperator.template_fields))
    )

    def __init__(
        self,
        *,
        topics: Sequence[str] | XComArg,
        job: str | XComArg | None = None,
        sql: str | XComArg | None = None,
        job_args: Mapping[str, Any] | XComArg | None = None,
        hold_time: Duration | None = None,
        writer_deadline: Duration | None = None,
        manifest_dir: str | None = None,
        scope: ScopeText = "task",
        two_phase_commit: TwoPhaseCommitText | None = None,
        writer: WriterText = "auto",
        transaction_naming: NamingText | None = None,
        max_transactional_ids: int | None = MAX_IDS_OF_NAME,
        max_transactional_ids_of_namespace: int | None = MAX_IDS_OF_NAMESPACE,
        value_format: FormatText | ValueFormatArguments = "raw",
        registry_conn_id: str | None = None,
        decide_at_once: bool = True,
        cursor: Cursor | None = None,
        engine: EngineText = "spark",
        max_batch_bytes: int = BATCH_BYTES,
        max_records: int | None = None,
        wait_in_triggerer: bool = False,
        **kwargs: Any,
    ) -> None:
        check_bool("wait_in_triggerer", wait_in_triggerer)
        for taken in ("application", "application_args", "durable"):
            if taken in kwargs:
                raise ConfigurationError(
                    f"{taken}={kwargs[taken]!r} cannot be set on {type(self).__name__}",
                    remedy="Name your job with job=… and its arguments with job_args=…",
                )
        check_whole_number("max_records", max_records)
        if kwargs.get("conf") is not None and not is_filled_in_later(kwargs["conf"]):
            check_mapping("conf", kwargs["conf"])
        self.engine = Engine.read("engine", engine).value
        check_engine(self.engine, sql, max_batch_bytes)
        # each by its name once more: so an editor and mypy know them
        super().__init__(
            **NOT_DURABLE,
            topics=topics,
            job=job,
            sql=sql,
            job_args=job_args,
            hold_time=hold_time,
            writer_deadline=writer_deadline,
            manifest_dir=manifest_dir,
            scope=scope,
            two_phase_commit=two_phase_commit,
            writer=writer,
            transaction_naming=transaction_naming,
            max_transactional_ids=max_transactional_ids,
            max_transactional_ids_of_namespace=max_transactional_ids_of_namespace,
            value_format=value_format,
            registry_conn_id=registry_conn_id,
            decide_at_once=decide_at_once,
            cursor=cursor,
            **kwargs,
        )
        self.max_batch_bytes, self.max_records = max_batch_bytes, max_records
        self.wait_in_triggerer = wait_in_triggerer
        self._names_its_folder = not is_filled_in_later(self.manifest_dir)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Take an attempt, run Spark, and tell the ledger that it is prepared; see :meth:`.PreparingOperator.take`."""
        return self.from_the_start(context)

    def from_the_start(self, context: Any) -> dict[str, Any]:
        """See :class:`.ReattachingOperator`."""
        with self.as_step(context) as step:
            return self._execute(context, step)

    def _execute(self, context: Context, step: Step) -> dict[str, Any]:
        with no_retry_of_terminal_errors():
            resolved = self._resolve()
            registry = registry_settings(self.registry_conn_id) if self.registry_conn_id else None
            store = manifest_store(self.manifest_dir)
            how = self._runner(resolved, registry, store, context)
            self._stop = how.stop
            # what runs in this process is a retry's to begin anew
            go = this_go(context, self) if how.stop is None and self._is_tracked() else None
            waited = None if go is None else self.reattached(context, step, resolved, store, go)
            if waited is not None:
                return self.waited_for(context, step, resolved, store, waited, may_defer=True)
            taken = self.take(context, step, resolved, store, has_fence=how.has_fence)
            if taken.is_done:
                return self.was_decided(step, taken)
            self.log.info("load %s: %s", taken.ref, how.where)
            submitted: list[Waited] = []
            if go is not None and taken.again is None:  # a repair is waited for by whoever gives it up if it fails
                self._note = lambda application: submitted.append(
                    self.handed_over(context, store, taken, application, go)
                )
            with self.giving_up(resolved, taken):
                how.run(taken)
                self._note = None
                if not submitted:
                    manifest = store.read(taken.ref)
                    return self.record(context, step, resolved, store, taken, manifest)
            return self.waited_for(context, step, resolved, store, submitted[0], may_defer=True)

    def _is_tracked(self) -> bool:
        """Whether spark-submit leaves the driver to its platform, which is asked for it afterwards.

        What is to run on this host when the driver is over, a retry on another one would not find.

        :raises ConfigurationError: that was asked for, and cannot be.
        """
        asked = self._yarn_track_via_rm_api or self._track_driver_via_k8s_api or self.wait_in_triggerer
        if self.engine != Engine.SPARK or not asked:
            return False  # most loads: no connection is looked up for it
        hook = self._get_hook()
        try:
            if self._yarn_track_via_rm_api:
                hook._validate_yarn_track_via_rm_api_config()
            if self._track_driver_via_k8s_api:
                hook._validate_track_driver_via_k8s_api_config()
        except ValueError as e:
            raise ConfigurationError(
                f"the driver cannot be waited for: {e}", remedy="Correct that, or leave the argument out"
            ) from e
        tracked = hook._should_track_yarn_application_via_rm_api() or hook._should_track_driver_via_k8s_api()
        missing = ""
        if not tracked:
            missing = "deploy mode cluster, and yarn_track_via_rm_api or track_driver_via_k8s_api"
        elif self.post_submit_commands:
            missing = "no post_submit_commands"
        elif not self._names_its_folder:  # cleanup could not tell a driver that it leaves to itself to stop
            missing = "a manifest_dir that is no template"
        if missing and self.wait_in_triggerer:
            raise ConfigurationError(
                "wait_in_triggerer=True, and the driver cannot be left to itself",
                remedy=f"It needs {missing} (docs/spark.md)",
            )
        return not missing

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """SparkSubmitOperator's own; where a retry may go on with it, its id is noted, and it is waited for later."""
        if self._note is None:
            super().poll_until_complete(external_id, context)
        else:
            self._note(str(external_id))

    def status_of(self) -> Callable[[str], Status]:
        """See :class:`.ReattachingOperator`."""
        return status_by_spark_submit(self)

    def platform(self) -> dict[str, Any] | None:
        """See :class:`.ReattachingOperator`; an object that logs in cannot travel."""
        if self._yarn_rm_auth is not None:
            return None
        return {
            "conn_id": self._conn_id,
            "deploy_mode": self._deploy_mode,
            "yarn_track_via_rm_api": self._yarn_track_via_rm_api,
            "track_driver_via_k8s_api": self._track_driver_via_k8s_api,
        }

    def is_over(self, application: str) -> None:
        """As SparkSubmitOperator does: a driver's pod that has succeeded is deleted, as well as that can be had."""
        hook = self._get_hook()
        if not hook._should_track_driver_via_k8s_api():
            return
        _, hook._kubernetes_driver_pod = self._parse_k8s_external_id(application)
        try:
            hook._delete_driver_pod()
        except Exception as e:  # whatever Kubernetes' client raises
            self.log.warning("the driver's pod %s is left on Kubernetes: %s", application, e)

    @property
    def poll_s(self) -> float:
        """Seconds between two looks."""
        return max(float(self._status_poll_interval), self.shortest_poll_s)

    def _asked_beside(self) -> Any:
        return [self.conf, self.env_vars]

    def _submitted_with(self) -> Any:
        return self._given(*by_connect.OF_A_DRIVER, "conn_id", "spark_binary", "use_krb5ccache")

    def _given(self, *names: str) -> dict[str, Any]:
        """Those of SparkSubmitOperator's arguments, which keeps some of them under other names."""
        return {name: getattr(self, name, None) or getattr(self, f"_{name}", None) for name in names}

    def _runner(
        self, resolved: Resolved, registry: RegistrySettings | None, store: ManifestStore, context: Context
    ) -> _Runner:
        """What prepares an attempt. What is wrong is found out before an attempt is taken."""
        if self.engine == Engine.ARROW:
            stop = threading.Event()
            made = runner(
                self.job,
                self.job_args or {},
                resolved,
                registry,
                store,
                batch_bytes=self.max_batch_bytes,
                max_records=self.max_records,
                stop=stop,
            )
            return _Runner(made, "preparing in this process", stop)
        remote = by_connect.remote_of(self._conn_id)
        if remote is not None:
            stop = threading.Event()
            made = by_connect.runner(
                remote,
                None if self.sql is not None else self.job,
                self.job_args or {},
                resolved,
                self.kafka_conn_id,
                registry,
                store,
                asked=self._given(*by_connect.OF_A_SUBMIT),
                conf=self.conf,
                naming=TransactionNaming(self.transaction_naming),
                writer=WriterName(self.writer),
                stop=stop,
            )
            return _Runner(made, f"preparing by the {remote}", stop, has_fence=True)
        deployment = Deployment.of(self._get_hook(), self.conf)
        deployment.check(self.manifest_dir)

        def run_spark(taken: Taken) -> None:
            handed_over = self._handed_over(deployment, resolved.settings, registry)
            with handed_over, own_error_first(lambda: store.failure(taken.ref)):
                self._application(taken.spec)
                SparkSubmitOperator.execute(self, context)

        return _Runner(run_spark, "submitting to Spark")

    def on_kill(self) -> None:
        """Airflow's own: end what runs, here, at a Spark Connect server, or in Spark.

        Not an application whose id is noted: a worker that is restarted must not end it. Behind a click, the next
        attempt or cleanup makes its attempt undecidable, and tells its driver to stop. What is over by then is not
        decided any more.
        """
        self._is_told_to_stop = True
        if self._stop_waiting is not None:
            self._stop_waiting.set()
        elif self._stop is not None:
            self._stop.set()
        elif self.engine == Engine.SPARK:
            super().on_kill()

    def _application(self, spec: str) -> None:
        from airflow_kafka_eos import spark

        self.application = str(Path(spark.__file__).with_name("application.py"))
        self.application_args = ["--spec", spec]
        if self.name == DEFAULT_SPARK_NAME:
            self.name = f"{self.load_name} {self.load_key}"
        self._hook = self._get_hook()

    @contextmanager
    def _handed_over(
        self, deployment: Deployment, settings: KafkaSettings, registry: RegistrySettings | None
    ) -> Iterator[None]:
        """Settings and their secrets reach the driver by its environment, or where it runs elsewhere by files."""
        from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE

        texts = {SETTINGS_VARIABLE: settings.to_json()}
        if registry is not None:
            texts[REGISTRY_VARIABLE] = registry.to_json()
        if not deployment.is_cluster:
            with environment(texts, deployment.is_local):
                yield
        elif not deployment.ships_files:
            yield
        else:
            before = self.files, self.conf
            with private_files(texts) as paths:
                self.files = ",".join(filter(None, [self.files, *map(str, paths.values())]))
                names = {f"{variable}{FILE_SUFFIX}": path.name for variable, path in paths.items()}
                # a second driver would be refused by the first one's claim (rule: one-application-per-attempt), and
                # hide why that one failed
                self.conf = {"spark.yarn.maxAppAttempts": "1"} | (self.conf or {}) | deployment.file_settings(names)
                try:
                    yield
                finally:
                    self.files, self.conf = before
