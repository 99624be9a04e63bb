"""The packaged application under a real spark-submit: what it prints, and what it never shows."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_eos import spark as package
from airflow_kafka_eos.errors import ConfigurationError, RecordError
from airflow_kafka_eos.load import TransactionScope
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.errortext import cause, own_error, printed_error
from airflow_kafka_eos.spark.formats.settings import ValueFormat
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.spark.writing import visible

SECRET = "hunter2-never-shown"
APPLICATION = Path(package.__file__).with_name("application.py")
JOB = """
from dataclasses import dataclass
from pyspark.sql.functions import udf

@dataclass
class Row:
    value: "str"

@udf("string")
def shout(text):
    return Row(text.upper()).value

def load(spark, rows):
    return spark.range(0, rows, 1, 2).selectExpr("'v' || id as value").select(shout("value").alias("value"))
"""

BAD_JOBS = """
def nothing(spark):
    return None

def broken(spark):
    raise LookupError("the author's own mistake")
"""


@pytest.fixture
def spec(ref: AttemptRef, tmp_path: Path) -> ApplicationSpec:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    deadline = int(time.time() * 1000) + 120_000
    return ApplicationSpec(
        WriteOptions(ref, str(tmp_path / "m"), ("t",), 60_000, deadline),
        job=str(job),
        job_args={"rows": 10},
    )


def submit(
    spec: ApplicationSpec, servers: str, environment: Mapping[str, str], *conf: str
) -> tuple[int, str, str]:
    """Run spark-submit, at most four minutes; returns (exit code, stdout, stderr)."""
    settings = {"bootstrap.servers": servers, "sasl.username": "user", "sasl.password": SECRET}
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", *conf]
    done = subprocess.run(
        [*command, str(APPLICATION), "--spec", spec.to_json()],
        env=os.environ | environment | {SETTINGS_VARIABLE: json.dumps(settings)},
        cwd=os.path.dirname(spec.options.manifest_dir),
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.broker
@pytest.mark.spark
def test_it_loads_the_authors_dataframe_and_shows_no_secret(
    spec: ApplicationSpec, kafka: LocalKafka, topic: Callable[..., str], spark_env: dict[str, str],
    tmp_path: Path, ref: AttemptRef,
) -> None:
    spec = replace(spec, options=replace(spec.options, topics=(topic(2),)))
    events = tmp_path / "events"
    events.mkdir()
    conf = ("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={events.as_uri()}",
            "--conf", "spark.eventLog.compress=false", "--conf", "spark.ui.enabled=false", "--verbose",
            "--conf", "spark.sql.execution.arrow.maxRecordsPerBatch=777")  # fmt: skip
    code, out, err = submit(spec, kafka.bootstrap_servers, spark_env, *conf)
    assert code == 0, err
    manifest = ManifestStore(spec.options.manifest_dir).read(ref)
    assert manifest.records == 10
    assert "prepared 10 records in 2 transactions" in out
    logged = "".join(p.read_text() for p in events.rglob("*") if p.is_file())
    assert "SparkListenerSQLExecutionStart" in logged  # the log has the plan with its options
    assert "kafka_eos" in logged.lower()
    # wide rows fit into memory whatever their number; what the author says about it counts
    assert '"spark.sql.execution.arrow.maxBytesPerBatch":"4m"' in logged
    assert '"spark.sql.execution.arrow.maxRecordsPerBatch":"777"' in logged
    for place in (logged, out, err, Path(ManifestStore(spec.options.manifest_dir).path(ref)).read_text()):
        assert SECRET not in place


@pytest.mark.broker
@pytest.mark.spark
def test_values_are_made_of_the_columns_and_arranged_for_one_transaction(
    spec: ApplicationSpec, kafka: LocalKafka, topic: Callable[..., str], spark_env: dict[str, str],
    ref: AttemptRef,
) -> None:
    # the value first, then its place: scope load goes by the columns that are left
    assert spec.job is not None
    job = Path(spec.job)
    job.write_text("def load(spark): return spark.range(0, 4, 1, 2).selectExpr('cast(id as string) key', 'id', '1 b')")
    options = replace(spec.options, topics=(topic(2),), scope=TransactionScope.LOAD)
    spec = replace(spec, options=options, value_format=ValueFormat("json"), job_args={})
    code, out, err = submit(spec, kafka.bootstrap_servers, spark_env)
    assert code == 0, out + err
    manifest = ManifestStore(spec.options.manifest_dir).read(ref)
    assert len(manifest.transactions) == 1
    read = visible(kafka, spec.options.topics[0], 2, 4, isolation="read_uncommitted")
    assert sorted(read) == [(b"%d" % i, b'{"id":%d,"b":1}' % i) for i in range(4)]


def test_the_server_of_accumulators_is_not_waited_for_but_where_it_has_a_file() -> None:
    from pyspark.accumulators import _start_update_server

    from airflow_kafka_eos.spark.application import leave_server

    if len(inspect.signature(_start_update_server).parameters) < 3:
        pytest.skip("this PySpark knows no Unix sockets")
    with TemporaryDirectory() as folder:  # a socket's path has 108 characters at most
        servers = (_start_update_server("", False), _start_update_server("", True, os.path.join(folder, "s")))
        contexts: list[Any] = [SimpleNamespace(_accumulatorServer=server) for server in servers]
        for context in contexts:
            leave_server(context)
        assert [context._accumulatorServer for context in contexts] == [None, servers[1]]
        for server in servers:
            server.shutdown()
        assert os.listdir(folder) == []


@pytest.mark.spark
def test_our_error_is_the_last_line(spec: ApplicationSpec, spark_env: dict[str, str]) -> None:
    # and a driver that may not write need not start Spark (rule: one-application-per-attempt)
    ManifestStore(spec.options.manifest_dir).claim(spec.options.attempt, "driver one")
    code, out, err = submit(spec, "127.0.0.1:1", spark_env)
    assert code == 1, err
    # spark-submit sends what its Python driver prints, errors too, to its own stdout
    assert out.splitlines()[-1].startswith(
        "UndecidableError: the attempt was already claimed by driver one"
    ), out
    assert "Running Spark version" not in err


@pytest.fixture
def spark_env() -> dict[str, str]:
    return {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(APPLICATION.parents[2]),
    }


class TestJob:
    """Without a spark-submit: what can be said of a job before Spark runs it."""

    @pytest.fixture
    def bad_jobs(self, tmp_path: Path) -> str:
        (tmp_path / "bad.py").write_text(BAD_JOBS)
        return str(tmp_path / "bad.py")

    def test_a_job_that_returns_no_dataframe_is_told_what_came_back(
        self, spec: ApplicationSpec, bad_jobs: str
    ) -> None:
        from airflow_kafka_eos.spark.job import run_job

        with pytest.raises(ConfigurationError, match="returned nothing, not a Spark DataFrame"):
            run_job(replace(spec, job=f"{bad_jobs}:nothing", job_args={}), None, None)  # type: ignore[arg-type]

    def test_a_function_of_the_dag_file_is_named_as_its_author_knows_it(
        self, spec: ApplicationSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from airflow_kafka_eos.spark import dag_file
        from airflow_kafka_eos.spark.job import run_job

        file = tmp_path / "orders.py"
        file.write_text(
            "from airflow_kafka_eos.spark.dag_file import remember\n"
            "def order_rows(spark):\n    yield 1\n"
            "remember('orders', 'load_orders', order_rows)\n"
        )
        monkeypatch.setattr(dag_file, "_functions", {})
        given = dag_file.job_args(str(file), "orders", "load_orders", {}, [])
        said = rf"the job {file}:order_rows returned generator, not a Spark DataFrame\. Return the DataFrame .*"
        with pytest.raises(ConfigurationError, match=said + r"Of rows, spark\.createDataFrame") as caught:
            run_job(replace(spec, job=dag_file.JOB, job_args=given), None, None)  # type: ignore[arg-type]
        assert "dag_file" not in str(caught.value)

    def test_what_the_authors_code_raises_passes_through(self, spec: ApplicationSpec, bad_jobs: str) -> None:
        from airflow_kafka_eos.spark.job import run_job

        with pytest.raises(LookupError, match="own mistake"):
            run_job(replace(spec, job=f"{bad_jobs}:broken", job_args={}), None, None)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "job",
        [
            "/nowhere/job.py",
            "nowhere.at.all:load",
            "json:nothing",
            ":load",
            "json",
            "airflow_kafka_eos.none:load",
        ],
    )
    def test_a_job_that_is_not_there_is_named(self, job: str) -> None:
        from airflow_kafka_eos.spark.find_job import find_job

        with pytest.raises(ConfigurationError, match=r"cannot be found.*ship files of yours with files or py_files"):
            find_job(job)
        with pytest.raises(ConfigurationError, match=r"cannot be found.*name a file by its absolute path"):
            find_job(job, where="where prepare runs")  # there, nothing is shipped

    def test_a_file_is_run_as_it_stands_also_with_its_old_size_and_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from airflow_kafka_eos.spark.find_job import find_job

        monkeypatch.setattr(sys, "dont_write_bytecode", False)  # some machines have it set, and then nothing is kept
        job = tmp_path / "job.py"
        for answer in (4, 5):
            job.write_text(f"def load():\n    return {answer}\n")
            os.utime(job, (1_000_000_000, 1_000_000_000))
            assert find_job(str(job))() == answer
        assert list(tmp_path.iterdir()) == [job], "nothing is kept beside it"

    def test_a_module_and_a_function_are_found(self) -> None:
        from airflow_kafka_eos.spark.find_job import find_job

        assert find_job("json:dumps") is json.dumps


def test_our_error_is_found_in_sparks_text() -> None:
    text = "Job aborted: Traceback\n  airflow_kafka_eos.errors.RecordError: a row is bad. [load x]\n\tat org.apache"
    assert own_error(RuntimeError(text)) == "RecordError: a row is bad. [load x]"
    assert own_error(RecordError("x")) == "RecordError: x."
    assert own_error(RuntimeError("other")) is None


def test_our_error_is_found_in_what_spark_submit_printed() -> None:
    text = "Cannot execute: x. Error code is: 1.\nLast spark-submit output:\nTopicError: one. Do it.\nWARN: two\n"
    assert printed_error(text + "RecordError: three: four. [load x]\nException: no") == (
        RecordError,
        "three: four. [load x]",
    )
    assert printed_error("ValueError: the author's own\n INFO x: RecordError: not at the start") is None


# as py4j tells of a job that Spark has given up: a Python traceback, Java's stack, and the causes of both
SPARKS = """An error occurred while calling o106.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed 1 times: \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "job.py", line 3, in load
    {}["k"]
    ~~^^^^^
