"""The retry rule: which answers of a broker may be different a moment later, and how long we ask again.

One pure decision (:func:`verdict_on`) and one small loop (:func:`until_settled`). Everything sent through it is
safe to send twice: reading requests, EndTxn by the recorded identity (rule: recorded-identity), and InitProducerId,
whose last answer counts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import kafka.errors

from airflow_kafka_eos.errors import AccessError, BrokerUnavailableError, KafkaEosError, TerminalError

T = TypeVar("T")

UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_COORDINATOR = 16

#: Retriable by the protocol, whatever was asked.
_RETRIABLE = frozenset(
    {
        -1,  # UNKNOWN_SERVER_ERROR: the broker stumbled; terminal only when the deadline says so
        5,  # LEADER_NOT_AVAILABLE
        6,  # NOT_LEADER_OR_FOLLOWER
        7,  # REQUEST_TIMED_OUT
        8,  # BROKER_NOT_AVAILABLE
        9,  # REPLICA_NOT_AVAILABLE
        13,  # NETWORK_EXCEPTION
        14,  # COORDINATOR_LOAD_IN_PROGRESS
        15,  # COORDINATOR_NOT_AVAILABLE
        NOT_COORDINATOR,  # find it again
        19,  # NOT_ENOUGH_REPLICAS
        20,  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
        51,  # CONCURRENT_TRANSACTIONS
        52,  # TRANSACTION_COORDINATOR_FENCED: the coordinator moved
        56,  # KAFKA_STORAGE_ERROR
        74,  # FENCED_LEADER_EPOCH
        75,  # UNKNOWN_LEADER_EPOCH
        78,  # OFFSET_NOT_AVAILABLE
        89,  # THROTTLING_QUOTA_EXCEEDED
    }
)
#: Retriable only where the asked broker's metadata may lag behind: topic unknown, topic id unknown or inconsistent.
_METADATA_LAG = frozenset({UNKNOWN_TOPIC_OR_PARTITION, 100, 103})
_REFUSED = frozenset({29, 30, 31, 53})
#: Where the ACL WRITE is wanted, which includes DESCRIBE.
_WRITTEN = ("Topic ", "TransactionalId ")


#: What to do when the time is over.
REMEDY = "Check that the brokers are up and that leaders and coordinators answer; then run it again"


class Retry(Exception):
    """Raised by an attempt: ask again. Never leaves :func:`until_settled`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def name_of(code: int) -> str:
    """An error code as the protocol names it, such as ``CONCURRENT_TRANSACTIONS (51)``."""
    error = kafka.errors.for_code(code)
    return f"{getattr(error, 'message', error.__name__)} ({code})"


def is_retriable(code: int, *, metadata_may_lag: bool = False) -> bool:
    """True when the same request may get another answer a moment later."""
    return code in _RETRIABLE or (metadata_may_lag and code in _METADATA_LAG)


def verdict_on(
    code: int,
    *,
    operation: str,
    resource: str,
    transactional_id: str | None = None,
    metadata_may_lag: bool = False,
) -> Exception | None:
    """What an error code means for the caller: None, :class:`Retry`, or a terminal error.

    :param operation: the ACL operation that the request needs, such as ``DESCRIBE``.
    :param resource: what it is needed on, such as ``Topic orders``.
    """
    if code == 0:
        return None
    if is_retriable(code, metadata_may_lag=metadata_may_lag):
        return Retry(f"{name_of(code)} for {resource}")
    if code in _REFUSED:
        return AccessError(
            f"the broker refused {operation} on {resource}: {name_of(code)}",
            remedy=_grant(operation, resource),
            transactional_id=transactional_id,
        )
    return TerminalError(
        f"the broker answered {name_of(code)} for {resource}",
        remedy="Look for it in the broker's log; asking again will not change the answer",
        transactional_id=transactional_id,
    )


def _grant(operation: str, resource: str) -> str:
    """What to grant, so that it is not refused again: the next attempt of a load has other transactional ids."""
    kind, _, name = resource.partition(" ")
    # nobody is to write to Kafka's own topics
    included = operation == "DESCRIBE" and resource.startswith(_WRITTEN) and not name.startswith("__")
    where = f"TransactionalIds prefixed {name.partition('.')[0]}." if kind == "TransactionalId" else resource
    what = f"{operation} (WRITE includes it)" if included else operation
    return (
        f"Grant the principal of the Kafka connection {what} on {where}; "
        "`airflow-kafka-eos doctor --topic …` prints the command"
    )


def check(code: int, *, operation: str, resource: str, transactional_id: str | None = None, lag: bool = False) -> None:
    """Raise what :func:`verdict_on` says."""
    error = verdict_on(
        code,
        operation=operation,
        resource=resource,
        transactional_id=transactional_id,
        metadata_may_lag=lag,
    )
    if error is not None:
        raise error


def pause_s(attempt: int, left_s: float) -> float:
    """Seconds to wait after the given attempt (from 0 on): 50 ms doubled up to 1 s, with jitter, never past the end."""
    step: float = min(1.0, 0.05 * 2 ** min(attempt, 10))
    return max(0.0, min(left_s, step * random.uniform(0.8, 1.2)))


def until_settled(
    attempt: Callable[[], T],
    *,
    what: str,
    timeout_s: float,
    remedy: str = REMEDY,
    transactional_id: str | None = None,
) -> T:
    """Call ``attempt`` until it neither raises :class:`Retry` nor a transient error.

    :raises BrokerUnavailableError: after ``timeout_s`` seconds, naming ``what`` and the last reason.
    """
    end = time.monotonic() + timeout_s
    count = 0
    while True:
        try:
            return attempt()
        except Retry as e:
            reason = e.reason
        except BrokerUnavailableError as e:
            reason = e.message
        left = end - time.monotonic()
        if left <= 0:
            break
        time.sleep(pause_s(count, left))
        count += 1
    raise give_up(what, timeout_s, reason, remedy, transactional_id)


def give_up(what: str, timeout_s: float, reason: str, remedy: str, transactional_id: str | None) -> KafkaEosError:
    """The error at the deadline."""
    return BrokerUnavailableError(
        f"{what} did not succeed within {timeout_s:g} s, the last reason was: {reason}",
        remedy=remedy,
        transactional_id=transactional_id,
    )
