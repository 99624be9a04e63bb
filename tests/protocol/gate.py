"""A door between our processes and a broker that lets so many EndTxn requests through, then kills who sent them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.keeping import free_ports

END_TXN = 26


class Gate:
    """Listens at ``address`` and forwards to a broker, request by request.

    :param target: port of the broker's listener that is advertised as ``address``.
    """

    def __init__(self, port: int, target: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.closed = threading.Event()
        self.forwarded = 0
        self._target = target
        self._allowed: int | None = None
        self._victim: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def open_for(self, allowed: int) -> None:
        """From here on, close behind the EndTxn of that number; with 0, before the first one."""
        with self._lock:
            self._allowed, self.forwarded = allowed, 0
            self.closed.clear()

    def kill_when_closing(self, victim: subprocess.Popen[str]) -> None:
        """Have the process group of this process killed in the moment in which the gate closes."""
        self._victim = victim

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._target))
            threading.Thread(target=self._requests, args=(client, broker), daemon=True).start()
            threading.Thread(target=_pump, args=(broker, client), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError), client, broker:
            while (size := _exactly(client, 4)) and (body := _exactly(client, int.from_bytes(size, "big"))):
                if int.from_bytes(body[:2], "big") != END_TXN:
                    broker.sendall(size + body)
                    continue
                with self._lock:
                    if self.closed.is_set() or self._allowed == 0:
                        self._shut()
                        return
                    broker.sendall(size + body)
                    self.forwarded += 1
                    if self.forwarded == self._allowed:
                        self._shut()

    def _shut(self) -> None:
        if not self.closed.is_set() and self._victim is not None:
            os.killpg(self._victim.pid, signal.SIGKILL)
        self.closed.set()


def _exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = source.recv(count - len(found))
        if not more:
            return b""
        found += more
    return found


def _pump(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            to.sendall(data)


@contextmanager
def gated(kafka: LocalKafka) -> Iterator[Gate]:
    """Restart a broker with a further listener, which clients find behind a gate only."""
    port, behind = free_ports(2)
    properties = kafka.log_file().parent / "server.properties"
    ends = {
        "listeners": f",GATED://127.0.0.1:{behind}",
        "advertised.listeners": f",GATED://127.0.0.1:{port}",
        "listener.security.protocol.map": ",GATED:PLAINTEXT",
    }
    lines = properties.read_text().splitlines()
    properties.write_text("".join(f"{line}{ends.get(line.partition('=')[0], '')}\n" for line in lines))
    kafka.restart()
    gate = Gate(port, behind)
    try:
        yield gate
    finally:
        gate.close()
