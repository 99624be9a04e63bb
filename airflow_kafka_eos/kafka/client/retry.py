"""Error codes of brokers, and the retry rule: which answers may be different a moment later, and how long we ask again.

One pure decision (:func:`verdict_on`) and one small loop (:func:`until_settled`). Everything sent through it is
safe to send twice: reading requests, EndTxn by the recorded identity (rule: recorded-identity), and InitProducerId,
whose last answer counts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from kafka import errors

from airflow_kafka_eos.errors import AccessError, BrokerUnavailableError, KafkaEosError, TerminalError

T = TypeVar("T")


def codes(*kinds: type[errors.KafkaError]) -> frozenset[int]:
    """The codes of these errors of the protocol."""
    return frozenset(kind.errno for kind in kinds)


#: Retriable by the protocol, whatever was asked.
_RETRIABLE = codes(
    errors.UnknownError,  # the broker stumbled; terminal only when the deadline says so
    errors.LeaderNotAvailableError,
    errors.NotLeaderForPartitionError,
    errors.RequestTimedOutError,
    errors.BrokerNotAvailableError,
    errors.ReplicaNotAvailableError,
    errors.NetworkExceptionError,
    errors.CoordinatorLoadInProgressError,
    errors.CoordinatorNotAvailableError,
    errors.NotCoordinatorError,  # find it again
    errors.NotEnoughReplicasError,
    errors.NotEnoughReplicasAfterAppendError,
    errors.ConcurrentTransactionsError,
    errors.TransactionCoordinatorFencedError,  # the coordinator moved
    errors.KafkaStorageError,
    errors.FencedLeaderEpochError,
    errors.UnknownLeaderEpochError,
    errors.OffsetNotAvailableError,
    errors.ThrottlingQuotaExceededError,
)
#: The topic, or its id, is not known. Retriable only where the asked broker's metadata may lag behind.
UNKNOWN_TOPIC = codes(
    errors.UnknownTopicOrPartitionError, errors.UnknownTopicIdError, errors.InconsistentTopicIdError
)
_REFUSED = codes(
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailedError,
)
#: Where the ACL WRITE is wanted, which includes DESCRIBE.
_WRITTEN = ("Topic ", "TransactionalId ")
#: What to do when the time is over.
REMEDY = "Check that the brokers are up and that leaders and coordinators answer; then run it again"


class Retry(Exception):
    """Raised by an attempt: ask again. Never leaves :func:`until_settled`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoTokenError(BrokerUnavailableError):
    """No token for the first login: nothing is sent yet, and a minute of asking again would only keep the reason back.

    Leaves :func:`until_settled` at once; who runs the task tries it again.
    """


def name_of(code: int) -> str:
    """An error code as the protocol names it, such as ``CONCURRENT_TRANSACTIONS (51)``."""
    error = errors.for_code(code)
    return f"{getattr(error, 'message', error.__name__)} ({code})"


def is_retriable(code: int, *, metadata_may_lag: bool = False) -> bool:
    """True when the same request may get another answer a moment later."""
    return code in _RETRIABLE or (metadata_may_lag and code in UNKNOWN_TOPIC)


def verdict_on(
    code: int, *, operation: str, resource: str, transactional_id: str | None = None, lag: bool = False
) -> Exception | None:
    """What an error code means for the caller: None, :class:`Retry`, or a terminal error.

    :param operation: the ACL operation that the request needs, such as ``DESCRIBE``.
    :param resource: what it is needed on, such as ``Topic orders``.
    :param lag: the broker's metadata may lag behind.
    """
    if code == 0:
        return None
    if is_retriable(code, metadata_may_lag=lag):
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
    error = verdict_on(code, operation=operation, resource=resource, transactional_id=transactional_id, lag=lag)
    if error is not None:
        raise error


def error_of_id(code: int, operation: str, transactional_id: str) -> Exception | None:
    """:func:`verdict_on` for a request about a transactional id."""
    resource = f"TransactionalId {transactional_id}"
    return verdict_on(code, operation=operation, resource=resource, transactional_id=transactional_id)


def check_id(code: int, operation: str, transactional_id: str) -> None:
    """Raise what :func:`error_of_id` says."""
    error = error_of_id(code, operation, transactional_id)
    if error is not None:
        raise error


def pause_s(attempt: int, left_s: float) -> float:
    """Seconds to wait after the given attempt (from 0 on): 50 ms doubled up to 1 s, with jitter, never past the end."""
    step: float = min(1.0, 0.05 * 2 ** min(attempt, 10))
    return max(0.0, min(left_s, step * random.uniform(0.8, 1.2)))


def until_settled(
    attempt: Callable[[], T], *, what: str, timeout_s: float, transactional_id: str | None = None
) -> T:
    """Call ``attempt`` until it neither raises :class:`Retry` nor a transient error.

    :raises BrokerUnavailableError: after ``timeout_s`` seconds, naming ``what`` and the last reason.
    """
    end = time.monotonic() + timeout_s
    count = 0
    while True:
        remedy = REMEDY
        try:
            return attempt()
        except NoTokenError:
            raise
        except Retry as e:
            reason = e.reason
        except BrokerUnavailableError as e:
            reason, remedy = e.message, e.remedy or REMEDY
        left = end - time.monotonic()
        if left <= 0:
            raise give_up(what, timeout_s, reason, transactional_id, remedy)
        time.sleep(pause_s(count, left))
        count += 1


def give_up(
    what: str, timeout_s: float, reason: str, transactional_id: str | None, remedy: str = REMEDY
) -> KafkaEosError:
    """The error at the deadline."""
    return BrokerUnavailableError(
        f"{what} did not succeed within {timeout_s:g} s, the last reason was: {reason}",
        remedy=remedy,
        transactional_id=transactional_id,
    )
