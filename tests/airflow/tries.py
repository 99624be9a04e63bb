"""The tries of one prepare whose driver runs elsewhere: each is an operator of its own, on a platform of the tests' own
(:mod:`.yarn`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from tests.airflow.steps import CONTEXT, LOAD, run, session
from tests.airflow.yarn import Yarn
from tests.kafka.open_transactions import wait_until

STARTED = datetime(2026, 1, 1, tzinfo=UTC)


class Tries:
    """Those of one task: each has an operator of its own, as each process parses the DAG anew."""

    def __init__(self, there: Yarn, manifests: Path, key: str, topic: str) -> None:
        self.there, self.key, self.topic, self.manifests = there, key, topic, manifests
        self.tries = 0
        run("begin", key)

    def operator(self, *, kind: type[PrepareLoadOperator] = PrepareLoadOperator, **arguments: Any) -> Any:
        given: dict[str, Any] = {
            "task_id": "prepare", "load_name": LOAD, "load_key": self.key, "topics": [self.topic], "job": "rows.py",
            "conn_id": "yarn_default", "manifest_dir": str(self.manifests), "yarn_track_via_rm_api": True,
            "status_poll_interval": 0, "retries": 2, "decide_at_once": False, "wait_in_triggerer": True,
        }  # fmt: skip
        return kind(**given | arguments)

    def context(
        self,
        *,
        cleared: int | None = 0,
        max_tries: int = 2,
        started: datetime | None = STARTED,
        try_number: int | None = None,
    ) -> Any:
        """Of the next try, as long as nothing else is said."""
        self.tries = try_number or self.tries + 1
        ti = SimpleNamespace(**vars(CONTEXT["ti"]) | {"max_tries": max_tries, "try_number": self.tries})
        asked = SimpleNamespace(**vars(CONTEXT["dag_run"]) | {"clear_number": cleared, "start_date": started})
        return CONTEXT | {"ti": ti, "dag_run": asked}

    def deferred(self, operator: Any = None, **context: Any) -> TaskDeferred:
        """A try up to where the triggerer waits."""
        with pytest.raises(TaskDeferred) as caught:
            (operator or self.operator()).execute(self.context(**context))
        return caught.value

    def resumed(self, deferred: TaskDeferred, event: Any, operator: Any = None, **context: Any) -> Any:
        """As Airflow calls a task that comes back: in the same try."""
        kwargs = {**(deferred.kwargs or {}), "event": event}
        task = operator or self.operator()
        return task.resume_execution(deferred.method_name, kwargs, self.context(**{"try_number": self.tries} | context))

    def attempts(self) -> list[AttemptRow]:
        with session() as opened:
            found: list[AttemptRow] = opened.ledger.attempts(LoadIdentity("airflow", LOAD, self.key))
            return found

    def go(self) -> None:
        (self.there.folder / "go").touch()

    def is_over(self, number: int = -1) -> None:
        application = self.there.applications()[number]
        wait_until(lambda: self.there.state(application)[0] != "RUNNING", f"the end of {application}", 120)
