"""Requests and answers over the wire: the interface that the other rooms have to kafka-python's connections.

kafka-python 3 brings the messages of the protocol and a connection manager, but no public way to send one request
to one broker. :class:`Wire` is that way: one request at a time, synchronous, each bounded in time.
:class:`PipelinedWire` has several under way. Error codes inside answers are :mod:`.retry`'s matter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from kafka import errors
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest

from airflow_kafka_eos.errors import BrokerUnavailableError
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.connections import (
    TRANSACTION_VERSION,
    Loop,
    Manager,
    at_debug,
    finalized,
    sends_at_once,
)
from airflow_kafka_eos.kafka.client.pool import ConnectionPool
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.transaction import TopicPartition

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Who waits for brokers longer than this is told so, in the middle of the wait.
SAYS_SO_AFTER_S = 5.0

_CLIENT = "airflow-kafka-eos"
_TRANSACTION = 1  # FindCoordinator's key type
_REQUEST_TIMEOUT_MS = 30_000
_FRAME_MAX_BYTES = 256 * 1024 * 1024


class Wire:
    """A connection to a Kafka cluster. Use it as a context manager, from one thread at a time.

    Nothing is sent before the first request. Connections that were lost are opened again.

    :param settings: where the brokers are and how to log in.
    :param timeout_s: seconds for one operation, all of its repetitions included.
    """

    def __init__(self, settings: KafkaSettings, *, timeout_s: float = 60) -> None:
        arguments = self._arguments(settings)
        arguments["request_timeout_ms"] = int(
            min(arguments.get("request_timeout_ms", _REQUEST_TIMEOUT_MS), max(timeout_s, 1) * 1000)
        )
        self._tokens = settings.token_source()
        # kafka-python's 1 MB would refuse the answer to a Fetch that has to carry one large batch
        arguments["receive_message_max_bytes"] = _FRAME_MAX_BYTES
        self.settings = settings
        self.timeout_s = timeout_s
        #: seconds that one request may take
        self.request_timeout_s: float = arguments["request_timeout_ms"] / 1000
        self._net = Loop(client_id=arguments["client_id"])
        self._manager = Manager(self._net, settings, **arguments)
        self._coordinators: dict[str, int] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. May be called twice."""
        if not self._closed:
            self._closed = True
            self._manager.close()
            self._net.close()

    # -- one request, one answer ---------------------------------------------------------------------------------

    def send_to_broker(self, node_id: int, request: Any) -> Any:
        """Send one request to one broker, once.

        :raises BrokerUnavailableError: the broker is not known, not reachable, or did not answer in time.
        :raises AccessError: the login was refused.
        :raises BrokerTooOldError: the broker does not speak a version of this request that is new enough.
        """
        self._connect()
        return self._send(node_id, request)

    def send_to_any(self, request: Any) -> Any:
        """Send one request to whichever broker is reachable, once. Raises as :meth:`send_to_broker`."""
        self._connect()
        node_id = self._manager.least_loaded_node()
        if node_id is None:
            raise self._manager.unreachable("every known broker was unreachable a moment ago")
        return self._send(node_id, request)

    def send_to_coordinator(self, transactional_id: str, request: Any) -> Any:
        """Send one request to the transaction coordinator of an id, once.

        :raises retry.Retry: there is no coordinator at this moment.
        :raises AccessError: DESCRIBE on the transactional id is missing.
        """
        node_id = self.coordinators([transactional_id])[transactional_id]
        try:
            return self._send(node_id, request)
        except BrokerUnavailableError:
            self.forget_coordinators([transactional_id])
            raise

    def send_to_leader(self, tp: TopicPartition, request: Any) -> Any:
        """Send one request to the leader of a partition, once.

        :raises retry.Retry: the partition has no leader at this moment.
        """
        node_id = self.leaders([tp])[tp]
        try:
            return self._send(node_id, request)
        except BrokerUnavailableError:
            self.forget_leaders([tp])
            raise

    def pool(self) -> ConnectionPool[Any]:
        """Several requests at a time, over several connections to each broker. Close it before the next request.

        :raises BrokerUnavailableError: no broker is reachable.
        :raises AccessError: the login was refused.
        """
        self._connect()
        self._log_in_again()
        return ConnectionPool(self._net, self._manager)

    def until_settled(self, attempt: Callable[[], T], *, what: str, transactional_id: str | None = None) -> T:
        """:func:`.retry.until_settled`, for as long as one operation may take."""
        return retry.until_settled(
            attempt, what=what, timeout_s=self.timeout_s, transactional_id=transactional_id
        )

    # -- who is where --------------------------------------------------------------------------------------------

    def broker_ids(self) -> list[int]:
        """Node ids of the brokers that are alive, asked anew each time."""
        return sorted(broker.node_id for broker in self.metadata([]).brokers)

    def cluster_id(self) -> str | None:
        """The id of this Kafka cluster, as its brokers told it when they were asked last; None where they tell none.

        Connecting asks for it, so that it costs no request of its own.
        """
        self._connect()
        return self._manager.cluster.cluster_id or None

    def addresses(self) -> dict[int, str]:
        """``host:port`` of each broker, as the cluster names it to its clients (``advertised.listeners``)."""
        self._connect()
        return {int(b.node_id): f"{b.host}:{b.port}" for b in self._manager.cluster.brokers()}

    def metadata(self, topics: Iterable[str]) -> Any:
        """A MetadataResponse for these topics (none: brokers only). Topics are never created by asking."""
        response = self.send_to_any(metadata_request(topics))
        self.take_metadata(response)
        return response

    def take_metadata(self, response: Any) -> None:
        """Remember who leads what, of an answer that was asked for elsewhere."""
        at_debug(self._manager.cluster.update_metadata)(response)
        for t in response.topics:
            for p in t.partitions:
                tp = TopicPartition(t.name, p.partition_index)
                if t.error_code == 0 and p.leader_id >= 0:
                    self._leaders[tp] = p.leader_id
                else:
                    self._leaders.pop(tp, None)

    def leaders(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Node ids of the partitions' leaders, from memory where known.

        :raises retry.Retry: a partition is unknown, or has no leader at this moment.
        """
        wanted = list(tps)
        unknown = {tp.topic for tp in wanted if tp not in self._leaders}
        if unknown:
            for t in self.metadata(sorted(unknown)).topics:
                retry.check(t.error_code, operation="DESCRIBE", resource=f"Topic {t.name}", lag=True)
        missing = [str(tp) for tp in wanted if tp not in self._leaders]
        if missing:
            raise retry.Retry(f"no leader for {', '.join(missing[:5])}")
        return {tp: self._leaders[tp] for tp in wanted}

    def known_leaders(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Node ids of those leaders that are remembered; nobody is asked."""
        return {tp: self._leaders[tp] for tp in tps if tp in self._leaders}

    def forget_leaders(self, tps: Iterable[TopicPartition]) -> None:
        """Ask for these partitions' leaders again next time."""
        for tp in tps:
            self._leaders.pop(tp, None)

    def known_coordinators(self, transactional_ids: Iterable[str]) -> dict[str, int]:
        """Node ids of those coordinators that are remembered; nobody is asked."""
        return {i: self._coordinators[i] for i in transactional_ids if i in self._coordinators}

    def remember_coordinator(self, transactional_id: str, node_id: int) -> None:
        """What a FindCoordinator answered elsewhere."""
        self._coordinators[transactional_id] = node_id

    def coordinators(self, transactional_ids: Iterable[str]) -> dict[str, int]:
        """Node ids of the transaction coordinators of these ids, from memory where known.

        :raises retry.Retry: there is no coordinator at this moment.
        :raises AccessError: DESCRIBE on a transactional id is missing.
        """
        wanted = list(transactional_ids)
        unknown = [i for i in wanted if i not in self._coordinators]
        if unknown:
            for found in self.send_to_any(find_coordinators(unknown)).coordinators:
                retry.check_id(found.error_code, "DESCRIBE", found.key)
                self._coordinators[found.key] = found.node_id
        return {i: self._coordinators[i] for i in wanted}

    def forget_coordinators(self, transactional_ids: Iterable[str]) -> None:
        """Find these ids' coordinators again next time."""
        for transactional_id in transactional_ids:
            self._coordinators.pop(transactional_id, None)

    def check_id(self, code: int, operation: str, transactional_id: str) -> None:
        """What a coordinator answered; one that is not the coordinator any more is not asked again.

        Raises as :func:`.retry.check_id`.
        """
        if code == errors.NotCoordinatorError.errno:
            self.forget_coordinators([transactional_id])
        retry.check_id(code, operation, transactional_id)

    # -- versions ------------------------------------------------------------------------------------------------

    def api_version(self, request_class: Any) -> int | None:
        """The highest version of a request that both sides speak; None when the broker does not have it."""
        self._connect()
        try:
            return int(self._manager.broker_version_data.api_version(request_class))
        except errors.IncompatibleBrokerVersion:
            return None

    def transaction_version(self) -> int:
        """The cluster's ``transaction.version`` (KIP-890), as a broker showed it on connecting; 0 where it has none."""
        return self.features().get(TRANSACTION_VERSION, 0)

    def ends_raise_epochs(self) -> bool:
        """Whether the end of a transaction adds one to its epoch (transaction version 2, KIP-890).

        Asked anew unless it was so on connecting, and of every broker: a cluster may have been upgraded since, or be
        about to.
        """
        return self.transaction_version() >= 2 or any(
            finalized(self._versions_of(broker)).get(TRANSACTION_VERSION, 0) >= 2 for broker in self.broker_ids()
        )

    def features(self) -> dict[str, int]:
        """The levels of the features that the cluster goes by (KIP-584), as a broker showed them on connecting."""
        self._connect()
        return self._manager.features

    def ask_versions(self, node_id: int | None = None) -> Any:
        """An ApiVersions answer of this broker, or of any."""
        request = ApiVersionsRequest(client_software_name=_CLIENT, client_software_version="0", min_version=3)
        return self.send_to_any(request) if node_id is None else self.send_to_broker(node_id, request)

    def _versions_of(self, node_id: int) -> Any:
        return self.until_settled(lambda: self.ask_versions(node_id), what=f"the versions of broker {node_id}")

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """What the broker offers: api key -> (lowest, highest version)."""
        self._connect()
        offered = self._manager.broker_version_data.api_versions
        return {int(key): (int(low), int(high)) for key, (low, high) in offered.items()}

    # -- private -------------------------------------------------------------------------------------------------

    def _arguments(self, settings: KafkaSettings) -> dict[str, Any]:
        return {"client_id": _CLIENT} | settings.for_kafka_python()

    def _connect(self) -> None:
        if self._closed:
            raise BrokerUnavailableError("the Wire is closed", remedy="Open a new one")
        if self._manager.bootstrapped:
            return
        if self._tokens is not None:
            try:  # kafka-python would try until the deadline, and say that no broker answers
                self._tokens.current()
            except BrokerUnavailableError as e:
                raise retry.NoTokenError(e.message, remedy=e.remedy) from None
        deadline = time.monotonic() + self.timeout_s
        future = self._manager.bootstrap_async(int(self.timeout_s * 1000))
        self._net.poll(timeout_ms=min(SAYS_SO_AFTER_S, self.timeout_s) * 1000, future=future)
        if not future.is_done:
            _log.warning(
                "the Kafka brokers at %s do not answer yet (%s); trying for up to %g s",
                self.settings.bootstrap_servers, self._manager.last_failure or "no connection", self.timeout_s,
            )  # fmt: skip
        self._wait(future, deadline + 1)

    def _log_in_again(self) -> None:
        """Begin the logins that have become due while nobody looked (KIP-368): a broker closes a connection whose login
        has ended when something else is sent first."""
        if self.settings.sasl_mechanism is not None:
            self._net.poll(timeout_ms=0)

    def _send(self, node_id: int, request: Any) -> Any:
        self._log_in_again()
        if self._manager.cluster.broker_metadata(node_id) is None:
            self._wait(self._manager.call_soon(self._manager.cluster.refresh_metadata), None)
        future = self._manager.call_soon(self._manager.send, request, node_id)
        return self._wait(future, None)

    def _wait(self, future: Any, deadline: float | None) -> Any:
        end = time.monotonic() + self.request_timeout_s + 1 if deadline is None else deadline
        self._net.poll(timeout_ms=max(0.0, (end - time.monotonic()) * 1000), future=future)
        if not future.is_done:
            raise self._manager.unreachable("no answer in time")
        if future.exception is not None:
            raise self._manager.explained(future.exception) from None
        return future.value


def metadata_request(topics: Iterable[str]) -> Any:
    """For these topics; no topic is made by asking."""
    topic = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(topics=[topic(name=t) for t in topics], allow_auto_topic_creation=False)


def find_coordinators(transactional_ids: list[str]) -> Any:
    """The request that finds several coordinators at a time: v4, KIP-699, Kafka 3.0."""
    return FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=transactional_ids, min_version=4)


