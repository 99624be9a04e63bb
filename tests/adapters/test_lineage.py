"""What a visible load tells others, as far as no Airflow has to run for it; tests/airflow/test_dags.py has the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_kafka_eos import ExactlyOnceLoad
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.lineage import alias_of, server_of, topic_uri
from airflow_kafka_eos.operators.base import Step
from airflow_kafka_eos.sensors import LoadedSensor


@pytest.mark.parametrize(
    ("servers", "server"),
    [
        ("broker:9092", "broker:9092"),
        ("b.example:9093, a.example:9092", "b.example:9093"),
        ("SASL_SSL://broker:9092,other:1", "broker:9092"),
        ("broker", "broker:9092"),
        ("[::1]:9092", "[::1]:9092"),
        ("[::1]", "[::1]:9092"),
        ("Broker.Example:9092", "Broker.Example:9092"),
    ],
)
def test_the_first_bootstrap_server_is_the_authority(servers: str, server: str) -> None:
    assert server_of(servers) == server


@settings(suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(
    st.from_regex(r"[a-zA-Z0-9.-]{1,30}(:[0-9]{1,5})?", fullmatch=True),
    st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True),
)
def test_every_topic_makes_an_asset_that_airflow_takes_as_it_is(servers: str, topic: str) -> None:
    """Airflow normalises URIs: one that it changes would be another asset than the one that readers name."""
    uri = topic_uri(server_of(servers), topic)
    assert Asset(uri).uri == uri


@pytest.mark.parametrize("server", ["", "a:1,b:2", "kafka://a:1", "user@a:1", "a b"])
def test_what_is_no_authority_is_refused_at_parse(server: str) -> None:
    with DAG("d", schedule=None), pytest.raises(ConfigurationError, match="asset_server="):
        ExactlyOnceLoad("load", sql="SELECT 1", topics=["t"], asset_server=server)


def outlets(**arguments: Any) -> list[Any]:
    with DAG("orders", schedule=None):
        return ExactlyOnceLoad("load", sql="SELECT 1", topics=["t"], **arguments).loaded.outlets


def test_loaded_has_one_outlet_for_topics_whose_cluster_is_not_known_yet_and_those_of_the_author() -> None:
    report = Asset("s3://bucket/report")
    assert outlets() == [AssetAlias("orders.load")]
    assert outlets(outlets=[report]) == [report, AssetAlias("orders.load")]
    assert outlets(outlets=[report], asset_events=False) == [report]
    assert outlets(asset_events=False) == []
    assert outlets(load_name="aufträge") == [alias_of("auftr%C3%A4ge")]
    # two DAGs that say so have two
    assert outlets(load_name="orders of {{ params.shop }}") == [AssetAlias("orders.load.loaded")]
    assert outlets(load_name="{% if x %}a{% endif %}") == [AssetAlias("orders.load.loaded")]


def test_a_text_in_the_place_of_topics_is_refused_at_parse_and_when_rendered() -> None:
    """Each of its letters would be told of as a topic."""
    with pytest.raises(ConfigurationError, match=r"topics='orders' is a text.* Pass a list: topics=\['orders'\]"):
        LoadedSensor(task_id="loaded", load_name="l", topics="orders")
    run = SimpleNamespace(dag_id="d", run_id="r", task_id="loaded", map_index=-1)
    loaded = LoadedSensor(task_id="loaded", load_name="l", load_key="k", topics=["{{ params.topic }}"])
    loaded.topics = "orders"  # as an XCom of another task may be
    context: Any = {"ti": run}
    with pytest.raises(AirflowFailException, match="topics='orders' is a text"):
        loaded.execute(context)


ARRIVAL = {
    "load": "airflow/orders.load/1",
    "topics": {"t": {"records": 3, "bytes": 70, "offsets": {"0": [5, 7]}}},
}


def test_a_load_that_was_told_of_before_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever clears loaded of the run that has written the load."""
    counted: list[str] = []
    events: list[str] = []  # as Airflow has registered them
    monkeypatch.setattr("airflow_kafka_eos.sensors.count_arrival", lambda load, *_: counted.append(str(load)))
    monkeypatch.setattr("airflow_kafka_eos.lineage._was_told", lambda key, _: key.uri in events)
    run = SimpleNamespace(dag_id="d", run_id="r", task_id="load.loaded", map_index=-1)
    by = {"by": "d/r#group=load", "attempt": 1, "decided_at": "2026-01-01T00:00:00+00:00", "records": 3}
    for uris in (["file:///report"], ["file:///report"], ["file:///report", "file:///added-since"]):
        loaded = LoadedSensor(
            task_id="loaded",
            load_name="orders.load",
            load_key="1",
            topics=["t"],
            outlets=[Asset(uri) for uri in uris],
            asset_events=False,
            asset_server="events",
        )
        context: Any = {"ti": run, "outlet_events": OutletEventAccessors()}
        loaded.done(ARRIVAL | by, context, Step(loaded, context))
        events += [outlet.uri for outlet in loaded.outlets]
        assert counted == ["airflow/orders.load/1"]
    assert events == ["file:///report", "file:///added-since"]


def extracted(loaded: LoadedSensor) -> Any:
    """By OpenLineage's own choice of an extractor."""
    from airflow.providers.openlineage.extractors.manager import ExtractorManager
    from airflow.sdk import TaskInstanceState

    run: Any = SimpleNamespace(run_id="r")
    return ExtractorManager().extract_metadata(run, loaded, TaskInstanceState.SUCCESS, SimpleNamespace())  # type: ignore[arg-type, no-untyped-call]


@pytest.mark.parametrize("wrote", [True, False])
def test_openlineage_gets_the_topics_and_their_rows_from_the_run_that_wrote_them(wrote: bool) -> None:
    with DAG("orders", schedule=None):
        loaded = LoadedSensor(task_id="loaded", load_name="l", topics=["t", "empty"], asset_server="events:9092")
    loaded._arrival, loaded._wrote = ARRIVAL, wrote
    found = extracted(loaded).outputs
    assert [(d.namespace, d.name) for d in found] == [("kafka://events:9092", "t")], "not what it wrote nothing to"
    facets = [d.outputFacets.get("outputStatistics") for d in found]
    assert [f and (f.rowCount, f.size) for f in facets] == ([(3, 70)] if wrote else [None])


def test_openlineage_gets_nothing_of_a_load_that_is_not_there() -> None:
    loaded = LoadedSensor(task_id="loaded", load_name="l", topics=["t"], asset_server="e:1", asset_events=False)
    assert extracted(loaded).outputs == []
