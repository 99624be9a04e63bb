"""``airflow kafka-eos``: the same commands under Airflow's own, and connections from Airflow's own database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_kafka_eos.get_provider_info import get_provider_info
from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.ledger.ledger_support import LOAD, prepare

SECRET = "hunter2-never-shown"


def environment(home: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW_KAFKA_EOS", "AIRFLOW_CONN"))}
    return env | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW_KAFKA_EOS_LEDGER": f"sqlite:///{home}/ledger.db",
    }


def run(home: Path, *command: str, more: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment(home) | (dict(more) if more else {}), capture_output=True, text=True, timeout=120,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db", upgrade=True) as ledger:
        prepare(ledger)
    return tmp_path


def airflow(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(home, str(Path(sys.executable).with_name("airflow")), *arguments)


def test_airflow_has_the_commands_and_passes_on_what_they_print_and_return(home: Path) -> None:
    done = airflow(home, "kafka-eos", "loads", "list", "--output", "json")
    assert done.returncode == 0, done.stderr
    assert [row["key"] for row in json.loads(done.stdout)] == [LOAD.key]
    usage = airflow(home, "kafka-eos", "transactions", "describe")
    assert usage.returncode == 2 and "usage: airflow kafka-eos transactions describe" in usage.stderr


def test_the_providers_entry_is_light(home: Path) -> None:
    """Each call of `airflow` imports it."""
    (name,) = get_provider_info()["cli"]
    module, _, function = name.rpartition(".")
    heavy = "{'sqlalchemy', 'kafka', 'confluent_kafka', 'pyarrow', 'numpy', 'pyspark', 'airflow', 'alembic'}"
    code = f"import sys, {module} as m; assert m.{function}; sys.exit(str({heavy} & set(sys.modules) or ''))"
    done = run(home, sys.executable, "-c", code)
    assert done.stderr.strip() == ""


# a real database of Airflow's, as far as connections go
MAKE_DATABASE = """
import sys, json
from airflow import settings
from airflow.models import Connection
from sqlalchemy.orm import Session
settings.initialize()
Connection.metadata.tables["team"].create(settings.engine)
Connection.__table__.create(settings.engine)
with Session(settings.engine) as session:
    for text in sys.argv[1:]:
        session.add(Connection(**json.loads(text)))
    session.commit()
"""


def test_a_connection_of_airflows_own_database_is_found(home: Path) -> None:
    key = "0" * 43 + "="
    connections = [
        {"conn_id": "the_ledger", "conn_type": "sqlite", "host": str(home / "ledger.db")},
        {"conn_id": "kafka_default", "conn_type": "kafka",
         "extra": json.dumps({"bootstrap.servers": "127.0.0.1:1", "sasl.password": SECRET})},
    ]  # fmt: skip
    more = {"AIRFLOW__CORE__FERNET_KEY": key, "AIRFLOW_KAFKA_EOS_LEDGER": ""}
    made = run(home, sys.executable, "-c", MAKE_DATABASE, *map(json.dumps, connections), more=more)
    assert made.returncode == 0, made.stderr
    code = "import sys; from airflow_kafka_eos.cli import main; sys.exit(main())"
    away = run(
        home, sys.executable, "-c", code, "transactions", "list", "--ledger-conn-id", "the_ledger", "--timeout", "1",
        more=more,
    )  # fmt: skip
    assert away.returncode == 3, away.stderr
    assert "127.0.0.1:1 cannot be reached" in away.stderr and SECRET not in away.stderr + away.stdout


def test_asking_for_a_connection_makes_no_database(home: Path) -> None:
    code = "import sys; from airflow_kafka_eos.cli import main; sys.exit(main())"
    done = run(home, sys.executable, "-c", code, "transactions", "list")
    assert done.returncode == 2
    assert "[kafka_eos] kafka_conn_id 'kafka_default': Airflow has no such connection here" in done.stderr
    assert not (home / "airflow.db").exists()


@pytest.mark.parametrize("by", ["airflow", "airflow-kafka-eos"])
def test_what_no_argument_names_airflows_section_says(home: Path, by: str) -> None:
    """In another ledger, or namespace, every open transaction of the loads would be a stranger's.

    Rule: only-our-ids.
    """
    words = [str(Path(sys.executable).with_name("airflow")), "kafka-eos"]
    if by != "airflow":
        words = [sys.executable, "-c", "import sys; from airflow_kafka_eos.cli import main; sys.exit(main())"]
    (home / "airflow.cfg").write_text(
        "[kafka_eos]\nnamespace = payments\nkafka_conn_id = prod\nledger_conn_id = the_ledger\n"
    )
    ledger = json.dumps({"conn_type": "sqlite", "host": f"{home}/theirs.db"})
    cluster = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}})
    more = {"AIRFLOW_KAFKA_EOS_LEDGER": "", "AIRFLOW_CONN_THE_LEDGER": ledger, "AIRFLOW_CONN_PROD": cluster}
    with Ledger.open(f"sqlite:///{home}/theirs.db", upgrade=True) as theirs:
        ledger_id = theirs.ledger_id
    checked = run(home, *words, "ledger", "check", more=more)
    assert f"its id is {ledger_id}" in checked.stdout, checked.stderr
    away = run(home, *words, "transactions", "list", "--timeout", "1", more=more)
    assert "127.0.0.1:1 cannot be reached" in away.stderr and away.returncode == 3
    shown = run(home, *words, "loads", "show", "orders", "k", more=more)
    assert "payments/orders/k" in shown.stderr and shown.returncode == 2
    # arguments and the environment's ledger win over it
    other = run(home, *words, "loads", "show", "orders", "k", "--namespace", "mine", more=more)
    assert "mine/orders/k" in other.stderr
    url = {"AIRFLOW_KAFKA_EOS_LEDGER": f"sqlite:///{home}/ledger.db"}
    environments = run(home, *words, "ledger", "check", more=more | url)
    assert environments.returncode == 0 and ledger_id not in environments.stdout


def test_a_wrong_option_of_the_section_is_one_line(home: Path) -> None:
    code = "import sys; from airflow_kafka_eos.cli import main; sys.exit(main())"
    done = run(
        home, sys.executable, "-c", code, "loads", "show", "a", "b", more={"AIRFLOW__KAFKA_EOS__NAMESPACE": "\udcff"}
    )
    assert done.returncode == 2 and done.stderr.startswith("airflow-kafka-eos: ")
    assert "[kafka_eos] namespace" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("program", ["airflow", "airflow-kafka-eos"])
def test_stdout_has_the_answer_alone(home: Path, kafka: LocalKafka, program: str) -> None:
    """Airflow, once imported, sends what libraries log to stdout."""
    script = [str(Path(sys.executable).with_name(program)), *(["kafka-eos"] if program == "airflow" else [])]
    arguments = ("transactions", "list", "--bootstrap-server", kafka.bootstrap_servers, "--output", "json")
    done = run(home, *script, *arguments)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"transactions": [], "hidden": None}
