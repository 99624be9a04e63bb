"""One prepare by a Spark Connect server: the spec goes in, the manifest comes out, as with spark/application.py.

This process is the client, and what of a Spark driver belongs to the protocol: it claims the attempt, asks the cluster
by Airflow's own login, runs the job (which makes a plan), and writes the manifest. The server's executors write the
transactions (:mod:`.task`). So a client that dies leaves no manifest, whatever its operation at the server comes to;
and nobody but this process needs the folder of manifests.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.amounts import duration_text, size_text
from airflow_kafka_eos.connect.logins import check_login_id, split
from airflow_kafka_eos.connect.remote import ONCE, Remote, check_arrow_functions, opened, told
from airflow_kafka_eos.connect.shipped import shipped
from airflow_kafka_eos.errors import ConfigurationError, ManifestError, StoppedError
from airflow_kafka_eos.kafka.client.librdkafka import OnlyLibrdkafkaError
from airflow_kafka_eos.load import TransactionScope, WriterName
from airflow_kafka_eos.manifest import ManifestEntry
from airflow_kafka_eos.protocol import fences
from airflow_kafka_eos.spark.attempt_writer import AttemptWriter, PartReport, check_claim, identities
from airflow_kafka_eos.spark.no_retries import run_again_by
from airflow_kafka_eos.spark.options import WriteOptions, check_schema
from airflow_kafka_eos.spark.orphan import StopWhenSuperseded, superseded
from airflow_kafka_eos.spark.pace import Pace
from airflow_kafka_eos.spark.preflight import check_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation
    from pyspark.sql.connect.session import SparkSession

    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.naming import AttemptRef
    from airflow_kafka_eos.spark.formats.settings import RegistrySettings
    from airflow_kafka_eos.spark.manifest_store import ManifestStore
    from airflow_kafka_eos.spark.options import Checked
    from airflow_kafka_eos.spark.spec import ApplicationSpec

_POLL_S = 0.5
_ADAPTIVE = "spark.sql.adaptive.enabled"
#: Formats whose values are made by functions over Arrow arrays.
_ARROW_FORMATS = ("confluent-avro",)


@dataclass(frozen=True)
class Job:
    """What one prepare is about.

    :param run: the author's function, bound to its arguments; called with the session, and with a cursor's range,
        returns its DataFrame. None: the specification's SQL.
    :param login: the id of the Kafka login that executors add.
    :param cluster_id: of the Kafka cluster that the ledger has pinned for the attempt.
    :param why_over: asks the ledger why nothing of the attempt can be decided any more; None: it can.
    :param conf: Spark settings of the author's.
    :param registry: of schemas, for the formats ``confluent-*``.
    """

    run: Callable[..., Any] | None
    login: str
    cluster_id: str | None
    why_over: Callable[[], str | None]
    conf: Mapping[str, Any] = field(default_factory=dict)
    registry: RegistrySettings | None = None


class _Stages:
    """What the server has said of the stages that are at work; pyspark calls it with that."""

    def __init__(self) -> None:
        self._seen: tuple[int, int, int] | None = None

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        every = list(stages or ())
        self._seen = (
            sum(s.num_completed_tasks for s in every),
            sum(s.num_tasks for s in every),
            inflight_tasks,
        )

    def line(self, seconds: float) -> str:
        if self._seen is None:
            return f"the server has told nothing of it yet ({duration_text(seconds)})"
        done, total, running = self._seen
        return f"{done} of {total} tasks done, {running or 'none'} running ({duration_text(seconds)})"


def prepare(
    spec: ApplicationSpec,
    settings: KafkaSettings,
    store: ManifestStore,
    remote: Remote,
    job: Job,
    *,
    stop: threading.Event,
    say: Callable[[str], object],
) -> None:
    """Claim the attempt, have its DataFrame written, and leave the manifest; or a tombstone.

    :param spec: what to write, as which attempt.
    :param settings: by which this process asks the cluster.
    :param store: of claims and manifests.
    :param stop: set by whoever wants this to end.
    :param say: prints a line.
    :raises UndecidableError: the attempt was claimed before (rule: one-application-per-attempt).
    :raises SupersededError: the attempt was superseded or aborted meanwhile.
    :raises StoppedError: ``stop`` was set.
    :raises SparkUnavailableError: the server is gone, or was started again.
    :raises ConfigurationError: the server or its executors lack something, or the job returns something else.
    :raises KafkaEosError: whatever an executor's writer raises.
    :raises SparkFailed: anything else that the server says.
    """
    ref = spec.options.attempt
    check_login_id(job.login)
    check_writer(spec.options.writer)
    claimant = (
        f"{socket.gethostname()} process {os.getpid()}, by {remote.host}:{remote.port}, {uuid.uuid4().hex}"
    )
    store.claim(ref, claimant)
    say(f"load {ref}: claimed by {claimant}")
    spec = replace(spec, options=replace(spec.options, claim=claimant))
    stages = _Stages()
    with (
        StopWhenSuperseded(store, ref, told="its operation at the server is interrupted", in_task=True) as watch,
        Pace(str(ref), stages.line, say) as pace,
        _told_to_stop(ref.ids, stop),
        opened(remote, job.conf) as spark,
        _interrupted(spark, stop),
    ):
        watch.cancels(spark.interruptAll)
        spark.registerProgressHandler(stages)  # type: ignore[arg-type]  # it wants positions, and gives names
        _write(spec, settings, store, remote, job, spark, watch.check, say)
    made = store.read(ref)
    say(
        f"load {ref}: prepared {made.records:,} records in {made.how}, {len(made.entries)} Spark partitions, "
        f"{size_text(made.bytes)}, {duration_text(pace.seconds)}; manifest {store.path(ref)}"
    )


def _write(
    spec: ApplicationSpec,
    settings: KafkaSettings,
    store: ManifestStore,
    remote: Remote,
    job: Job,
    spark: SparkSession,
    check_stop: Callable[[], None],
    say: Callable[[str], object],
) -> None:
    options, ref = spec.options, spec.options.attempt
    checked = _checked(settings, options)  # it may initialise the probe, so never behind the fence
    with told(remote, settings.secrets, has_answered=True):
        server = dict(spark.conf.getAll)
        cluster_id, application_id = _known(job, server, remote, ref)
        _set_defaults(spark, server)
        frame = _frame(spec, job, spark, remote, store)
        if options.scope is TransactionScope.LOAD:
            from airflow_kafka_eos.spark.scope import check_arrangement, own_partitions

            check_arrow_functions(spark, remote, "transaction scope load")
            _look_at_executors(spark)
            frame = own_partitions(frame, options, settings)
            arranged = check_arrangement(frame.schema, checked.partitions, options)
            options = replace(options, tasks=arranged or options.tasks)
        check_stop()
        check_claim(options, store)
        stood = fences.stand(settings, ref, options.deadline_ms, job.why_over)
        if isinstance(stood, str):
            raise superseded(ref, stood)
        # behind the fence: what scope load initialises here shows in no listing until it is written
        shared, at_lease = identities(options, settings, checked, store)
        writer = AttemptWriter(options, settings, checked, shared, at_lease, store)
        try:
            from airflow_kafka_eos.connect.task import WRITE, Work, schema

            sent, needed = split(settings)
            work = Work(
                options, checked, sent, job.login, tuple(needed), cluster_id, application_id, stood, shared, at_lease
            )
            say(f"load {ref}: writing to {', '.join(options.topics)}, by {remote}")
            function = shipped(WRITE, pickle.dumps(work))
            reports = _run(spark, frame.mapInArrow(function, schema()), options)
            check_stop()
            writer.commit(reports)
        except BaseException:
            writer.abort([])
            raise
    if _ran_once(reports, server):
        store.note_ran_once(ref)


def check_writer(writer: WriterName) -> None:
    """
    :raises ConfigurationError: the confluent writer was asked for.
    """
    if writer is WriterName.CONFLUENT:
        raise ConfigurationError(
            "writer='confluent' with a Spark Connect server: librdkafka begins transactions by itself, up to minutes "
            "after its rows were handed over, and nobody can look before it does whether the attempt is over already",
            remedy="Leave writer out, or use spark-submit (a connection of type spark)",
        )


def _checked(settings: KafkaSettings, options: WriteOptions) -> Checked:
    """What the cluster says, for the one writer that looks before it begins anything.

    :raises ConfigurationError: a setting is one that only librdkafka has.
    """
    try:
        return check_cluster(settings, replace(options, writer=WriterName.ARROW))
    except OnlyLibrdkafkaError as e:
        raise ConfigurationError(
            f"{e.message}, and with a Spark Connect server no other one writes",
            remedy="Change that setting of the Kafka connection, or use spark-submit (a connection of type spark)",
            **options.attempt.ids,
        ) from None


def _set_defaults(spark: SparkSession, server: Mapping[str, str]) -> None:
    """As the packaged application does, where nobody has said otherwise."""
    from airflow_kafka_eos.spark.write import ARROW_BATCHES

    for key, value in ARROW_BATCHES.items():
        if key not in server:
            spark.conf.set(key, value)


def _known(job: Job, server: Mapping[str, str], remote: Remote, ref: AttemptRef) -> tuple[str, str]:
    """What executors compare: the Kafka cluster's id, and that of the server's Spark application.

    :raises ConfigurationError: one of them is not told, so that nothing would be compared.
    """
    from airflow_kafka_eos.connect.task import APPLICATION

    missing = "the id of its Kafka cluster" if not job.cluster_id else ""
    if not server.get(APPLICATION):
        missing = f"{APPLICATION} among the settings of the {remote}"
    if missing:
        raise ConfigurationError(
            f"{missing} is not told, and executors could not compare it before they write",
            remedy="Use spark-submit here (a connection of type spark)",
            **ref.ids,
        )
    return str(job.cluster_id), server[APPLICATION]


def _frame(
    spec: ApplicationSpec, job: Job, spark: SparkSession, remote: Remote, store: ManifestStore
) -> DataFrame:
    """What the job returns, with its values made."""
    from airflow_kafka_eos.spark.dag_file import shown_job
    from airflow_kafka_eos.spark.formats.shaping import shape
    from airflow_kafka_eos.spark.job import checked_frame

    options, name = spec.options, shown_job(spec.job, spec.arguments)
    if job.run is None:
        found = spark.sql(spec.sql or "", args=spec.arguments or None)
    else:
        found = checked_frame(job.run(spark, **(spec.range or {})), spec, store)
    # by its session, and not its server: another session has other settings, views and artifacts, and is not released
    if getattr(found, "sparkSession", None) is not spark:
        raise ConfigurationError(
            f"the job {name} returned a DataFrame of another Spark session than the one that it was given",
            remedy="Make it with the session that the function gets as its first argument",
        )
    if spec.value_format.name in _ARROW_FORMATS:
        check_arrow_functions(spark, remote, f"value_format={spec.value_format.name}")
        _look_at_executors(spark)
    made: DataFrame = shape(
        found,
        spec.value_format,
        topics=options.topics,
        default_topic=options.default_topic,
        registry=job.registry,
    )
    check_schema(made.schema, has_default_topic=options.default_topic is not None)
    return made


def _look_at_executors(spark: SparkSession) -> None:
    """Before functions of ours that do not look themselves whether the package there is of this version.

    One task, on one executor: it finds a server that was not upgraded, and not one executor of many.
    """
    from airflow_kafka_eos.connect.task import LOOK, schema

    spark.range(1, numPartitions=1).mapInArrow(shipped(LOOK, b""), schema()).toArrow()


def _run(spark: SparkSession, frame: Any, options: WriteOptions) -> list[PartReport]:
    """Run the write, once.

    :returns: the reports of all Spark partitions.
    :raises ManifestError: the server hands over other reports than it has counted.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    from airflow_kafka_eos.connect.task import read_report
    from airflow_kafka_eos.spark.write import is_arranged

    if is_arranged(frame._explain_string(extended=True)):
        # adaptive execution would arrange rows anew, below a function over all of them
        spark.conf.set(_ADAPTIVE, "false")
    counted = Observation()
    spark.addTag(ONCE)
    try:
        table = frame.observe(counted, f.count(f.lit(1)).alias("reports")).toArrow()
    finally:
        spark.removeTag(ONCE)
    texts = [column.as_py() for column in table.column(0)]
    try:
        reports = [read_report(text) for text in texts]
    except ValueError as e:
        raise _other_reports(f"a report is malformed ({e})", options) from None
    if (seen := _counted(counted, reports)) != len(reports):
        raise _other_reports(f"{seen} were counted, and {len(reports)} have come", options)
    # a DataFrame without partitions has no task: the data source gets an empty one
    return reports or [PartReport(ManifestEntry(0, None, ()))]