KeyError: 'k'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "job.py", line 5, in load
    raise RecordError("row 7")
RecordError: row 7
and more

\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:1)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "job.py", line 5, in load
RecordError: row 7

\tat java.base/java.lang.Thread.run(Thread.java:1)
Caused by: java.io.IOException: one
\t... 1 more
Caused by: java.net.SocketException: two
Caused by: java.io.IOException: one
\tat java.base/java.lang.Thread.run(Thread.java:2)
"""


class TestCause:
    def test_it_is_in_the_lines_that_tell_it(self) -> None:
        told = cause(RuntimeError(SPARKS))
        assert told[0] == "RuntimeError: An error occurred while calling o106.save."
        assert told[1].startswith("org.apache.spark.SparkException: Job aborted due to stage failure: Task 0")
        assert told[2:] == [
            "KeyError: 'k'",
            "RecordError: row 7",
            "Caused by: java.net.SocketException: two",
            "Caused by: java.io.IOException: one",
        ]

    def test_the_innermost_of_many_causes_are_kept(self) -> None:
        text = "\n".join(["it failed", *(f"Caused by: Exception: {n}" for n in range(20))])
        kept = [f"Caused by: Exception: {n}" for n in range(15, 20)]
        assert cause(ValueError(text)) == ["ValueError: it failed", *kept]

    def test_what_has_no_message_or_cannot_tell_it_has_its_type(self) -> None:
        class JvmGoneError(Exception):
            def __str__(self) -> str:
                raise OSError("no answer")

        assert cause(LookupError()) == ["LookupError"]
        assert own_error(JvmGoneError()) is None
        (line,) = cause(JvmGoneError())
        assert line.startswith(f"{__name__}.") and line.endswith(".JvmGoneError")

    @pytest.mark.parametrize("text", [f"refused {'x' * 470} password={'y' * 80}", "refused " + "z" * 1000])
    def test_a_long_line_is_cut_between_two_words(self, text: str) -> None:
        (line,) = cause(ValueError(text))
        assert line == f"ValueError: {text.rpartition(' ')[0]} …"

    def test_it_is_never_taken_for_an_error_of_ours(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from airflow_kafka_eos.spark import application
        from airflow_kafka_eos.spark.airflow_here import NO_DATABASE

        monkeypatch.setenv(NO_DATABASE, "1")  # what main() sets for its process is taken back from ours

        class RecordError(Exception):
            __module__, __qualname__ = "builtins", "RecordError"

        def prepare(spec_text: str) -> None:
            raise RecordError("RecordError: x\rRecordError: y\nCaused by: RecordError: z")

        monkeypatch.setattr(application, "prepare", prepare)
        assert application.main(["--spec", "{}"]) == 1
        printed = capsys.readouterr().err.splitlines()
        assert printed[0] == "Traceback (most recent call last):"
        told = ["RecordError: RecordError: x", "Caused by: RecordError: z"]
        assert printed[-2:] == [f"airflow-kafka-eos: failed: {line}" for line in told]
        assert printed_error("\n".join(printed[-2:])) is None
