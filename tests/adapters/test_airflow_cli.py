"""Airflow's own command line knows the provider's configuration, connection type and classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_kafka_eos.config import OPTIONS


def airflow(home: Path, *arguments: str, **more: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")}
    done = subprocess.run(
        [sys.executable, "-m", "airflow", *arguments], env=clean | {"AIRFLOW_HOME": str(home)} | more, timeout=120,
        capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_config_list_shows_every_option_with_its_meaning(tmp_path: Path) -> None:
    said = airflow(tmp_path, "config", "list", "--section", "kafka_eos", "--defaults")
    assert "[kafka_eos]" in said
    for key, option in OPTIONS.items():
        assert f"\n# {key} = " in said and option.description in said, key
        assert not option.default or f"Default: {option.default}." in said, key
        assert f"AIRFLOW__KAFKA_EOS__{key.upper()}" in said
    set_ = {"AIRFLOW__KAFKA_EOS__HOLD_TIME": "1234"}
    assert airflow(tmp_path, "config", "get-value", "kafka_eos", "hold_time", **set_).strip().endswith("1234")
    assert airflow(tmp_path, "config", "get-value", "kafka_eos", "namespace").strip().endswith("airflow")


def test_providers_get_shows_what_the_package_brings(tmp_path: Path) -> None:
    (found,) = json.loads(airflow(tmp_path, "providers", "get", "airflow-kafka-eos", "--full", "--output", "json"))
    said = json.dumps(found)
    for part in ("kafka_eos_ledger", "KafkaEosLedgerHook", "hold_time", "airflow_kafka_eos.operators.begin"):
        assert part in said
    hooks = json.loads(airflow(tmp_path, "providers", "hooks", "--output", "json"))
    (ours,) = [h for h in hooks if h["connection_type"] == "kafka_eos_ledger"]
    assert ours["conn_id_attribute_name"] == "ledger_conn_id" and ours["package_name"] == "airflow-kafka-eos"


def test_plugins_shows_the_tab_the_page_and_the_link(tmp_path: Path) -> None:
    (ours,) = [p for p in json.loads(airflow(tmp_path, "plugins", "--output", "json")) if p["name"] == "kafka_eos"]
    places = {view["destination"]: view["name"] for view in ours["external_views"]}
    assert places == {"nav": "Kafka transactions", "dag_run": "Kafka transactions"}
    assert [app["url_prefix"] for app in ours["fastapi_apps"]] == ["/kafka-eos"]
    assert "KafkaTransactionsLink" in str(ours["operator_extra_links"])
    assert ours["source"].startswith("airflow-kafka-eos==")


@pytest.fixture
def migrated(tmp_path: Path) -> Path:
    airflow(tmp_path, "db", "migrate")
    return tmp_path


def test_a_connection_of_our_type_is_kept_shown_without_its_secret_and_tested(migrated: Path) -> None:
    from airflow_kafka_eos.ledger.ledger import Ledger

    secret = "hunter2-never-shown"
    extra = json.dumps({"backend": "sqlite"})
    airflow(
        migrated, "connections", "add", "the_ledger", "--conn-type", "kafka_eos_ledger", "--conn-host",
        f"{migrated}/marts.db", "--conn-password", secret, "--conn-extra", extra,
    )  # fmt: skip
    shown = airflow(migrated, "connections", "list", "--output", "json")
    (row,) = [c for c in json.loads(shown) if c["conn_id"] == "the_ledger"]
    assert row["conn_type"] == "kafka_eos_ledger" and secret not in shown
    Ledger.open(f"sqlite:///{migrated}/marts.db", upgrade=True).close()
    allowed = {"AIRFLOW__CORE__TEST_CONNECTION": "Enabled"}
    said = airflow(migrated, "connections", "test", "the_ledger", **allowed)
    assert "Connection success" in said and secret not in said
