"""cursor=…: what is wrong with it is said when the DAG is parsed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_kafka_eos import (
    Cursor,
    ExactlyOnceLoad,
    KafkaOffsets,
    Transactions,
    Watermark,
    exactly_once_load,
)
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.operators.preparing import check_only_cursor

WATERMARK = Watermark("shop", "SELECT max(id) FROM orders")


def load(group_id: str = "load", **arguments: Any) -> ExactlyOnceLoad:
    return ExactlyOnceLoad(group_id, **{"topics": ["a"], "job": "jobs/a.py"} | arguments)


def dag() -> DAG:
    return DAG("d", schedule=None, start_date=datetime(2026, 1, 1))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"cursor": "orders"}, "of type str, not Cursor"),
        ({"cursor": Cursor(since=1)}, "half a range"),
        ({"cursor": Cursor(until="{{ x }}")}, "half a range"),
        ({"cursor": Cursor(since=2, until=1)}, "before 2"),
        ({"cursor": Cursor(since=1, until=1)}, "empty"),
        ({"cursor": Cursor(first_since="9")}, "without an order"),
        ({"cursor": Cursor(first_since=1.5)}, "no position"),
        ({"cursor": Cursor(source=object())}, r"has no bounds\(since\)"),  # type: ignore[arg-type]
        ({"job": None, "sql": "SELECT 1", "cursor": Cursor(first_since=0)}, "cannot say where a range ends"),
        ({"job": None, "sql": "SELECT 1", "cursor": Cursor(source=WATERMARK)}, "compare with NULL"),
        ({"cursor": Cursor(), "item": "orders"}, "share the cursor"),
        ({"cursor": Cursor(), "transactions": Transactions(transaction_naming="pooling")}, "pooled ids do not show"),
    ],
)
def test_what_cannot_be(arguments: dict[str, Any], said: str) -> None:
    with dag(), pytest.raises(ConfigurationError, match=said):
        load(**arguments)


def test_what_can_be() -> None:
    with dag():
        load("a", cursor=Cursor())
        load("b", cursor=Cursor(source=KafkaOffsets(["orders"])))
        load("c", job=None, sql="SELECT 1", cursor=Cursor(source=WATERMARK, first_since=0))
        load("d", job=None, sql="SELECT 1", cursor=Cursor(since="{{ params.a }}", until="{{ params.b }}"))
        group = load("e", cursor=Cursor(since="{{ params.a }}", until=5))
    assert (group.prepare.since, group.prepare.until) == ("{{ params.a }}", 5)
    assert {"since", "until"} <= {*group.prepare.template_fields}


def test_sources_want_what_they_need() -> None:
    for make, said in (
        (lambda: KafkaOffsets([]), "no topic"),
        (lambda: KafkaOffsets(["a b"]), "cannot be the name of a topic"),
        (lambda: KafkaOffsets(["a"], ""), "kafka_conn_id"),
        (lambda: Watermark("", "SELECT 1"), "conn_id"),
        (lambda: Watermark("shop", " "), "sql"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            make()


def test_mapped_loads_have_one_name_and_would_share_its_cursor() -> None:
    with pytest.raises(ConfigurationError, match="share it"):
        ExactlyOnceLoad.partial("tables", job="jobs/a.py", cursor=Cursor())


def test_a_decorated_function_takes_the_range() -> None:
    @exactly_once_load(topics=["a"], cursor=Cursor(first_since=0))
    def right(spark: Any, day: str, since: Any, until: Any = None) -> Any: ...

    @exactly_once_load(topics=["a"], cursor=Cursor(first_since=0))
    def wrong(spark: Any, day: str, since: Any) -> Any: ...

    with dag():
        right(day="x")
        with pytest.raises(ConfigurationError, match="until"):
            wrong(day="x")
        with pytest.raises(ConfigurationError, match="comes of its cursor"):
            right.override(group_id="other")(day="x", since=1)


def test_a_range_of_the_conf_is_of_one_load() -> None:
    with dag():
        first, second = load("a", cursor=Cursor()), load("b")
        check_only_cursor(first.prepare)
        load("c", cursor=Cursor())
        with pytest.raises(ConfigurationError, match="several loads with a cursor"):
            check_only_cursor(first.prepare)
        assert second.prepare.cursor is None


def test_an_application_is_waited_for_by_who_names_the_same_range() -> None:
    """A retry goes on with what an earlier try has submitted, where it asks for the same."""
    with dag():
        cursors = (None, Cursor(), Cursor(since=1, until=2), Cursor(since=1, until=3))
        asked = [load(f"g{n}", cursor=cursor).prepare.asked_sha256() for n, cursor in enumerate(cursors)]
        assert load("again", cursor=cursors[2]).prepare.asked_sha256() == asked[2]
    assert len(set(asked)) == len(asked)