def _counted(observation: Observation, reports: Sequence[PartReport]) -> int:
    """How many the server has counted. Of a plan that has nothing to run, it counts nothing at all."""
    from pyspark.errors import PySparkAssertionError

    try:
        return int(observation.get["reports"])
    except (PySparkAssertionError, KeyError):
        return -1 if reports else 0


def _other_reports(problem: str, options: WriteOptions) -> ManifestError:
    return ManifestError(
        f"the server's tasks have written, and what they report has not come whole: {problem}",
        remedy="Clear prepare: it opens a new attempt; look for a proxy or a plugin that changes the server's answers",
        **options.attempt.ids,
    )


def _ran_once(reports: Sequence[PartReport], server: Mapping[str, str]) -> bool:
    """Whether Spark can have run nothing twice. No I/O: a client cannot ask which stages were run again.

    So it is known only of a server that is set not to do so; without, cleanup moves the fence and waits behind it.
    """
    return not run_again_by(server.get) and all(r.attempt_number == 0 and not r.skipped_ids for r in reports)


@contextmanager
def _told_to_stop(ids: Mapping[str, Any], stop: threading.Event) -> Iterator[None]:
    """Whatever an interrupted operation raises, it was told to stop."""
    try:
        yield
    except Exception as e:
        if not stop.is_set():
            raise
        raise StoppedError(
            f"prepare was told to stop, and its operation at the server is interrupted ({type(e).__name__})",
            remedy="A retry, or clearing prepare, opens a new attempt",
            **ids,
        ) from None


@contextmanager
def _interrupted(spark: SparkSession, stop: threading.Event) -> Iterator[None]:
    """Interrupt what runs in the session, from when ``stop`` is set until this is left."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_S):
            if stop.is_set():
                try:
                    spark.interruptAll()
                except Exception:  # the server is gone, or going
                    continue

    thread = threading.Thread(target=watch, name="stop-when-told", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
