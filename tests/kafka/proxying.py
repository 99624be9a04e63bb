"""TCP proxies on loopback, two threads a connection; what a proxy does to it says the link that it makes."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod


class Link(ABC):
    """A connection to the proxy and the one behind it. Both end with whichever way ends first."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self._client, self._broker = client, broker

    @abstractmethod
    def up(self) -> None:
        """From the client to the broker, until one of them ends."""

    @abstractmethod
    def down(self) -> None:
        """From the broker to the client, until one of them ends."""

    def _end(self) -> None:
        _close(self._client)
        _close(self._broker)


class Proxy(ABC):
    """Listens at once, and connects to ``target`` for each connection that comes."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        _close(self._listener)
        self.cut()

    def cut(self) -> None:
        """End every connection; new ones are made."""
        while self._sockets:
            _close(self._sockets.pop())

    @abstractmethod
    def _link(self, client: socket.socket, broker: socket.socket) -> Link:
        """What a connection goes through."""

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
                link = self._link(client, broker)
                threading.Thread(target=link.up, daemon=True).start()
                threading.Thread(target=link.down, daemon=True).start()


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
