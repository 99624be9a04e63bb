"""An application does not outlive the task that submitted it: zombies are short-lived.

Rule: writers-have-a-deadline.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from airflow_kafka_eos.spark.orphan import EXIT_CODE, PARENT_VARIABLE, identity_of, is_alive

CHILD = """
import os, time
from airflow_kafka_eos.spark.orphan import end_with_parent
end_with_parent(os.environ)
print("watching", flush=True)
time.sleep(60)
"""


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])


def test_it_ends_when_its_parent_is_killed() -> None:
    parent = _sleeper()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env=os.environ | {PARENT_VARIABLE: identity_of(parent.pid)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "watching\n"
    assert child.poll() is None
    parent.kill()  # not waited for yet: a zombie is gone, too
    assert child.wait(30) == EXIT_CODE
    assert "task is gone" in child.stdout.read()
    parent.wait(30)


def test_another_process_with_the_same_pid_is_not_the_parent() -> None:
    mine = identity_of(os.getpid())
    assert is_alive(mine)
    assert not is_alive(f"{mine}9")


def test_a_process_that_ended_is_gone() -> None:
    process = _sleeper()
    identity = identity_of(process.pid)
    assert is_alive(identity)
    process.kill()
    process.wait(30)
    until = time.monotonic() + 10
    while is_alive(identity):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_without_a_parent_nothing_is_watched() -> None:
    code = f"import os; os.environ.pop({PARENT_VARIABLE!r}, None)\n{CHILD.replace('time.sleep(60)', '')}"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_parent_that_cannot_be_seen_to_begin_with_is_not_watched() -> None:
    """Another PID namespace, or hidepid: a healthy application must not end itself."""
    code = CHILD.replace("time.sleep(60)", "time.sleep(2)")
    invisible = f"{identity_of(os.getpid())}9"
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=60, env=os.environ | {PARENT_VARIABLE: invisible}
    )
    assert done.returncode == 0
