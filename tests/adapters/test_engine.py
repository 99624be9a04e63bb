"""engine="arrow": what an author is told when the DAG is parsed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad, exactly_once_load
from airflow_kafka_eos.errors import ConfigurationError

LOAD: dict[str, Any] = {"topics": ["t"], "job": "jobs/orders.py", "engine": "arrow"}


def made(**given: Any) -> ExactlyOnceLoad:
    with DAG("engines", schedule=None, start_date=datetime(2026, 1, 1)):
        return ExactlyOnceLoad("load", **LOAD | given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": "arow"}, "engine is 'arow', it can be spark, arrow. Did you mean arrow"),
        ({"engine": None}, "engine is None, it can be spark, arrow. Set engine to one of them. A Spark Connect "),
        ({"job": None, "sql": "SELECT 1"}, "sql=… is Spark's SQL, and engine='arrow' starts no Spark"),
        ({"spark_conn_id": "s"}, "spark_conn_id='s' is of Spark, and engine='arrow' starts none"),
        ({"spark_args": {"conf": {}}}, "spark_args={'conf': …} is of Spark, and engine='arrow' starts none"),
        ({"max_batch_bytes": 0}, "max_batch_bytes=0 is no whole number from 1 on"),
        ({"max_batch_bytes": None}, "max_batch_bytes=None is no whole number from 1 on. Set it to one"),
        ({"engine": "spark", "max_batch_bytes": 5}, "max_batch_bytes=5 bounds what engine='arrow' reads, and Spark"),
    ],
    ids=str,
)
def test_what_it_cannot_do_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        made(**given)
    assert said in str(caught.value) and caught.value.remedy


def test_what_is_a_tasks_may_stand_in_spark_args() -> None:
    load = made(spark_args={"execution_timeout": timedelta(minutes=5), "pool": "small"}, value_format="confluent-avro")
    assert (load.prepare.execution_timeout, load.prepare.pool) == (timedelta(minutes=5), "small")


def test_a_function_has_no_session_to_take() -> None:
    @exactly_once_load(topics=["t"], engine="arrow")
    def rows(day: str) -> None: ...

    @exactly_once_load(topics=["t"], engine="arrow")
    def with_session(spark: Any, day: str) -> None: ...

    with DAG("engines", schedule=None, start_date=datetime(2026, 1, 1)):
        assert getattr(rows(day="{{ ds }}").prepare, "engine", None) == "arrow"
        with pytest.raises(ConfigurationError, match="none for a Spark session") as caught:
            with_session(day="{{ ds }}")
        assert "with_session() is called with ['day']" in str(caught.value)
        # the engine may be changed, and what is asked of the function with it
        with_spark = with_session.override(engine="spark", group_id="other")(day="x")
        assert getattr(with_spark.prepare, "engine", None) == "spark"


def test_mapped_loads_share_it() -> None:
    with DAG("engines", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        ExactlyOnceLoad.partial("tables", job="jobs/table.py", engine="arrow").expand(topic=["a", "b"])
    assert getattr(dag.get_task("tables.load.prepare"), "engine", None) == "arrow"
