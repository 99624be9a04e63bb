"""A proxy on loopback, in front of a broker or of PostgreSQL's socket, that lets a network go wrong for a while.

What ``tests/kafka/cutting_proxy.py`` cannot do: be away, be slow, lose one direction, and deliver an EndTxn twice.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

#: ``(host, port)``, or the path of a Unix socket
Address = tuple[str, int] | str

END_TXN = 26
#: bytes of a request's header that name it: api key and version, correlation id
_HEAD = struct.Struct(">hhi")
PIECE = 1 << 16
_POLL_S = 0.01


@dataclass
class Weather:
    """What connections suffer now; times are monotonic seconds until which it lasts, and may be moved meanwhile."""

    away_until: float = 0.0
    slow_until: float = 0.0
    slow_s: float = 0.0
    one_way_until: float = 0.0
    hangs_until: float = 0.0
    #: asked for each EndTxn: ``twice`` or ``unanswered``, or nothing
    of_end_txn: Callable[[], str | None] = field(default=lambda: None)
    #: how late the second delivery of an EndTxn comes, seconds
    late_s: float = 0.0
    #: called when an EndTxn has been delivered twice, or its answer kept back
    did_end_txn: Callable[[], object] = field(default=lambda: None)
    #: set where a connection was cut, refused, delayed, or lost an answer
    touched: threading.Event = field(default_factory=threading.Event)


class FaultProxy:
    """Listens at once, and connects to ``target`` for each connection that comes.

    :param listen: a path for a Unix socket; a free port of loopback when None.
    """

    def __init__(self, target: Address, listen: str | None = None, weather: Weather | None = None) -> None:
        self._target = target
        self.weather = weather or Weather()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        if listen is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(listen)
            self._listener.listen(64)
            self.address = listen
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        _close(self._listener)
        self.cut()

    def cut(self) -> None:
        """End all connections as they are, in the middle of whatever they carry."""
        with self._lock:
            every, self._sockets = self._sockets, set()
        if every:
            self.weather.touched.set()
        for one in every:
            _close(one)

    def dial(self) -> socket.socket:
        """A connection to the target, past the weather."""
        if isinstance(self._target, str):
            made = socket.socket(socket.AF_UNIX)
            made.connect(self._target)
            return made
        made = socket.create_connection(self._target, 5)
        made.settimeout(None)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if time.monotonic() < self.weather.away_until:
                    self.weather.touched.set()
                    client.close()
                    continue
                try:
                    server = self.dial()
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._sockets |= {client, server}
                link = _Link(self, client, server)
                threading.Thread(target=link.up, daemon=True).start()
                threading.Thread(target=link.down, daemon=True).start()

    def forget(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._sockets -= set(sockets)


class _Link:
    def __init__(self, proxy: FaultProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._weather = proxy.weather
        self._frames = Frames()
        self._unanswered = False

    def up(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(PIECE):
                self._wait()
                for frame in self._frames.end_txns(data):
                    self._end_txn(frame)
                self._server.sendall(data)
        self._end()

    def down(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(PIECE):
                self._wait()
                if self._unanswered:
                    self._weather.did_end_txn()
                    break
                if time.monotonic() < self._weather.one_way_until:
                    # the client waits as for a network that is silent, and gets nothing of it later either
                    self._outlast(lambda: self._weather.one_way_until)
                    break
                self._client.sendall(data)
        self._end()

    def _wait(self) -> None:
        if time.monotonic() < self._weather.hangs_until:
            self._outlast(lambda: self._weather.hangs_until)
        elif time.monotonic() < self._weather.slow_until:
            self._weather.touched.set()
            time.sleep(self._weather.slow_s)

    def _outlast(self, until: Callable[[], float]) -> None:
        self._weather.touched.set()
        while time.monotonic() < until():
            time.sleep(_POLL_S)

    def _end_txn(self, frame: bytes) -> None:
        what = self._weather.of_end_txn()
        if what == "unanswered":
            self._unanswered = True
        elif what == "twice":
            threading.Thread(target=self._again, args=(frame,), daemon=True).start()

    def _again(self, frame: bytes) -> None:
        """By another connection, as a network that duplicates would bring it: behind the first one."""
        time.sleep(self._weather.late_s)
        with contextlib.suppress(OSError), contextlib.closing(self._proxy.dial()) as again:
            again.settimeout(20)
            again.sendall(frame)
            if again.recv(PIECE):
                self._weather.did_end_txn()

    def _end(self) -> None:
        self._proxy.forget(self._client, self._server)
        _close(self._client)
        _close(self._server)


class Frames:
    """Finds the EndTxn requests in a client's stream, and keeps no more of the rest than its length."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._skip = 0

    def end_txns(self, data: bytes) -> list[bytes]:
        """Whole frames, their length included, that end in this piece."""
        found = []
        view = memoryview(data)
        while len(view):
            if self._skip:
                passed = min(self._skip, len(view))
                self._skip -= passed
                view = view[passed:]
                continue
            wanted = self._wanted()
            taken = min(wanted - len(self._head), len(view))
            self._head += view[:taken]
            view = view[taken:]
            if len(self._head) < wanted:
                continue
            frame = bytes(self._head)
            if wanted == 4 + _HEAD.size and _HEAD.unpack_from(frame, 4)[0] != END_TXN:
                self._skip = int.from_bytes(frame[:4]) - _HEAD.size
                self._head.clear()
            elif wanted > 4 + _HEAD.size or int.from_bytes(frame[:4]) == _HEAD.size:
                found.append(frame)
                self._head.clear()
        return found

    def _wanted(self) -> int:
        """So many bytes of this frame: its head, and of an EndTxn all."""
        if len(self._head) < 4 + _HEAD.size:
            return 4 + _HEAD.size
        return 4 + int.from_bytes(self._head[:4])


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
