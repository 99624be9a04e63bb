"""The tasks of a streaming query's run: run it to its end with ``availableNow``, and end what that has left open.

Which batch is written and which was committed before, the checkpoint and the ledger say: a retry, a clear or the next
run go on there by themselves.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, redact

from airflow_kafka_eos.amounts import duration_text
from airflow_kafka_eos.arguments import (
    Duration,
    check_job_or_sql,
    check_json,
    check_text,
    check_topics,
    duration,
    is_filled_in_later,
)
from airflow_kafka_eos.config import setting
from airflow_kafka_eos.errors import ConfigurationError, InDoubtError, KafkaEosError, TransientError
from airflow_kafka_eos.load import (
    NamingText,
    TransactionNaming,
    TransactionScope,
    TwoPhaseCommit,
    TwoPhaseCommitText,
    WriterName,
    WriterText,
)
from airflow_kafka_eos.naming import counted
from airflow_kafka_eos.operators.base import (
    LoadOperator,
    Step,
    no_retry_of_terminal_errors,
    owner_index,
    owner_of,
    task_of,
)
from airflow_kafka_eos.operators.by_connect import remote_of
from airflow_kafka_eos.operators.prepare import DEFAULT_SPARK_NAME
from airflow_kafka_eos.operators.preparing import LONGEST_HOLD_TIME, check_writer
from airflow_kafka_eos.operators.submitting import (
    FINAL,
    NOT_DURABLE,
    Deployment,
    environment,
    own_error_first,
)
from airflow_kafka_eos.reasons import reason_of
from airflow_kafka_eos.sensors import states_of_group
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE, SETTINGS_VARIABLE
from airflow_kafka_eos.streams.options import OPENED_BY, Replay
from airflow_kafka_eos.streams.spec import LEASE_TTL, StreamSpec

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_kafka_eos.hooks import Resolved

#: In place of a load's key: each batch has its own.
EVERY_BATCH = "batches"
_RENEW_S = 15.0
#: Another run is waited for as long as a dead one's lease may last; then the task fails, and is retried.
PATIENCE_S = LEASE_TTL.total_seconds() + 15.0
_LOOK_S = 2.0
#: What the next try would meet too. Doubt stops for a person, who is to hear of it now.
_FINAL = (*FINAL, InDoubtError)
#: Behind SIGTERM Airflow leaves a task five seconds.
_SWEEP_S, _AGAIN_S = 20.0, 1.0


class StreamTask(LoadOperator):
    """A task of a streaming query's run. What its arguments mean is said in
    :class:`~airflow_kafka_eos.stream_group.ExactlyOnceStream`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(load_key=EVERY_BATCH, **kwargs)

    @property
    def query(self) -> str:
        """Namespace and name, for people."""
        return f"{self.namespace}/{self.load_name}"

    def check_key(self, context: Any) -> None:
        """
        :raises AirflowFailException: the task is mapped, and so all map indexes would run one query.
        """
        with no_retry_of_terminal_errors():
            if owner_index(context) is not None:
                raise ConfigurationError(
                    f"the streaming query {self.load_name!r} is mapped: all map indexes would run one query",
                    remedy="Write an ExactlyOnceStream for each, in a loop, with a checkpoint of its own",
                )

    def check_begun(self, context: Any) -> None:
        """A query's batches are begun by itself: a begin that stands before it is another load's."""

    @contextmanager
    def as_step(self, context: Any, name: str | None = None) -> Iterator[Step]:
        """Around all that the task does: it ends with one line that says what was done, or why not."""
        began = time.monotonic()
        try:
            yield Step(self, context, name)
        except BaseException as e:
            took = duration_text(time.monotonic() - began)
            self.log.error("query %s: %s failed after %s: %s", self.query, self.step_name, took, self.why(e))
            raise

    def why(self, error: BaseException, resolved: Resolved | None = None) -> str:
        """An error for people, without secrets."""
        secrets: list[str] = []
        with suppress(Exception):  # what is wrong may be the connections
            secrets = (resolved or self._resolve()).secrets
        return str(redact(reason_of(error, secrets)))


