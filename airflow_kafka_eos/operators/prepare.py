"""prepare: submit the packaged Spark application that writes the prepared transactions.

And look whether the load's key fits what the job is asked for, by a digest of that. A key that is finer than what the
job reads loads the same data twice (the default key has the time of day, the job gets only ``ds``); a coarser one
leaves data out (an hourly load with the key ``ds``). Neither is an error for sure, so it is told, not refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.log import redact  # type: ignore[attr-defined]

from airflow_kafka_eos.arguments import (
    Duration,
    check_bool,
    check_job_or_sql,
    check_json,
    check_mapping,
    check_text,
    check_topics,
    check_whole_number,
    duration,
    is_filled_in_later,
)
from airflow_kafka_eos.config import optional, setting
from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError
from airflow_kafka_eos.generation import first_key
from airflow_kafka_eos.hooks import registry_settings
from airflow_kafka_eos.load import (
    NamingText,
    ScopeText,
    TransactionNaming,
    TransactionScope,
    TwoPhaseCommit,
    TwoPhaseCommitText,
    Verdict,
    WriterName,
    WriterText,
)
from airflow_kafka_eos.naming import MAX_IDS_OF_NAME, MAX_IDS_OF_NAMESPACE
from airflow_kafka_eos.operators.base import (
    LoadOperator,
    Step,
    check_no_sibling,
    no_retry_of_terminal_errors,
    overridden,
    owner_of,
)
from airflow_kafka_eos.operators.decide import DecideLoadOperator, decide_at_once
from airflow_kafka_eos.operators.submitting import (
    Deployment,
    environment,
    manifest_store,
    own_error_first,
    private_files,
    tell_superseded,
)
from airflow_kafka_eos.reasons import reason_of
from airflow_kafka_eos.spark.dag_file import JOB
from airflow_kafka_eos.spark.driver_secrets import FILE_SUFFIX
from airflow_kafka_eos.spark.formats.settings import (
    REGISTRY_VARIABLE,
    FormatText,
    RegistrySettings,
    ValueFormat,
    ValueFormatArguments,
)
from airflow_kafka_eos.transaction import TWO_PHASE_TIMEOUT_MS

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_kafka_eos.hooks import Resolved
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.manifest import AttemptRef, Manifest
    from airflow_kafka_eos.protocol.repair.reprepare import Repreparation
    from airflow_kafka_eos.protocol.session import Session
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

#: What a coordinator shows for "none"; see ApplicationSpec.
LONGEST_HOLD_TIME = timedelta(milliseconds=TWO_PHASE_TIMEOUT_MS)
#: SparkSubmitOperator's own default, which tells nobody anything
DEFAULT_SPARK_NAME = "arrow-spark"


class PrepareLoadOperator(LoadOperator, SparkSubmitOperator):
    """Run the author's job in Spark and leave its DataFrame in prepared transactions.

    ::

        DAY = "{{ data_interval_start | ds }}"

        PrepareLoadOperator(task_id="prepare", load_name="orders", job="jobs/orders.py", topics=["orders"],
                            load_key=DAY, job_args={"day": DAY}, conn_id="spark_default", driver_memory="2g")

    Takes everything that SparkSubmitOperator takes, but for ``application_args`` and ``durable``: reconnecting to an
    application of an earlier try would hand this attempt another one's result (rule: one-application-per-attempt).

    :param writer_deadline: a timedelta, or seconds: after this time no writer of this attempt opens a transaction any
        more (rule: writers-have-a-deadline). None: as ``[kafka_eos]`` says.
    """

    step_name = "prepare"
    template_fields: Sequence[str] = tuple(
        dict.fromkeys(
            (
                *LoadOperator.template_fields,
                *SparkSubmitOperator.template_fields,
                *("job", "sql", "job_args", "topics", "manifest_dir"),
            )
        )
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
        **kwargs: Any,
    ) -> None:
        for taken in ("application", "application_args", "durable"):
            if taken in kwargs:
                raise ConfigurationError(
                    f"{taken}={kwargs[taken]!r} cannot be set on {type(self).__name__}",
                    remedy="Name your job with job=… and its arguments with job_args=…",
                )
        # and again when rendered: they may come from another task
        check_topics(topics)
        check_job_or_sql(job, sql)
        check_json(job_args)
        held = duration("hold_time", setting("hold_time", hold_time), below=LONGEST_HOLD_TIME)
        deadline = duration("writer_deadline", setting("writer_deadline", writer_deadline))
        check_whole_number("max_transactional_ids", max_transactional_ids, least=1)
        check_whole_number("max_transactional_ids_of_namespace", max_transactional_ids_of_namespace, least=1)
        check_text("manifest_dir", manifest_dir)
        check_text("registry_conn_id", registry_conn_id)
        check_bool("decide_at_once", decide_at_once)
        if kwargs.get("conf") is not None and not is_filled_in_later(kwargs["conf"]):
            check_mapping("conf", kwargs["conf"])
        choices = (
            TransactionScope.read("scope", scope),
            TwoPhaseCommit.read("two_phase_commit", setting("two_phase_commit", two_phase_commit)),
            WriterName.read("writer", writer),
            TransactionNaming.read("transaction_naming", setting("transaction_naming", transaction_naming)),
        )
        check_writer(*choices[:3])
        made = ValueFormat.of(value_format)
        super().__init__(durable=False, **kwargs)
        self.value_format = made.to_mapping()
        self.registry_conn_id = registry_conn_id
        self.decide_at_once = decide_at_once
        # rendered when they are read
        self.topics: Any = topics
        self.job: Any = job
        self.sql: Any = sql
        self.job_args: Any = job_args
        self._follow_from_run = follow_from_run(job, sql, job_args)
        self.hold_time, self.writer_deadline = held, deadline
        self.manifest_dir = optional("manifest_dir", manifest_dir)
        self.max_transactional_ids = max_transactional_ids
        self.max_transactional_ids_of_namespace = max_transactional_ids_of_namespace
        self.scope, self.two_phase_commit, self.writer, self.transaction_naming = (c.value for c in choices)

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Airflow's own; before it, what the arguments are made of can still be seen."""
        self._follow_from_run = follow_from_run(self.job, self.sql, self.job_args)
        super().render_template_fields(context, jinja_env)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Take an attempt, run Spark, and tell the ledger that it is prepared.

        Of a decided load nothing is written again (rule: one-key-loads-once), but for what was lost since and is gone
        from the log (docs/adr/0014): then the job runs again, and only the lost Spark partitions are written.
        """
        with self.as_step(context) as step:
            return self._execute(context, step)

    def _execute(self, context: Context, step: Step) -> dict[str, Any]:
        from airflow_kafka_eos.manifest import AttemptRef
        from airflow_kafka_eos.protocol.guards.id_caps import Caps
        from airflow_kafka_eos.protocol.repair.reprepare import open_repreparation
        from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference, submit

        with no_retry_of_terminal_errors():
            resolved = self._resolve()
            registry = registry_settings(self.registry_conn_id) if self.registry_conn_id else None
            store = manifest_store(self.manifest_dir)
            deadline_ms = time.time_ns() // 10**6 + int(self.writer_deadline.total_seconds() * 1000)
            spec = self._spec(store, deadline_ms)
            caps = Caps(self.max_transactional_ids, self.max_transactional_ids_of_namespace)
            # tried before an attempt is taken: a typing error needs none
            spec(AttemptRef(self.load_identity, "0" * 10, 1))
            deployment = Deployment.of(self._get_hook(), self.conf)
            deployment.check(self.manifest_dir)
            asked = self._arguments_sha256()
            with resolved.session(self.namespace) as session:
                row = submit(
                    session,
                    self.load_identity,
                    owner=owner_of(context),
                    naming=TransactionNaming(self.transaction_naming),
                    deadline_ms=deadline_ms,
                    caps=caps,
                    arguments_sha256=asked,
                )
                step.attempt = row.number
                check_no_sibling(row, context)
                tell_superseded(session, store, row)
                decided = row.verdict is Verdict.COMMIT
                warned = self._warned(session, row, asked, owner_of(context))
                again = None
                if decided:
                    again = open_repreparation(session, row, by=owner_of(context), hold_time_ms=self._hold_time_ms)
                ref = reference(session, row)

            def run_spark(spec_text: str, ref: AttemptRef) -> None:
                handed_over = self._handed_over(deployment, resolved.settings, registry)
                with handed_over, own_error_first(lambda: store.failure(ref)):
                    self._application(spec_text)
                    SparkSubmitOperator.execute(self, context)

            if decided:
                done = {"load": str(row.load), "attempt": row.number, "verdict": Verdict.COMMIT.value} | warned
                if again is None:
                    by = f"decided to be committed before, by {row.decided_by} at {row.decided_at}"
                    step.done(row.load, f"{by}: nothing is written again")
                    return done
                wrote = self._prepare_again(again, resolved, store, spec, run_spark)
                step.done(row.load, f"Spark partitions {wrote['prepared_again']} are prepared again, and decided")
                return done | wrote
            self.log.info("load %s attempt %d: submitting to Spark", row.load, row.number)
            run_spark(spec(ref), ref)
            manifest = store.read(ref)
            result = {
                "load": str(ref.load),
                "attempt": ref.attempt,
                "records": manifest.records,
                "bytes": manifest.bytes,
                "transactions": len(manifest.transactions),
                "scope": manifest.scope.value,
                "two_phase_commit": manifest.two_phase_commit,
                "writer": manifest.writer,
                "slot": ref.slot,
                "manifest": str(store.path(ref)),
            }
            with resolved.session(self.namespace) as session:
                record_prepared(session, manifest, writers_left=store.writers_left(manifest))
                verdict = self._decide_at_once(context, session, manifest, result | warned)
            made = f"{manifest.records:,} records, {manifest.bytes:,} bytes in {manifest.how}"
            step.done(ref.load, f"prepared {made}; {_told(verdict)}", warns=verdict is Verdict.ABORT)
        return result | warned | ({} if verdict is None else {"verdict": verdict.value})

    def _decide_at_once(
        self, context: Context, session: Session, manifest: Manifest, result: dict[str, Any]
    ) -> Verdict | None:
        found = decide_behind(self)
        if isinstance(found, DecideLoadOperator):
            return decide_at_once(found, self, context, session, manifest, result)
        self.log.info("%s is decided in a task of its own: %s", manifest.attempt, found)
        return None

    def _prepare_again(
        self,
        again: Repreparation,
        resolved: Resolved,
        store: ManifestStore,
        spec: Callable[..., str],
        run_spark: Callable[[str, AttemptRef], None],
    ) -> dict[str, Any]:
        """Write the lost Spark partitions once more: they enter the decision, or nothing of them stays open."""
        from airflow_kafka_eos.protocol.repair.reprepare import abandon_all, adopt_all

        partitions = [part.spark_partition for part in again.parts]
        self.log.warning("%s: preparing Spark partitions %s again", again.ref, partitions)
        wrote = again.attempt.writer  # it places rows without a key
        known = {writer.value for writer in WriterName}
        try:
            run_spark(
                spec(
                    again.ref,
                    transaction_timeout_ms=again.timeout_ms,
                    two_phase_commit=TwoPhaseCommit.OFF.value,
                    writer=wrote if wrote in known else self.writer,
                ),
                again.ref,
            )
            manifest = store.read(again.ref)
        except BaseException as e:
            # the ledger first, then Kafka; without a manifest nobody can decide it
            try:
                with resolved.session(self.namespace) as session:
                    abandon_all(session, again, str(redact(reason_of(e, resolved.secrets))))
            except KafkaEosError as left:
                self.log.warning("what %s has open is left to cleanup: %s", again.ref, left)
            raise
        with resolved.session(self.namespace) as session:
            adopt_all(session, again, manifest)
        return {"prepared_again": partitions, "records": manifest.records, "manifest": store.path(again.ref)}

    def _warned(self, session: Session, row: AttemptRow, asked: str | None, owner: str) -> dict[str, str]:
        """What to return, once it is logged, where the key does not fit what the job is asked for."""
        if asked is None:
            return {}
        if row.verdict is Verdict.COMMIT:
            warning = asked_for_something_else(row, asked, owner=owner)
        else:
            warning = asked_before(row, session.ledger.with_same_arguments(row.load, asked))
        if not warning:
            return {}
        self.log.warning("load %s: %s", row.load, warning)
        return {"warning": warning}

    def _arguments_sha256(self) -> str | None:
        if not self._follow_from_run:
            return None
        return digest_of(
            job=self.job,
            sql=self.sql,
            job_args=self.job_args or {},
            topics=self.topics,
            spark=[self.conf, self.env_vars],
        )

    @property
    def _hold_time_ms(self) -> int:
        return int(self.hold_time.total_seconds() * 1000)

    def _spec(self, store: ManifestStore, deadline_ms: int) -> Any:
        from airflow_kafka_eos.spark.options import WriteOptions
        from airflow_kafka_eos.spark.spec import ApplicationSpec

        check_topics(self.topics, rendered=True)
        check_job_or_sql(self.job, self.sql)
        check_json(self.job_args)

        def of(ref: Any, **changes: Any) -> str:
            options = WriteOptions(
                attempt=ref,
                manifest_dir=store.base,
                topics=tuple(self.topics),
                transaction_timeout_ms=self._hold_time_ms,
                deadline_ms=deadline_ms,
                # a repair is of the attempt's scope, whatever the DAG says by now
                scope=TransactionScope.TASK if ref.repairs else TransactionScope(self.scope),
                two_phase_commit=TwoPhaseCommit(self.two_phase_commit),
                writer=WriterName(self.writer),
            )
            return ApplicationSpec(
                replace(options, **changes),
                job=self.job,
                sql=self.sql,
                job_args=dict(self.job_args or {}),
                value_format=ValueFormat.of(self.value_format),
            ).to_json()

        return of

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


def _told(verdict: Verdict | None) -> str:
    """How the step's last line ends, by what was decided at once."""
    match verdict:
        case Verdict.COMMIT:
            return "decided: commit"
        case Verdict.ABORT:
            return "refused, so it is aborted, and the task decide fails with the reason"
        case None:
            return "the task decide decides it"
    assert_never(verdict)


