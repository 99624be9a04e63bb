"""An application does not outlive the task that submitted it: zombies are short-lived.

Rule: writers-have-a-deadline.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from airflow_kafka_eos import spark as package
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.orphan import EXIT_CODE, PARENT_VARIABLE, identity_of, is_alive
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.spark.conftest import spark_environment

CHILD = """
import os, time
from airflow_kafka_eos.spark.orphan import end_with_parent
end_with_parent(os.environ)
print("watching", flush=True)
time.sleep(60)
"""


#: They begin a program in a PID namespace of its own, with a /proc of that; a plain user needs one of users, too.
OWN_PIDS = ("unshare", "--map-root-user", "--pid", "--fork", "--mount-proc")
#: As a user who sees nobody else's processes in /proc; that takes root.
HIDDEN = ("unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh",
          "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")  # fmt: skip


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])


def _gone() -> str:
    """The identity of a process that has ended, and that nobody waits for any more."""
    process = _sleeper()
    identity = identity_of(process.pid)
    process.kill()
    process.wait(30)
    return identity


def _with(identity: str, *, started: str = "", place: str | None = None) -> str:
    pid, mine, here = identity.split(":", 2)
    return f"{pid}:{mine}{started}" + (f":{here}" if place is None else place)


def _child(identity: str, *before: str) -> subprocess.CompletedProcess[str]:
    """A driver that begins behind this parent, and works for two seconds."""
    code = CHILD.replace("time.sleep(60)", "time.sleep(2)")
    return subprocess.run(
        [*before, sys.executable, "-c", code],
        timeout=60,
        env=os.environ | {PARENT_VARIABLE: identity},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )


def _can(*before: str) -> bool:
    try:
        return subprocess.run([*before, sys.executable, "-c", "import airflow_kafka_eos"], check=False).returncode == 0
    except FileNotFoundError:
        return False


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
    assert not is_alive(_with(mine, started="9"))


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


def test_where_the_parent_is_gone_before_the_application_begins_it_opens_nothing(tmp_path: Path) -> None:
    """A JVM takes seconds to start, and the worker may be killed meanwhile: neither claim nor Spark."""
    load = AttemptRef(LoadIdentity("tests", "spark", "orphan"), "00000000bb", 1)
    manifests = tmp_path / "m"
    options = WriteOptions(load, str(manifests), ("t",), 60_000, int(time.time() * 1000) + 600_000)
    application = str(Path(package.__file__).with_name("application.py"))
    spec = ApplicationSpec(options, job=str(tmp_path / "none.py")).to_json()
    done = subprocess.run(
        [sys.executable, application, "--spec", spec],
        timeout=120,
        env=os.environ | spark_environment() | {PARENT_VARIABLE: _gone()},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, manifests.exists()) == (EXIT_CODE, False)
    assert "task is gone" in done.stdout


def test_nor_where_its_pid_is_a_zombies_or_another_process_has_it_by_then() -> None:
    assert _child(_with(identity_of(os.getpid()), started="9")).returncode == EXIT_CODE
    zombie = _sleeper()
    identity = identity_of(zombie.pid)
    zombie.kill()
    while is_alive(identity):
        time.sleep(0.05)
    assert _child(identity).returncode == EXIT_CODE
    zombie.wait(30)


@pytest.mark.parametrize(
    "place",
    ["", ":", f":{uuid.uuid4()}/{os.readlink('/proc/self/ns/pid')}", f":{os.readlink('/proc/self/ns/pid')}"],
    ids=["an older version's", "not known", "another host's", "a namespace that other hosts have, too"],
)
def test_a_parent_of_another_place_is_not_watched(place: str) -> None:
    """A healthy application must not end itself."""
    assert _child(_with(_gone(), place=place)).returncode == 0


def test_nor_is_one_that_another_pid_namespace_hides() -> None:
    if not _can(*OWN_PIDS):
        pytest.skip("no PID namespace can be made here")
    assert _child(identity_of(os.getpid()), *OWN_PIDS).returncode == 0


def test_where_proc_has_the_pids_of_another_namespace_nothing_is_known_by_it() -> None:
    around = OWN_PIDS[:-1]  # without --mount-proc
    if not _can(*around):
        pytest.skip("no PID namespace can be made here")
    code = "import os\nfrom airflow_kafka_eos.spark.orphan import identity_of\nprint(identity_of(os.getpid()))"
    done = subprocess.run([*around, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.endswith(":\n")
    assert _child(_with(_gone(), place=":"), *around).returncode == 0  # not known on either side


def test_nor_is_one_that_hidepid_hides() -> None:
    if not _can(*HIDDEN):
        pytest.skip("/proc cannot be mounted with hidepid here, or another user cannot read this package")
    assert _child(identity_of(os.getpid()), *HIDDEN).returncode == 0
    assert _child(_gone(), *HIDDEN).returncode == EXIT_CODE  # this is known there, too
