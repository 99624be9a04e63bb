"""A TCP proxy on loopback that cuts connections in the middle of a request or of an answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque


class CuttingProxy:
    """Listens at once, and connects to ``target`` for each connection that comes.

    :ivar cuts: what the next connections suffer, once each: ``("request", n)`` cuts behind ``n`` bytes from the
        client; ``("answer", n)`` lets all requests through, but once there were ``n`` bytes of them, only the first
        3 bytes of what the broker answers next.
    :ivar made: the cuts that were made.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self.cuts: deque[tuple[str, int]] = deque()
        self.made: list[str] = []
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in [self._listener, *self._sockets]:
            _close(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection(self._target, 5)
                except OSError:
                    client.close()
                    continue
                broker.settimeout(None)
                self._sockets += [client, broker]
                link = _Link(self, client, broker)
                threading.Thread(target=link.up, daemon=True).start()
                threading.Thread(target=link.down, daemon=True).start()

    def _next_cut(self, sent: int) -> tuple[str, int] | None:
        with self._lock:
            return self.cuts.popleft() if self.cuts and sent >= self.cuts[0][1] else None


class _Link:
    def __init__(self, proxy: CuttingProxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy, self._client, self._broker = proxy, client, broker
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

    def _end(self) -> None:
        _close(self._client)
        _close(self._broker)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