def decide_behind(prepare: PrepareLoadOperator) -> DecideLoadOperator | str:
    """The task that decides what this one prepares; a text says why it has to wait for its turn. No I/O.

    Asked when it runs, not when the DAG is parsed: what an author puts between is wired behind the group.
    """
    if not prepare.decide_at_once:
        return "decide_at_once=False"
    if not prepare.has_dag():  # type: ignore[no-untyped-call]
        return "prepare is in no DAG"
    behind = [task for task in prepare.downstream_list if isinstance(task, DecideLoadOperator)]
    if len(behind) != 1:
        return f"{len(behind)} tasks behind {prepare.task_id} decide"
    (decide,) = behind
    return _what_decide_waits_for(prepare, decide) or decide


def _what_decide_waits_for(prepare: PrepareLoadOperator, decide: DecideLoadOperator) -> str:
    """What of the author's stands between the two, and may keep the load from being decided; else an empty text."""
    others = sorted(decide.upstream_task_ids - {prepare.task_id})
    if others:
        return f"it waits for {', '.join(others)}"
    if decide.trigger_rule != "all_success":
        return f"its trigger rule is {decide.trigger_rule.value}"
    if decide.depends_on_past or decide.wait_for_downstream:
        return "it waits for the run before"
    if decide._pre_execute_hook is not None or prepare._post_execute_hook is not None:
        return "a pre_execute or post_execute stands before it"
    return (
        overridden(prepare, PrepareLoadOperator, "execute", "post_execute")
        or overridden(decide, DecideLoadOperator, "pre_execute", "execute", "decide")
    )


