"""Requests to transaction coordinators: list, describe, end, initialise.

Versions are chosen at sending, the highest that both sides speak (KIP-890: EndTxn v5 on Kafka 4, v4 before).
What a coordinator answers is a hint for the caller; what happened is judged by the log (rule: log-is-the-evidence).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kafka import errors
from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer.transaction import InitProducerIdRequest

from airflow_kafka_eos import naming
from airflow_kafka_eos.errors import (
    AccessError,
    BrokerTooOldError,
    BrokerUnavailableError,
    ConfigurationError,
)
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer, batches, end_all
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import (
    OPEN_STATES,
    CoordinatorState,
    PreparedTransaction,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)

#: Partition of ``__transaction_state``, its leader, the leader's epoch.
CoordinatorEpochs = frozenset[tuple[int, int, int]]

STATE_TOPIC = "__transaction_state"
COMMITTED = frozenset(state for state in CoordinatorState if state.is_committed)
#: of ListTransactions: which filters it has
_DURATION_VERSION, _PATTERN_VERSION = 1, 2
#: of InitProducerId
TWO_PHASE_VERSION = 6


class Coordinator:
    """Requests about transactions of one namespace of one ledger.

    :param namespace: ids of other namespaces are never ended or initialised (rule: only-our-ids).
    :param ledger_id: nor those of other ledgers.
    """

    def __init__(self, wire: Wire, *, namespace: str, ledger_id: str) -> None:
        self._wire = wire
        self._namespace = namespace
        self._ledger_id = ledger_id

    # -- list ------------------------------------------------------------------------------------------------------

    def list_open(self, prefix: str, *, longer_than_ms: int = -1) -> list[str]:
        """Transactional ids that start with ``prefix`` and hold back readers, sorted.

        :param longer_than_ms: only those that run longer, by the broker's own clock (KIP-994); -1 for all.

        A coordinator that moves while we ask can hide ids (see :meth:`epochs`): describe by name what the
        ledger knows (rule: listing-only-adds). Ids without DESCRIBE permission are left out by the broker without a
        word.

        :raises BrokerUnavailableError: one of the brokers did not answer; a part of a list is never returned.
        :raises BrokerTooOldError: the brokers cannot filter by duration; that filter is never dropped.
        """
        return self._wire.until_settled(
            lambda: ids_in(self._wire, prefix, OPEN_STATES, longer_than_ms, unknown_too=True),
            what=f"listing the open transactions of {prefix!r}",
        )

    def list_in(self, prefix: str, states: Iterable[CoordinatorState], *, longer_than_ms: int = -1) -> list[str]:
        """Transactional ids that start with ``prefix`` and are in one of the states, sorted; no states: in any.

        Raises as :meth:`list_open`.
        """
        wanted = frozenset(states)
        return self._wire.until_settled(
            lambda: ids_in(self._wire, prefix, wanted, longer_than_ms),
            what=f"listing the transactions of {prefix!r}",
        )

    def list_committed(self, prefix: str) -> list[str]:
        """Transactional ids that start with ``prefix`` and whose last transaction is committed, or about to be, sorted.

        As long as their coordinators remember (``transactional.id.expiration.ms``, 7 days). Brokers before Kafka 4.1
        cannot filter by name and answer with every application's. Raises as :meth:`list_open`.
        """
        return self.list_in(prefix, COMMITTED)

    def list_known(self, prefix: str) -> list[str]:
        """Transactional ids that start with ``prefix``, whatever their state, sorted; see :meth:`list_open`."""
        return self.list_in(prefix, ())

    def list_states(self, prefix: str) -> list[tuple[str, CoordinatorState]]:
        """Transactional ids that start with ``prefix``, each with the state that its coordinator shows: by one listing
        what :meth:`list_open` and :meth:`list_committed` have. Raises as they do.

        Of a broker that does not know one of those states, all others too. One that moves while we ask may be shown by
        two coordinators, in two states.
        """
        return self._wire.until_settled(
            lambda: everywhere(self._wire, prefix, OPEN_STATES | COMMITTED),
            what=f"listing the transactions of {prefix!r}",
        )

    def epochs(self) -> CoordinatorEpochs | None:
        """Where the coordinators are; None while one is away.

        A listing is complete when this is the same before and behind it: no coordinator has moved meanwhile.
        """
        return self._wire.until_settled(
            lambda: epochs(self._wire), what="asking where the coordinators are"
        )

    # -- describe --------------------------------------------------------------------------------------------------

    def describe(self, ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Each transactional id as its coordinator shows it; ids that no coordinator knows are left out.

        :raises AccessError: DESCRIBE on one of the ids is missing.
        """
        found: dict[str, TransactionDescription] = {}
        left = sorted(set(ids))

        def attempt() -> None:
            nonlocal left
            again, reason = [], ""
            for batch in batches(left):
                by_node: dict[int, list[str]] = defaultdict(list)
                for transactional_id, node_id in self._wire.coordinators(batch).items():
                    by_node[node_id].append(transactional_id)
                for node_id, mine in by_node.items():
                    answer = self._wire.send_to_broker(node_id, DescribeTransactionsRequest(transactional_ids=mine))
                    for row in answer.transaction_states:
                        if row.error_code == errors.TransactionalIdNotFoundError.errno:
                            continue
                        try:
                            retry.check_id(row.error_code, "DESCRIBE", row.transactional_id)
                        except retry.Retry as e:
                            again.append(row.transactional_id)
                            reason = e.reason
                        else:
                            found[row.transactional_id] = description_of(row)
            left = again
            if again:
                self._wire.forget_coordinators(again)
                raise retry.Retry(reason)

        def forgetting() -> None:
            try:
                attempt()
            except BrokerUnavailableError:
                self._wire.forget_coordinators(left)
                raise

        self._wire.until_settled(forgetting, what=f"describing {len(left)} transactions ({', '.join(left[:3])}, ...)")
        return found

    # -- end -------------------------------------------------------------------------------------------------------

    def end(
        self, transaction: PreparedTransaction, verdict: Verdict, *, timeout_s: float | None = None
    ) -> EndAnswer:
        """End a transaction by its recorded identity (rule: recorded-identity). Safe to call again.

        :param timeout_s: seconds to keep trying; the wire's own when None.

        :raises ConfigurationError: the id is not one of this namespace and ledger (rule: only-our-ids), or has no
            identity.
        :raises AccessError: WRITE on the transactional id is missing.
        :raises BrokerUnavailableError: no final answer in time. The transaction may have been ended.
        """
        self._check_identity(transaction)
        timeout_s = self._wire.timeout_s if timeout_s is None else timeout_s
        endings = end_all(self._wire, [transaction], verdict, timeout_s=timeout_s)
        for error in endings.errors.values():
            raise error
        return endings.answers[transaction]

    def end_many(self, transactions: Iterable[PreparedTransaction], verdict: Verdict) -> dict[str, EndAnswer]:
        """:meth:`end` for each, in parallel. All ids are guarded before the first request is sent.

        One that does not answer does not keep the others waiting, for their time is running. All share the wire's
        timeout. The first error, in the order given, is raised after all were tried.
        """
        every = list(transactions)
        for transaction in every:
            self._check_identity(transaction)
        endings = end_all(self._wire, every, verdict, timeout_s=self._wire.timeout_s)
        for transaction in every:
            if transaction in endings.errors:
                raise endings.errors[transaction]
        return {t.transactional_id: endings.answers[t] for t in every}

    # -- initialise ------------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        *,
        enable_2pc: bool = False,
        keep_prepared: bool = False,
        before_sending: Callable[[], object] = lambda: None,
    ) -> PreparedTxnState:
        """Initialise a transactional id; whatever is open under it is aborted first (also a 2PC transaction).

        :param timeout_ms: the broker aborts the transaction after that; not used with ``enable_2pc``.
        :param enable_2pc: the broker never aborts by itself (KIP-939).
        :param keep_prepared: KIP-939's KeepPreparedTxn. No released broker supports it.
        :param before_sending: called before each request, which its exception keeps from being sent
            (rule: writers-have-a-deadline).
        :returns: the producer id and epoch that the transaction will have (rule: recorded-identity).
        :raises ConfigurationError: the id is not ours (rule: only-our-ids), or the timeout is above the broker's limit.
        :raises BrokerTooOldError: the broker does not take part in two-phase commit.
        :raises AccessError: WRITE, or TWO_PHASE_COMMIT, is missing or switched off.
        """
        self._check_ours(transactional_id)
        two_phase = enable_2pc or keep_prepared
        if two_phase and (self._wire.api_version(InitProducerIdRequest) or 0) < TWO_PHASE_VERSION:
            raise too_old(self._wire.settings.bootstrap_servers, transactional_id)

        def attempt() -> PreparedTxnState:
            request = InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
                enable2_pc=enable_2pc,
                keep_prepared_txn=keep_prepared,
                min_version=TWO_PHASE_VERSION if two_phase else 2,
            )
            self._wire.coordinators([transactional_id])  # finding it may take a while
            before_sending()
            answer = self._wire.send_to_coordinator(transactional_id, request)
            error = init_error(answer.error_code, transactional_id, timeout_ms, enable_2pc)
            if error is not None:
                raise error
            self._wire.check_id(answer.error_code, "WRITE", transactional_id)
            return PreparedTxnState(answer.producer_id, answer.producer_epoch)

        what = f"initialising {transactional_id}"
        return self._wire.until_settled(attempt, what=what, transactional_id=transactional_id)

    # -- private ---------------------------------------------------------------------------------------------------

    def _check_ours(self, transactional_id: str) -> None:
        parsed = naming.parse(transactional_id)
        if parsed is None or (parsed.namespace, parsed.ledger_id) != (self._namespace, self._ledger_id):
            raise ConfigurationError(
                f"transactional id {transactional_id!r} is not one of namespace {self._namespace!r} and ledger "
                f"{self._ledger_id}: it is never ended or initialised from here",
                remedy="Use the ledger and the namespace that it was leased from; another application's transaction "
                "is that application's to end",
                transactional_id=transactional_id,
            )

    def _check_identity(self, transaction: PreparedTransaction) -> None:
        self._check_ours(transaction.transactional_id)
        if transaction.state.is_empty:
            raise ConfigurationError(
                "a transaction without producer id and epoch cannot be ended",
                remedy="End it by the identity that the ledger recorded",
                transactional_id=transaction.transactional_id,
            )


