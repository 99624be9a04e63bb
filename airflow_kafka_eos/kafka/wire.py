"""Requests and answers over the wire: the one module that touches what is private in kafka-python.

kafka-python 3 brings the messages of the protocol and a connection manager, but no public way to send one request
to one broker. :class:`Wire` is that way: one request at a time, synchronous, each bounded in time. It knows
nothing of error codes inside answers (see :mod:`airflow_kafka_eos.kafka.retry`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import kafka.errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from airflow_kafka_eos.errors import AccessError, BrokerTooOldError, BrokerUnavailableError, KafkaEosError
from airflow_kafka_eos.kafka import retry
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.transaction import TopicPartition

_TRANSACTION = 1  # FindCoordinator's key type
_REQUEST_TIMEOUT_MS = 30_000
_FRAME_MAX_BYTES = 256 * 1024 * 1024
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_AUTHENTICATION = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
    kafka_errors.AuthorizationError,
)


class _NoRequests(logging.Filter):
    """kafka-python logs requests and their bytes at DEBUG; those of a login are the password (seen)."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG


for _name in ("kafka.net.connection", "kafka.protocol.parser"):
    logging.getLogger(_name).addFilter(_NoRequests())


class _Manager(KafkaConnectionManager):  # type: ignore[misc]
    """Remembers why a connection failed, so that the error can say it, and stops at a refused login.

    kafka-python's own bootstrap tries a wrong password again until its deadline: ``_connect`` forgets the refusal
    as soon as ``initialize``, which does not raise, has returned.
    """

    last_failure: Exception | None = None
    refusal: Exception | None = None

    def get_connection(self, node_id: Any, **options: Any) -> Any:
        connection = super().get_connection(node_id, **options)
        if not connection.init_future.is_done:
            connection.init_future.add_errback(self._remember)
        return connection

    async def _build_transport(self, node: Any, **options: Any) -> Any:
        transport = await super()._build_transport(node, **options)
        transport._sock_recv = _data_before_end(transport._sock_recv)
        return transport

    def maybe_raise_auth_failure(self, node_id: Any) -> None:
        if self.refusal is not None:
            raise self.refusal

    def _remember(self, error: Exception) -> None:
        self.last_failure = error
        if isinstance(error, _AUTHENTICATION) or _UNTRUSTED in str(error):
            self.refusal = error


def _data_before_end(receive: Callable[[], tuple[bytes, Exception | None]]) -> Callable[[], Any]:
    """kafka-python throws away what was read together with the end of the stream: the answer "wrong password"."""
    end: list[Exception] = []

    def one_after_the_other() -> tuple[bytes, Exception | None]:
        if end:
            return b"", end.pop()
        data, error = receive()
        if data and error is not None:
            end.append(error)
            return data, None
        return data, error

    return one_after_the_other


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
        self._request_timeout_s = arguments["request_timeout_ms"] / 1000
        self._net = NetworkSelector(client_id=arguments.get("client_id", "airflow-kafka-eos"))
        self._manager = _Manager(self._net, **({"client_id": "airflow-kafka-eos"} | arguments))
        self._coordinators: dict[str, int] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._closed = False

    def __enter__(self) -> Wire:
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

    # -- who is where --------------------------------------------------------------------------------------------

    def broker_ids(self) -> list[int]:
        """Node ids of the brokers that are alive, asked anew each time."""
        return sorted(broker.node_id for broker in self.metadata([]).brokers)

    def metadata(self, topics: Iterable[str]) -> Any:
        """A MetadataResponse for these topics (none: brokers only). Topics are never created by asking."""
        topic = MetadataRequest.MetadataRequestTopic
        request = MetadataRequest(topics=[topic(name=t) for t in topics], allow_auto_topic_creation=False)
        response = self.send_to_any(request)
        self._manager.cluster.update_metadata(response)
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

    def forget_leaders(self, tps: Iterable[TopicPartition]) -> None:
        """Ask for these partitions' leaders again next time."""
        for tp in tps:
            self._leaders.pop(tp, None)

    def coordinators(self, transactional_ids: Iterable[str]) -> dict[str, int]:
        """Node ids of the transaction coordinators of these ids, from memory where known.

        :raises retry.Retry: there is no coordinator at this moment.
        :raises AccessError: DESCRIBE on a transactional id is missing.
        """
        wanted = list(transactional_ids)
        unknown = [i for i in wanted if i not in self._coordinators]
        if unknown:
            # v4: several keys in one request (KIP-699), Kafka 3.0
            request = FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=unknown, min_version=4)
            for found in self.send_to_any(request).coordinators:
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


def translate(
    error: BaseException, last_failure: BaseException | None, settings: KafkaSettings
) -> KafkaEosError | BaseException:
    """What an exception of kafka-python's connection layer means. Never shows a credential."""
    where = f"the Kafka brokers at {settings.bootstrap_servers}"
    if isinstance(error, _AUTHENTICATION):
        return AccessError(
            f"{where} refused the login ({type(error).__name__}; security.protocol {settings.security_protocol})",
            remedy="Check security.protocol, sasl.mechanism, sasl.username and sasl.password of the Kafka connection",
        )
    if _UNTRUSTED in str(error):
        return AccessError(
            f"the certificate of {where} could not be verified: {error}",
            remedy="Check ssl.ca.location of the Kafka connection, and the host names in bootstrap.servers",
        )
    if isinstance(error, kafka_errors.UnsupportedVersionError):
        return BrokerTooOldError(f"{where} are too old: {error}", remedy="Kafka 3.9 or newer is needed")
    if isinstance(error, (kafka_errors.KafkaError, OSError)):
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if last_failure is not None and last_failure is not error:
            reason += f" (last connection failure: {type(last_failure).__name__}: {last_failure})"
        return BrokerUnavailableError(
            f"{where} cannot be reached: {reason}",
            remedy="Check bootstrap.servers and security.protocol of the Kafka connection, and that the brokers are up",
        )
    return error
