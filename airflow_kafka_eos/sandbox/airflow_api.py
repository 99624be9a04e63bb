"""What a person does in Airflow's UI, as calls of its REST API; where its SQLite is locked, they are made again."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from airflow_kafka_eos.errors import SandboxError
from airflow_kafka_eos.sandbox.progress import Progress, wait_for

DAG_SECONDS = 120.0
#: how long SQLite waits for another process's write, in place of 5 s: a busy machine takes that long for a few rows
SQLITE_SECONDS = 30
_LOCKED_SECONDS = 60.0
#: Airflow gives no more at a time
_PAGE = 100
#: what the api-server reports on
_HEALTH = ("metadatabase", "scheduler", "triggerer", "dag_processor")


class AirflowApi(ABC):
    """The calls; where Airflow is, and whether it lives, says who started it."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._client: httpx.Client | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """``http://host:port``."""

    @abstractmethod
    def log_file(self, part: str) -> Path:
        """Where a part of Airflow logs."""

    @abstractmethod
    def check(self) -> None:
        """Raises where there is no use in waiting for it any more."""

    def close(self) -> None:
        """Of connections; the next call opens them again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def get(self, path: str, **query: Any) -> Any:
        """GET of the public REST API, ``/api/v2`` left out."""
        return self._call("GET", path, params=query)

    def every(self, path: str, name: str, **query: Any) -> list[dict[str, Any]]:
        """All of a listing, page by page; ``name`` is what the answer calls it."""
        found: list[dict[str, Any]] = []
        while True:
            answer = self.get(path, limit=_PAGE, offset=len(found), **query)
            found += answer[name]
            if not answer[name] or len(found) >= answer["total_entries"]:
                return found

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST of the public REST API, ``/api/v2`` left out."""
        return self._call("POST", path, json=dict(body))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """PATCH of the public REST API, ``/api/v2`` left out."""
        return self._call("PATCH", path, json=dict(body))

    def delete(self, path: str) -> None:
        """DELETE of the public REST API, ``/api/v2`` left out."""
        self._call("DELETE", path)

    def backfill(self, body: Mapping[str, Any]) -> int:
        """Begin a backfill, with the body of POST /backfills; its number.

        On SQLite Airflow 3.3 commits each of its runs alone (a SAVEPOINT without BEGIN), and where another process
        writes in between it answers "database is locked" and takes back what is there already. A scheduler that has
        begun to examine those runs ends: a foreign key error, then ObjectDeletedError. So the DAG is paused meanwhile,
        no scheduler looks at its runs; and what Airflow could not take back is taken back here, before the next try.
        """
        dag = f"/dags/{body['dag_id']}"
        self.patch(dag, {"is_paused": True})
        try:
            until, progress = time.monotonic() + _LOCKED_SECONDS, Progress(self._log)
            earlier = self._running_backfills(body["dag_id"]), self._run_ids(body["dag_id"])
            while _was_locked(answer := self._request("POST", "/backfills", json=dict(body))):
                if time.monotonic() > until:
                    break
                progress.say("Airflow's database, locked by another process")
                self._take_back(body["dag_id"], *earlier)
                time.sleep(0.5)
            return int(self._read(answer, "POST", "/backfills")["id"])
        finally:
            self.patch(dag, {"is_paused": False})

    def _take_back(self, dag_id: str, backfills: set[int], runs: set[str]) -> None:
        """End a backfill that is there in part, and its runs: what is not among these. None has begun yet.

        A scheduled run that came meanwhile stays, and so does an older one that the backfill was to do again.
        """
        for number in self._running_backfills(dag_id) - backfills:
            self._call("PUT", f"/backfills/{number}/cancel")
        for run in self._run_ids(dag_id, run_type="backfill") - runs:
            self.delete(f"/dags/{dag_id}/dagRuns/{quote(run)}")

    def _running_backfills(self, dag_id: str) -> set[int]:
        found = self.every("/backfills", "backfills", dag_id=dag_id)
        return {int(one["id"]) for one in found if one["completed_at"] is None}

    def _run_ids(self, dag_id: str, **query: Any) -> set[str]:
        return {one["dag_run_id"] for one in self.every(f"/dags/{dag_id}/dagRuns", "dag_runs", **query)}

    def _call(self, method: str, path: str, **kwargs: Any) -> Any:
        until = time.monotonic() + _LOCKED_SECONDS
        # its SQLite is locked by another process at this moment, nothing was done
        while _was_locked(answer := self._request(method, path, **kwargs)) and time.monotonic() < until:
            time.sleep(0.5)
        return self._read(answer, method, path)

    def _read(self, answer: httpx.Response, method: str, path: str) -> Any:
        if answer.is_error:
            raise SandboxError(
                f"Airflow answered {answer.status_code} to {method} {path}: {answer.text[:500]}",
                remedy=f"See {self.log_file('api-server')}",
            )
        return answer.json() if answer.content else None

    def _request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """One answer, whatever it is; an api-server that is being started again is waited for."""
        until, progress = time.monotonic() + _LOCKED_SECONDS, Progress(self._log)
        while True:
            self.check()
            try:
                return self._connected().request(method, path, **kwargs)
            except httpx.TransportError as e:
                # what was not sent, or asks only, may be sent again
                again = method == "GET" or isinstance(e, httpx.ConnectError)
                if not again or time.monotonic() > until:
                    raise SandboxError(
                        f"Airflow's api-server does not answer {method} {path}: {type(e).__name__} {e}".rstrip(),
                        remedy=f"See {self.log_file('api-server')}",
                    ) from e
                progress.say("Airflow's api-server to answer")
                time.sleep(0.5)

    def _connected(self) -> httpx.Client:
        if self._client is None:
            answer = httpx.get(f"{self.url}/auth/token", timeout=2 * SQLITE_SECONDS)
            token = self._read(answer, "GET", "/auth/token")["access_token"]
            self._client = httpx.Client(
                base_url=f"{self.url}/api/v2",
                headers={"Authorization": f"Bearer {token}"},
                timeout=2 * SQLITE_SECONDS,
            )
        return self._client

    def wait_for_dag(self, dag: str) -> None:
        """Until the dag processor has read it.

        :raises SandboxError: a DAG file cannot be imported, or the DAG is not there in time.
        """

        def read() -> bool | None:
            errors = self.get("/importErrors")["import_errors"]
            if errors:
                raise SandboxError(f"a DAG file cannot be imported: {errors[0]['stack_trace']}")
            found = self.get("/dags", dag_id_pattern=dag)["dags"]
            return True if any(d["dag_id"] == dag for d in found) else None

        wait_for(
            read,
            f"the dag processor to read DAG {dag}",
            DAG_SECONDS,
            self._log,
            remedy=f"See {self.log_file('dag-processor')}",
            why=self.health,
        )

    def health(self) -> str:
        """One line for people: which parts give no sign of life."""
        try:
            parts = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=10).json()
        except (httpx.HTTPError, ValueError) as e:
            return f"the api-server does not answer ({type(e).__name__}), see {self.log_file('api-server')}"
        ill = [name for name in _HEALTH if (parts.get(name) or {}).get("status") != "healthy"]
        if not ill:
            return "all parts of Airflow are healthy"
        logs = {name: self.log_file(name.replace("_", "-")) for name in ill if name != "metadatabase"}
        said = [f"{name}, see {logs[name]}" if name in logs else name for name in ill]
        return "no sign of life: " + ", ".join(said)

    def is_healthy(self) -> bool:
        try:
            parts = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=5).json()
        except (httpx.HTTPError, ValueError):
            return False
        return all((parts.get(name) or {}).get("status") == "healthy" for name in _HEALTH)


def _was_locked(answer: httpx.Response) -> bool:
    return answer.status_code == 503 or (answer.status_code == 500 and "database is locked" in answer.text)