class RunStreamOperator(StreamTask, SparkSubmitOperator):
    """Run a streaming query until all that its sources have now is committed, batch by batch.

    ::

        RunStreamOperator(task_id="run", load_name="orders", job="jobs/orders.py", topics=["orders"],
                          checkpoint="s3://lake/checkpoints/orders", conn_id="spark_default", driver_memory="2g")

    Takes everything that SparkSubmitOperator takes, but for ``application_args`` and ``durable``. The driver runs on
    the worker (deploy mode ``client``), and ends with the task.

    One run of a query at a time: it has a lease of it in the ledger, which others wait for. It is a courtesy: that a
    second driver writes nothing twice, the ledger sees to (rule: newest-run-begins).
    """

    step_name = "run"
    template_fields: Sequence[str] = tuple(
        dict.fromkeys(
            (
                *LoadOperator.template_fields,
                *("job", "job_args", "topics", "checkpoint"),
                *SparkSubmitOperator.template_fields,
            )
        )
    )

    def __init__(
        self,
        *,
        job: str | XComArg,
        topics: Sequence[str] | XComArg,
        checkpoint: str,
        job_args: Mapping[str, Any] | XComArg | None = None,
        hold_time: Duration | None = None,
        batch_timeout: Duration | None = None,
        commit_timeout: Duration = 120.0,
        two_phase_commit: TwoPhaseCommitText | None = None,
        writer: WriterText = "auto",
        transaction_naming: NamingText = "pooling",
        replay: str = "check",
        **kwargs: Any,
    ) -> None:
        for taken in ("application", "application_args", "durable"):
            if taken in kwargs:
                raise ConfigurationError(
                    f"{taken}={kwargs[taken]!r} cannot be set on {type(self).__name__}",
                    remedy="Name your job with job=… and its arguments with job_args=…",
                )
        check_topics(topics)  # and again when rendered
        check_job_or_sql(job, None)
        check_json(job_args)
        check_text("checkpoint", checkpoint, required=True)
        _check_place(checkpoint)
        held = duration("hold_time", setting("hold_time", hold_time), below=LONGEST_HOLD_TIME)
        batch = held if batch_timeout is None else duration("batch_timeout", batch_timeout)
        if batch < held:
            raise ConfigurationError(
                f"batch_timeout={batch} is less than hold_time={held}",
                remedy="Leave it out, or raise it: it is how long a batch may compute until its last task begins to "
                "write",
            )
        committed = duration("commit_timeout", commit_timeout)
        two_phase = TwoPhaseCommit.read("two_phase_commit", setting("two_phase_commit", two_phase_commit))
        named = WriterName.read("writer", writer)
        check_writer(TransactionScope.TASK, two_phase, named)
        naming = TransactionNaming.read("transaction_naming", transaction_naming)
        compared = Replay.read("replay", replay)
        super().__init__(**NOT_DURABLE, **kwargs)
        # rendered when they are read
        self.job: Any = job
        self.job_args: Any = job_args
        self.topics: Any = topics
        self.checkpoint: Any = checkpoint
        self.hold_time, self.batch_timeout, self.commit_timeout = held, batch, committed
        self.two_phase_commit, self.writer = two_phase.value, named.value
        self.transaction_naming, self.replay = naming.value, compared.value
        self._is_killed = threading.Event()

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Run it, and tell what it has committed.

        :returns: ``query``, ``query_id``, ``batches`` (the first and the last batch id that this try has committed;
            None: there was nothing new), ``records``.
        """
        with self.as_step(context), no_retry_of_terminal_errors():
            resolved = self._resolve()
            owner, began = owner_of(context), datetime.now(UTC)
            by = f"{task_of(context)} try {context['ti'].try_number}"
            spec = replace(self._spec(owner), lease=(self._leased, by)).to_json()
            if remote_of(self._conn_id) is not None:
                raise ConfigurationError(
                    f"spark_conn_id={self._conn_id!r} is a Spark Connect server's, which streams cannot use",
                    remedy="Name a connection of type spark, in deploy mode client",
                )
            deployment = Deployment.of(self._get_hook(), self.conf)
            self._check(deployment)
            with self._turn(resolved, by) as is_ours:
                try:
                    self._submit(spec, deployment, resolved, context)
                except BaseException as e:
                    # the next try may be minutes away, and readers would wait as long
                    self._end_driver()
                    if is_ours():
                        self._end_what_is_open(resolved, owner, self.why(e, resolved))
                    raise
            took = duration_text((datetime.now(UTC) - began).total_seconds())
            done = self._done(resolved, owner, began)
            what = "nothing new" if done["batches"] is None else (
                f"batches {done['batches'][0]} to {done['batches'][1]}, {done['records']:,} records"
            )  # fmt: skip
            self.log.info("query %s: %s, in %s", self.query, what, took)
            return done

    def on_kill(self) -> None:
        """Airflow's own: end the driver. What it has open is ended by :meth:`execute`, or by cleanup."""
        self._is_killed.set()
        super().on_kill()

    def _end_driver(self) -> None:
        """Of a task that has timed out, which Airflow tells so only behind this; it would begin the next batch."""
        process = None if self._hook is None else self._hook._submit_sp
        if process is not None and process.poll() is None:
            super().on_kill()
            with suppress(Exception):
                process.wait(_SWEEP_S)

    @property
    def _leased(self) -> str:
        return f"streaming query {self.query}"

    def _spec(self, owner: str) -> StreamSpec:
        check_topics(self.topics, rendered=True)
        _check_place(self.checkpoint)
        options = {
            "queryName": self.load_name,
            "checkpointLocation": self.checkpoint,
            "topics": ",".join(self.topics),
            "load.namespace": self.namespace,
            "transaction.timeout.ms": _ms(self.hold_time),
            "batch.timeout.ms": _ms(self.batch_timeout),
            "commit.timeout.ms": _ms(self.commit_timeout),
            "transaction.two.phase.commit": self.two_phase_commit,
            "writer": self.writer,
            "transaction.naming": self.transaction_naming,
            "stream.replay": self.replay,
            OPENED_BY: owner,
        }
        return StreamSpec(self.job, options, self.job_args or {})

    def _check(self, deployment: Deployment) -> None:
        deployment.check(None if not deployment.is_cluster else "unused")
        if deployment.is_cluster:
            raise ConfigurationError(
                f"deploy mode 'cluster' with Spark master {deployment.master!r}: a query's driver would outlive its "
                "Airflow task",
                remedy="Use deploy mode 'client', where the driver runs on Airflow's worker and ends with the task; "
                "or run the query by itself (docs/streams.md)",
            )

    def _submit(self, spec: str, deployment: Deployment, resolved: Resolved, context: Any) -> None:
        from airflow_kafka_eos import streams

        self.application = str(Path(streams.__file__).with_name("application.py"))
        self.application_args = ["--spec", spec]
        if self.name == DEFAULT_SPARK_NAME:
            self.name = self.load_name
        self._hook = self._get_hook()
        if self._is_killed.is_set():
            raise AirflowException("the task was told to stop before its query was started")
        texts = {SETTINGS_VARIABLE: resolved.settings.to_json(), LEDGER_VARIABLE: resolved.ledger_url}
        with environment(texts, deployment.is_local), own_error_first(final=_FINAL):
            SparkSubmitOperator.execute(self, context)

    @contextmanager
    def _turn(self, resolved: Resolved, by: str) -> Iterator[Any]:
        """The query's lease, renewed meanwhile and given back; yields what tells whether it still is this try's."""
        what = [self._leased]

        def acquire() -> str | None:
            with resolved.ledger() as ledger:  # opened for each question: one that is away may come back
                return ledger.acquire_lease(what, by=by, ttl=LEASE_TTL)

        give_up, told = time.monotonic() + PATIENCE_S, ""
        while (other := acquire()) is not None:
            if time.monotonic() >= give_up:
                raise AirflowException(
                    f"query {self.query} is being run by {other}. Nothing was started: two drivers of one query would "
                    "stop each other. Is that another query, with this one's name? Give one of them a load_name of its "
                    "own. Else a retry of this task, or the next run, takes what there is then"
                )
            if other != told:
                self.log.info("query %s waits for its turn: it is being run by %s", self.query, other)
                told = other
            time.sleep(_LOOK_S)
        over, lost = threading.Event(), threading.Event()

        def is_ours() -> bool:
            try:
                return not lost.is_set() and acquire() is None
            except KafkaEosError:
                return not lost.is_set()

        def renew() -> None:
            while not over.wait(_RENEW_S):
                with suppress(Exception):  # the ledger may be away for a while
                    if acquire() is not None:
                        lost.set()
                        return

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield is_ours
        finally:
            over.set()
            thread.join(_LOOK_S)
            with suppress(KafkaEosError), resolved.ledger() as ledger:
                ledger.release_lease(what, by=by)

    def _end_what_is_open(self, resolved: Resolved, owner: str, why: str) -> None:
        """Never raises: cleanup looks again."""
        from airflow_kafka_eos.protocol.stages.stream_runs import sweep_left

        try:
            with resolved.session(self.namespace, timeout_s=_SWEEP_S) as session:
                reason = f"run failed: {why}"
                aborted = sweep_left(session, self.load_name, run=owner, reason=reason)
                time.sleep(_AGAIN_S)  # a task of the driver's may have been about to begin
                aborted += sweep_left(session, self.load_name, run=owner, reason=reason)
            if aborted:
                self.log.info("query %s: the batch that was under way is given up: %s aborted", self.query,
                              counted(aborted))  # fmt: skip
        except Exception as e:
            self.log.warning("what query %s has open is left to cleanup, or to the next run: %s", self.query, e)

    def _done(self, resolved: Resolved, owner: str, began: datetime) -> dict[str, Any]:
        from airflow_kafka_eos.ledger.tables import for_people
        from airflow_kafka_eos.protocol.stages.stream_runs import committed_batches

        by = for_people(owner)
        found: list[Any] = []
        with resolved.ledger() as ledger:
            stream = ledger.stream(self.namespace, self.load_name)
            if stream is not None:
                found = committed_batches(
                    ledger, stream, above=-1,
                    go_on=lambda row: row.responsible == by and _since(row.decided_at, began),
                )  # fmt: skip
        return {
            "query": self.query,
            "query_id": None if stream is None else stream.query_id,
            "batches": [found[-1][0], found[0][0]] if found else None,
            "records": sum(row.records or 0 for _, row in found),
        }


