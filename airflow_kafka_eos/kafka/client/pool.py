"""Many requests at a time: several connections to each broker, on one loop and in one thread.

A broker works on one request per connection at a time, so more connections are what makes it work in parallel; a
second request behind the first one only saves the way there and back. Nothing is sent twice from here: who asks
again, and when, is the caller's decision.

kafka-python spends 0.15 ms on a request and its answer (schemas, futures, a timer each), and that is what thousands of
small requests of one kind, such as EndTxn, wait for. So the connections beyond the first are :class:`RawConnection`.
"""

from __future__ import annotations

import math
import struct
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from kafka import errors
from kafka.future import Future

from airflow_kafka_eos.kafka.client.connections import Loop, Manager

T = TypeVar("T")

#: Connections to one broker; more made nothing faster.
MAX_PER_BROKER = 8
#: Connections beyond the first one of each broker, whatever the number of brokers.
MAX_EXTRA = 24
#: Requests for which one more connection pays: it costs a login.
SHARE = 16
#: Requests on their way on one connection; below kafka-python's own limit of 5, at which it refuses.
DEPTH = 4
#: Seconds between two looks at connections that the broker throttles; nothing tells when that ends.
_LOOK_S = 0.05
#: of a frame, and of a correlation id
_INT = struct.Struct(">i")


class Framed(Protocol):
    """A request that can write its own frame."""

    #: kafka-python's class of the request, for its versions
    API: ClassVar[Any]

    @property
    def highest(self) -> int:
        """The highest version to send it in."""

    def message(self) -> Any:
        """The same request for kafka-python."""

    def frame(self, version: int, correlation_id: int, client_id: str) -> bytes:
        """Header and body, without the size."""

    def read(self, version: int, frame: memoryview) -> Any:
        """The answer, from what follows the correlation id."""


class _Request(NamedTuple):
    tag: Any
    message: Any
    timeout_s: float

    @property
    def is_framed(self) -> bool:
        return hasattr(self.message, "frame")


class _Sent(NamedTuple):
    request: _Request
    correlation_id: int
    deadline: float  # time.monotonic()


class RawConnection:
    """Keeps a connection of kafka-python, its login and its TLS, and puts frames of ours on its transport.

    Takes over one that is logged in and idle.

    :param replied: called with request, answer and error, once for each request.
    """

    #: read by kafka-python's transport
    _sensors = None

    def __init__(self, connection: Any, replied: Callable[[_Request, Any, BaseException | None], None]) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._replied = replied
        self.sent: deque[_Sent] = deque()
        self._unread = bytearray()
        self._next_id = 0
        self._client_id = str(connection.config["client_id"])
        self._versions: dict[Any, int] = {}
        # KIP-368: a session that ends in the middle closes the connection, and what is left is sent elsewhere
        connection._reauth.cancel()
        self._transport.set_protocol(self)

    @property
    def closed(self) -> bool:
        return bool(self._connection.closed)

    @property
    def deadline(self) -> float | None:
        """When the first answer is due, by ``time.monotonic()``."""
        return self.sent[0].deadline if self.sent else None

    def send(self, requests: list[_Request]) -> None:
        """Write framed requests side by side."""
        out = bytearray()
        now = time.monotonic()
        for request in requests:
            framed: Framed = request.message
            frame = framed.frame(self._version(framed), self._next_id, self._client_id)
            out += _INT.pack(len(frame)) + frame
            self.sent.append(_Sent(request, self._next_id, now + request.timeout_s))
            self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        self._transport.write(bytes(out))

    def expire(self, now: float) -> None:
        """Close the connection when an answer is overdue: those behind it cannot come either."""
        if self.sent and self.sent[0].deadline <= now:
            self._connection.close(errors.RequestTimedOutError("no answer in time"))

    def close(self) -> None:
        """Close the connection; answers that are still to come are reported as errors."""
        self._connection.close()

    # -- what kafka-python's transport calls ---------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unread += data
        at = 0
        while len(self._unread) - at >= 4:
            size = _INT.unpack_from(self._unread, at)[0]
            if len(self._unread) - at - 4 < size:
                break
            self._answered(bytes(self._unread[at + 4 : at + 4 + size]))
            at += 4 + size
        del self._unread[:at]

    def connection_lost(self, error: BaseException | None) -> None:
        self._connection.connection_lost(error)
        lost, self.sent = self.sent, deque()
        for sent in lost:
            self._replied(sent.request, None, error or errors.KafkaConnectionError("closed"))

    # -- private -------------------------------------------------------------------------------------------------

    def _answered(self, frame: bytes) -> None:
        if not self.sent or _INT.unpack_from(frame)[0] != self.sent[0].correlation_id:
            raise errors.CorrelationIdError("an answer to no request of ours")
        request = self.sent.popleft().request
        framed: Framed = request.message
        try:
            answer = framed.read(self._version(framed), memoryview(frame)[4:])
        except (struct.error, IndexError) as error:
            self._replied(request, None, errors.KafkaProtocolError(f"an answer that cannot be read: {error}"))
        else:
            self._replied(request, answer, None)

    def _version(self, request: Framed) -> int:
        if request.API not in self._versions:
            self._versions[request.API] = int(self._connection.broker_version_data.api_version(request.API))
        return min(self._versions[request.API], request.highest)


