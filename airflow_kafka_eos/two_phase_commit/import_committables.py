"""Commit what another two-phase sink has prepared, by the committables that it left (FLIP-319, KIP-939).

A sink whose job is gone leaves transactions that are flushed, and open: readers wait for them, and nobody will end them
but their broker's timeout, which loses them. Its committables name them, so they can still be committed.

Such a transaction is another application's (rule: only-our-ids). It is touched because a person hands over its full
identity, and asks for it; only ever committed, never aborted; and only by that identity, so that the brokers refuse it
where the id has gone to another transaction since then. What this ledger has written is refused: its decision is the
ledger's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from airflow_kafka_eos import naming
from airflow_kafka_eos.errors import ConfigurationError, InDoubtError, NotFinishedError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.end_transactions import end_all
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import (
    MAX_PRODUCER_EPOCH,
    CoordinatorState,
    PreparedTransaction,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)

_POLL_S = 0.2


class CommittableState(str, Enum):
    """What a committable's coordinator shows of it."""

    #: it is open, and can be committed
    PREPARED = "prepared"
    #: a commit was asked for, and its markers are on their way
    COMMITTING = "committing"
    COMMITTED = "committed"
    #: aborted, by a hand or by the broker's timeout: its records are lost to read_committed readers
    ABORTED = "aborted"
    #: the id was used again since then: its coordinator does not tell any more what became of this one
    ID_USED_AGAIN = "id used again"
    #: no coordinator knows the id: it expired (transactional.id.expiration.ms), or is of another cluster
    UNKNOWN = "unknown"


#: What a commit is, or will be, the end of.
COMMITTABLE = frozenset({CommittableState.PREPARED, CommittableState.COMMITTING, CommittableState.COMMITTED})


@dataclass(frozen=True)
class Found:
    """A committable, and what its coordinator shows.

    :param partitions: where it has written, as long as it is open.
    """

    committable: PreparedTransaction
    state: CommittableState
    partitions: frozenset[TopicPartition] = frozenset()


def look(wire: Wire, committables: Iterable[PreparedTransaction]) -> list[Found]:
    """Each committable as its coordinator shows it, in the order given, each once. Nothing is changed.

    :raises ConfigurationError: an id is a load's of this package, or stands there with two states.
    :raises AccessError: DESCRIBE on one of the ids is missing.
    :raises BrokerUnavailableError: a coordinator does not answer.
    """
    every = list(dict.fromkeys(committables))
    _check(every)
    # of no namespace: it may end nothing
    coordinator = Coordinator(wire, namespace="", ledger_id="")
    seen = coordinator.describe(one.transactional_id for one in every)
    bumps = wire.transaction_version() >= 2
    return [_found(one, seen.get(one.transactional_id), bumps) for one in every]


def commit(
    wire: Wire, committables: Iterable[PreparedTransaction], *, partial: bool = False, deadline_s: float = 60
) -> list[Found]:
    """Commit all that are prepared, and see each end. Safe to repeat.

    :param partial: commit what can be committed where others are lost. Without, nothing is committed then: the
        committables of one checkpoint belong together.
    :returns: all of them, as they are now.
    :raises InDoubtError: some are aborted, or nobody knows what became of them; nothing was committed.
    :raises NotFinishedError: some have not ended at the deadline; run it again.
    :raises AccessError: WRITE or DESCRIBE on one of the ids is missing; the others were committed.
    :raises KafkaEosError: see :func:`look`.
    """
    give_up = time.monotonic() + deadline_s
    found = look(wire, committables)
    lost = [one for one in found if one.state not in COMMITTABLE]
    if lost and not partial:
        raise InDoubtError(
            f"{len(lost)} of {len(found)} committables cannot be committed, and nothing was: "
            f"{lost[0].committable} is {lost[0].state.value}",
            remedy="Look at the listing. To commit the others all the same, ask for a partial commit",
            transactional_id=lost[0].committable.transactional_id,
        )
    prepared = [one.committable for one in found if one.state is CommittableState.PREPARED]
    endings = end_all(wire, prepared, Verdict.COMMIT, timeout_s=deadline_s)
    for error in endings.errors.values():
        raise error
    while True:
        found = look(wire, [one.committable for one in found])
        left = [one for one in found if one.state in (CommittableState.PREPARED, CommittableState.COMMITTING)]
        if not left:
            return found
        if time.monotonic() >= give_up:
            raise NotFinishedError(
                f"{len(left)} of {len(found)} committables have not ended after {deadline_s:g} s",
                remedy="Look at the brokers, then run it again",
                transactional_id=left[0].committable.transactional_id,
            )
        time.sleep(_POLL_S)


def state_of(committable: PreparedTransaction, seen: TransactionDescription | None, *, bumps: bool) -> CommittableState:
    """What a coordinator's answer says of a committable. No I/O.

    :param bumps: the cluster's ``transaction.version`` is 2: ending a transaction adds one to the epoch (KIP-890). A
        client that is older than that ends it without. Before, only a timeout adds one, and never to a commit.
    """
    if seen is None:
        return CommittableState.UNKNOWN
    is_same, is_next = seen.state == committable.state, seen.state == _next(committable.state)
    match seen.coordinator_state:
        case CoordinatorState.ONGOING if is_same:
            return CommittableState.PREPARED
        case CoordinatorState.PREPARE_COMMIT if is_same or (is_next and bumps):
            return CommittableState.COMMITTING
        case CoordinatorState.COMPLETE_COMMIT if is_same or (is_next and bumps):
            return CommittableState.COMMITTED
        case (
            CoordinatorState.PREPARE_ABORT | CoordinatorState.COMPLETE_ABORT | CoordinatorState.PREPARE_EPOCH_FENCE
        ) if is_same or is_next:
            return CommittableState.ABORTED
        case _:
            return CommittableState.ID_USED_AGAIN


def _next(state: PreparedTxnState) -> PreparedTxnState | None:
    if state.producer_epoch >= MAX_PRODUCER_EPOCH:
        return None
    return PreparedTxnState(state.producer_id, state.producer_epoch + 1)


def _found(committable: PreparedTransaction, seen: TransactionDescription | None, bumps: bool) -> Found:
    state = state_of(committable, seen, bumps=bumps)
    if seen is None or state not in (CommittableState.PREPARED, CommittableState.COMMITTING):
        return Found(committable, state)
    return Found(committable, state, seen.partitions)


def _check(committables: Sequence[PreparedTransaction]) -> None:
    states: dict[str, PreparedTxnState] = {}
    for one in committables:
        if naming.parse(one.transactional_id) is not None:
            raise ConfigurationError(
                "the committable is of a load of this package, and whether it is committed is its ledger's decision",
                remedy="Use `airflow-kafka-eos transactions commit`",
                transactional_id=one.transactional_id,
            )
        other = states.setdefault(one.transactional_id, one.state)
        if other != one.state:
            raise ConfigurationError(
                f"two committables have one transactional id, as {other} and as {one.state}: only one can be open",
                remedy="Import the committables of one checkpoint only, the newest that completed",
                transactional_id=one.transactional_id,
            )
