"""``airflow-kafka-eos``: what goes wrong is one line and an exit code that says of what kind it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_kafka_eos.cli import parser

SECRET = "hunter2-never-shown"


def call(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("AIRFLOW_KAFKA_EOS_LEDGER", "JAVA_HOME")}
    return subprocess.run(
        [sys.executable, "-c", "import sys; from airflow_kafka_eos.cli import main; sys.exit(main())", *arguments],
        env=env | {"AIRFLOW_HOME": str(home)} | environment,
        capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("code", "arguments", "environment", "wanted"),
    [
        (2, "loads list", {"LEDGER": "sqlite:///<home>/none.db"},
         "LedgerNotReadyError: the ledger sqlite:///<home>/none.db has not been created yet. "
         "If loads have run already, create none: in a new ledger all of them would be loaded again. They use another "
         "one (ledger_conn_id), or its database came back empty, and has to be restored. Else run `airflow-kafka-eos "
         "ledger upgrade` once, then try again. Another ledger is named by --conn-id"),
        (2, "loads list", {"LEDGER": f"sqlite:///{__file__}"},
         f"LedgerNotReadyError: the ledger sqlite:///{__file__} is a file that is no SQLite database (DatabaseError: "
         "file is not a database); nothing was written. Correct the URL; or, if it was the ledger, restore it"),
        (3, "ledger upgrade", {"LEDGER": f"postgresql://u:{SECRET}@127.0.0.1:1/x"},
         "LedgerUnavailableError: the ledger postgresql+psycopg2://u:***@127.0.0.1:1/x did not answer"),
        (2, "ledger upgrade", {"LEDGER": f"oracle://u:{SECRET}@127.0.0.1/x"},
         "ConfigurationError: the ledger's URL is not an SQLAlchemy URL of SQLite, PostgreSQL or MySQL. Use sqlite:"),
        (2, "loads list --conn-id nowhere", {},
         "ConfigurationError: --conn-id 'nowhere': Airflow has no such connection here. Name one"),
        (2, "loads list --conn-id web",
         {"AIRFLOW_CONN_WEB": json.dumps({"conn_type": "http", "host": "x", "password": SECRET})},
         "ConfigurationError: connection 'web' of type 'http' cannot hold the ledger. Use a connection of one"),
        (2, "demo --folder <home>/demo", {"JAVA_HOME": "/nowhere"},
         "ToolMissingError: A Kafka broker needs Java, and there is none in JAVA_HOME=/nowhere. Install a Java 17"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_and_an_exit_code(
    tmp_path: Path, code: int, arguments: str, environment: dict[str, str], wanted: str
) -> None:
    def placed(text: str) -> str:
        return text.replace("<home>", str(tmp_path))

    names = {"LEDGER": "AIRFLOW_KAFKA_EOS_LEDGER"}
    settings = {names.get(k, k): placed(v) for k, v in environment.items()}
    done = call(tmp_path, *placed(arguments).split(), **settings)
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"airflow-kafka-eos: {placed(wanted)}")
    assert SECRET not in done.stderr + done.stdout


def test_an_unknown_command_shows_the_usage(tmp_path: Path) -> None:
    done = call(tmp_path, "ledgr")
    assert done.returncode == 2
    assert "usage: airflow-kafka-eos" in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("transactions describe -mine-7", {"transactional_id": "-mine-7"}),
        ("transactions describe --transactional-id -mine-7", {"id_by_option": "-mine-7"}),
        ("transactions abort --topic -t --partition 0 --start-offset 5 --yes", {"topic": "-t", "partition": 0}),
        ("loads show -orders -1", {"name": "-orders", "key": "-1"}),
        ("loads show -- --orders k", {"name": "--orders", "key": "k"}),
        ("ledger forget-cluster -qtMF0xLSQ-Gvsr5KOZbEg --yes", {"cluster_id": "-qtMF0xLSQ-Gvsr5KOZbEg", "yes": True}),
    ],
)
def test_a_name_may_begin_with_a_dash(words: str, named: dict[str, object]) -> None:
    given = vars(parser().parse_args(words.split()))
    assert {field: given[field] for field in named} == named


def test_help_and_options_that_are_none_are_still_told(capsys: pytest.CaptureFixture[str]) -> None:
    for words, code, said in (("loads show -h", 0, "usage:"), ("loads list --naem x", 2, "unrecognized arguments:")):
        with pytest.raises(SystemExit) as ended:
            parser().parse_args(words.split())
        assert (ended.value.code, said in "".join(capsys.readouterr())) == (code, True)
