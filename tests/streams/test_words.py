"""Errors of the rules, as a query's operator reads them: there is no task to clear, and no argument of a task group."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import UndecidableError
from airflow_kafka_eos.streams.words import of_a_query, told_to_a_query
from tests.spark.conftest import REPOSITORY

_OF_A_LOAD = re.compile(r"\b[Cc]lear (begin|prepare|decide|commit|the task)\b|\bhold_time\b|\bLet this task fail\b")


def _remedies() -> Iterator[str]:
    """Texts of the rooms that a query goes through, which are written for loads."""
    for room in ("protocol", "ledger", "kafka", "spark"):
        for file in sorted((Path(REPOSITORY) / "airflow_kafka_eos" / room).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
                    yield node.value


def test_no_remedy_of_a_load_is_left() -> None:
    of_loads = [text for text in _remedies() if _OF_A_LOAD.search(text)]
    assert len(of_loads) > 40, "the rooms have moved: this tests nothing"
    assert [text for text in map(of_a_query, of_loads) if _OF_A_LOAD.search(text)] == []


@pytest.mark.parametrize(
    ("of_a_load", "of_the_query"),
    [
        ("Clear prepare: it opens a new attempt", "Start the query again: it opens a new attempt"),
        (
            "Clear prepare, with what is downstream: it opens a new attempt. If time ran out, raise hold_time",
            "Start the query again: it opens a new attempt. If time ran out, raise transaction.timeout.ms",
        ),
        ("Grant it, then clear begin", "Grant it, then start the query again"),
        (
            "Else clear begin, or prepare together with its setup: begin opens a new attempt",
            "Else start the query again: begin opens a new attempt",
        ),
        ("Check bootstrap.servers", "Check bootstrap.servers"),
    ],
)
def test_in_the_words_of_a_query(of_a_load: str, of_the_query: str) -> None:
    assert of_a_query(of_a_load) == of_the_query


def test_the_error_is_the_same_one_else() -> None:
    error = UndecidableError("why", remedy="Clear prepare", load="n/q/1", attempt=3, transactional_id="t")
    with pytest.raises(UndecidableError) as told, told_to_a_query():
        raise error
    assert told.value is error
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)
    assert str(error) == str(UndecidableError(**{**vars(error), "remedy": "Start the query again"}))
