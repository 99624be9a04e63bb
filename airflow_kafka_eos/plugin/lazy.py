"""The page's app, made when the first request comes: only api-servers get any."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class LazyApp:
    """An ASGI app that imports FastAPI, and all that the page needs, with its first request."""

    def __init__(self) -> None:
        self._app: Any = None
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or await asyncio.to_thread(self._made)
        await app(scope, receive, send)

    def _made(self) -> Any:
        with self._lock:
            if self._app is None:
                from airflow_kafka_eos.plugin.api import make_app

                self._app = make_app()
            return self._app
