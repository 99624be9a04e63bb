"""Slow calls do not hang the api-server, and do not pile up."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from airflow_kafka_eos.errors import NotFinishedError
from airflow_kafka_eos.plugin.api import BoundedPool
from tests.kafka.open_transactions import wait_until


def test_an_answer_comes_back_and_so_does_an_error() -> None:
    lane = BoundedPool("ledger", threads=1, waiting=1, timeout_s=30)
    assert asyncio.run(lane.run(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        asyncio.run(lane.run(lambda: 1 // 0))
    assert asyncio.run(lane.run(lambda: 8)) == 8


def test_the_requests_context_goes_along() -> None:
    variable = contextvars.ContextVar[str]("variable", default="nothing")

    async def ask() -> str:
        variable.set("the request's")
        return await BoundedPool("ledger", threads=1, waiting=0, timeout_s=30).run(variable.get)

    assert asyncio.run(ask()) == "the request's"


def test_what_does_not_answer_is_given_up_and_holds_its_place_until_it_ends() -> None:
    lane, go_on = BoundedPool("brokers", threads=1, waiting=0, timeout_s=0.05), threading.Event()

    async def ask() -> None:
        with pytest.raises(NotFinishedError, match="the brokers did not answer"):
            await lane.run(go_on.wait)
        with pytest.raises(NotFinishedError, match="1 calls are waiting for the brokers already"):
            await lane.run(lambda: 1)
        go_on.set()
        for _ in range(1000):
            try:
                assert await lane.run(lambda: 2) == 2
                return
            except NotFinishedError:
                await asyncio.sleep(0.01)
        raise AssertionError("the place was never free again")

    asyncio.run(ask())
    wait_until(lambda: lane._taken == 0, "the lane is empty")
