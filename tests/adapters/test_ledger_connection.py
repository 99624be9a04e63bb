"""The connection type ``kafka_eos_ledger``, as Airflow's own parts and the hook read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.hooks import KafkaEosLedgerHook, ledger_url
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.location import default_url
from tests.postgresql import PostgreSQL

SECRET = "hunter/2 %:never@shown"


def connection(**fields: Any) -> Connection:
    return Connection(conn_id="c", conn_type="kafka_eos_ledger", **fields)


def hook(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> KafkaEosLedgerHook:
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps({"conn_type": "kafka_eos_ledger"} | fields))
    return KafkaEosLedgerHook("ledger")


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "h", "login": "u", "password": "p@/w", "schema": "d"}, "postgresql+psycopg2://u:p%40%2Fw@h/d"),
        ({"host": "h", "schema": "d", "extra": '{"backend": "mysql"}'}, "mysql://h/d"),
        ({"host": "h", "schema": "d", "extra": '{"backend": "mariadb", "ssl_ca": "/ca"}'}, "mariadb://h/d?ssl_ca=%2Fca"),
        ({"host": "/data/l.db", "extra": '{"backend": "sqlite"}'}, "sqlite:////data/l.db"),
        ({"host": "h", "extra": '{"backend": null, "sslmode": "require"}'}, "postgresql+psycopg2://h?sslmode=require"),
    ],
)
def test_it_becomes_a_url_by_its_backend(fields: dict[str, Any], url: str) -> None:
    assert ledger_url(connection(**fields)) == url


def test_a_backend_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"'c' has backend 'oracle'.*postgresql, mysql, mariadb, sqlite"):
        ledger_url(connection(host="h", extra='{"backend": "oracle"}'))


def test_a_connection_is_tested_without_changing_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = hook(monkeypatch, host=f"{tmp_path}/ledger.db", extra={"backend": "sqlite"})
    good, said = found.test_connection()
    assert not good and "upgrade" in said
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db", upgrade=True) as ledger:
        good, said = found.test_connection()
        assert good and ledger.ledger_id in said
        with found.open() as same:
            assert same.ledger_id == ledger.ledger_id


def test_the_embedded_ledger_is_not_made_by_a_test_of_its_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever opens it to use it makes it."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    path = default_url().removeprefix("sqlite:///")
    assert path.startswith(str(tmp_path))
    found = hook(monkeypatch, host=path, extra={"backend": "sqlite"})
    good, said = found.test_connection()
    assert not good and "has not been created yet" in said
    assert not Path(path).exists() and not (tmp_path / "home").exists()
    found.open().close()
    assert found.test_connection()[0]


def test_a_postgresql_is_tested_and_its_password_never_shown(
    monkeypatch: pytest.MonkeyPatch, postgresql: PostgreSQL, capfd: pytest.CaptureFixture[str]
) -> None:
    postgresql.run("CREATE DATABASE of_the_hook")
    place = {"host": postgresql.directory, "port": postgresql.port, "login": "postgres", "schema": "of_the_hook"}
    found = hook(monkeypatch, password=SECRET, **place)
    good, said = found.test_connection()
    assert not good and "upgrade" in said
    Ledger.open(postgresql.url("of_the_hook"), upgrade=True).close()
    good, said_too = found.test_connection()
    assert good
    nowhere = hook(monkeypatch, password=SECRET, host="127.0.0.1", port=1, login="u", schema="d")
    shown = said + said_too + nowhere.test_connection()[1] + "".join(capfd.readouterr())
    assert SECRET not in shown and "hunter" not in shown


def test_airflow_masks_the_password_as_it_stands_in_a_url(capfd: pytest.CaptureFixture[str]) -> None:
    from urllib.parse import quote, quote_plus

    from airflow.sdk._shared.secrets_masker import redact

    ledger_url(connection(host="h", password=SECRET))
    for form in (quote(SECRET, safe=""), quote_plus(SECRET)):
        assert redact(f"postgresql://u:{form}@h/d") == "postgresql://u:***@h/d"
