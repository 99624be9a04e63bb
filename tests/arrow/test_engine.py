"""A spec in, a manifest out, on a real broker; whatever goes wrong, nothing is left open."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_eos.arrow import engine
from airflow_kafka_eos.arrow.stream import Bounds
from airflow_kafka_eos.errors import (
    CheckFailedError,
    ConfigurationError,
    KafkaEosError,
    ManifestError,
    RecordError,
    StoppedError,
    StreamError,
    SupersededError,
    TopicError,
    UndecidableError,
)
from airflow_kafka_eos.load import TransactionScope, WriterName
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.arrow.conftest import Preparing
from tests.kafka.open_transactions import wait_until
from tests.reading import committed_values

pytestmark = pytest.mark.broker

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string())])
BY = "aborted by dag/other#group=load at 2026-01-01: superseded by attempt 2"


def rows(first: int, last: int) -> pa.RecordBatch:
    numbers = range(first, last)
    return pa.record_batch([[f"k{n}" for n in numbers], [f"v{n}" for n in numbers]], schema=SCHEMA)


def stream(*found: pa.RecordBatch) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(SCHEMA, iter(found))


@pytest.mark.parametrize("scope", TransactionScope)
@pytest.mark.parametrize("writer", [WriterName.ARROW, WriterName.CONFLUENT])
def test_a_stream_becomes_one_prepared_transaction(
    preparing: Preparing, kafka: LocalKafka, topic: Callable[..., str], scope: TransactionScope, writer: WriterName
) -> None:
    if scope is TransactionScope.LOAD and writer is WriterName.CONFLUENT:
        pytest.skip("librdkafka writes into no transaction that others have begun")
    name = topic(3)
    made = preparing(lambda: stream(rows(0, 50), rows(50, 120)), name, scope=scope, writer=writer)
    assert (made.records, len(made.transactions), made.scope, made.writer) == (120, 1, scope, writer.value)
    assert [entry.spark_partition for entry in made.entries] == [0]
    assert committed_values(kafka.bootstrap_servers, name, 3) == [], "prepared is invisible"
    assert preparing.open_ids() == [t.transactional_id for t in made.transactions]
    assert not preparing.store.writers_left(made), "nothing of it was run twice"
    preparing.commit(made)
    wait_until(lambda: preparing.open_ids() == [], "the end of the transaction")
    assert committed_values(kafka.bootstrap_servers, name, 3) == sorted(f"v{n}" for n in range(120))
    said = [line.partition(f"load {preparing.ref}: ")[2] for line in preparing.lines]
    # a slow machine shows progress, too
    said = [line for line in said if " read (" not in line and "nothing read yet" not in line]
    assert [line.split()[0] for line in said] == ["claimed", "writing", "prepared"]
    assert said[-1].startswith("prepared 120 records in ")


def test_columns_become_values(preparing: Preparing, kafka: LocalKafka, topic: Callable[..., str]) -> None:
    name = topic(2)
    table = pa.table({"key": ["a", "b", None], "n": [1, None, 3], "tags": [["x"], [], None]})
    made = preparing(lambda: table, name, value_format="json")
    preparing.commit(made)
    wait_until(lambda: preparing.open_ids() == [], "the end of the transaction")
    values = ['{"n":1,"tags":["x"]}', '{"n":3,"tags":null}', '{"n":null,"tags":[]}']
    assert committed_values(kafka.bootstrap_servers, name, 2) == values


def test_a_value_that_cannot_be_written_ends_it(preparing: Preparing, topic: Callable[..., str]) -> None:
    with_nan = pa.table({"x": [1.5] * 60_000 + [float("nan")]})  # behind a piece that is written
    with pytest.raises(RecordError, match="a row has NaN or infinity in 'x'"):
        preparing(lambda: with_nan, topic(), value_format="json")
    assert preparing.open_ids() == []


def test_a_stream_without_a_row_makes_no_transaction(preparing: Preparing, topic: Callable[..., str]) -> None:
    made = preparing(lambda: stream(rows(0, 0)), topic())
    assert (made.records, made.transactions, len(made.entries)) == (0, (), 1)
    assert preparing.open_ids() == []


def test_a_lost_part_is_written_again_under_the_number_of_its_repair(
    preparing: Preparing, topic: Callable[..., str]
) -> None:
    """And a Spark partition that this engine never had is not made up."""
    name = topic(2)
    first = preparing(lambda: stream(rows(0, 100)), name)
    again = replace(preparing.ref, attempt=2, repairs=((0, 2),))
    preparing.ref = again
    second = preparing(lambda: stream(rows(0, 100)), name, attempt=2)
    (before, now) = (first.entries[0].writes, second.entries[0].writes)
    assert [(w.partition, w.records, w.digest) for w in before] == [(w.partition, w.records, w.digest) for w in now]
    preparing.ref = replace(preparing.ref, attempt=3, repairs=((5, 3),))
    third = preparing(lambda: stream(rows(0, 100)), name, attempt=3)
    assert third.transactions == ()


def endless(begun: threading.Event) -> Iterator[pa.RecordBatch]:
    number = 0
    while True:
        # more than a piece: something is written each time
        yield rows(number, number + 60_000)
        number += 60_000
        if number >= 180_000:
            begun.set()


def test_a_superseded_prepare_stops_and_says_by_whom(
    preparing: Preparing, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def supersede() -> None:
        assert begun.wait(60)
        assert preparing.store.note_superseded(preparing.ref, BY)

    thread = threading.Thread(target=supersede)
    thread.start()
    with pytest.raises(SupersededError, match="superseded by attempt 2"):
        preparing(lambda: pa.RecordBatchReader.from_batches(SCHEMA, endless(begun)), topic(2))
    thread.join()
    given_up(preparing)


def test_a_prepare_that_is_told_to_stop_leaves_nothing_open(preparing: Preparing, topic: Callable[..., str]) -> None:
    class Telling(threading.Event):
        def is_set(self) -> bool:
            return begun.is_set()

    begun = threading.Event()
    preparing.stop = Telling()
    with pytest.raises(StoppedError, match="has ended what it had written"):
        preparing(lambda: pa.RecordBatchReader.from_batches(SCHEMA, endless(begun)), topic(2))
    given_up(preparing)


def test_a_prepare_that_is_told_to_stop_behind_its_last_row_ends_what_is_reported(
    preparing: Preparing, topic: Callable[..., str]
) -> None:
    """Rule: writer-ends-only-unreported: first the tombstone, then what a part has reported."""

    def last() -> Iterator[pa.RecordBatch]:
        yield rows(0, 10)
        preparing.stop.set()

    asked = preparing.stop.is_set
    preparing.stop.is_set = lambda: asked() and bool(preparing.open_ids())  # type: ignore[method-assign]
    with pytest.raises(StoppedError):
        preparing(lambda: pa.RecordBatchReader.from_batches(SCHEMA, last()), topic())
    given_up(preparing)


def given_up(preparing: Preparing) -> None:
    assert preparing.open_ids() == []
    with pytest.raises(ManifestError, match="gave this attempt up"):
        preparing.store.read(preparing.ref)


def broken(error: Exception) -> Iterator[pa.RecordBatch]:
    # two pieces: the first is written when the error comes
    yield rows(0, 60_000)
    yield rows(60_000, 120_000)
    raise error


def changing() -> Iterator[pa.RecordBatch]:
    yield rows(0, 60_000)
    yield rows(60_000, 120_000)
    yield pa.RecordBatch.from_pydict({"key": ["k"], "value": pa.array([b"v"])})


def unwritable() -> Iterator[pa.RecordBatch]:
    yield rows(0, 60_000)
    yield pa.RecordBatch.from_pydict({"key": ["k"], "value": ["x" * 2_000_000]})


BAD: dict[str, tuple[Callable[[], Iterator[pa.RecordBatch]], type[KafkaEosError], str]] = {
    "an error": (lambda: broken(OSError("gone")), StreamError, "behind 120,000 records: OSError: gone"),
    "another schema": (changing, ConfigurationError, "changes its schema"),
    "a row too large": (unwritable, RecordError, "max.message.bytes"),
    "a batch too large": (lambda: iter([rows(0, 100_000), rows(0, 400_000)]), ConfigurationError, "max_batch_bytes"),
    "too many records": (lambda: iter([rows(0, 100_000)] * 9), CheckFailedError, "max_records=500000"),
}


@pytest.mark.parametrize("scope", TransactionScope)
@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_in_the_middle_ends_what_was_written(
    preparing: Preparing, kafka: LocalKafka, topic: Callable[..., str], what: str, scope: TransactionScope
) -> None:
    made, kind, said = BAD[what]
    name = topic(2)
    bounds = Bounds(8_000_000, 500_000)
    with pytest.raises(kind, match=said):
        preparing(lambda: pa.RecordBatchReader.from_batches(SCHEMA, made()), name, bounds=bounds, scope=scope)
    given_up(preparing)
    # and nothing of it is in the way of the next attempt
    again = preparing(lambda: stream(rows(0, 10)), name, attempt=2, scope=scope)
    preparing.commit(again)
    wait_until(lambda: preparing.open_ids() == [], "the end of the transaction")
    assert committed_values(kafka.bootstrap_servers, name, 2) == sorted(f"v{n}" for n in range(10))


@pytest.mark.parametrize(
    ("found", "kind", "said"),
    [
        (None, ConfigurationError, "jobs/rows.py returned nothing"),
        (pa.table({"vaule": ["v"]}), ConfigurationError, "the stream has a column 'vaule'"),
        (pa.table({"value": [1.0]}), ConfigurationError, "column 'value' has type double"),
    ],
    ids=str,
)
def test_what_cannot_be_written_opens_nothing(
    preparing: Preparing, topic: Callable[..., str], found: Any, kind: type[KafkaEosError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        preparing(lambda: found, topic())
    assert preparing.open_ids() == []
    assert not preparing.store.is_written(preparing.ref)


def test_the_cluster_is_looked_at_before_the_job_runs(preparing: Preparing) -> None:
    called: list[int] = []
    with pytest.raises(TopicError, match="no-such-topic"):
        preparing(lambda: called.append(1), "no-such-topic")
    assert called == []


def test_the_authors_own_error_passes_through(preparing: Preparing, topic: Callable[..., str]) -> None:
    def job() -> Any:
        raise LookupError("no such day")

    with pytest.raises(LookupError, match="no such day"):
        preparing(job, topic())


def test_an_attempt_is_written_by_one_process(preparing: Preparing, topic: Callable[..., str]) -> None:
    """Rule: one-application-per-attempt."""
    name, called = topic(), list[int]()
    preparing(lambda: stream(rows(0, 5)), name)
    with pytest.raises(UndecidableError, match="the attempt was already claimed by "):
        preparing(lambda: called.append(1), name)
    assert called == []
    with pytest.raises(UndecidableError, match="deadline for opening transactions passed"):
        preparing(lambda: stream(rows(0, 5)), name, attempt=2, deadline_ms=1)


def test_another_claim_in_the_middle_ends_the_write(
    preparing: Preparing, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that has lost the claim to another process: asked again before anything is opened."""
    monkeypatch.setattr(type(preparing.store), "claimant", lambda store, ref: "another process")
    with pytest.raises(UndecidableError, match="the attempt is claimed by another process"):
        preparing(lambda: stream(rows(0, 5)), topic())
    assert preparing.open_ids() == []


