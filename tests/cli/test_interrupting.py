"""Ctrl-C where kafka-python would keep it: the command ends all the same."""

from __future__ import annotations

import selectors
import signal
import socket
import sys
import threading
from collections.abc import Iterator

import pytest
from kafka.future import Future
from kafka.net.selector import NetworkSelector

from airflow_kafka_eos.cli.terminal import interruptible


@pytest.fixture(autouse=True)
def _as_at_a_terminal() -> Iterator[None]:
    """SIGINT is ignored in a shell's background job, and stays so there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_inside_of_kafka_pythons_tasks_is_not_lost() -> None:
    net = NetworkSelector(client_id="test")

    async def step() -> None:
        signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            net.call_soon(step)
            net.poll(timeout_ms=20_000, future=Future())  # nobody will answer
    finally:
        net.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_a_step_registers_a_socket_is_not_lost() -> None:
    """The moment at which a connection is made: the frame is the selectors module's own, and no wait."""
    net = NetworkSelector(client_id="test")

    class Interrupting(socket.socket):
        def fileno(self) -> int:
            if sys._getframe(1).f_code.co_filename == selectors.__file__ and not signalled:
                signalled.append(True)
                signal.raise_signal(signal.SIGINT)
            return super().fileno()

    signalled: list[bool] = []

    async def step() -> None:
        await net.wait_read(connection)

    with Interrupting(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.bind(("127.0.0.1", 0))
        try:
            with pytest.raises(KeyboardInterrupt), interruptible():
                net.call_soon(step)
                net.poll(timeout_ms=20_000, future=Future())
        finally:
            net.close()
    assert signalled


def test_ctrl_c_anywhere_in_its_loop_is_not_lost() -> None:
    """Between the steps too: a loop that never rests is interrupted at many places, one after the other."""
    for _ in range(20):
        net = NetworkSelector(client_id="test")
        later = threading.Timer(0.02, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))

        async def step(net: NetworkSelector = net, later: threading.Timer = later) -> None:
            if later.ident is None:  # from here on: before the loop, Ctrl-C would end pytest
                later.start()
            net.call_later(0.001, step)

        net.call_soon(step)
        try:
            with pytest.raises(KeyboardInterrupt), interruptible():
                net.poll(timeout_ms=20_000, future=Future())
        finally:
            later.join()
            net.close()


def test_elsewhere_it_ends_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)
