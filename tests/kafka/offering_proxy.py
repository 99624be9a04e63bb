"""A TCP proxy on loopback that has a broker offer less than it does: it rewrites the answers to ApiVersions.

Everything else passes as it is. Requests that the broker does not seem to offer are refused by closing the connection,
as a broker does that gets what it does not know.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.keeping import free_ports
from tests.kafka.proxying import Link, Proxy

API_VERSIONS = 18
_UNSUPPORTED_VERSION = 35
#: of a request's header: api key and version
_HEAD = struct.Struct(">hh")
_RANGE = struct.Struct(">hhh")


@dataclass
class Offer:
    """What is offered less than the broker has; may be changed while connections are open.

    :ivar hidden: api keys that are left out.
    :ivar highest: api key -> the highest version that is offered.
    :ivar refused: api keys of requests that came all the same.
    """

    hidden: set[int] = field(default_factory=set)
    highest: dict[int, int] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)

    def clear(self) -> None:
        self.hidden.clear()
        self.highest.clear()
        self.refused.clear()

    def takes(self, key: int, version: int) -> bool:
        """ApiVersions is always taken: that is how a client finds out."""
        return key == API_VERSIONS or (key not in self.hidden and version <= self.highest.get(key, version))

    def of(self, key: int, low: int, high: int) -> tuple[int, int] | None:
        """The versions to offer; None where the request is left out."""
        high = min(high, self.highest.get(key, high))
        return None if key in self.hidden or high < low else (low, high)


class OfferingProxy(Proxy):
    """In front of a listener of one broker."""

    def __init__(self, target: tuple[str, int], offer: Offer | None = None) -> None:
        self.offer = offer or Offer()
        super().__init__(target)

    def _link(self, client: socket.socket, broker: socket.socket) -> Link:
        return _Link(self.offer, client, broker)


class _Link(Link):
    def __init__(self, offer: Offer, client: socket.socket, broker: socket.socket) -> None:
        super().__init__(client, broker)
        self._offer = offer
        #: of requests that are not answered yet: a broker answers in order
        self._asked: deque[tuple[int, int]] = deque()

    def up(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                frame = _frame(self._client)
                key, version = _HEAD.unpack_from(frame)
                if not self._offer.takes(key, version):
                    self._offer.refused.append(key)
                    break
                self._asked.append((key, version))
                self._broker.sendall(_framed(frame))
        self._end()

    def down(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                frame = _frame(self._broker)
                key, version = self._asked.popleft()
                self._client.sendall(_framed(less(frame, version, self._offer) if key == API_VERSIONS else frame))
        self._end()


def less(frame: bytes, version: int, offer: Offer) -> bytes:
    """An answer to ApiVersions (correlation id, error code, array of ranges, the rest) that offers less."""
    (error,) = struct.unpack_from(">h", frame, 4)
    if error == _UNSUPPORTED_VERSION:
        return frame  # in version 0, with the versions of ApiVersions alone
    is_flexible = version >= 3
    if is_flexible:
        count, at = _uvarint(frame, 6)
        count -= 1
    else:
        (count,), at = struct.unpack_from(">i", frame, 6), 10
    kept = []
    for _ in range(count):
        key, low, high = _RANGE.unpack_from(frame, at)
        at += _RANGE.size
        if is_flexible:
            assert frame[at] == 0, "a range has tagged fields, which nobody has seen so far"
            at += 1
        if (versions := offer.of(key, low, high)) is not None:
            kept.append(_RANGE.pack(key, *versions) + b"\x00" * is_flexible)
    size = _as_uvarint(len(kept) + 1) if is_flexible else struct.pack(">i", len(kept))
    return frame[:6] + size + b"".join(kept) + frame[at:]


@contextmanager
def offering(kafka: LocalKafka, *nodes: int) -> Iterator[dict[int, OfferingProxy]]:
    """Proxies in front of a listener more of each of these brokers (all: none named), which are restarted for it."""
    made = {}
    chosen = nodes or tuple(kafka.node_ids)
    for node, port in zip(chosen, free_ports(len(chosen)), strict=True):
        made[node] = OfferingProxy(("127.0.0.1", port))
        more = {
            "listeners": f",OFFERING://127.0.0.1:{port}",
            "advertised.listeners": f",OFFERING://{made[node].address}",
            "listener.security.protocol.map": ",OFFERING:PLAINTEXT",
        }
        properties = kafka.log_file(node).parent / "server.properties"
        lines = [line + more.get(line.partition("=")[0], "") for line in properties.read_text().splitlines()]
        properties.write_text("\n".join(lines) + "\n")
    kafka.restart()
    try:
        yield made
    finally:
        for proxy in made.values():
            proxy.close()


def _frame(of: socket.socket) -> bytes:
    return _exactly(of, int.from_bytes(_exactly(of, 4)))


def _framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(4) + frame


def _exactly(of: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = of.recv(min(size - len(found), 1 << 16))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _as_uvarint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