def test_pooled_ids_are_the_slots(preparing: Preparing, topic: Callable[..., str]) -> None:
    preparing.ref = replace(preparing.ref, slot=0)
    made = preparing(lambda: stream(rows(0, 5)), topic())
    (transaction,) = made.transactions
    assert TransactionalId.parse(transaction.transactional_id) is None, "an id of the slot, not of the attempt"
    assert not made.ran_again and not preparing.store.writers_left(made)
    preparing.commit(made)


def test_progress_is_told_while_it_reads(
    preparing: Preparing, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_kafka_eos.spark import pace

    monkeypatch.setattr(pace, "_PACE", ())
    monkeypatch.setattr(pace, "_SELDOM_S", 0.02)

    def held() -> Iterator[pa.RecordBatch]:
        yield rows(0, 60_000)
        yield rows(60_000, 120_000)
        # what is counted stands still here: what is left of the last batch waits for the next one
        wait_until(lambda: any(": 110,000 records, " in line for line in preparing.lines), "a line")

    preparing(lambda: pa.RecordBatchReader.from_batches(SCHEMA, held()), topic(2))


def test_nothing_of_it_needs_pyspark() -> None:
    """Not when it is imported, and not when it writes: tests/airflow/test_arrow_steps.py does that."""
    code = (
        "import sys\nsys.modules['pyspark'] = None\nimport airflow_kafka_eos.arrow.engine\n"
        "import airflow_kafka_eos.operators.in_worker\nprint('good')"
    )
    root = Path(engine.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.stdout.split()[-1:] == ["good"], done.stderr
