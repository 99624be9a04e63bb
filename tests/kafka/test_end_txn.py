"""What EndTxn asks for, in which version, and what its codes mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import IncompatibleBrokerVersion
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.producer.transaction import EndTxnRequest

from airflow_kafka_eos.errors import AccessError, TerminalError
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer, end_txn, highest_for, meaning_of
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=300)


@given(
    version=st.integers(3, 5),
    name=texts,
    producer_id=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 2**15 - 1),
    verdict=st.sampled_from(Verdict),
)
def test_it_names_the_recorded_identity_and_the_verdict(
    version: int, name: str, producer_id: int, epoch: int, verdict: Verdict
) -> None:
    request = end_txn(PreparedTransaction(name, PreparedTxnState(producer_id, epoch)), verdict)
    read = EndTxnRequest.decode(request.encode(version=version), version=version)
    assert (read.transactional_id, read.producer_id, read.producer_epoch) == (name, producer_id, epoch)
    assert read.committed is (verdict is Verdict.COMMIT)


@pytest.mark.parametrize(
    ("highest", "offered", "sent"),
    [(5, (0, 5), 5), (5, (0, 4), 4), (4, (0, 5), 4), (5, (0, 6), 5), (5, (0, 2), None)],
)
def test_the_version_is_the_highest_of_both_sides(highest: int, offered: tuple[int, int], sent: int | None) -> None:
    request = end_txn(PreparedTransaction("x", PreparedTxnState(1, 1)), Verdict.COMMIT, highest)
    broker = BrokerVersionData(api_versions={EndTxnRequest.API_KEY: offered})
    if sent is not None:
        assert broker.api_version(request) == sent
        return
    with pytest.raises(IncompatibleBrokerVersion):
        broker.api_version(request)


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
