"""FLIP-319's committables: both schemas are read, what is not one is refused with a reason."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos import committables
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.transaction import (
    MAX_PRODUCER_EPOCH,
    MAX_PRODUCER_ID,
    PreparedTransaction,
    PreparedTxnState,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=255)
STATES = st.builds(
    PreparedTxnState, st.integers(0, MAX_PRODUCER_ID), st.integers(0, MAX_PRODUCER_EPOCH)
)
TRANSACTIONS = st.builds(PreparedTransaction, NAMES, STATES)


def version_1(name: str, producer_id: int, epoch: int) -> bytes:
    """What FLIP-319's old serializer wrote of a name without NUL and within 16 bits."""
    return struct.pack(">hqH", epoch, producer_id, len(name.encode())) + name.encode()


@given(TRANSACTIONS)
def test_what_is_written_is_read_back(transaction: PreparedTransaction) -> None:
    assert committables.read(committables.VERSION, committables.write(transaction)) == transaction


@given(st.text(st.characters(min_codepoint=1, max_codepoint=0xD7FF), min_size=1, max_size=200), STATES)
def test_the_older_schema_is_migrated_without_loss(name: str, state: PreparedTxnState) -> None:
    migrated = committables.read(1, version_1(name, state.producer_id, state.producer_epoch))
    assert migrated == PreparedTransaction(name, state)
    assert committables.read(2, committables.write(migrated)) == migrated


def test_both_are_javas_bytes() -> None:
    """Written down by hand: modified UTF-8 with a length, numbers big-endian."""
    old = b"\x00\x07" + b"\x00\x00\x00\x00\x00\x00\x03\xe8" + b"\x00\x04sink"
    assert committables.read(1, old) == PreparedTransaction("sink", PreparedTxnState(1000, 7))
    assert committables.write(committables.read(1, old)) == b"\x00\x04sink\x00\x061000:7"
    beyond = PreparedTransaction("a\x00\U0001f600", PreparedTxnState(1, 0))
    assert committables.write(beyond) == b"\x00\x09a\xc0\x80\xed\xa0\xbd\xed\xb8\x80\x00\x031:0"


@given(TRANSACTIONS, st.data())
def test_cut_short_or_too_long_it_is_refused(transaction: PreparedTransaction, data: st.DataObject) -> None:
    whole = committables.write(transaction)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for torn in (whole[:cut], whole + b"\x00"):
        with pytest.raises(ConfigurationError, match=r"committable of version 2 and \d+ bytes"):
            committables.read(2, torn)


@given(st.integers(-10, 10), st.binary(max_size=40))
def test_whatever_it_is_the_answer_is_a_transaction_or_our_own_error(version: int, data: bytes) -> None:
    try:
        transaction = committables.read(version, data)
    except ConfigurationError as e:
        assert e.remedy
        return
    assert not transaction.state.is_empty and transaction.transactional_id
    if version == 2:
        assert committables.write(transaction) == data


@pytest.mark.parametrize(
    ("version", "data", "problem"),
    [
        (3, b"", "committable version 3 is not known, versions 1 and 2 are"),
        (0, b"", "committable version 0 is not known"),
        (1, b"\x00\x00\x00", "ends within producer epoch and producer id"),
        (1, version_1("", 1, 1), "has an empty transactional id"),
        (1, version_1("a", -1, -1), "has no producer id and epoch: it names no transaction"),
        (2, b"\x00\x01a\x00\x00", "has no producer id and epoch: it names no transaction"),
        (1, version_1("a", -2, 0), "producer id -2 of a PreparedTxnState"),
        (1, version_1("a", 0, -5), "producer epoch -5 of a PreparedTxnState"),
        (2, b"\x00\x01a\x00\x03a:b", "'a:b' is not '<producer id>:<producer epoch>'"),
        (2, b"\x00\x01\xff\x00\x031:0", "has a transactional id that is no text"),
        (2, b"\x00\x01\x00\x00\x031:0", "has a transactional id that is no text"),
        (2, b"\x00\x03\xed\xa0\xbd\x00\x031:0", "has a transactional id that is no text"),
    ],
)  # fmt: skip
def test_bad_input_is_named(version: int, data: bytes, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        committables.read(version, data)
    assert problem in str(refused.value)


def test_nothing_without_an_identity_and_nothing_too_long_is_written() -> None:
    with pytest.raises(ConfigurationError, match="no producer id"):
        committables.write(PreparedTransaction("a", PreparedTxnState.EMPTY))
    with pytest.raises(ConfigurationError, match="65535 is the most"):
        committables.write(PreparedTransaction("a" * 65536, PreparedTxnState(1, 0)))


def test_a_file_has_flinks_own_bytes() -> None:
    """Written by flink-connector-kafka 5.0.0-2.2: its KafkaCommittableSerializer, by SimpleVersionedSerialization."""
    written = bytes.fromhex(
        "00000001 00000016 0007 00000000000003e8 000a 6f72646572732d302d31"
        "00000001 00000018 7ffe 7fffffffffffffff 000c 6772c3b6c39f65722d312d32"
    )
    assert committables.read_file(written) == [
        PreparedTransaction("orders-0-1", PreparedTxnState(1000, 7)),
        PreparedTransaction("größer-1-2", PreparedTxnState(MAX_PRODUCER_ID, 32766)),
    ]
