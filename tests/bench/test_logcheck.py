"""The check behind every timed write: it tells committed, aborted, open and plain records apart, and fails."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka.record.default_records import DefaultRecordBatchBuilder

from airflow_kafka_eos.sandbox.kafka import LocalKafka
from bench.logcheck import Found, NotWhatWasWritten, check, scan, scan_topic

COMMIT, ABORT = 1, 0


def data(producer_id: int, records: int, transactional: bool = True) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, transactional, producer_id, 0, 0, 100_000)
    for number in range(records):
        builder.append(number, 1_790_000_000_000, b"key", b"v" * number, [])
    return bytes(builder.build())


def marker(producer_id: int, verdict: int) -> bytes:
    """As a broker writes it: the key is version and type, the value version and coordinator epoch."""
    builder = DefaultRecordBatchBuilder(2, 0, True, producer_id, 0, -1, 1000)
    builder.append(0, 1_790_000_000_000, struct.pack(">hh", 0, verdict), struct.pack(">hi", 0, 7), [])
    batch = bytearray(builder.build())
    batch[22] |= 0x20  # the control bit of the attributes (int16 at 21)
    return bytes(batch)


def test_records_are_judged_by_the_marker_behind_them() -> None:
    log = b"".join(
        [
            data(1, 3), data(2, 5), data(1, 4), marker(1, COMMIT), marker(2, ABORT),
            data(1, 1), data(9, 2, transactional=False),
        ]
    )  # fmt: skip
    found = scan([log])
    assert (found.committed, found.aborted, found.open, found.plain) == (7, 5, 1, 2)
    assert (found.batches, found.transactions) == (5, 2)
    assert found.bytes == len(log) - len(marker(1, COMMIT)) - len(marker(2, ABORT))


def test_a_transaction_goes_on_in_the_next_segment_and_a_torn_batch_is_not_there_yet() -> None:
    whole = data(1, 3)
    assert scan([whole, marker(1, COMMIT)]).committed == 3
    assert scan([whole + whole[:-1]]).open == 3
    assert scan([whole + bytes(100)]).open == 3


def test_a_marker_of_another_producer_commits_nothing() -> None:
    assert scan([data(1, 3) + marker(2, COMMIT)]).open == 3


@pytest.mark.parametrize(
    "found",
    [Found(committed=9), Found(committed=11), Found(committed=10, aborted=1), Found(committed=10, open=1),
     Found(committed=10, plain=1)],
    ids=["one lost", "one twice", "one aborted", "one open", "one outside"],
)  # fmt: skip
def test_what_is_not_exactly_once_is_refused(found: Found) -> None:
    check([Found(committed=10)], [10])
    with pytest.raises(NotWhatWasWritten, match="partition 1: 10 records were to be committed"):
        check([Found(committed=4), found], [4, 10])


def test_where_no_key_says_it_any_partition_will_do_but_none_may_be_missing() -> None:
    check([Found(committed=3), Found(committed=7)], 10)
    check([Found(), Found(committed=10)], 10)
    for wrong in (Found(committed=6), Found(committed=7, open=1), Found(committed=6, aborted=1), Found(plain=7)):
        with pytest.raises(NotWhatWasWritten, match="all partitions: 10 records were to be committed"):
            check([Found(committed=3), wrong], 10)


@pytest.mark.parametrize("wanted", [[4, 6], 10])
def test_without_transactions_every_record_is_outside_of_one(wanted: list[int] | int) -> None:
    check([Found(plain=4), Found(plain=6)], wanted, transactional=False)
    for wrong in (Found(plain=7), Found(committed=6), Found(plain=6, open=1), Found(plain=5)):
        with pytest.raises(NotWhatWasWritten, match="were to be outside transactions"):
            check([Found(plain=4), wrong], wanted, transactional=False)
    with pytest.raises(NotWhatWasWritten, match="were to be committed"):
        check([Found(plain=4), Found(plain=6)], wanted)


def test_a_partition_more_or_less_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        check([Found(committed=10)], [10, 0])


def test_a_brokers_own_files_are_read(kafka: LocalKafka, topic: Callable[..., str]) -> None:
    name = topic(2)
    data_folder: Path = kafka.log_file().parent / "data"
    producer = transactional(kafka, f"bench-{name}")
    for end, count in ((producer.commit_transaction, 3), (producer.abort_transaction, 2), (producer.flush, 1)):
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(name, b"value", partition=1)
        producer.flush(30)  # librdkafka drops what it has not sent when it aborts
        end(30)
    try:
        empty, found = scan_topic([data_folder] * 2, name)
        assert empty == Found()
        assert (found.committed, found.aborted, found.open, found.plain, found.transactions) == (3, 2, 1, 0, 2)
    finally:
        producer.abort_transaction(30)


def transactional(kafka: LocalKafka, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": transactional_id})
    producer.init_transactions(30)
    return producer