def too_old(bootstrap_servers: str, transactional_id: str | None = None) -> BrokerTooOldError:
    """No broker there takes part in two-phase commit."""
    return BrokerTooOldError(
        f"the brokers at {bootstrap_servers} do not offer InitProducerId v6, which two-phase commit needs",
        remedy="Use Kafka 4.1 or newer with transaction.two.phase.commit.enable=true and "
        "unstable.api.versions.enable=true on every broker, or switch two-phase commit off for this load",
        transactional_id=transactional_id,
    )


def description_of(row: Any) -> TransactionDescription:
    """One row of a DescribeTransactions answer. An id without a producer yet has -1 for producer id or epoch."""
    has_producer = row.producer_id >= 0 and row.producer_epoch >= 0
    return TransactionDescription(
        transactional_id=row.transactional_id,
        coordinator_state=state_of(row.transaction_state),
        state=PreparedTxnState(row.producer_id, row.producer_epoch) if has_producer else PreparedTxnState.EMPTY,
        timeout_ms=row.transaction_timeout_ms,
        start_time_ms=row.transaction_start_time_ms,
        partitions=frozenset(TopicPartition(t.topic, p) for t in row.topics for p in t.partitions),
    )


class TimeoutTooLongError(ConfigurationError):
    """The asked timeout is above the broker's ``transaction.max.timeout.ms``. Nothing was initialised."""


