"""Airflow connections as commands read them: as Airflow does, held against its own reading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from airflow.sdk.definitions.connection import Connection as Airflows
from airflow.secrets.environment_variables import EnvironmentVariablesBackend
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_kafka_eos.cli import connections
from airflow_kafka_eos.cli.airflow_options import AskAirflow
from airflow_kafka_eos.cli.connections import Connection, airflow_connection
from airflow_kafka_eos.errors import ConfigurationError, TransientError
from tests.postgresql import AIRFLOW_DATABASE, PostgreSQL

FIELDS = ("conn_type", "host", "schema", "login", "password", "port", "extra")
KEYS = ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=", "YWJjZGVmZ2hpamFiY2RlZmdoaWphYmNkZWZnaGlqYWI="]
SECRET = "hunter2-never-shown"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("AIRFLOW")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    return tmp_path


def of(found: Any) -> dict[str, Any] | None:
    return None if found is None else {name: getattr(found, name) or None for name in FIELDS}


def by_airflow(conn_id: str) -> dict[str, Any] | None:
    backend = EnvironmentVariablesBackend()
    backend._set_connection_class(Airflows)
    return of(backend.get_connection(conn_id))


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
PART = TEXT.map(lambda text: quote(text, safe=""))
URI = st.builds(
    lambda kind, user, host, port, path, query: f"{kind}://{user}{host}{port}{path}{query}",
    st.sampled_from(["kafka", "postgres", "postgresql", "google-cloud-platform", "kafka_eos_ledger", "sqlite"]),
    st.one_of(st.just(""), st.builds("{}:{}@".format, PART, PART), st.builds("{}@".format, PART)),
    st.one_of(st.just(""), st.just("h.example"), st.just("%2Fvar%2Frun"), PART),
    st.one_of(st.just(""), st.just(":5432")),
    st.one_of(st.just(""), st.builds("/{}".format, PART)),
    st.one_of(
        st.just(""),
        st.dictionaries(TEXT, TEXT, max_size=3).map(lambda pairs: f"?{urlencode(pairs)}"),
        st.dictionaries(TEXT, TEXT, max_size=3).map(lambda d: f"?{urlencode({'__extra__': json.dumps(d)})}"),
    ),
)
JSON = st.fixed_dictionaries(
    {},
    optional={
        "conn_type": st.sampled_from(["kafka", "postgresql", "google-cloud-platform", ""]),
        "host": st.one_of(TEXT, st.none()),
        "schema": TEXT, "login": TEXT, "password": TEXT, "description": TEXT,
        "port": st.one_of(st.integers(1, 65535), st.integers(1, 65535).map(str), st.none(), st.just("x")),
        "extra": st.one_of(st.dictionaries(TEXT, TEXT, max_size=3), TEXT, st.none()),
        "unknown": TEXT,
    },
).map(json.dumps)  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.one_of(URI, JSON))
@example("kafka://?__extra__=%7B%22bootstrap.servers%22%3A%20%22h%3A1%22%7D")
@example('{"conn_type": "kafka", "extra": {"bootstrap.servers": "h:1"}}')
@example("postgres://u:p@https://h/x")
@example("postgres://u@H.Example:99999/x")
def test_what_the_environment_has_is_what_airflow_reads(text: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AIRFLOW_CONN_ONE", text)
        try:
            found = of(connections._without_airflow("one"))
        except AskAirflow:
            return
        assert found == by_airflow("one")


def test_usual_connections_are_read_without_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would say nothing."""
    for number, text in enumerate(
        [
            "postgresql://u:p%40ss@h.example:5432/db?sslmode=require",
            "kafka://?__extra__=%7B%22bootstrap.servers%22%3A%20%22h%3A1%22%7D",
            '{"conn_type": "kafka", "extra": {"bootstrap.servers": "h:1"}}',
            '{"conn_type": "sqlite", "host": "/l.db", "port": null}',
        ]
    ):
        monkeypatch.setenv(f"AIRFLOW_CONN_C{number}", text)
        assert isinstance(connections._without_airflow(f"c{number}"), Connection)
    assert "secret" not in repr(Connection("a", password="secret"))


