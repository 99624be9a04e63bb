"""Requests and answers over the wire.

kafka-python 3 brings the messages of the protocol and a connection manager, but no public way to send one request
to one broker. :class:`Wire` is that way: one request at a time, synchronous, each bounded in time. It knows
nothing of error codes inside answers (see :mod:`airflow_kafka_eos.kafka.client.retry`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import kafka.errors as kafka_errors
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from airflow_kafka_eos.errors import BrokerUnavailableError, KafkaEosError
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.connections import Loop, Manager, at_debug, translate
from airflow_kafka_eos.kafka.client.pool import Lanes
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.transaction import TopicPartition

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
        arguments = settings.for_kafka_python()
        arguments["request_timeout_ms"] = int(
            min(arguments.get("request_timeout_ms", _REQUEST_TIMEOUT_MS), max(timeout_s, 1) * 1000)
        )
        # kafka-python's 1 MB would refuse the answer to a Fetch that has to carry one large batch
        arguments["receive_message_max_bytes"] = _FRAME_MAX_BYTES
        self.settings = settings
        self.timeout_s = timeout_s
        self._request_timeout_s: float = arguments["request_timeout_ms"] / 1000
        self._net = Loop(client_id=arguments.get("client_id", "airflow-kafka-eos"))
        self._manager = Manager(self._net, **({"client_id": "airflow-kafka-eos"} | arguments))
        self._coordinators: dict[str, int] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            raise self._unavailable("every known broker was unreachable a moment ago")
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

    def lanes(self) -> Lanes[Any]:
        """Several requests at a time, over several connections to each broker. Close it before the next request.

        :raises BrokerUnavailableError: no broker is reachable.
        :raises AccessError: the login was refused.
        """
        self._connect()
        return Lanes(self._net, self._manager, self.settings)

    @property
    def request_timeout_s(self) -> float:
        """Seconds that one request may take."""
        return self._request_timeout_s

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
        topic = MetadataRequest.MetadataRequestTopic
        request = MetadataRequest(topics=[topic(name=t) for t in topics], allow_auto_topic_creation=False)
        response = self.send_to_any(request)
        at_debug(self._manager.cluster.update_metadata)(response)
        for t in response.topics:
            for p in t.partitions:
                tp = TopicPartition(t.name, p.partition_index)
                if t.error_code == 0 and p.leader_id >= 0:
                    self._leaders[tp] = p.leader_id
                else:
                    self._leaders.pop(tp, None)
        return response

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
                retry.check(
                    found.error_code,
                    operation="DESCRIBE",
                    resource=f"TransactionalId {found.key}",
                    transactional_id=found.key,
                )
                self._coordinators[found.key] = found.node_id
        return {i: self._coordinators[i] for i in wanted}

    def forget_coordinators(self, transactional_ids: Iterable[str]) -> None:
        """Find these ids' coordinators again next time."""
        for transactional_id in transactional_ids:
            self._coordinators.pop(transactional_id, None)

    # -- versions ------------------------------------------------------------------------------------------------

    def api_version(self, request_class: Any) -> int | None:
        """The highest version of a request that both sides speak; None when the broker does not have it."""
        self._connect()
        try:
            return int(self._manager.broker_version_data.api_version(request_class))
        except kafka_errors.IncompatibleBrokerVersion:
            return None

    def transaction_version(self) -> int:
        """The cluster's ``transaction.version`` (KIP-890), as a broker showed it on connecting; 0 where it has none."""
        self._connect()
        return self._manager.transaction_version

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """What the broker offers: api key -> (lowest, highest version)."""
        self._connect()
        offered = self._manager.broker_version_data.api_versions
        return {int(key): (int(low), int(high)) for key, (low, high) in offered.items()}

    # -- private -------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._closed:
            raise BrokerUnavailableError("the Wire is closed", remedy="Open a new one")
        if self._manager.bootstrapped:
            return
        deadline = time.monotonic() + self.timeout_s
        future = self._manager.bootstrap_async(int(self.timeout_s * 1000))
        self._wait(future, deadline + 1)

    def _send(self, node_id: int, request: Any) -> Any:
        if self._manager.cluster.broker_metadata(node_id) is None:
            self._wait(self._manager.call_soon(self._manager.cluster.refresh_metadata), None)
        future = self._manager.call_soon(self._manager.send, request, node_id)
        return self._wait(future, None)

    def _wait(self, future: Any, deadline: float | None) -> Any:
        end = time.monotonic() + self._request_timeout_s + 1 if deadline is None else deadline
        self._net.poll(timeout_ms=max(0.0, (end - time.monotonic()) * 1000), future=future)
        if not future.is_done:
            raise self._unavailable("no answer in time")
        if future.exception is not None:
            raise self._translate(future.exception) from None
        return future.value

    def _translate(self, error: BaseException) -> KafkaEosError | BaseException:
        return translate(error, self._manager.last_failure, self.settings)

    def _unavailable(self, reason: str) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"the Kafka brokers at {self.settings.bootstrap_servers} cannot be reached: {reason}",
            remedy="Check bootstrap.servers and security.protocol of the Kafka connection, and that the brokers are up",
        )


def find_coordinators(transactional_ids: list[str]) -> Any:
    """The request that finds several coordinators at a time: v4, KIP-699, Kafka 3.0."""
    return FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=transactional_ids, min_version=4)
