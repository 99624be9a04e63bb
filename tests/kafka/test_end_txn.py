"""EndTxn's bytes against kafka-python's own, and what its codes mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer.transaction import EndTxnRequest, EndTxnResponse

from airflow_kafka_eos.errors import AccessError, TerminalError
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer, EndTxn, highest_for, meaning_of
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=300)


@given(
    version=st.integers(3, 5),
    name=texts,
    client=texts,
    producer_id=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 2**15 - 1),
    verdict=st.sampled_from(Verdict),
    correlation_id=st.integers(0, 2**31 - 1),
)
def test_the_frame_is_byte_for_byte_kafka_pythons(
    version: int, name: str, client: str, producer_id: int, epoch: int, verdict: Verdict, correlation_id: int
) -> None:
    request = EndTxn(PreparedTransaction(name, PreparedTxnState(producer_id, epoch)), verdict)
    theirs = request.message()
    assert isinstance(theirs, EndTxnRequest)
    theirs.API_VERSION = version
    theirs.with_header(correlation_id=correlation_id, client_id=client)
    assert request.frame(version, correlation_id, client) == bytes(theirs.encode(header=True, framed=False))


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("code", [0, -1, 16, 48, 90])
def test_the_answer_is_read_as_kafka_python_writes_it(version: int, code: int) -> None:
    fields = {"producer_id": 12, "producer_epoch": 3} if version == 5 else {}
    answer = EndTxnResponse(throttle_time_ms=7, error_code=code, version=version, **fields)
    body = bytes(answer.encode(header=False, framed=False))
    request = EndTxn(PreparedTransaction("x", PreparedTxnState(1, 1)), Verdict.COMMIT)
    assert request.read(version, memoryview(b"\x00" + body)).error_code == code
    # a header with two tagged fields, one of them long enough for a size of two bytes
    tags = b"\x02\x01\x03abc\x05\x80\x01" + b"z" * 128
    assert request.read(version, memoryview(tags + body)).error_code == code


def test_a_cluster_without_transaction_version_gets_no_v5() -> None:
    assert [highest_for(level) for level in (0, 1, 2)] == [4, 5, 5]


def test_what_codes_mean() -> None:
    assert [meaning_of(c, "x") for c in (0, 48, 47, 49, 90)] == [
        EndAnswer.DONE,
        EndAnswer.WRONG_STATE,
        *[EndAnswer.FENCED] * 3,
    ]
    for code in (14, 15, 16, 51):
        assert isinstance(meaning_of(code, "x"), retry.Retry)
    refused = meaning_of(53, "x")
    assert isinstance(refused, AccessError)
    assert refused.transactional_id == "x"
    assert isinstance(meaning_of(42, "x"), TerminalError)