@pytest.mark.parametrize(
    "variable", ["AIRFLOW__SECRETS__BACKEND", "AIRFLOW__WORKERS__SECRETS_BACKEND", "AIRFLOW__CORE__MULTI_TEAM"]
)
def test_a_secrets_backend_is_airflows_to_ask(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """It wins over the environment."""
    monkeypatch.setenv("AIRFLOW_CONN_ONE", '{"conn_type": "kafka"}')
    monkeypatch.setenv(variable, "True")
    with pytest.raises(AskAirflow):
        connections._without_airflow("one")


# a real database of Airflow's, as far as connections go; then what both readings say of each
BOTH = """
import json, sys
from airflow_kafka_eos.cli import connections
fields = ("conn_type", "host", "schema", "login", "password", "port", "extra")
of = lambda found: None if found is None else {name: getattr(found, name) or None for name in fields}
known = json.loads(sys.argv[1])
from airflow import settings
from airflow.models import Connection
from sqlalchemy import inspect
from sqlalchemy.orm import Session
settings.initialize()
if not inspect(settings.engine).has_table("connection"):
    Connection.metadata.tables["team"].create(settings.engine)
    Connection.__table__.create(settings.engine)
with Session(settings.engine) as session:
    for one in known:
        session.add(Connection(**one))
    session.commit()
from airflow.secrets.metastore import MetastoreBackend
answers = {}
for conn_id in sys.argv[2:]:
    try:
        ours = of(connections._without_airflow(conn_id))
    except connections.AskAirflow:
        ours = "ask"
    try:
        theirs = of(MetastoreBackend().get_connection(conn_id))
    except Exception as e:
        theirs = type(e).__name__
    answers[conn_id] = [ours, theirs]
print(json.dumps(answers))
"""
KNOWN: list[dict[str, Any]] = [
    {"conn_id": "kafka_default", "conn_type": "kafka",
     "extra": json.dumps({"bootstrap.servers": "h:1", "sasl.password": "gehéim"})},
    {"conn_id": "the_ledger", "conn_type": "postgres", "host": "h", "schema": "db", "login": "u",
     "password": "p@ss/wörd", "port": 5432},
    {"conn_id": "bare", "conn_type": "sqlite", "host": "/x.db"},
]  # fmt: skip


def both(environment: dict[str, str], known: list[dict[str, Any]], *conn_ids: str) -> dict[str, list[Any]]:
    done = subprocess.run(
        [sys.executable, "-c", BOTH, json.dumps(known), *conn_ids],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_what_airflows_database_has_is_what_airflow_reads(
    home: Path, database: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{home}/their.db"
    if database == "postgresql":
        server: PostgreSQL = request.getfixturevalue("postgresql")
        url = server.for_airflow("of_connections")[AIRFLOW_DATABASE]
    environment = {AIRFLOW_DATABASE: url, "AIRFLOW__CORE__FERNET_KEY": KEYS[0]}
    answers = both(environment, KNOWN, *(one["conn_id"] for one in KNOWN), "nobody")
    assert all(ours == theirs for ours, theirs in answers.values()) and answers["nobody"] == [None, None]
    assert answers["the_ledger"][0]["password"] == "p@ss/wörd"
    assert json.loads(answers["kafka_default"][0]["extra"])["sasl.password"] == "gehéim"
    # a new key before the old one; the old one gone
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", f"{KEYS[1]},{KEYS[0]}")
    assert of(connections._without_airflow("the_ledger")) == answers["the_ledger"][0]
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", KEYS[1])
    with pytest.raises(AskAirflow):
        connections._without_airflow("the_ledger")


def test_a_database_that_does_not_answer_is_not_called_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"postgresql+psycopg2://u:{SECRET}@127.0.0.1:1/x")
    with pytest.raises(TransientError, match=r"Airflow's database.*'the_one'.*did not answer") as away:
        airflow_connection("--conn-id", "the_one")
    assert SECRET not in str(away.value)


def test_an_extra_that_is_no_json_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in (SECRET, f'["{SECRET}"]'):
        monkeypatch.setenv("AIRFLOW_CONN_ONE", json.dumps({"conn_type": "kafka", "extra": extra}))
        with pytest.raises(ConfigurationError, match="extra of Airflow connection 'one' is no JSON object") as refused:
            _ = airflow_connection("--kafka-conn-id", "one").extra_dejson
        assert SECRET not in str(refused.value)
