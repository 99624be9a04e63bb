"""The processes of one Airflow, found by its home and by what they were started with; ended by their ids."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.keeping import WATCH
from airflow_kafka_eos.spark.spec import ApplicationSpec
from airflow_kafka_eos.spark.spec_argument import read_spec

GONE_SECONDS = 10.0


def _of(airflow: LocalAirflow) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("AIRFLOW_HOME") == str(airflow.home):
                yield process


def component(airflow: LocalAirflow, name: str) -> psutil.Process:
    """``airflow <name>``; of several of that name the first, whose children the others are."""
    for process in _of(airflow):
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            # by itself, not who watches it
            ours = any(Path(part).name == "airflow" for part in line[:-1]) and str(WATCH) not in line
            if line[-1:] == [name] and ours:
                return process
    raise AssertionError(f"no airflow {name} of {airflow.home}")


def restart(
    airflow: LocalAirflow, name: str, settings: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a component beside the others, as an init would, in a session of its own; see :func:`end_session`.

    :param settings: further environment, such as another AIRFLOW_HOME.
    """
    with (airflow.home / f"{name}-again.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "airflow", name],
            env=airflow.env | dict(settings or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill(*processes: psutil.Process) -> None:
    """SIGKILL, and wait until they are gone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    # a child of somebody who never waits for it stays behind as a zombie: that is dead enough
    _, alive = psutil.wait_procs(processes, timeout=GONE_SECONDS)
    assert all(p.status() == psutil.STATUS_ZOMBIE for p in alive if p.is_running()), alive


def of_session(session: int) -> list[psutil.Process]:
    """Who lives in it. LocalExecutor's workers outlive a scheduler, and their title overwrites their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_session(leader: subprocess.Popen[bytes]) -> None:
    """SIGKILL of a component that :func:`restart` started, and of all that it has left."""
    kill(*of_session(leader.pid))
    leader.wait(GONE_SECONDS)


def submit_of(airflow: LocalAirflow, ref: AttemptRef) -> psutil.Process:
    """The spark-submit JVM of an attempt."""
    for process in _of(airflow):
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if not any("SparkSubmit" in part for part in line) or "--spec" not in line:
                continue
            if ApplicationSpec.from_json(read_spec(line[line.index("--spec") + 1])).options.attempt == ref:
                return process
    raise AssertionError(f"no spark-submit of {ref}")