class Reply(NamedTuple, Generic[T]):
    """What became of one request: an answer, or an error of :mod:`airflow_kafka_eos.errors`."""

    tag: T
    node_id: int
    answer: Any
    error: BaseException | None


class _Broker:
    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.queue: deque[_Request] = deque()
        #: the Wire's own, and closed by it; None until it is needed
        self.first: Any = None
        #: those that are not logged in yet
        self.opening: list[Any] = []
        self.raw: list[RawConnection] = []
        self.opened = 0
        self.in_flight = 0

    @property
    def extra(self) -> int:
        return len(self.opening) + len(self.raw)


def connections_for(requests: int) -> int:
    """How many connections to one broker so many requests are worth."""
    return max(1, min(MAX_PER_BROKER, math.ceil(requests / SHARE)))


class ConnectionPool(Generic[T]):
    """See the module. Made by :meth:`.wire.Wire.pool`, used from its thread."""

    def __init__(self, net: Loop, manager: Manager) -> None:
        self._net = net
        self._manager = manager
        self._brokers: dict[int, _Broker] = {}
        self._failures: dict[int, int] = {}
        self._replies: list[Reply[T]] = []
        self._woken = Future()

    def close(self) -> None:
        """Close all connections but the Wire's own. Answers that are still to come are not waited for."""
        for broker in self._brokers.values():
            for connection in (*broker.opening, *broker.raw):
                connection.close()
        self._brokers.clear()
        self._replies.clear()

    def any_broker(self) -> int | None:
        """The broker that failed least often so far; None when none is known."""
        nodes = sorted(broker.node_id for broker in self._manager.cluster.brokers())
        return min(nodes, key=lambda n: (self._failures.get(n, 0), self._waiting(n)), default=None)

    def submit(self, node_id: int, request: Any, tag: T, *, timeout_s: float) -> None:
        """Queue a request. Its reply, under ``tag``, comes from :meth:`wait`.

        :param request: a :class:`Framed` one may go over each connection, a message of kafka-python over the first.
        :param timeout_s: seconds from its sending on; a request that waits in the queue has no deadline.
        """
        broker = self._brokers.setdefault(node_id, _Broker(node_id))
        broker.queue.append(_Request(tag, request, timeout_s))

    def wait(self, timeout_s: float) -> list[Reply[T]]:
        """Send what can be sent, and wait until there are replies, for so many seconds at most."""
        end = time.monotonic() + timeout_s
        while True:
            for broker in self._brokers.values():
                self._advance(broker)
            left = end - time.monotonic()
            if self._replies or left <= 0:
                replies, self._replies = self._replies, []
                return replies
            self._woken = Future()
            self._net.poll(timeout_ms=max(0.0, min(left, self._look_s())) * 1000, future=self._woken)

    # -- private -------------------------------------------------------------------------------------------------

    def _waiting(self, node_id: int) -> int:
        broker = self._brokers.get(node_id)
        return len(broker.queue) + broker.in_flight if broker is not None else 0

    def _look_s(self) -> float:
        """Seconds until something must be done that no event tells of."""
        now = time.monotonic()
        look = math.inf
        for broker in self._brokers.values():
            if broker.queue and not broker.in_flight:
                look = min(look, _LOOK_S)
            for raw in broker.raw:
                if raw.deadline is not None:
                    look = min(look, raw.deadline - now)
        return look

    def _advance(self, broker: _Broker) -> None:
        now = time.monotonic()
        for raw in broker.raw:
            raw.expire(now)
        if not broker.queue:
            return
        try:
            self._connect(broker)
        except Exception as error:  # a refused login is raised again as it was, an ssl.SSLError too
            if isinstance(error, errors.UnknownBrokerIdError):
                self._manager.cluster.request_update()  # it came up after we last asked who is there
            self._fail_queue(broker, error)
            return
        first = broker.first
        while broker.queue and first.connected and not first.paused and len(first.in_flight_requests) < DEPTH:
            self._send(broker, broker.queue.popleft())
        for raw in broker.raw:
            self._fill(broker, raw)

    def _connect(self, broker: _Broker) -> None:
        if broker.first is None or (broker.first.closed and broker.first.init_future.succeeded()):
            broker.first = self._manager.get_connection(broker.node_id)
            broker.opened = 1 + broker.extra
            broker.first.init_future.add_both(self._wake)
        if broker.first.init_future.failed():
            error, broker.first = broker.first.init_future.exception, None
            raise error if isinstance(error, errors.KafkaError) else errors.NodeNotReadyError(str(error))
        broker.raw = [c for c in broker.raw if not c.closed]
        if broker.first.connected:
            # only behind the first login: a wrong password is tried once, not eight times
            self._open_more(broker)
        for connection in [c for c in broker.opening if c.init_future.is_done]:
            broker.opening.remove(connection)
            if connection.connected:
                broker.raw.append(RawConnection(connection, partial(self._replied, broker)))

    def _open_more(self, broker: _Broker) -> None:
        extra = sum(b.extra for b in self._brokers.values())
        wanted = connections_for(len(broker.queue) + broker.in_flight)
        while broker.opened < wanted and extra < MAX_EXTRA:
            connection = self._manager.another_connection(broker.node_id)
            connection.init_future.add_both(self._wake)
            broker.opening.append(connection)
            broker.opened += 1
            extra += 1

    def _send(self, broker: _Broker, request: _Request) -> None:
        broker.in_flight += 1
        message = request.message.message() if request.is_framed else request.message
        future = broker.first.send_request(message, request_timeout_ms=request.timeout_s * 1000)
        future.add_callback(lambda answer: self._replied(broker, request, answer, None))
        future.add_errback(lambda error: self._replied(broker, request, None, error))

    def _fill(self, broker: _Broker, raw: RawConnection) -> None:
        batch: list[_Request] = []
        while broker.queue and broker.queue[0].is_framed and len(raw.sent) + len(batch) < DEPTH:
            batch.append(broker.queue.popleft())
        if batch:
            broker.in_flight += len(batch)
            raw.send(batch)

    def _replied(self, broker: _Broker, request: _Request, answer: Any, error: BaseException | None) -> None:
        broker.in_flight -= 1
        self._reply(broker, request, answer, error)
        self._wake()

    def _fail_queue(self, broker: _Broker, error: BaseException) -> None:
        failed, broker.queue = broker.queue, deque()
        for request in failed:
            self._reply(broker, request, None, error)

    def _reply(self, broker: _Broker, request: _Request, answer: Any, error: BaseException | None) -> None:
        if error is not None:
            self._failures[broker.node_id] = self._failures.get(broker.node_id, 0) + 1
            error = self._manager.explained(error)
        self._replies.append(Reply(request.tag, broker.node_id, answer, error))

    def _wake(self, _: Any = None) -> None:
        if not self._woken.is_done:
            self._woken.success(None)