class CleanupStreamOperator(StreamTask):
    """End what the run's drivers have left open, and wait until nothing comes behind them.

    Only this run's own batches: another run may be at work on the query (rule: up-to-its-own-attempt). What is decided
    is rolled forward.

    :param quiet_period: as of :class:`~airflow_kafka_eos.sensors.CleanupLoadSensor`.
    :param timeout: a timedelta, or seconds, after which it fails; a retry waits as long again.
    """

    step_name = "cleanup"

    def __init__(self, *, quiet_period: Duration | None = None, timeout: Duration = 3600.0, **kwargs: Any) -> None:
        quiet = duration("quiet_period", setting("quiet_period", quiet_period), zero=True)
        waits = duration("timeout", timeout)
        super().__init__(**kwargs)
        self.quiet_period, self.timeout = quiet, waits

    def execute(self, context: Context) -> dict[str, Any]:
        """Sweep; most runs have nothing left.

        :returns: ``aborted`` ids, and ``problem``: what only commit or a person can end, as a text; or None.
        :raises AirflowFailException: see :func:`hidden_failure`.
        """
        swept = self._sweep(context)
        hidden = hidden_failure(*states_of_group(context))
        if hidden is not None:
            raise AirflowFailException(f"query {self.query}, cleaned up: {hidden}")
        return swept

    def _sweep(self, context: Context) -> dict[str, Any]:
        from airflow_kafka_eos.protocol.cleanup.namespace import clean
        from airflow_kafka_eos.protocol.stages.stream_runs import left_by

        owner = owner_of(context)
        with self.as_step(context), no_retry_of_terminal_errors():
            resolved = self._resolve()
            with resolved.ledger() as ledger:
                left = left_by(ledger, self.namespace, self.load_name, run=owner)
            if not left:
                self.log.info("query %s: clean: this run has left nothing open", self.query)
                return {"aborted": [], "problem": None}
            with resolved.session(self.namespace) as session:
                swept = clean(
                    session, left, by=owner, quiet_s=self.quiet_period.total_seconds(),
                    deadline_s=self.timeout.total_seconds(),
                )  # fmt: skip
        aborted = [name for one in swept for name in one.aborted]
        errors = [one.error for one in swept if one.error is not None]
        for error in errors:
            self.log.warning("NOT CLEAN: %s", error)
        if any(isinstance(error, TransientError) for error in errors):
            raise AirflowException(f"query {self.query} is not clean: {errors[0]}")
        self.log.info(
            "query %s: %s", self.query, f"aborted {counted(aborted)}" if aborted else "nothing was open any more"
        )
        return {"aborted": aborted, "problem": str(errors[0]) if errors else None}


