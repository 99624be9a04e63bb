"""Ctrl-C where kafka-python would keep it: the command ends all the same."""

from __future__ import annotations

import signal

import pytest
from kafka.future import Future
from kafka.net.selector import NetworkSelector

from airflow_kafka_eos.cli.interrupting import interruptible


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


def test_elsewhere_it_ends_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)
