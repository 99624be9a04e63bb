"""prepare: submit the packaged Spark application that writes the prepared transactions, or write them here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_kafka_eos.arguments import Duration, check_mapping, check_whole_number, is_filled_in_later
from airflow_kafka_eos.cursor import Cursor
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.hooks import registry_settings
from airflow_kafka_eos.load import Engine, EngineText, NamingText, ScopeText, TwoPhaseCommitText, WriterText
from airflow_kafka_eos.naming import MAX_IDS_OF_NAME, MAX_IDS_OF_NAMESPACE
from airflow_kafka_eos.operators.base import Step, no_retry_of_terminal_errors
from airflow_kafka_eos.operators.in_worker import BATCH_BYTES, check_engine, runner
from airflow_kafka_eos.operators.preparing import PreparingOperator
from airflow_kafka_eos.operators.submitting import (
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
    from airflow_kafka_eos.manifest import AttemptRef
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

#: SparkSubmitOperator's own default, which tells nobody anything
DEFAULT_SPARK_NAME = "arrow-spark"


class PrepareLoadOperator(PreparingOperator, SparkSubmitOperator):
    """Run the author's job in Spark and leave its DataFrame in prepared transactions.

    ::

        DAY = "{{ data_interval_start | ds }}"

        PrepareLoadOperator(task_id="prepare", load_name="orders", job="jobs/orders.py", topics=["orders"],
                            load_key=DAY, job_args={"day": DAY}, conn_id="spark_default", driver_memory="2g")

    Takes everything that SparkSubmitOperator takes, but for ``application_args`` and ``durable``: reconnecting to an
    application of an earlier try would hand this attempt another one's result (rule: one-application-per-attempt).

    With ``engine="arrow"`` the job runs in this process (:mod:`.in_worker`), and reading stops behind ``max_records``;
    with Spark, decide alone counts them.
    """

    step_name = "prepare"
    #: engine="arrow": ends the reading of the stream
    _stop: threading.Event | None = None
    template_fields: Sequence[str] = tuple(
        dict.fromkeys((*PreparingOperator.template_fields, *SparkSubmitOperator.template_fields))
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
        **kwargs: Any,
    ) -> None:
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
            durable=False,
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

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Take an attempt, run Spark, and tell the ledger that it is prepared; see :meth:`.PreparingOperator.take`."""
        with self.as_step(context) as step:
            return self._execute(context, step)

    def _execute(self, context: Context, step: Step) -> dict[str, Any]:
        with no_retry_of_terminal_errors():
            resolved = self._resolve()
            registry = registry_settings(self.registry_conn_id) if self.registry_conn_id else None
            store = manifest_store(self.manifest_dir)
            run = self._runner(resolved, registry, store, context)
            taken = self.take(context, step, resolved, store)
            if taken.is_done:
                return self.was_decided(step, taken)
            where = "submitting to Spark" if self.engine == Engine.SPARK else "preparing in this process"
            self.log.info("load %s: %s", taken.ref, where)
            with self.giving_up(resolved, taken):
                run(taken.spec, taken.ref)
                manifest = store.read(taken.ref)
            return self.record(context, step, resolved, store, taken, manifest)

    def _asked_beside(self) -> Any:
        return [self.conf, self.env_vars]

    def _runner(
        self, resolved: Resolved, registry: RegistrySettings | None, store: ManifestStore, context: Context
    ) -> Callable[[str, AttemptRef], None]:
        """What prepares an attempt, given its spec. What is wrong with it is found out before an attempt is taken."""
        if self.engine == Engine.ARROW:
            self._stop = threading.Event()
            return runner(
                self.job,
                self.job_args or {},
                resolved,
                registry,
                store,
                batch_bytes=self.max_batch_bytes,
                max_records=self.max_records,
                stop=self._stop,
            )
        deployment = Deployment.of(self._get_hook(), self.conf)
        deployment.check(self.manifest_dir)

        def run_spark(spec_text: str, ref: AttemptRef) -> None:
            handed_over = self._handed_over(deployment, resolved.settings, registry)
            with handed_over, own_error_first(lambda: store.failure(ref)):
                self._application(spec_text)
                SparkSubmitOperator.execute(self, context)

        return run_spark

    def on_kill(self) -> None:
        """Airflow's own: end what runs, here or in Spark."""
        if self.engine == Engine.SPARK:
            super().on_kill()
        elif self._stop is not None:
            self._stop.set()

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
