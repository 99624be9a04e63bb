"""Slow calls beside the api-server's event loop: a broker or a database that does not answer must not hang it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from airflow_kafka_eos.errors import NotFinishedError

T = TypeVar("T")


class Lane:
    """A few threads of its own for one kind of call; what waits too long, or behind too many, is told so.

    A thread that is given up runs on to its own deadline, and holds its place until then.

    :param name: what it asks, for the error.
    :param threads: calls at once.
    :param waiting: further calls that may wait.
    :param timeout_s: seconds until the answer is an error.
    """

    def __init__(self, name: str, *, threads: int, waiting: int, timeout_s: float) -> None:
        self._name = name
        self._most = threads + waiting
        self._timeout_s = timeout_s
        self._taken = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"kafka-eos-{name}")

    async def run(self, work: Callable[[], T]) -> T:
        """The answer of ``work``, from a thread.

        :raises NotFinishedError: too many calls wait already, or there was no answer in time.
        """
        if self._taken >= self._most:
            raise NotFinishedError(
                f"{self._taken} calls wait for the {self._name} already", remedy="Wait a little, then try again"
            )
        self._taken += 1
        # the request's context: Airflow keeps its database session and log context there
        future = asyncio.get_running_loop().run_in_executor(
            self._pool, contextvars.copy_context().run, work
        )
        future.add_done_callback(self._leave)
        try:
            # shielded: a request that ends takes no thread with it, so its place is held as long as its thread is
            return await asyncio.wait_for(asyncio.shield(future), self._timeout_s)
        except TimeoutError:
            raise NotFinishedError(
                f"the {self._name} did not answer in {self._timeout_s:g} s",
                remedy="Look whether it is reachable from the api-server, then try again",
            ) from None

    def _leave(self, future: asyncio.Future[T]) -> None:
        self._taken -= 1
        if not future.cancelled():
            future.exception()  # seen, where nobody waits for it any more
