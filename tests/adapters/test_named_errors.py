"""Whoever is called at night has the text of a task's exception, by an email or a callback, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_kafka_eos.errors import ConfigurationError, InDoubtError, NotFinishedError
from airflow_kafka_eos.operators.base import no_retry_of_terminal_errors
from airflow_kafka_eos.operators.commit import CommitLoadOperator

OF = "load airflow/orders/a day"
CLEANUP = "`airflow-kafka-eos cleanup NAME KEY`"


def doubt(**ids: Any) -> Exception:
    """As a step ends with it: without retries."""
    with pytest.raises(AirflowFailException) as caught, no_retry_of_terminal_errors():
        raise InDoubtError("mixed", remedy=f"Run {CLEANUP}", **ids)
    return caught.value


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NotFinishedError("late"), f"late. [{OF}, attempt 3]"),
        (NotFinishedError("late", load="airflow/orders/a day", attempt=2), f"late. [{OF}, attempt 2]"),
        (
            NotFinishedError("late", remedy=f"Run {CLEANUP}", transactional_id="id"),
            "late. Run `airflow-kafka-eos cleanup orders 'a day' --namespace airflow`. "
            f"[{OF}, attempt 3, transactional id id]",
        ),
        (
            doubt(),
            "InDoubtError: mixed. Run `airflow-kafka-eos cleanup orders 'a day' --namespace airflow`. "
            f"[{OF}, attempt 3]",
        ),
        (
            doubt(load="airflow/orders/a day"),
            "InDoubtError: mixed. Run `airflow-kafka-eos cleanup orders 'a day' --namespace airflow`. "
            f"[{OF}] [attempt 3]",
        ),
        (AirflowException("Cannot execute: spark-submit"), f"Cannot execute: spark-submit [{OF}, attempt 3]"),
        # of another one: neither its names nor its commands are this load's
        (NotFinishedError("late", remedy=CLEANUP, load="a/b/c"), f"late. {CLEANUP}. [load a/b/c]"),
        (doubt(load="a/b/c"), f"InDoubtError: mixed. Run {CLEANUP}. [load a/b/c]"),
        # the author's own: who catches it knows it by its words
        (ValueError("no such column"), "no such column"),
    ],
)
def test_what_a_step_fails_with_names_load_and_attempt(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: object) -> None:
        raise ConfigurationError("no such connection")

    monkeypatch.setattr(CommitLoadOperator, "_resolve", unknown)
    task = CommitLoadOperator(task_id="commit", load_name="orders", load_key="a day")
    context: Any = {"ti": SimpleNamespace()}
    with pytest.raises(type(error)) as caught, task.as_step(context) as step:
        step.attempt = 3
        raise error
    assert str(caught.value) == text