def check_writer(scope: TransactionScope, two_phase_commit: TwoPhaseCommit, writer: WriterName) -> None:
    """
    :raises ConfigurationError: the confluent writer was asked for, and what it does not have.
    """
    needs = 'scope="load"' if scope is TransactionScope.LOAD else ""
    if two_phase_commit is TwoPhaseCommit.REQUIRED:
        needs = needs or 'two_phase_commit="required"'
    if writer is WriterName.CONFLUENT and needs:
        raise ConfigurationError(
            f'writer="confluent" cannot do {needs}: librdkafka has no way to it',
            remedy=f'Leave writer at "auto", or {needs.partition("=")[0]} at its default',
        )


#: What of a run tells its data from another run's; what is in no template of these, the job finds out by itself.
_OF_THE_RUN = (
    r"ds|ds_nodash|ts|ts_nodash|ts_nodash_with_tz|logical_date|data_interval_start|data_interval_end"
    r"|partition_key|partition_date|params|conf|run_after"
)
_TEMPLATE = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)
_NAME = re.compile(rf"(?<!\w)({_OF_THE_RUN})(?!\w)")


def follow_from_run(*given: Any) -> bool:
    """Whether any text in these arguments, not rendered yet, is made of the run's dates, partition or parameters."""
    for one in given:
        if isinstance(one, str):
            if any(_NAME.search(template) for template in _TEMPLATE.findall(one)):
                return True
        elif isinstance(one, Mapping):
            if follow_from_run(*one.values()):
                return True
        elif isinstance(one, Sequence) and follow_from_run(*one):
            return True
    return False


