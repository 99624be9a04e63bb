"""In a shell: nothing that a person types, or does, ends in a traceback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from airflow_kafka_eos.ledger.ledger import Ledger
from tests.cli.shell import SCRIPT, environment, shell
from tests.ctrl_c import heed_ctrl_c

NOBODY = ("--bootstrap-server", "127.0.0.1:1")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Ledger.open(f"sqlite:///{tmp_path}/kafka_eos_ledger.db", upgrade=True).close()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("doctor", *NOBODY, "--hold-time", "nan"), "argument --hold-time: 'nan' is no time"),
        (("transactions", "list", *NOBODY, "--timeout", "inf"), "argument --timeout: 'inf' is no time"),
        (("transactions", "list", *NOBODY, "--timeout", "1e400"), "argument --timeout: '1e400' is no time"),
        (("transactions", "list", *NOBODY, "--timeout", "999999999999"), "is more than 24 days"),
        (("loads", "recover", "a", "b", *NOBODY, "--deadline", "-1"), "argument --deadline: '-1' is no time"),
        (("transactions", "list", *NOBODY, "--running-longer-than", "999999999999d"), "is more than 36500 days"),
        (("cleanup", *NOBODY, "--abandoned-after", "999999999999d"), "is more than 36500 days"),
        (("ids", "settle", "a", "9" * 5000), "is no whole number from 0 to"),
        (("demo", "--days", "9" * 5000), "is no whole number from 5 to 365"),
        (("doctor", *NOBODY, "--max-transactional-ids", "9" * 5000), "is no whole number from 1 to"),
        (("transactions", "list", *NOBODY, "--transactional-id-pattern", "("), "is no regular expression"),
        (("loads", "show", b"\xff", "b"), "argument 3, '\\udcff', is not UTF-8"),
        (("transactions", "abort", "x", "--reason", b"caf\xe9", *NOBODY), "argument 5, 'caf\\udce9', is not UTF-8"),
        (("spark-archive", "/nowhere/x.zip"), "cannot be written"),
        (("transactions", "describe", *NOBODY), "the following arguments are required: ID"),
        (("transactions", "describe", "a", "--transactional-id", "b", *NOBODY), "name it once"),
        (("transactions", "abort", "--topic", "t", "--partition", "0", *NOBODY), "name ID, or all of --topic"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_words(home: Path, arguments: tuple[str | bytes, ...], says: str) -> None:
    done = shell(home, *arguments)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"AIRFLOW_KAFKA_EOS_LEDGER": "sqlite:////tmp/\udcff.db"}, "the ledger's URL is not UTF-8"),
        ({"AIRFLOW_KAFKA_EOS_LEDGER": "postgresql://u@[::1/x"}, "is not an SQLAlchemy URL"),
        ({"AIRFLOW__KAFKA_EOS__LEDGER_CONN_ID": "\udcff"}, "Airflow has no such connection here"),
    ],
)
def test_an_environment_that_is_none_is_named(home: Path, more: dict[str, str], says: str) -> None:
    done = shell(home, "loads", "list", more=more)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_brokers_are_waited_for_ends_with_130_and_no_traceback(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(120)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        waiting = subprocess.Popen(
            [SCRIPT, "transactions", "list", "--bootstrap-server", address, "--timeout", "200"],
            env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=heed_ctrl_c,
        )  # fmt: skip
        try:
            accepted, _ = silent.accept()
            waiting.send_signal(signal.SIGINT)
            out, err = waiting.communicate(timeout=120)
            accepted.close()
        finally:
            waiting.kill()
    assert (waiting.returncode, out) == (130, "")
    (line,) = err.splitlines()
    assert line.startswith("airflow-kafka-eos: interrupted")


def test_a_reader_that_has_gone_is_no_error_of_ours(home: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = shell(home, "loads", "list", stdout=write)
    finally:
        os.close(write)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_a_full_disk_behind_the_answer_is_said(home: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = shell(home, "loads", "list", stdout=full)
    finally:
        os.close(full)
    assert done.returncode == 2 and "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_what_the_terminal_cannot_show_is_shown_otherwise(home: Path) -> None:
    done = shell(home, "spark-archive", "é.zip", more={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and done.stdout.startswith("\\xe9.zip: "), done.stderr
