"""One connection for thousands of small requests of one kind.

Where kafka-python spends 0.15 ms on a request and its answer (schemas, futures, a timer each), that is what a batch of
EndTxn waits for, not the broker. A :class:`Pipe` keeps kafka-python's connection, its login and its TLS, and puts
frames of ours on its transport instead.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import kafka.errors as kafka_errors

_SIZE = struct.Struct(">i")
_CORRELATION = struct.Struct(">i")


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


class _Sent(NamedTuple):
    tag: Any
    request: Framed
    correlation_id: int
    deadline: float  # time.monotonic()


class Pipe:
    """See the module. Takes over a connection that is logged in and idle.

    :param replied: called with tag, answer and error, once for each request.
    """

    #: read by kafka-python's transport
    _sensors = None

    def __init__(self, connection: Any, replied: Callable[[Any, Any, BaseException | None], None]) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._replied = replied
        self._sent: deque[_Sent] = deque()
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
    def in_flight(self) -> int:
        return len(self._sent)

    @property
    def deadline(self) -> float | None:
        """When the first answer is due, by ``time.monotonic()``."""
        return self._sent[0].deadline if self._sent else None

    def send(self, requests: list[tuple[Any, Framed, float]]) -> None:
        """Write (tag, request, seconds for its answer) side by side."""
        out = bytearray()
        now = time.monotonic()
        for tag, request, timeout_s in requests:
            version = self._version(request)
            frame = request.frame(version, self._next_id, self._client_id)
            out += _SIZE.pack(len(frame)) + frame
            self._sent.append(_Sent(tag, request, self._next_id, now + timeout_s))
            self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        self._transport.write(bytes(out))

    def expire(self, now: float) -> None:
        """Close the connection when an answer is overdue: those behind it cannot come either."""
        if self._sent and self._sent[0].deadline <= now:
            self._connection.close(kafka_errors.RequestTimedOutError("no answer in time"))

    def close(self) -> None:
        """Close the connection; answers that are still to come are reported as errors."""
        self._connection.close()

    # -- what kafka-python's transport calls ---------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unread += data
        at = 0
        while len(self._unread) - at >= 4:
            size = _SIZE.unpack_from(self._unread, at)[0]
            if len(self._unread) - at - 4 < size:
                break
            self._answered(bytes(self._unread[at + 4 : at + 4 + size]))
            at += 4 + size
        del self._unread[:at]

    def connection_lost(self, error: BaseException | None) -> None:
        self._connection.connection_lost(error)
        lost, self._sent = self._sent, deque()
        for sent in lost:
            self._replied(sent.tag, None, error or kafka_errors.KafkaConnectionError("closed"))

    # -- private -------------------------------------------------------------------------------------------------

    def _answered(self, frame: bytes) -> None:
        if not self._sent or _CORRELATION.unpack_from(frame)[0] != self._sent[0].correlation_id:
            raise kafka_errors.CorrelationIdError("an answer that nobody asked for")
        sent = self._sent.popleft()
        try:
            answer = sent.request.read(self._version(sent.request), memoryview(frame)[4:])
        except (struct.error, IndexError) as error:
            self._replied(sent.tag, None, kafka_errors.KafkaProtocolError(f"an answer that cannot be read: {error}"))
        else:
            self._replied(sent.tag, answer, None)

    def _version(self, request: Framed) -> int:
        if request.API not in self._versions:
            self._versions[request.API] = int(self._connection.broker_version_data.api_version(request.API))
        return min(self._versions[request.API], request.highest)
