"""What single steps must do in the order that Airflow may run them, on real parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.airflow.steps import CONTEXT, LOAD, a_prepared_load, connection, open_ids, operator, run, state
from tests.protocol.world import foreign_transaction

OTHER_GROUP: Any = CONTEXT | {
    "ti": SimpleNamespace(dag_id="dag", run_id="run", map_index=-1, task_id="another.step")
}


def test_decide_tells_kafka_at_once(home: Path, kafka: LocalKafka, topic: Callable[..., str]) -> None:
    """A paused DAG between decide and commit must not eat the time that the transactions have left."""
    a_prepared_load(home, kafka, "at once", topic(), 3)
    assert len(open_ids("at once")) == 1
    run("decide", "at once")
    for _ in range(100):
        if not open_ids("at once"):
            break
    assert open_ids("at once") == []


@pytest.mark.parametrize("step", ["begin", "prepare", "decide", "commit"])
def test_another_group_of_the_run_does_not_pass_for_loaded(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], step: str
) -> None:
    """Two loads with one name and key: the second one's data was never written."""
    from airflow.sdk.exceptions import AirflowFailException

    a_prepared_load(home, kafka, step, topic(), 0)
    run("decide", step)
    run("commit", step)
    assert state(step) is LoadState.COMMITTED
    with pytest.raises(AirflowFailException, match="another load of this run"):
        operator(step, step).execute(OTHER_GROUP)
    operator(step, step).execute(CONTEXT)  # the run itself may do all of it again


def test_loaded_says_at_its_timeout_who_holds_readers_back(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    from airflow.sdk.exceptions import AirflowSensorTimeout

    from airflow_kafka_eos.kafka.settings import KafkaSettings
    from airflow_kafka_eos.sensors.loaded import LoadedSensor

    name = topic()
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    stranger = foreign_transaction(SimpleNamespace(settings=settings, topic=name), "slow-service")  # type: ignore[arg-type]
    a_prepared_load(home, kafka, "held", name, 3)
    run("decide", "held")
    run("commit", "held")
    sensor = LoadedSensor(task_id="loaded", load_name=LOAD, load_key="held", timeout=0.1, deferrable=False)
    with pytest.raises(AirflowSensorTimeout, match="slow-service"):
        sensor.execute(CONTEXT)
    # the trigger's timeout, as Airflow hands it over
    with pytest.raises(AirflowSensorTimeout, match="slow-service"):
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, CONTEXT)
    stranger.commit_transaction(30)
    LoadedSensor(task_id="loaded", load_name=LOAD, load_key="held", deferrable=False).execute(CONTEXT)


def test_the_authors_sql_becomes_true_with_the_load(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DecideLoadOperator with also_sql, rendered as Airflow does it; run again it writes no second row."""
    from airflow_kafka_eos.ledger.database import Database
    from airflow_kafka_eos.ledger.ledger import Ledger

    url = f"sqlite:///{home}/marts.db"
    Ledger.open(url, upgrade=True).close()
    marts = Database(url)
    marts.write(lambda c: c.exec_driver_sql("CREATE TABLE marts (day TEXT, load_key TEXT, records INTEGER)"))
    connection(monkeypatch, "marts", "sqlite", host=f"{home}/marts.db")
    ledger = {"ledger_conn_id": "marts"}
    also_sql = [("INSERT INTO marts VALUES (:day, :load_key, :records)", {"day": "{{ ds }}"})]
    a_prepared_load(home, kafka, "dual", topic(), 3, **ledger)
    for _ in range(2):
        decide = operator("decide", "dual", also_sql=also_sql, **ledger)
        decide.render_template_fields({"ds": "2026-01-01"})
        decide.execute(CONTEXT)
    run("commit", "dual", **ledger)
    assert marts.read(lambda c: c.exec_driver_sql("SELECT * FROM marts").all()) == [("2026-01-01", "dual", 3)]


def test_also_sql_without_a_ledger_of_its_own_is_refused_at_parse() -> None:
    """Its rows would go into the embedded ledger file, where nobody looks for them."""
    from airflow_kafka_eos.errors import ConfigurationError

    for arguments in ({"also_sql": "DELETE FROM marts"}, {"also": print}):
        with pytest.raises(ConfigurationError, match="ledger_conn_id is not"):
            operator("decide", "x", **arguments)
    with pytest.raises(ConfigurationError, match="begins or ends a transaction"):
        operator("decide", "x", also_sql="COMMIT", ledger_conn_id="marts")