#: More than we ever have under way: kafka-python refuses further requests instead of queueing them.
_NEVER_REFUSED = 1000

#: What a connection with its login takes, mostly.
_REACHED_MS = 250

#: Seconds that a wire is used for one thing behind the other: less than what stands between lets connections rest, and
#: no longer than what it remembers (who is where, what brokers offer, a coordinator for each id) may grow and grow old.
_YOUNG_S = 60.0

#: Gets the response, or the error why there is none.
Answered = Callable[[Any, BaseException | None], None]


class PipelinedWire(Wire):
    """Several requests may be under way at once. For one thread at a time; only :meth:`wake` is for any.

    :param request_timeout_s: after so many seconds without an answer to :meth:`start` a connection is closed.
    """

    def __init__(self, settings: KafkaSettings, *, timeout_s: float, request_timeout_s: float) -> None:
        super().__init__(settings, timeout_s=timeout_s)
        self._start_timeout_ms = int(request_timeout_s * 1000)
        self._old_at = time.monotonic() + _YOUNG_S

    def _arguments(self, settings: KafkaSettings) -> dict[str, Any]:
        # kafka-python's 30 s between two tries would outlast a leader that is back at once; the Java client has 1 s
        arguments = {"reconnect_backoff_max_ms": 1000} | super()._arguments(settings)
        return arguments | {"max_in_flight_requests_per_connection": _NEVER_REFUSED}

    def start(self, node_id: int, request: Any, answered: Answered) -> None:
        """Send a request to a broker without waiting. ``answered`` is called once, from here or from :meth:`turn`,
        and must not send anything that waits."""
        try:
            future = self._manager.send(request, node_id, request_timeout_ms=self._start_timeout_ms)
        except Exception as e:
            # a broker that the newest metadata do not have any more, or what one said that refused the login
            answered(None, self._manager.explained(e))
            return
        future.add_callback(lambda response: answered(response, None))
        future.add_errback(lambda error: answered(None, self._manager.explained(error)))

    def is_reached(self, node_id: int) -> bool:
        """Whether a request to this broker would go out at once. Else a connection is begun, and waited for a bit."""
        self._connect()
        try:
            connection = self._manager.get_connection(node_id)
        except Exception as e:  # a pause between two tries, or the newest metadata do not have it any more
            found = self._manager.explained(e)
            if not isinstance(found, BrokerUnavailableError):
                raise found from None  # what one said that refused the login
            return False
        if not connection.init_future.is_done:
            self._net.poll(timeout_ms=_REACHED_MS, future=connection.init_future)
        return sends_at_once(connection)

    def is_fresh(self) -> bool:
        """Whether who has rested with it may go on as with a new one: no connection was lost or throttled meanwhile, as
        far as this machine was told, no login is due, and it is not old. Nothing is waited for."""
        connections = self._manager.least_used_connections()
        self._net.poll(timeout_ms=0)
        return bool(connections) and all(map(sends_at_once, connections)) and time.monotonic() < self._old_at

    def turn(self, timeout_s: float) -> None:
        """Let what is under way make progress; returns when something did, was woken, or after ``timeout_s``."""
        self._net.poll(timeout_ms=timeout_s * 1000)

    def wake(self) -> None:
        """End a :meth:`turn` that waits. From any thread."""
        self._net.wakeup()
