"""A TCP proxy on loopback that cuts connections in the middle of a request or of an answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque

from tests.kafka.proxying import Link, Proxy


class CuttingProxy(Proxy):
    """
    :ivar cuts: what the next connections suffer, once each: ``("request", n)`` cuts behind ``n`` bytes from the
        client; ``("answer", n)`` lets all requests through, but once there were ``n`` bytes of them, only the first
        3 bytes of what the broker answers next.
    :ivar made: the cuts that were made.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.cuts: deque[tuple[str, int]] = deque()
        self.made: list[str] = []
        self._lock = threading.Lock()
        super().__init__(target)

    def _link(self, client: socket.socket, broker: socket.socket) -> Link:
        return _Link(self, client, broker)

    def _next_cut(self, sent: int) -> tuple[str, int] | None:
        with self._lock:
            return self.cuts.popleft() if self.cuts and sent >= self.cuts[0][1] else None


class _Link(Link):
    def __init__(self, proxy: CuttingProxy, client: socket.socket, broker: socket.socket) -> None:
        super().__init__(client, broker)
        self._proxy = proxy
        self._sent = 0
        self._answer_cut = False

    def up(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(1 << 16):
                self._sent += len(data)
                cut = None if self._answer_cut else self._proxy._next_cut(self._sent)
                if cut is not None and cut[0] == "request":
                    self._broker.sendall(data[: len(data) // 2])
                    self._proxy.made.append("request")
                    break
                self._answer_cut = self._answer_cut or cut is not None
                self._broker.sendall(data)
        self._end()

    def down(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._broker.recv(1 << 16):
                if self._answer_cut:
                    self._client.sendall(data[:3])
                    self._proxy.made.append("answer")
                    break
                self._client.sendall(data)
        self._end()
