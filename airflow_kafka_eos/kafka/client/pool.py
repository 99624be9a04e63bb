"""Many requests at a time: several connections to each broker, on one loop and in one thread.

A broker works on one request per connection at a time, so more connections are what makes it work in parallel; a
second request behind the first one only saves the way there and back. Nothing is sent twice from here: who asks
again, and when, is the caller's decision.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any, Generic, NamedTuple, TypeVar

from kafka import errors
from kafka.future import Future

from airflow_kafka_eos.kafka.client.connections import Loop, Manager, sends_at_once

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


class _Request(NamedTuple):
    tag: Any
    message: Any
    timeout_s: float


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
        self.more: list[Any] = []
        self.opened = 0
        self.in_flight = 0

    @property
    def extra(self) -> int:
        return len(self.opening) + len(self.more)


def connections_for(requests: int) -> int:
    """How many connections to one broker so many requests are worth."""
    return max(1, min(MAX_PER_BROKER, math.ceil(requests / SHARE)))


def _takes_one_more(connection: Any) -> bool:
    return sends_at_once(connection) and len(connection.in_flight_requests) < DEPTH


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
            for connection in (*broker.opening, *broker.more):
                connection.close()
        self._brokers.clear()
        self._replies.clear()

    def any_broker(self) -> int | None:
        """The broker that failed least often so far; None when none is known."""
        nodes = sorted(broker.node_id for broker in self._manager.cluster.brokers())
        return min(nodes, key=lambda n: (self._failures.get(n, 0), self._waiting(n)), default=None)

    def submit(self, node_id: int, request: Any, tag: T, *, timeout_s: float) -> None:
        """Queue a request. Its reply, under ``tag``, comes from :meth:`wait`.

        :param request: a message of kafka-python's, sent once.
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
            self._net.poll(timeout_ms=min(left, self._look_s()) * 1000, future=self._woken)

    # -- private -------------------------------------------------------------------------------------------------

    def _waiting(self, node_id: int) -> int:
        broker = self._brokers.get(node_id)
        return len(broker.queue) + broker.in_flight if broker is not None else 0

    def _look_s(self) -> float:
        """Seconds until something may be sent without an event that tells of it."""
        waits = any(broker.queue and not broker.in_flight for broker in self._brokers.values())
        return _LOOK_S if waits else math.inf

    def _advance(self, broker: _Broker) -> None:
        if not broker.queue:
            return
        try:
            self._connect(broker)
        except Exception as error:  # a refused login is raised again as it was, an ssl.SSLError too
            if isinstance(error, errors.UnknownBrokerIdError):
                self._manager.cluster.request_update()  # it came up after we last asked who is there
            self._fail_queue(broker, error)
            return
        for connection in (broker.first, *broker.more):
            while broker.queue and _takes_one_more(connection):
                self._send(broker, connection, broker.queue.popleft())

    def _connect(self, broker: _Broker) -> None:
        if broker.first is None or (broker.first.closed and broker.first.init_future.succeeded()):
            broker.first = self._manager.get_connection(broker.node_id)
            broker.opened = 1 + broker.extra
            broker.first.init_future.add_both(self._wake)
        if broker.first.init_future.failed():
            error, broker.first = broker.first.init_future.exception, None
            raise error if isinstance(error, errors.KafkaError) else errors.NodeNotReadyError(str(error))
        broker.more = [c for c in broker.more if not c.closed]
        if broker.first.connected:
            # only behind the first login: a wrong password is tried once, not eight times
            self._open_more(broker)
        for connection in [c for c in broker.opening if c.init_future.is_done]:
            broker.opening.remove(connection)
            if connection.connected:
                broker.more.append(connection)

    def _open_more(self, broker: _Broker) -> None:
        extra = sum(b.extra for b in self._brokers.values())
        wanted = connections_for(len(broker.queue) + broker.in_flight)
        while broker.opened < wanted and extra < MAX_EXTRA:
            connection = self._manager.another_connection(broker.node_id)
            connection.init_future.add_both(self._wake)
            broker.opening.append(connection)
            broker.opened += 1
            extra += 1

    def _send(self, broker: _Broker, connection: Any, request: _Request) -> None:
        broker.in_flight += 1
        future = connection.send_request(request.message, request_timeout_ms=request.timeout_s * 1000)
        future.add_callback(lambda answer: self._replied(broker, request, answer, None))
        future.add_errback(lambda error: self._replied(broker, request, None, error))

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