def hidden_failure(tasks: Mapping[str, str | None], leaves: Collection[str]) -> str | None:
    """Why Airflow would show the run as successful although it is not, or None. No I/O.

    As of a load (:func:`airflow_kafka_eos.sensors.hidden_failure`): where a person marks the whole run, Airflow skips
    what has not begun, and takes a skipped ``loaded`` for a success. Where nothing of the group has run, a branch
    before it may have skipped it, and that is as it should be.

    :param tasks: task id -> state, the tasks of the query's group but for cleanup.
    :param leaves: which of them are its ``loaded``.
    """
    has_run = any(state in ("success", "failed") for state in tasks.values())
    if not has_run or not any(tasks.get(leaf) == "skipped" for leaf in leaves):
        return None
    return (
        "loaded was skipped, so the run was marked while it was at work, and Airflow would show it as successful. What "
        "is committed stays, what was not is given up, and nobody was told of either. The next run goes on there and "
        "tells of all; to have it now, clear run with what is downstream of it, and cleanup"
    )


def _since(at: str | None, began: datetime) -> bool:
    """Clocks of worker and driver are one host's, the ledger's too: it is the driver that writes there."""
    return at is not None and datetime.fromisoformat(at) >= began


def _check_place(checkpoint: Any) -> None:
    """
    :raises ConfigurationError: each process would look elsewhere for it.
    """
    if is_filled_in_later(checkpoint):
        return
    if not isinstance(checkpoint, str) or ("://" not in checkpoint and not os.path.isabs(checkpoint)):
        raise ConfigurationError(
            f"checkpoint={checkpoint!r} is neither absolute nor a URL",
            remedy="Name a folder that all workers mount, or s3://bucket/folder and the like",
        )


def _ms(time_: timedelta) -> str:
    return str(int(time_.total_seconds() * 1000))
