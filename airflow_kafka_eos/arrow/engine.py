"""One prepare in this process: the spec goes in, the manifest comes out, as with spark/application.py.

The attempt is claimed before anything else (rule: one-application-per-attempt), so it is written by this process or not
at all. One writer, one part: it is Spark partition 0. What is here ends with the process, so nothing of it outlives
Airflow's task; a worker that is superseded meanwhile looks for the same note as a Spark driver does.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.amounts import duration_text, size_text
from airflow_kafka_eos.arrow.stream import Bounds, batches, pieces, reader_of
from airflow_kafka_eos.arrow.values import shape
from airflow_kafka_eos.errors import StoppedError
from airflow_kafka_eos.spark.attempt_writer import AttemptWriter, Part, PartReport, check_claim, identities
from airflow_kafka_eos.spark.chosen_range import without_until
from airflow_kafka_eos.spark.orphan import StopWhenSuperseded
from airflow_kafka_eos.spark.pace import Pace
from airflow_kafka_eos.spark.preflight import check_cluster

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.spark.formats.settings import RegistrySettings
    from airflow_kafka_eos.spark.manifest_store import ManifestStore
    from airflow_kafka_eos.spark.spec import ApplicationSpec

#: The whole stream is one part.
_PART = Part(partition=0, attempt_number=0, run_id=0)


@dataclass
class _Read:
    """What was handed to the writer so far."""

    records: int = 0
    bytes: int = 0

    def line(self, seconds: float) -> str:
        amount = f"{self.records:,} records, {size_text(self.bytes)} read" if self.records else "nothing read yet"
        return f"{amount} ({duration_text(seconds)})"


def prepare(
    spec: ApplicationSpec,
    settings: KafkaSettings,
    store: ManifestStore,
    job: Callable[..., Any],
    *,
    bounds: Bounds,
    stop: threading.Event,
    say: Callable[[str], object],
    registry: RegistrySettings | None = None,
) -> None:
    """Claim the attempt, run the job, write its stream, and leave the manifest; or a tombstone, and nothing open.

    :param spec: what to write, as which attempt.
    :param store: of claims and manifests.
    :param job: the author's function, bound to its arguments; of a load with a cursor it gets since and until here.
    :param stop: set by whoever wants this to end; it is looked at between two batches.
    :param say: prints a line.
    :param registry: of schemas, for the formats ``confluent-*``.
    :raises UndecidableError: the attempt was claimed before (rule: one-application-per-attempt).
    :raises SupersededError: the attempt was superseded or aborted meanwhile.
    :raises StoppedError: ``stop`` was set.
    :raises KafkaEosError: see :mod:`.stream`, :mod:`.columns`, :mod:`.values`, and the writers.
    """
    ref = spec.options.attempt
    claimant = f"{socket.gethostname()} process {os.getpid()}, {uuid.uuid4().hex}"
    store.claim(ref, claimant)
    say(f"load {ref}: claimed by {claimant}")
    spec = replace(spec, options=replace(spec.options, claim=claimant))
    read = _Read()
    with (
        StopWhenSuperseded(store, ref, told="its stream is not read any further", in_task=True) as watch,
        Pace(str(ref), read.line, say) as pace,
    ):

        def check_stop() -> None:
            watch.check()
            if stop.is_set():
                raise StoppedError(
                    "prepare was told to stop, and has ended what it had written",
                    remedy="A retry, or clearing prepare, opens a new attempt",
                    **ref.ids,
                )

        _write(spec, settings, store, job, bounds, check_stop, read, say, registry)
    made = store.read(ref)
    say(
        f"load {ref}: prepared {made.records:,} records in {made.how}, {size_text(made.bytes)}, "
        f"{duration_text(pace.seconds)}; manifest {store.path(ref)}"
    )


def _write(
    spec: ApplicationSpec,
    settings: KafkaSettings,
    store: ManifestStore,
    job: Callable[..., Any],
    bounds: Bounds,
    check_stop: Callable[[], None],
    read: _Read,
    say: Callable[[str], object],
    registry: RegistrySettings | None,
) -> None:
    options, name = replace(spec.options, tasks=1), spec.job or ""
    checked = check_cluster(settings, options)
    reader = reader_of(without_until(job(**(spec.range or {})), spec, store), name)
    columns = shape(
        reader.schema,
        spec.value_format,
        topics=options.topics,
        default_topic=options.default_topic,
        registry=registry,
    )
    check_stop()
    check_claim(options, store)
    say(f"load {options.attempt}: writing to {', '.join(options.topics)}")

    def counted() -> Iterator[pa.RecordBatch]:
        for piece in pieces(batches(reader, name, bounds), columns.take):
            check_stop()
            yield piece
            read.records += piece.num_rows
            read.bytes += piece.nbytes

    writer = AttemptWriter(options, settings, checked, *identities(options, settings, checked, store), store=store)
    reports: list[PartReport] = []
    try:
        reports.append(writer.write_part(_PART, counted(), lambda piece: None))
        check_stop()
        writer.commit(reports)
    except BaseException:
        writer.abort(reports)
        raise
    finally:
        reader.close()
    # one process, one writer, once
    store.note_ran_once(options.attempt)
