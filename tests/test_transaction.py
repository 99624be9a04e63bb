"""PreparedTxnState is KIP-939's string, read and written in exactly one way (rule: recorded-identity)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.transaction import (
    MAX_PRODUCER_EPOCH,
    MAX_PRODUCER_ID,
    OPEN_STATES,
    CoordinatorState,
    PreparedTransaction,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)
from tests.values import states


@given(states)
def test_a_state_survives_its_own_text(state: PreparedTxnState) -> None:
    assert PreparedTxnState.parse(str(state)) == state
    assert str(state) == f"{state.producer_id}:{state.producer_epoch}"
    assert not state.is_empty


def test_the_empty_state_is_the_empty_text() -> None:
    assert str(PreparedTxnState.EMPTY) == ""
    assert PreparedTxnState.parse("") == PreparedTxnState.EMPTY
    assert PreparedTxnState.EMPTY.is_empty
    assert PreparedTxnState(-1, -1) == PreparedTxnState.EMPTY


@given(states, states)
def test_two_states_are_equal_only_when_their_texts_are(one: PreparedTxnState, other: PreparedTxnState) -> None:
    assert (one == other) == (str(one) == str(other))


def test_states_have_no_order() -> None:
    # epochs roll over (rule: recorded-identity): older or newer cannot be told
    with pytest.raises(TypeError):
        assert PreparedTxnState(1, 1) < PreparedTxnState(1, 2)  # type: ignore[operator]


@given(st.text())
def test_whatever_is_read_is_canonical(text: str) -> None:
    try:
        state = PreparedTxnState.parse(text)
    except ConfigurationError as e:
        assert e.remedy
    else:
        assert str(state) == text


@pytest.mark.parametrize(
    "text",
    [
        *("1", "1:", ":1", "1:2:3", " 1:2", "1:2 ", "1:2\n", "1;2", "a:b"),
        *("01:2", "1:02", "00:0", "+1:2", "-1:-1", "-1:0", "1:-1", "1_0:2", "1.0:2", "1e3:0"),
        *("\u0661:2", "\uff11:2"),  # other alphabets' digits: int() would read them
        *(f"{MAX_PRODUCER_ID + 1}:0", f"0:{MAX_PRODUCER_EPOCH + 1}", "9" * 20 + ":0", "0:100000"),
    ],
)
def test_any_other_text_is_refused_and_named(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        PreparedTxnState.parse(text)
    assert "PreparedTxnState" in str(refused.value)
    assert refused.value.remedy


@pytest.mark.parametrize(
    "numbers", [(-1, 0), (0, -1), (-2, -2), (MAX_PRODUCER_ID + 1, 0), (0, MAX_PRODUCER_EPOCH + 1)]
)
def test_numbers_that_no_broker_hands_out_are_refused(numbers: tuple[int, int]) -> None:
    with pytest.raises(ConfigurationError, match="is not in 0"):
        PreparedTxnState(*numbers)


def test_the_largest_numbers_are_taken() -> None:
    assert PreparedTxnState.parse("9223372036854775807:32767") == PreparedTxnState(MAX_PRODUCER_ID, MAX_PRODUCER_EPOCH)


def test_a_prepared_transaction_names_both_of_its_halves() -> None:
    assert str(PreparedTransaction("id", PreparedTxnState(7, 3))) == "id (7:3)"
    assert str(TopicPartition("orders", 3)) == "orders-3"


def _described(state: CoordinatorState) -> TransactionDescription:
    return TransactionDescription("id", state, PreparedTxnState(7, 3), 60_000, 1_000_000, frozenset())


def test_open_is_whatever_holds_back_readers() -> None:
    # decided is not done: until the markers are written, PrepareCommit holds back the last stable offset
    # (rule: committed-is-verified)
    held = {state.value for state in CoordinatorState if _described(state).is_open}
    assert held == {"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"}
    assert held == {state.value for state in OPEN_STATES}


def test_the_time_left_is_counted_from_the_start() -> None:
    description = _described(CoordinatorState.ONGOING)
    assert description.time_left_ms(1_000_000) == 60_000
    assert description.time_left_ms(1_070_000) == -10_000
