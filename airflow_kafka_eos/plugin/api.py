"""The page's routes. Every one asks Airflow who the user is; what they may see and do is asked for each load.

Slow calls beside the api-server's event loop: a broker or a database that does not answer must not hang it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from airflow.api_fastapi.core_api.security import GetUserDep, get_user
from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request
from fastapi.responses import FileResponse, JSONResponse, Response

from airflow_kafka_eos.errors import (
    AccessError,
    ConfigurationError,
    KafkaEosError,
    NotFinishedError,
    TransientError,
)
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.plugin import actions, dags, reads, views
from airflow_kafka_eos.plugin.dags import Access
from airflow_kafka_eos.plugin.reads import Selection

T = TypeVar("T")


_STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
#: A form of another site cannot set it, and its script may not: the browser asks first, and is always refused.
GUARD_HEADER = "X-Kafka-EOS"
_HEADERS = {
    # no script but ours, nothing from elsewhere, and framed by this Airflow only
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
}


def make_app() -> FastAPI:
    """The app that Airflow mounts. Without an own description of itself: that would be open to all."""
    app = FastAPI(
        title="Kafka transactions",
        dependencies=[Depends(get_user)],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    # apart, so that brokers that do not answer keep nobody from the ledger
    ledger = BoundedPool("ledger", threads=4, waiting=16, timeout_s=20)
    brokers = BoundedPool("brokers", threads=4, waiting=8, timeout_s=30)
    buttons = BoundedPool("brokers", threads=4, waiting=4, timeout_s=actions.DEADLINE_S + 20)
    _add_headers(app)
    _add_errors(app)
    _add_static(app)
    _add_reading(app, ledger, brokers)
    _add_acting(app, buttons)
    return app


def selection(
    dag_id: Annotated[str | None, Query()] = None, run_id: Annotated[str | None, Query()] = None
) -> Selection:
    """Of a run, or of all that the configured ledger has."""
    if (dag_id is None) != (run_id is None):
        raise HTTPException(422, "dag_id and run_id go together: name both, or neither")
    for name, value in (("dag_id", dag_id), ("run_id", run_id)):
        if value is not None and (not value or "\x00" in value):
            # Airflow has no such run, and its database may not even be asked for one
            raise HTTPException(422, f"{name} is {value!r}: name one, or leave both out")
    return Selection(dag_id, run_id)


def same_site(
    request: Request,
    guard: Annotated[str | None, Header(alias=GUARD_HEADER)] = None,
    sec_fetch_site: Annotated[str | None, Header()] = None,
) -> None:
    """Refuse what another site may have made a browser send with the user's cookie."""
    is_json = request.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
    if guard is None or not is_json or sec_fetch_site not in (None, "same-origin"):
        raise HTTPException(403, f"only the page itself may send this: as JSON, with the header {GUARD_HEADER}")


SelectionDep = Annotated[Selection, Depends(selection)]


def _add_reading(app: FastAPI, ledger: BoundedPool, brokers: BoundedPool) -> None:
    @app.get("/api/loads")
    async def loads(user: GetUserDep, chosen: SelectionDep) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            found = reads.find_loads(_access(user, chosen), chosen)
            ledger_conn_id = dags.configured().ledger_conn_id if chosen.run_id is None else None
            rows = ((f.row, f.newest, f.note) for f in found.loads)
            shown = views.loads(rows, dags.paused_dags(), reads.runs_of(found.loads), more=found.more)
            return shown | {"ledger_conn_id": ledger_conn_id}

        return await ledger.run(work)

    @app.get("/api/load")
    async def load(user: GetUserDep, chosen: SelectionDep, namespace: str, name: str, key: str) -> dict[str, Any]:
        def work() -> dict[str, Any] | None:
            access = _access(user, chosen)
            found = reads.find_load(access, chosen, LoadIdentity(namespace, name, key))
            if found is None:
                return None
            return reads.show(access, found, dags.paused_dags(), reads.runs_of([found]))

        return _found(await ledger.run(work))

    @app.get("/api/transactions")
    async def transactions(user: GetUserDep, chosen: SelectionDep) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            access = _access(user, chosen)
            return {"clusters": reads.look(access, reads.find_loads(access, chosen).loads, chosen)}

        return await brokers.run(work)

    @app.get("/api/ids")
    async def ids(user: GetUserDep) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            return {"namespaces": reads.ids(Access(user))}

        return await brokers.run(work)


def _add_acting(app: FastAPI, buttons: BoundedPool) -> None:
    async def act(action: views.ActionName, user: GetUserDep, asked: actions.Asked) -> dict[str, Any]:
        chosen = selection(asked.dag_id, asked.run_id)
        return _found(await buttons.run(lambda: actions.act(_access(user, chosen), chosen, action, asked)))

    app.post("/api/load/{action}", dependencies=[Depends(same_site)])(act)


def _add_static(app: FastAPI) -> None:
    """Each file by a route of its own: mounted static files would be open to all."""

    async def send(path: Path) -> FileResponse:
        return FileResponse(path, media_type=_TYPES[path.suffix])

    for path in sorted(p for p in _STATIC.iterdir() if p.suffix in _TYPES):
        route = "/" if path.name == "index.html" else f"/{path.name}"
        app.get(route, include_in_schema=False)(partial(send, path))


def _add_headers(app: FastAPI) -> None:
    @app.middleware("http")
    async def headers(request: Request, call_next: Callable[[Request], Any]) -> Response:
        response: Response = await call_next(request)
        response.headers.update(_HEADERS)
        return response


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(KafkaEosError)
    async def ours(request: Request, error: KafkaEosError) -> JSONResponse:
        return JSONResponse({"detail": str(error), "error": type(error).__name__}, status_code=_status(error))

    @app.exception_handler(actions.NotAllowedError)
    async def not_allowed(request: Request, error: actions.NotAllowedError) -> JSONResponse:
        return JSONResponse(
            {"detail": "You may not edit the runs of this load's DAG", "error": "Forbidden"}, status_code=403
        )


def _status(error: KafkaEosError) -> int:
    if isinstance(error, TransientError):
        return 503
    if isinstance(error, AccessError):
        return 502
    return 422 if isinstance(error, ConfigurationError) else 409


def _access(user: Any, chosen: Selection) -> Access:
    """:raises HTTPException: 403, the user may not see the runs of the DAG."""
    access = Access(user)
    if chosen.dag_id is not None and not access.may("GET", chosen.dag_id):
        raise HTTPException(403, "You may not see the runs of this DAG")
    return access


def _found(answer: dict[str, Any] | None) -> dict[str, Any]:
    if answer is None:
        # the same for a load of a DAG that the user may not see: not even that it exists is shown
        raise HTTPException(404, "There is no such load that you may see")
    return answer


class BoundedPool:
    """A few threads for one kind of call. A call that waits too long, or behind too many, is an error.

    A thread that is given up runs on to its own deadline, and takes up room until then.

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
                f"{self._taken} calls are waiting for the {self._name} already", remedy="Wait a little, then try again"
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
                remedy="Check that the api-server can reach it, then try again",
            ) from None

    def _leave(self, future: asyncio.Future[T]) -> None:
        self._taken -= 1
        if not future.cancelled():
            future.exception()  # seen, where nobody waits for it any more