def init_error(code: int, transactional_id: str, timeout_ms: int, enable_2pc: bool) -> Exception | None:
    """The refusals that only InitProducerId has; None for every other code."""
    if code == errors.InvalidTransactionTimeoutError.errno:
        return TimeoutTooLongError(
            f"the broker refuses a transaction timeout of {timeout_ms} ms: it is above the broker's "
            "transaction.max.timeout.ms",
            remedy=f"Set transaction.max.timeout.ms to {timeout_ms} or more on every broker, ask for a shorter hold "
            "time, or use two-phase commit",
            transactional_id=transactional_id,
        )
    if code == errors.TransactionalIdAuthorizationFailedError.errno and enable_2pc:
        return AccessError(
            f"the broker refused two-phase commit for {transactional_id}: {retry.name_of(code)}",
            remedy="Set transaction.two.phase.commit.enable=true on every broker, and grant the principal of the Kafka "
            f"connection WRITE and TWO_PHASE_COMMIT on TransactionalIds prefixed {transactional_id.partition('.')[0]}.",
            transactional_id=transactional_id,
        )
    if code == errors.UnsupportedVersionError.errno:
        return BrokerTooOldError(
            f"the broker does not support this InitProducerId for {transactional_id}",
            remedy="KeepPreparedTxn is not supported by any Kafka up to 4.4; end the transaction by its recorded "
            "identity instead",
            transactional_id=transactional_id,
        )
    return None


# -- ListTransactions: one request per broker, filtered by the broker as far as its version can (FLIP-511). All but
# of_producers ask once, and raise retry.Retry where asking again may help


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
