"""A driver whose attempt is over cancels its Spark jobs, and says by whom; one that cannot look goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_kafka_eos import spark as package
from airflow_kafka_eos.errors import RecordError, SupersededError
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark import orphan
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.errortext import printed_error
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.orphan import StopWhenSuperseded
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.spark.conftest import spark_environment

APPLICATION = Path(package.__file__).with_name("application.py")
BY = "aborted by dag/another run#group=load at 2026-01-01T00:00:00+00:00: superseded by attempt 2"
ENDLESS = """
import time
def wait(batches):
    time.sleep(600)
    yield from batches

def load(spark):
    frame = spark.range(0, 10, 1, 2).selectExpr("'v' as value")
    return frame.mapInArrow(wait, frame.schema)
"""


@pytest.mark.broker
@pytest.mark.spark
def test_a_superseded_driver_stops_and_says_by_whom(
    kafka: LocalKafka, topic: Callable[..., str], ref: AttemptRef, tmp_path: Path
) -> None:
    job = tmp_path / "job.py"
    job.write_text(ENDLESS)
    store = ManifestStore(str(tmp_path / "m"))
    deadline = int(time.time() * 1000) + 600_000
    spec = ApplicationSpec(WriteOptions(ref, store.base, (topic(2),), 60_000, deadline), job=str(job))
    settings = {"bootstrap.servers": kafka.bootstrap_servers}
    driver = subprocess.Popen(
        [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]",
         "--conf", "spark.ui.enabled=false", str(APPLICATION), "--spec", spec.to_json()],
        env=os.environ | spark_environment() | {SETTINGS_VARIABLE: json.dumps(settings)},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    # a driver that does not stop must not hold up the test for as long as its tasks sleep
    end_of_patience = threading.Timer(180, os.killpg, (driver.pid, signal.SIGKILL))
    end_of_patience.start()
    lines: list[str] = []
    noted = False
    try:
        assert driver.stdout is not None
        for line in driver.stdout:
            lines.append(line.rstrip())
            # it may come once more before the driver looks
            if f"load {ref}: 0 of 2 tasks done, 2 running, nothing written yet (stage" in line and not noted:
                noted = store.note_superseded(ref, BY)
                assert noted
        code = driver.wait(60)
    finally:
        end_of_patience.cancel()
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    out = "\n".join(lines)
    assert code == 1, out
    assert f"airflow-kafka-eos: load {ref} is superseded: its Spark jobs are cancelled" in out
    # spark-submit's own lines go elsewhere: Airflow reads the error from the last ones
    assert lines[-1].startswith("SupersededError: "), out
    kind, message = printed_error(out) or (None, "")
    assert kind is SupersededError
    assert f"while it was written: {BY}." in message
    assert message.endswith(f"[load {ref.load}, attempt 1]")


def await_found(watch: StopWhenSuperseded) -> None:
    for _ in range(3000):
        if watch._found is not None:
            return
        time.sleep(0.01)
    raise AssertionError("it never looked")


def test_an_error_that_comes_of_the_cancelling_gives_way(ref: AttemptRef, tmp_path: Path) -> None:
    store = ManifestStore(str(tmp_path))
    cancelled = threading.Event()
    with (
        pytest.raises(SupersededError, match="superseded by attempt 2") as caught,
        StopWhenSuperseded(store, ref, poll_s=0.01) as watch,
    ):
        watch.cancels(cancelled.set)
        watch.check()
        store.note_superseded(ref, BY)
        await_found(watch)
        assert cancelled.wait(30)
        with pytest.raises(SupersededError):
            watch.check()
        raise RuntimeError("Job 3 cancelled as part of cancellation of all jobs")
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("there", ["nothing", "a folder", "no JSON", "another attempt's"])
def test_a_driver_that_cannot_look_goes_on(ref: AttemptRef, tmp_path: Path, there: str) -> None:
    """Whatever is wrong with the store: what it writes is refused elsewhere if it is to be."""
    store = ManifestStore(str(tmp_path))
    place = Path(store.path(ref)).with_suffix(".superseded")
    place.parent.mkdir(parents=True)
    if there == "a folder":
        place.mkdir()
    elif there == "no JSON":
        place.write_text("{")
    elif there == "another attempt's":
        place.with_name("2.superseded").write_text(json.dumps({"superseded_by": BY}))
    looks = []
    with StopWhenSuperseded(store, ref, poll_s=0.01) as watch:
        look = watch._look
        watch._look = lambda: looks.append(look())  # type: ignore[method-assign]
        while len(looks) < 3:
            time.sleep(0.01)
        watch.check()
    assert set(looks) == {None}
    with pytest.raises(RecordError, match="own"), StopWhenSuperseded(store, ref, poll_s=0.01):
        raise RecordError("the job's own error")


def test_what_was_superseded_before_it_began_does_nothing(ref: AttemptRef, tmp_path: Path) -> None:
    """As where a platform runs an application late, or once more."""
    store = ManifestStore(str(tmp_path))
    store.note_superseded(ref, BY)
    with pytest.raises(SupersededError, match="superseded by attempt 2"), StopWhenSuperseded(store, ref):
        raise AssertionError("it has begun")


def test_a_note_is_left_once_and_kept(ref: AttemptRef, tmp_path: Path) -> None:
    store = ManifestStore(str(tmp_path))
    assert store.superseded_by(ref) is None
    assert store.note_superseded(ref, BY)
    assert not store.note_superseded(ref, "somebody else")
    assert store.superseded_by(ref) == BY


STUBBORN = """
import sys, time
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.spark import orphan as superseded
from airflow_kafka_eos.spark.manifest_store import ManifestStore

superseded._LAST_S, superseded._AGAIN_S = 0.5, 0.1
ref, store = AttemptRef(LoadIdentity("n", "l", "k"), "0" * 10, 1), ManifestStore(sys.argv[1])
with superseded.StopWhenSuperseded(store, ref, poll_s=0.1):
    store.note_superseded(ref, "a person")
    time.sleep(300)
"""


def test_a_job_that_waits_for_something_else_than_spark_is_ended(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUBBORN, str(tmp_path)], env=os.environ | spark_environment(),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == orphan.SUPERSEDED_EXIT_CODE
    assert done.stderr.splitlines()[-1].startswith("SupersededError: the attempt was superseded or aborted while")


#: The one server of its jobs has stopped answering, and the job waits for something else.
WOKEN = STUBBORN.replace(
    "poll_s=0.1):", "poll_s=0.1, in_task=True) as watch:\n    watch.cancels(lambda: time.sleep(300))"
)


def test_a_task_that_does_so_is_woken_and_fails_by_that_error(tmp_path: Path) -> None:
    """By an exit alone Airflow would try again, and supersede the newest attempt in turn."""
    script = WOKEN.replace("with superseded", "try:\n  with superseded").replace("\n    ", "\n      ")
    script += "except superseded.SupersededError as e:\n    print('said', e, flush=True)\n"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=os.environ | spark_environment(),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("said the attempt was superseded or aborted while")


def test_the_signal_that_wakes_is_whose_it_was(ref: AttemptRef, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with StopWhenSuperseded(ManifestStore(str(tmp_path)), ref, in_task=True):
        assert signal.getsignal(signal.SIGUSR1) != before
    assert signal.getsignal(signal.SIGUSR1) == before
