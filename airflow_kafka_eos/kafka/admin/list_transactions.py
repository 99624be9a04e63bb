"""ListTransactions: one request per broker, filtered by the broker as far as its version can (FLIP-511).

Each function but :func:`of_producers` asks once, and raises :class:`~airflow_kafka_eos.kafka.client.retry.Retry` where
asking again may help.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from kafka import errors
from kafka.protocol.admin.transactions import ListTransactionsRequest

from airflow_kafka_eos.errors import BrokerTooOldError
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.transaction import CoordinatorState

#: Partition of ``__transaction_state``, its leader, the leader's epoch.
CoordinatorEpochs = frozenset[tuple[int, int, int]]

STATE_TOPIC = "__transaction_state"
COMMITTED = frozenset(state for state in CoordinatorState if state.is_committed)
_DURATION_VERSION = 1
_PATTERN_VERSION = 2


class Listed(NamedTuple):
    """A row of one broker's listing."""

    producer_id: int
    transactional_id: str
    state: CoordinatorState

    @property
    def may_be_open(self) -> bool:
        """A state that we do not know counts as one."""
        return not self.state.is_at_rest


def ids_in(
    wire: Wire, prefix: str, states: Iterable[CoordinatorState], longer_than_ms: int = -1, *, unknown_too: bool = False
) -> list[str]:
    """Transactional ids that start with ``prefix`` and are in one of the states, sorted; no states: in any.

    :param longer_than_ms: only those that run longer, by the broker's own clock (KIP-994); -1 for all.
    :param unknown_too: a state that we do not know counts as one of those.
    :raises BrokerTooOldError: the brokers cannot filter by duration; that filter is never dropped.
    """
    if longer_than_ms >= 0 and (wire.api_version(ListTransactionsRequest) or 0) < _DURATION_VERSION:
        raise BrokerTooOldError(
            f"the brokers at {wire.settings.bootstrap_servers} do not offer ListTransactions v1, which can list what "
            f"runs longer than {longer_than_ms} ms",
            remedy="Use Kafka 3.8 or newer",
        )
    wanted = frozenset(states)
    found = everywhere(wire, prefix, wanted, longer_than_ms)
    return sorted({
        name for name, state in found
        if not wanted or state in wanted or (unknown_too and state is CoordinatorState.UNKNOWN)
    })  # fmt: skip


def of_producers(wire: Wire, producer_ids: Iterable[int]) -> list[Listed]:
    """What all brokers list of these producer ids, whatever the state.

    What may not be described is left out without a word.
    """
    wanted = sorted(set(producer_ids))

    def attempt() -> list[Listed]:
        found = []
        for node_id in wire.broker_ids():
            request = ListTransactionsRequest(state_filters=[], producer_id_filters=wanted, duration_filter=-1)
            answer = wire.send_to_broker(node_id, request)
            retry.check(answer.error_code, operation="DESCRIBE", resource="TransactionalId *")
            found += [
                Listed(row.producer_id, row.transactional_id, state_of(row.transaction_state))
                for row in answer.transaction_states
            ]
        return found

    return wire.until_settled(attempt, what="looking up transactional ids by producer id") if wanted else []


def transactional_ids_of(wire: Wire, producer_ids: Iterable[int]) -> dict[int, str]:
    """Their transactional ids, as far as coordinators know them and we may see them."""
    return {row.producer_id: row.transactional_id for row in of_producers(wire, producer_ids)}


def epochs(wire: Wire) -> CoordinatorEpochs | None:
    """Where the transaction coordinators are; None while one is away.

    Where DESCRIBE on ``__transaction_state`` is missing, the brokers that are alive must do.
    """
    answer = wire.metadata([STATE_TOPIC])
    (topic,) = answer.topics
    if topic.error_code == errors.TopicAuthorizationFailedError.errno:
        return frozenset((-1, broker.node_id, -1) for broker in answer.brokers)
    if topic.error_code == errors.UnknownTopicOrPartitionError.errno:
        return frozenset()  # nobody has ever written a transaction here
    if topic.error_code or any(p.error_code or p.leader_id < 0 for p in topic.partitions):
        return None
    return frozenset((p.partition_index, p.leader_id, p.leader_epoch) for p in topic.partitions)


def are_seen(found: CoordinatorEpochs) -> bool:
    """Whether these are the coordinators themselves: then one that is away would show."""
    return all(partition >= 0 for partition, _, _ in found)


def pattern_of(prefix: str) -> str:
    """The RE2 pattern of all ids that start with ``prefix``."""
    return f"^{re.escape(prefix)}.*$"


def state_of(text: str) -> CoordinatorState:
    """A coordinator's word for a state; one that we do not know is UNKNOWN."""
    try:
        return CoordinatorState(text)
    except ValueError:
        return CoordinatorState.UNKNOWN


def rows_on(
    wire: Wire, node_id: int, prefix: str, states: Iterable[str], longer_than_ms: int
) -> list[tuple[str, CoordinatorState]]:
    """Ids and states that one broker coordinates; more states than were asked for where it does not know one."""
    options: dict[str, Any] = {}
    if (wire.api_version(ListTransactionsRequest) or 0) >= _PATTERN_VERSION:
        options["transactional_id_pattern"] = pattern_of(prefix)  # KIP-1152, Kafka 4.1
    if longer_than_ms >= 0:
        options["min_version"] = _DURATION_VERSION  # a broker that lacks it refuses, and does not ignore it
    wanted = list(states)
    request = ListTransactionsRequest(
        state_filters=wanted, producer_id_filters=[], duration_filter=longer_than_ms, **options
    )
    answer = wire.send_to_broker(node_id, request)
    retry.check(answer.error_code, operation="DESCRIBE", resource=f"TransactionalId {prefix}*")
    if answer.unknown_state_filters and wanted:
        # a broker that renamed a state: ask for all
        return rows_on(wire, node_id, prefix, [], longer_than_ms)
    return [
        (row.transactional_id, state_of(row.transaction_state))
        for row in answer.transaction_states
        if row.transactional_id.startswith(prefix)
    ]


def everywhere(
    wire: Wire, prefix: str, states: Iterable[CoordinatorState] = (), longer_than_ms: int = -1
) -> list[tuple[str, CoordinatorState]]:
    """Ids and states that all brokers coordinate, see :func:`rows_on`; no states: in every state."""
    names = sorted(s.value for s in states)
    return [row for node_id in wire.broker_ids() for row in rows_on(wire, node_id, prefix, names, longer_than_ms)]
