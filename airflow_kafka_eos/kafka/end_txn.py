"""EndTxn's bytes, and what its answer means: pure functions."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from kafka.protocol.producer.transaction import EndTxnRequest

from airflow_kafka_eos.kafka import retry, varints
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import PreparedTransaction

_API_KEY = 26
_OLDEST, HIGHEST = 3, 5
#: The last version that does not ask for a raised epoch (KIP-890).
BEFORE_EPOCH_BUMP = 4
INVALID_TXN_STATE = 48
#: INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED
_FENCED = frozenset({47, 49, 90})
_HEADER = struct.Struct(">hhih")
_IDENTITY = struct.Struct(">qh?")
_ANSWER = struct.Struct(">ih")


class EndAnswer(str, Enum):
    """What EndTxn was answered. A hint, never evidence: v4 after an end by v5 answers FENCED too.

    Rule: log-is-the-evidence.
    """

    #: this call ended it, or it had been ended with the same verdict
    DONE = "done"
    #: it has no such transaction open; often: it was ended with the opposite verdict
    WRONG_STATE = "wrong state"
    #: another producer id or epoch holds the transactional id by now
    FENCED = "fenced"


def highest_for(transaction_version: int) -> int:
    """The highest version of EndTxn that a cluster can do, whatever its brokers offer.

    With ``transaction.version`` 0, as a cluster has it that was upgraded from 3.9, a coordinator cannot write down what
    v5 asks for: it answers UNSUPPORTED_VERSION, and v4 behind it gets nowhere either (seen with Kafka 4.1.2).
    """
    return HIGHEST if transaction_version >= 1 else BEFORE_EPOCH_BUMP


def meaning_of(code: int, transactional_id: str) -> EndAnswer | Exception:
    """What EndTxn's error code means: an answer, :class:`retry.Retry`, or a terminal error."""
    if code == INVALID_TXN_STATE:
        return EndAnswer.WRONG_STATE
    if code in _FENCED:
        return EndAnswer.FENCED
    return refusal(code, "WRITE", transactional_id) or EndAnswer.DONE


def refusal(code: int, operation: str, transactional_id: str) -> Exception | None:
    """What another error code of a request about an id means; None for 0."""
    return retry.verdict_on(
        code,
        operation=operation,
        resource=f"TransactionalId {transactional_id}",
        transactional_id=transactional_id,
    )


class EndTxnAnswer(NamedTuple):
    """What is read of an EndTxn answer. v5 also shows the next transaction's identity, which is of no use here."""

    error_code: int


@dataclass(frozen=True)
class EndTxn:
    """EndTxn by the recorded identity, in the highest version that both sides speak (KIP-890).

    Rule: recorded-identity.

    :param highest: see :func:`highest_for`.
    """

    transaction: PreparedTransaction
    verdict: Verdict
    highest: int = HIGHEST
    API: ClassVar[Any] = EndTxnRequest

    def message(self) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transaction.transactional_id,
            producer_id=self.transaction.state.producer_id,
            producer_epoch=self.transaction.state.producer_epoch,
            committed=self.verdict is Verdict.COMMIT,
            min_version=_OLDEST,
            max_version=self.highest,
        )

    def frame(self, version: int, correlation_id: int, client_id: str) -> bytes:
        """v3 to v5 have the same request: header v2, a compact string, int64, int16, bool, no tagged fields."""
        client = client_id.encode()
        name = self.transaction.transactional_id.encode()
        state = self.transaction.state
        return b"".join(
            (
                _HEADER.pack(_API_KEY, version, correlation_id, len(client)),
                client,
                b"\x00",
                varints.unsigned(len(name) + 1),
                name,
                _IDENTITY.pack(state.producer_id, state.producer_epoch, self.verdict is Verdict.COMMIT),
                b"\x00",
            )
        )

    def read(self, version: int, frame: memoryview) -> EndTxnAnswer:
        """Header v1's tagged fields, then throttle time in ms and the error code."""
        at = _skip_tags(frame)
        return EndTxnAnswer(_ANSWER.unpack_from(frame, at)[1])


def _skip_tags(frame: memoryview) -> int:
    count, at = varints.read_unsigned(frame, 0)
    for _ in range(count):
        _, at = varints.read_unsigned(frame, at)
        size, at = varints.read_unsigned(frame, at)
        at += size
    return at
