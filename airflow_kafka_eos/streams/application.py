"""The packaged spark-submit application of a streaming query: runs it with ``availableNow``, to its end.

    spark-submit ... airflow_kafka_eos/streams/application.py --spec '<json>'

The Kafka settings and the ledger's URL come in the driver's environment (:mod:`..spark.driver_secrets`). It prints a
line for each batch. Exit codes and errors are those of :mod:`..spark.application`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.streams.options import StreamOptions
    from airflow_kafka_eos.streams.spec import StreamSpec

_LOOK_S = 0.5
#: For so long a driver whose Airflow task is gone tries to end its query and what that has open.
_LAST_S = 20.0


def _leave_own_folder() -> None:
    # spark-submit runs this file by its path and puts its folder first: our modules would hide others of their names
    here = Path(__file__).resolve().parent
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != here]


class Running:
    """The query of this process, for whoever has to end it."""

    def __init__(self) -> None:
        self.query: Any = None
        self.spec: StreamSpec | None = None
        self._is_orphaned = threading.Event()

    def give_up(self) -> None:
        """The Airflow task is gone: end the query, and what it has open, so that no reader waits for the next run."""
        self._is_orphaned.set()
        done = threading.Thread(target=self._give_up, name="give-up", daemon=True)
        done.start()
        done.join(_LAST_S)

    def wait_where_orphaned(self) -> None:
        """The query has been stopped by :meth:`give_up`: whoever waits for it must not end this process before that."""
        if self._is_orphaned.is_set():
            time.sleep(_LAST_S)

    def _give_up(self) -> None:
        from airflow_kafka_eos.protocol.stages.stream_runs import sweep_left
        from airflow_kafka_eos.streams.connections import query_session
        from airflow_kafka_eos.streams.options import StreamOptions
        from airflow_kafka_eos.streams.spec import LEASE_TTL

        if self.spec is None:
            return
        with suppress(Exception):
            if self.query is not None:
                self.query.stop()
        options, (what, by) = StreamOptions.parse(self.spec.options), self.spec.lease
        with suppress(Exception), query_session(options) as session:
            # the next try has the same owner: behind a clear it may have begun
            if session.ledger.acquire_lease([what], by=by, ttl=LEASE_TTL) is None:
                reason = "the Airflow task that ran the query is gone"
                sweep_left(session, options.name, run=options.opened_by, reason=reason)
                session.ledger.release_lease([what], by=by)  # so that the next try need not wait for its end


def main(arguments: list[str]) -> int:
    """Run the application.

    :returns: the exit code.
    """
    from airflow_kafka_eos.spark.application import run

    running = Running()
    return run(arguments, lambda spec: run_query(spec, running), at_orphaned=running.give_up)


def run_query(spec_text: str, running: Running) -> None:
    """Run the query until all that its sources had when it was started is committed.

    :raises ConfigurationError: options or job are wrong, or the driver's environment names no ledger.
    :raises Exception: whatever ends the query, as Spark raises it.
    """
    from airflow_kafka_eos.spark.application import leave_server, new_session, say
    from airflow_kafka_eos.spark.versions import OLDEST, require_spark
    from airflow_kafka_eos.spark.write import arrow_batches
    from airflow_kafka_eos.streams.connections import ledger_url
    from airflow_kafka_eos.streams.options import StreamOptions
    from airflow_kafka_eos.streams.spec import StreamSpec

    spec = StreamSpec.from_json(spec_text)
    options = StreamOptions.parse(spec.options)
    ledger_url(os.environ)
    require_spark(OLDEST, "this package", "Point the Spark connection to a Spark that is newer")
    running.spec = spec
    spark = new_session(arrow_batches())
    context = spark.sparkContext
    began = time.monotonic()
    try:
        frame = streaming_frame(spec, spark)
        if reads_aborted(frame):
            say(f"WARNING: the job {spec.job} reads Kafka without kafka.isolation.level=read_committed: what "
                "others have aborted there is loaded as well, each aborted attempt of a load a whole copy")  # fmt: skip
        running.query = query = start(frame, spec, spark)
        say(f"query {options.name} ({query.id}) has begun: takes what its sources have now, checkpoint "
            f"{options.checkpoint}")  # fmt: skip
        told = Told(options, str(query.id), say)
        try:
            with told.progress(context):
                while not query.awaitTermination(_LOOK_S):
                    told.tell(query.recentProgress)
        finally:
            with suppress(Exception):
                told.tell(query.recentProgress)
        told.end(time.monotonic() - began)
    finally:
        running.wait_where_orphaned()
        leave_server(context)
        spark.stop()  # before anything else is printed: it logs


def streaming_frame(spec: StreamSpec, spark: SparkSession) -> DataFrame:
    """What the author's job returns. What his code raises passes through.

    :raises ConfigurationError: the job is not found, asks Airflow for something, or returned no streaming DataFrame.
    """
    from pyspark.sql import DataFrame

    from airflow_kafka_eos.errors import ConfigurationError
    from airflow_kafka_eos.spark.airflow_here import questions_refused
    from airflow_kafka_eos.spark.find_job import by_value, find_job

    with questions_refused(f"the job {spec.job}"):
        found = find_job(spec.job, loaded=by_value)(spark, **spec.job_args)
    if not isinstance(found, DataFrame) or not found.isStreaming:
        kind = "nothing" if found is None else type(found).__name__
        is_batch = isinstance(found, DataFrame)
        raise ConfigurationError(
            f"the job {spec.job} returned {'a DataFrame that is not streaming' if is_batch else kind}",
            remedy="Return what spark.readStream gives, with the columns that are to be written; for a batch of rows "
            "use ExactlyOnceLoad",
        )
    return found


def reads_aborted(frame: DataFrame) -> bool:
    """Whether a streaming DataFrame reads Kafka as Spark's source does by default: aborted records, too.

    For a warning only, so no more than a look into Spark's plan: False where that has another shape.
    """
    def is_told(leaf: Any) -> bool:
        with suppress(Exception):  # a leaf of another kind has neither
            if leaf.sourceName() == "kafka":
                return bool(leaf.extraOptions().get("kafka.isolation.level") == "read_committed")
        return True

    with suppress(Exception):
        leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
        return not all(is_told(leaves.apply(n)) for n in range(leaves.length()))
    return False


def start(frame: DataFrame, spec: StreamSpec, spark: SparkSession) -> Any:
    """The query, at work. Spark 3.5 has no Python data sources: there it is ``foreachBatch``."""
    from airflow_kafka_eos.spark.versions import PYTHON_SOURCES, is_at_least

    writer = (
        frame.writeStream.queryName(spec.options["queryName"])
        .option("checkpointLocation", spec.options["checkpointLocation"])
        .trigger(availableNow=True)
    )
    if not is_at_least(PYTHON_SOURCES):
        from airflow_kafka_eos.streams.foreach import exactly_once

        return writer.foreachBatch(exactly_once(**spec.options)).start()
    from airflow_kafka_eos.streams.source import KafkaEosStreams

    spark.dataSource.register(KafkaEosStreams)
    sink = {k: v for k, v in spec.options.items() if k not in ("queryName", "checkpointLocation")}
    return writer.format("kafka_eos").options(**sink).start()


class Told:
    """Says a line for each batch that is done, with what the ledger has of it; and now and then what Spark does."""

    def __init__(self, options: StreamOptions, query_id: str, say: Any) -> None:
        self._options = options
        self._query_id = query_id
        self._say = say
        self._began = datetime.now().astimezone()
        self._ledger: Ledger | None = None
        self._last = -1
        self._batches = self._records = 0

    def progress(self, context: Any) -> Any:
        """Around the waiting: lines about Spark's tasks, for batches that take long."""
        from airflow_kafka_eos.amounts import duration_text
        from airflow_kafka_eos.spark.pace import Pace
        from airflow_kafka_eos.spark.progress import tasks_of

        def line(seconds: float) -> str:
            tracker = context.statusTracker()
            tasks = tasks_of([tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()])
            doing = f"{tasks.done} of {tasks.total} tasks done" if tasks.stages else "no Spark stage is at work"
            return f"{self._batches} batches done, {doing} ({duration_text(seconds)})"

        return Pace(f"{self._options.namespace}/{self._options.name}", line, self._say)

    def tell(self, recent: list[Any]) -> None:
        """What of Spark's own progress was not told yet."""
        for one in recent:
            number = int(one["batchId"])
            if number > self._last and "addBatch" in one["durationMs"]:
                self._last = number
                self._tell_batch(number, int(one["numInputRows"]), one["durationMs"].get("triggerExecution", 0) / 1000)

    def end(self, seconds: float) -> None:
        """The last line."""
        from airflow_kafka_eos.amounts import duration_text

        what = f"{self._batches} batches, {self._records:,} records" if self._batches else "nothing new"
        self._say(f"query {self._options.name}: {what}, in {duration_text(seconds)}")
        if self._ledger is not None:
            self._ledger.close()

    def _tell_batch(self, number: int, rows: int, seconds: float) -> None:
        from airflow_kafka_eos.amounts import duration_text
        from airflow_kafka_eos.load import LoadIdentity

        load = LoadIdentity(self._options.namespace, self._options.name, f"{self._query_id}-{number}")
        what, which = f"{rows:,} rows read", f"load {load}"
        with suppress(Exception):  # what is only for people to read never ends a query
            row = self._attempt(load)
            if row is not None:
                which += f" attempt {row.number}"
            if row is not None and row.records is not None:
                what = f"{row.records:,} records"
                if row.decided_at and datetime.fromisoformat(row.decided_at) < self._began:
                    what += f", committed before, at {row.decided_at}: nothing is written again"
                else:
                    self._records += row.records
        self._batches += 1
        self._say(f"batch {number} of query {self._options.name}: {what}, in {duration_text(seconds)}; {which}")

    def _attempt(self, load: Any) -> Any:
        from airflow_kafka_eos.ledger.ledger import Ledger
        from airflow_kafka_eos.streams.connections import ledger_url

        if self._ledger is None:
            self._ledger = Ledger.open_existing(ledger_url(os.environ))
        return next(iter(reversed(self._ledger.attempts(load))), None)


if __name__ == "__main__":
    _leave_own_folder()
    sys.exit(main(sys.argv[1:]))
