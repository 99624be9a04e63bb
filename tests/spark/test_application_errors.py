"""Bad input as whoever reads the packaged application's output meets it: its last lines, exit code 1, nothing open.

The cases run in one driver process, one application after the other; logins need a driver of their own, for a
Spark driver's environment is that of its JVM's start. What the data source refuses by itself is in test_datasource.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos import spark as package
from airflow_kafka_eos.errors import ManifestError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import namespace_prefix
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.spark import quick_settings
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.errortext import printed_error
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.secured import PASSWORD, Secured, free_port

pytestmark = [pytest.mark.broker, pytest.mark.spark]

APPLICATION = Path(package.__file__).with_name("application.py")
LEDGER = "00000000cc"
#: an address where no broker is, and the application that asks for one there
Away = tuple[str, subprocess.Popen[str]]

JOBS = """
from pyspark.sql.functions import udf

def nothing(spark):
    return None

def broken(spark):
    raise LookupError("the author's own mistake")

@udf("string")
def refused(number):
    raise ValueError(f"row {number} is bad\\nand more")

def bad_row(spark):
    return spark.range(7, 8, 1, 1).select(refused("id").alias("value"))
"""

#: what is prepared -> the last line; the good row of a task comes before the bad one
GOOD_THEN = "select /*+ COALESCE(1) */ * from (select 'g' value, 0 partition union all {})"
CASES: dict[str, tuple[dict[str, str], str]] = {
    "topic missing": (
        {"sql": "select 'v' value", "topics": "nowhere"},
        "TopicError: topic nowhere does not exist on 127.0.0.1:",
    ),
    "record too large": (
        {"sql": GOOD_THEN.format("select repeat('v', 5000), 0")},
        "RecordError: a record without key of 5000 bytes (key, value and headers) is too large for topic 'TOPIC' "
        "partition 0, which takes at most 4000 bytes per batch (max.message.bytes)",
    ),
    "job file missing": (
        {"job": "/nowhere/job.py"},
        "ConfigurationError: the job '/nowhere/job.py' cannot be found: there is no file /nowhere/job.py where the "
        "Spark driver runs. Use file.py",
    ),
    "job without the function": (
        {"job": "JOBS:lod"},
        "ConfigurationError: the job 'JOBS:lod' cannot be found: JOBS has no function 'lod'. Use file.py",
    ),
    "job returning None": (
        {"job": "JOBS:nothing"},
        "ConfigurationError: the job JOBS:nothing returned nothing, not a Spark DataFrame. Return the DataFrame",
    ),
    "job raising": (
        {"job": "JOBS:broken"},
        "airflow-kafka-eos: failed: LookupError: the author's own mistake",
    ),
    "job with a bad row": (
        {"job": "JOBS:bad_row"},
        "airflow-kafka-eos: failed: ValueError: row 7 is bad",
    ),
}

DRIVER = """
import contextlib, io, json, sys
from airflow_kafka_eos.spark.application import main
said = {}
for name, spec in json.load(open(sys.argv[1])).items():
    lines = io.StringIO()
    with contextlib.redirect_stdout(lines), contextlib.redirect_stderr(lines):
        code = main(["--spec", spec])
    said[name] = code, lines.getvalue()
