"""``broker``: what somebody without a cluster tries loads on; as a process, as it is printed, ended by Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.cli.shell import SCRIPT
from tests.ctrl_c import heed_ctrl_c
from tests.secured import free_port

pytestmark = pytest.mark.broker


def run(folder: Path, port: int, *topics: str) -> tuple[set[str], int, str]:
    """Until it says where it listens; its topics then, and how Ctrl-C ended it."""
    words = [word for topic in topics for word in ("--topic", topic)]
    started = subprocess.Popen(
        [SCRIPT, "broker", "--port", str(port), "--folder", str(folder), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )
    try:
        assert started.stdout is not None
        said = ""
        for line in started.stdout:
            said += line
            if "airflow connections add" in line:
                break
        (address,) = re.findall(r"listens on (\S+);", said) or pytest.fail(said)
        topics_now = set(AdminClient({"bootstrap.servers": address}).list_topics(timeout=30).topics)
        started.send_signal(signal.SIGINT)
        return topics_now, started.wait(60), said
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)


def test_it_listens_where_it_was_told_to_and_keeps_what_it_had(tmp_path: Path) -> None:
    port = free_port()
    topics, code, said = run(tmp_path, port, "orders", "returns")
    assert ({"orders", "returns"} <= topics, code) == (True, 130)
    assert f'{{"bootstrap.servers": "127.0.0.1:{port}"}}' in said
    topics, code, _ = run(tmp_path, port, "orders", "more")
    assert ({"orders", "returns", "more"} <= topics, code) == (True, 130)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [SCRIPT, "broker", "--port", str(port), "--folder", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 2 and f"somebody listens on 127.0.0.1:{port} already" in done.stderr, done.stderr
