"""A batch's begin and end, in Python processes of the Spark driver. Neither remembers anything of the other."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.errors import ManifestError
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.micro_batch import StreamRun
from airflow_kafka_eos.naming import AttemptRef
from airflow_kafka_eos.protocol.stages import batches
from airflow_kafka_eos.spark.attempt_writer import AttemptWriter
from airflow_kafka_eos.spark.checkpoint import Checkpoint
from airflow_kafka_eos.spark.options import Checked, WriteOptions, check_schema
from airflow_kafka_eos.spark.pooled import as_leased
from airflow_kafka_eos.spark.preflight import check_cluster
from airflow_kafka_eos.streams.connections import driver_identity, session
from airflow_kafka_eos.streams.messages import Begun, Message
from airflow_kafka_eos.streams.options import Replay, StreamOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from airflow_kafka_eos.kafka.client.settings import KafkaSettings

_log = logging.getLogger(__name__)

_PASSES, _PAUSE_S = 3, 0.3
_SEEN_S = 30.0
#: runs that have begun a batch in this process
_begun: set[tuple[str, str, str, StreamRun]] = set()
#: by query: when it was looked, with which settings, and what was found
_seen: dict[StreamOptions, tuple[float, str, Checked]] = {}


def begin(
    options: StreamOptions,
    schema: StructType,
    environ: Mapping[str, str],
    *,
    expected: tuple[str | None, int] | None = None,
    identity: str | None = None,
    beside: Collection[tuple[str, str]] | None = None,
) -> tuple[Begun, AttemptWriter | None]:
    """Begin the batch that the checkpoint has planned; the writer is None where nothing is to be written.

    :param expected: query id and batch id, where Spark has told them; else tasks compare them.
    :param identity: of the run; None: that of the driver, whatever process of it this is.
    :param beside: see :class:`~airflow_kafka_eos.micro_batch.StreamRun`.
    :raises UndecidableError: another batch than the expected one is planned; nothing was begun.
    :raises KafkaEosError: see :func:`airflow_kafka_eos.protocol.stages.batches.begin_batch` and
        :func:`airflow_kafka_eos.spark.preflight.check_cluster`.
    """
    check_schema(schema, has_default_topic=bool(dict(options.given).get("topic") or dict(options.given).get("topics")))
    checkpoint = Checkpoint(options.checkpoint)
    batch = checkpoint.planned(options.namespace, options.name)
    if expected is not None:
        batch.check_same(expected[0], str(expected[1]))
    run = StreamRun(checkpoint.location, identity or driver_identity(environ), options.opened_by, beside)
    settings = options.write(AttemptRef(batch.load, "0" * 10, 1), 1).settings(environ)
    of_run = (batch.namespace, batch.name, batch.query_id, run)
    with session(settings, options.namespace) as opened:
        turn = batches.begin_batch(
            opened, batch, run, naming=options.naming, writers_have_ms=options.batch_timeout_ms,
            deadline_s=options.commit_timeout_ms / 1000, first=of_run not in _begun,
        )  # fmt: skip
        _begun.add(of_run)
        if beside is not None:  # it grows while other frames are handed over, and this goes to executors
            run = replace(run, beside=frozenset(beside))
        if turn is None:
            return Begun(batch, run, 0), None
        row = turn.row
        if row.verdict is Verdict.COMMIT:
            return Begun(batch, run, row.number, row.records or 0), None
        ref = AttemptRef(batch.load, opened.ledger.ledger_id, row.number, row.slot)
        at_lease = as_leased(ref, turn.slot)
    write = options.write(ref, turn.deadline_ms)
    checked = _checked(options, settings, write)
    writer = AttemptWriter(write, settings, checked, None, at_lease, keeps_wire=True)
    return Begun(batch, run, row.number, None, write, checked), writer


def _checked(options: StreamOptions, settings: KafkaSettings, write: WriteOptions) -> Checked:
    """What :func:`check_cluster` has found, in this process, not long ago: batches come by the second.

    What has changed since, a topic that was made anew or has more partitions, the tasks see for themselves.
    """
    now, given = time.monotonic(), settings.to_json()
    found = _seen.get(options)  # once: queries of foreachBatch are threads of one process
    if found is None or found[1] != given or now - found[0] > _SEEN_S:
        found = _seen[options] = now, given, check_cluster(settings, write)
    return found[2]


def end(options: StreamOptions, messages: Sequence[Any], batch_id: int) -> None:
    """Decide and commit what the tasks have prepared; of a batch that was decided before, look at what was counted.

    :raises ManifestError: the messages are not of one attempt of this batch.
    :raises KafkaEosError: see :func:`airflow_kafka_eos.protocol.stages.batches.decide_batch`.
    """
    begun, reported = _whole(messages, batch_id)
    if begun.options is None or begun.checked is None:
        if options.replay is Replay.CHECK and begun.committed is not None:
            batches.check_replayed(begun.batch, begun.number, begun.committed, sum(m.rows for m in reported))
        return
    settings = begun.options.settings(os.environ)
    manifest = AttemptWriter(begun.options, settings, begun.checked).manifest_of([m.report for m in reported])
    with session(settings, options.namespace) as opened:
        batches.decide_batch(
            opened, begun.batch, begun.run, manifest,
            writers_left=not all(m.ran_once for m in reported),
            margin_s=options.margin_s,
            deadline_s=options.commit_timeout_ms / 1000,
        )  # fmt: skip


def give_up(options: StreamOptions, batch_id: int, *, identity: str | None = None) -> None:
    """End what the batch's tasks have written, unless it is decided. Never raises.

    No message is needed: tasks that were cancelled have sent none. It is the newest attempt of the batch, where this
    driver has it.
    """
    which = f"batch {batch_id} of query {options.namespace}/{options.name}"
    try:
        checkpoint = Checkpoint(options.checkpoint)
        batch = checkpoint.planned(options.namespace, options.name)
        run = StreamRun(checkpoint.location, identity or driver_identity(os.environ), options.opened_by)
        if batch.number != batch_id:
            return
        which = f"load {batch.load}"
        settings = options.write(AttemptRef(batch.load, "0" * 10, 1), 1).settings(os.environ)
        with session(settings, options.namespace) as opened:
            rows = opened.ledger.attempts(batch.load)
            if rows and rows[-1].submitted_by == run.owner and rows[-1].is_undecided:
                ref = AttemptRef(batch.load, opened.ledger.ledger_id, rows[-1].number, rows[-1].slot)
                which = f"load {ref}"
                for _ in range(_PASSES):  # tasks that were cancelled may be about to begin
                    batches.abort_batch(opened, ref, run)
                    time.sleep(_PAUSE_S)
    except Exception as e:
        _log.warning("what %s has open is left to the next run, or to maintenance: %s", which, e)


def _whole(messages: Sequence[Any], batch_id: int) -> tuple[Begun, list[Message]]:
    reported = [m for m in messages if isinstance(m, Message)]
    begun = next((m.begun for m in reported if m.begun is not None), None)
    if (
        begun is None
        or len(reported) != len(messages)
        or begun.batch.number != batch_id
        or any(m.number != begun.number for m in reported)
    ):
        raise ManifestError(
            f"of {len(messages)} tasks of batch {batch_id} {len(reported)} have reported, "
            f"of {'no attempt' if begun is None else f'attempt {begun.number} of {begun.batch}'}",
            remedy="Run the query again: the batch is written anew",
        )
    return begun, reported