json.dump(said, open(sys.argv[1] + ".said", "w"))
"""


def ref_of(case: str) -> AttemptRef:
    return AttemptRef(LoadIdentity("tests", "bad input", case), LEDGER, 1)


def a_spec(
    case: str, folder: Path, topic: str = "t", sql: str | None = "select 'v' value", job: str | None = None
) -> ApplicationSpec:
    deadline = int(time.time() * 1000) + 240_000
    options = WriteOptions(ref_of(case), str(folder / "m"), (topic,), 60_000, deadline)
    return ApplicationSpec(options, sql=sql, job=job)


def environment(folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    return os.environ | quick_settings(folder / "conf") | {
        "PYTHONPATH": str(APPLICATION.parents[2]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": "--master local[2] pyspark-shell",
        SETTINGS_VARIABLE: json.dumps(settings),
    }  # fmt: skip


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jobs") / "jobs.py"
    path.write_text(JOBS)
    return path


@pytest.fixture(scope="module")
def topic_name(kafka: LocalKafka) -> str:
    kafka.create_topic("bad-input", partitions=2, config={"max.message.bytes": "4000"})
    return "bad-input"


@pytest.fixture(scope="module")
def said(
    kafka: LocalKafka, topic_name: str, jobs: Path, away: Away, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """case -> (exit code, what was printed)."""
    folder = tmp_path_factory.mktemp("errors")
    specs = {}
    for case, (given, _) in CASES.items():
        job = given.get("job")
        spec = a_spec(
            case,
            folder,
            sql=given.get("sql"),
            job=job and job.replace("JOBS", str(jobs)),
            topic=given.get("topics", topic_name),
        )
        specs[case] = spec.to_json()
    (folder / "specs.json").write_text(json.dumps(specs))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(folder / "specs.json")],
        env=environment(folder, {"bootstrap.servers": kafka.bootstrap_servers}),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads((folder / "specs.json.said").read_text())


def still_open(bootstrap_servers: str) -> list[str]:
    with Wire(KafkaSettings.from_mapping({"bootstrap.servers": bootstrap_servers})) as wire:
        return Coordinator(wire, namespace="tests", ledger_id=LEDGER).list_open(namespace_prefix("tests", LEDGER))


@pytest.mark.parametrize("case", CASES)
def test_the_last_line_says_what_is_wrong_and_what_to_do(
    said: tuple[Path, dict[str, Any]], jobs: Path, topic_name: str, case: str
) -> None:
    folder, cases = said
    code, printed = cases[case]
    wanted = CASES[case][1].replace("JOBS", str(jobs)).replace("TOPIC", topic_name)
    last = printed.splitlines()[-1]
    assert (code, last[: len(wanted)]) == (1, wanted), printed
    if case in ("job raising", "job with a bad row"):  # the author's own error, behind his stack
        assert f'File "{jobs}", line ' in printed
        assert printed_error(printed) is None
    store = ManifestStore(str(folder / "m"))
    with pytest.raises(ManifestError):
        store.read(ref_of(case))
    # for Airflow, which does not see this output from everywhere
    word = store.failure(ref_of(case))
    assert word is not None and " ".join(wanted.split()) in word, (wanted, word)


def test_nothing_stays_open(said: tuple[Path, dict[str, Any]], kafka: LocalKafka) -> None:
    # some tasks had sent good rows before
    end = time.monotonic() + 20
    while (found := still_open(kafka.bootstrap_servers)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not found


def submit(case: str, folder: Path, settings: Mapping[str, str]) -> subprocess.Popen[str]:
    """One spark-submit, begun."""
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]", str(APPLICATION), "--spec",
         a_spec(case, folder).to_json()],
        env=environment(folder, settings), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Away]:
    """A spark-submit that asks half a minute for a broker that is not there, while the other tests run."""
    nowhere, folder = f"127.0.0.1:{free_port()}", tmp_path_factory.mktemp("away")
    process = submit("away", folder, {"bootstrap.servers": nowhere, "sasl.password": PASSWORD})
    yield nowhere, process
    process.kill()
    process.communicate()


def test_a_broker_that_refuses_the_login_is_named(secured: Secured, tmp_path: Path) -> None:
    submitted = submit("login", tmp_path, secured.extra(sasl_password=PASSWORD + "-wrong"))
    out, err = submitted.communicate(timeout=120)
    last = out.splitlines()[-1]
    assert last.startswith(f"AccessError: the Kafka brokers at {secured.address} refused the login"), out + err
    assert "Check security.protocol, sasl.mechanism, sasl.username and sasl.password" in last
    assert PASSWORD not in out + err
    assert submitted.returncode == 1


def test_a_broker_that_is_not_there_is_named(away: Away) -> None:
    nowhere, submitted = away
    out, err = submitted.communicate(timeout=120)
    last = out.splitlines()[-1]
    assert last.startswith(f"BrokerUnavailableError: the Kafka brokers at {nowhere} cannot be reached"), out + err
    assert "Check bootstrap.servers" in last
    assert PASSWORD not in out + err
    assert submitted.returncode == 1