def digest_of(
    *, job: str | None, sql: str | None, job_args: Mapping[str, Any], topics: Sequence[str], spark: Any
) -> str:
    """Of what is asked for, rendered. A function of the DAG file is known by its load, not by where the file is.

    :param spark: what else of the application may say what it reads: its ``conf`` and environment.
    """
    args = {k: v for k, v in job_args.items() if k not in ("file", "path")} if job == JOB else dict(job_args)
    asked = {"job": job, "sql": sql, "job_args": args, "topics": sorted(topics), "spark": spark}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def asked_before(row: AttemptRow, same: Sequence[AttemptRow]) -> str:
    """What to say where other keys of the load's name were committed with these very arguments; empty: nothing.

    :param same: committed attempts with them, of any key: the newest ``MOST_SAME``.
    """
    from airflow_kafka_eos.ledger.queries import MOST_SAME

    others = [a for a in same if first_key(a.load.key) != first_key(row.load.key)]
    if not others:
        return ""
    of = others[-1]
    many = "many" if len(same) >= MOST_SAME else str(len(others) - 1)
    more = f", and {many} more," if len(others) > 1 else ""
    return (
        f"The key {row.load.key} asks the job for exactly what the key {of.load.key}{more} asked for, committed by "
        f"{of.responsible}, decided at {of.decided_at}. Where the job reads only what its arguments name, the topic "
        "gets the same records twice: load_key is finer than what the job reads. Make it of the same template "
        "(docs/load-keys.md)"
    )


def asked_for_something_else(row: AttemptRow, arguments_sha256: str, *, owner: str) -> str:
    """What to say where another run has committed this key with other arguments; empty: nothing.

    :param row: the committed attempt.
    """
    if row.arguments_sha256 in (None, arguments_sha256) or row.responsible == owner:
        return ""
    return (
        f"The key {row.load.key} was committed by {row.responsible}, decided at {row.decided_at}, with other "
        "arguments for the job than this run's: what this run asked for is not loaded. Is load_key coarser than what "
        "the job reads? (docs/load-keys.md)"
    )
