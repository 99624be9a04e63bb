"""The proxy does to connections what it is told, and finds every EndTxn in a stream, however that is cut."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.proxy import END_TXN, FaultProxy, Frames


def frame(key: int, number: int, length: int) -> bytes:
    body = struct.pack(">hhi", key, 3, number) + bytes(length)
    return struct.pack(">i", len(body)) + body


@given(st.lists(st.tuples(st.sampled_from([0, 3, END_TXN]), st.integers(0, 200))), st.integers(0, 1000))
def test_every_end_txn_is_found_whole(requests: list[tuple[int, int]], seed: int) -> None:
    frames = [frame(key, number, length) for number, (key, length) in enumerate(requests)]
    stream, dice, finder = b"".join(frames), random.Random(seed), Frames()
    found: list[bytes] = []
    while stream:
        cut = dice.randint(1, 50)
        found += finder.end_txns(stream[:cut])
        stream = stream[cut:]
    assert found == [f for f, (key, _) in zip(frames, requests, strict=True) if key == END_TXN]


@pytest.fixture
def echo() -> Iterator[tuple[FaultProxy, list[bytes]]]:
    """A proxy in front of a server that answers what it gets, and keeps it."""
    got: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def one(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            while data := client.recv(4096):
                got.append(data)
                client.sendall(data)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    proxy = FaultProxy(server.getsockname())
    yield proxy, got
    proxy.close()
    server.close()


def dial(proxy: FaultProxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    client = socket.create_connection((host, int(port)), 5)
    client.settimeout(5)
    return client


def test_fair_weather(echo: tuple[FaultProxy, list[bytes]]) -> None:
    with dial(echo[0]) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"


def test_one_way_requests_arrive_and_answers_do_not(echo: tuple[FaultProxy, list[bytes]]) -> None:
    proxy, got = echo
    with dial(proxy) as client:
        proxy.weather.one_way_until = time.monotonic() + 0.4
        client.sendall(b"hello")
        assert client.recv(100) == b""
    assert got == [b"hello"]


def test_a_cut_ends_what_is_there_and_away_refuses_what_comes(echo: tuple[FaultProxy, list[bytes]]) -> None:
    proxy, _ = echo
    with dial(proxy) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"
        proxy.weather.away_until = time.monotonic() + 0.4
        proxy.cut()
        assert client.recv(100) == b""
    with dial(proxy) as client, contextlib.suppress(ConnectionResetError):
        assert client.recv(100) == b""
    time.sleep(0.5)
    test_fair_weather(echo)


@pytest.mark.parametrize("weather", ["slow_until", "one_way_until", "hangs_until", "away_until"])
def test_it_tells_whether_it_has_touched_a_connection(echo: tuple[FaultProxy, list[bytes]], weather: str) -> None:
    proxy, _ = echo
    with dial(proxy) as client:
        client.sendall(b"before")
        assert client.recv(100) == b"before"
    setattr(proxy.weather, weather, float("inf"))
    assert not proxy.weather.touched.wait(0.1)  # nobody was there
    with dial(proxy) as client:
        client.sendall(b"hello")
        assert proxy.weather.touched.wait(5)
        setattr(proxy.weather, weather, 0.0)  # it is over, earlier than it was said at first
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == (b"hello" if weather in ("slow_until", "hangs_until") else b"")


def test_a_cut_touches_those_that_are_there(echo: tuple[FaultProxy, list[bytes]]) -> None:
    proxy, _ = echo
    proxy.cut()
    assert not proxy.weather.touched.is_set()
    with dial(proxy) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"
        proxy.cut()
        assert proxy.weather.touched.is_set()


def test_an_end_txn_is_delivered_twice_or_not_answered(echo: tuple[FaultProxy, list[bytes]]) -> None:
    proxy, got = echo
    wanted = iter(["twice", "unanswered"])
    proxy.weather.of_end_txn = lambda: next(wanted, None)
    did = threading.Semaphore(0)
    proxy.weather.did_end_txn = did.release
    request = frame(END_TXN, 1, 10)
    with dial(proxy) as client:
        client.sendall(request)
        assert client.recv(100) == request
        give_up = time.monotonic() + 5
        while got != [request, request]:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        assert did.acquire(timeout=5)
        client.sendall(request)
        assert client.recv(100) == b""
        assert did.acquire(timeout=5)
    assert got == [request] * 3
