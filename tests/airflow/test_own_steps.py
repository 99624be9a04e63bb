"""begin >> submit >> collect by their own ``execute``, on a real ledger and broker; the platform is a function here.

The operator of the author's is a PythonOperator or a deferring one; what it runs is the arrow engine in this process,
in the packaged application's place: starting Spark is what takes the time. The last test has the application itself.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator

from airflow_kafka_eos import ExactlyOnceLoad, Submit, Transactions
from airflow_kafka_eos.arrow.engine import prepare as write_here
from airflow_kafka_eos.arrow.stream import Bounds
from airflow_kafka_eos.errors import NotFinishedError, SupersededError
from airflow_kafka_eos.hooks import KafkaEosHook
from airflow_kafka_eos.ledger.rows import AttemptRow, RepairRow, RepairState
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.orphan import PARENT_VARIABLE
from airflow_kafka_eos.spark.spec import ApplicationSpec
from airflow_kafka_eos.spark.spec_argument import read_spec
from tests.airflow.steps import CONTEXT, LOAD, Instance, open_ids, run, session, state
from tests.airflow.test_repreparing_steps import all_there_once, finish, lose
from tests.kafka.open_transactions import wait_until
from tests.reading import committed_values

HUNDRED = sorted(f"v{n}" for n in range(100))
WORD = "{{ kafka_eos.spec }}"
#: What a platform was asked to run.
asked: list[str] = []


def rows(numbers: int = 100, error: str = "", wait: Callable[[], object] = lambda: None) -> Any:
    import pyarrow as pa

    def batches() -> Iterator[pa.RecordBatch]:
        wait()
        for n in range(0, numbers, 50):
            ids = range(n, min(n + 50, numbers))
            yield pa.record_batch([[str(i) for i in ids], [f"v{i}" for i in ids]], names=["key", "value"])
        if error:
            raise OSError(error)

    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    return pa.RecordBatchReader.from_batches(schema, batches())


def application(
    argument: str, numbers: int = 100, error: str = "", wait: Callable[[], object] = lambda: None
) -> None:
    """What the platform runs: it has the spec, its own login, and manifest_dir."""
    asked.append(argument)
    spec = ApplicationSpec.from_json(read_spec(argument))
    store = ManifestStore(spec.options.manifest_dir)
    settings = KafkaEosHook().resolve().settings
    made = rows(numbers, error, wait)
    write_here(spec, settings, store, lambda: made, bounds=Bounds(10**8, None), stop=threading.Event(), say=print)


def claims(argument: str) -> None:
    """It begins, and is at work for ever."""
    asked.append(argument)
    spec = ApplicationSpec.from_json(read_spec(argument))
    ManifestStore(spec.options.manifest_dir).claim(spec.options.attempt, "a driver that is at work")


class Run:
    """One run of a group with an operator of the author's."""

    def __init__(self, key: str, submit: Submit, *, run_id: str = "run", **given: Any) -> None:
        self.key, self.run_id = key, run_id
        self.xcoms: dict[tuple[str, str], Any] = {}
        self._submit = submit
        self._given: dict[str, Any] = {"load_name": LOAD, "load_key": key, "job": "rows.py", **given}

    def group(self) -> ExactlyOnceLoad:
        """As each process parses it anew."""
        with DAG("dag", schedule=None, start_date=datetime(2026, 1, 1)):
            return ExactlyOnceLoad("load", submit=self._submit, **self._given)

    def context(self, step: str, *, try_number: int = 1, **more: Any) -> Any:

        def states(task_ids: list[str], **_: Any) -> Any:
            return {self.run_id: {name: state for name, state in more.items() if name in task_ids}}

        ti = Instance(
            dag_id="dag", run_id=self.run_id, map_index=-1, task_id=f"load.{step}", xcoms=self.xcoms,
            get_task_states=states, try_number=try_number, id=f"try {try_number} of {self.run_id}",
        )  # fmt: skip
        return CONTEXT | {"ti": ti, "params": {}, "run_id": self.run_id, "dag": self.group().begin.dag}

    def __call__(self, step: str, **states: Any) -> Any:
        task: Any = getattr(self.group(), {"collect": "prepare"}.get(step, step))
        context = self.context(step, **states)
        task.render_template_fields(context)
        return task.execute(context)


def python(call: Callable[..., Any] = application, **arguments: Any) -> Submit:
    return Submit(PythonOperator, python_callable=call, op_args=[WORD], op_kwargs=arguments)


@pytest.fixture
def manifests(home: Path) -> str:
    asked.clear()
    return str(home / "manifests")


@pytest.fixture
def given(topic: Callable[..., str], manifests: str) -> dict[str, Any]:
    return {"topics": [topic(1)], "manifest_dir": manifests}


def attempts(key: str) -> list[AttemptRow]:
    with session() as opened:
        found: list[AttemptRow] = opened.ledger.attempts(LoadIdentity("airflow", LOAD, key))
        return found


def open_repairs(key: str) -> list[RepairRow]:
    with session() as opened:
        found = opened.ledger.repairs(LoadIdentity("airflow", LOAD, key))
        return [repair for repair in found if repair.state is RepairState.OPEN]


def written_and_lost(kafka: LocalKafka, key: str, given: dict[str, Any]) -> None:
    """Decided, and lost before Kafka was told; it is gone from the log."""
    load = Run(key, python(), decide_at_once=False, **given)
    load("begin")
    load("submit")
    load("collect")
    spec = ApplicationSpec.from_json(read_spec(asked[-1]))
    lose(kafka, key, ManifestStore(spec.options.manifest_dir).read(spec.options.attempt), 0)


@contextmanager
def ends(said: str) -> Iterator[None]:
    """It fails with this, without retries."""
    with pytest.raises(AirflowFailException, match=said):
        yield


def test_a_load_goes_its_way_and_is_submitted_once(
    kafka: LocalKafka, given: dict[str, Any], manifests: str
) -> None:
    def submit(argument: str) -> str:
        application(argument)
        return "the platform's answer"

    load = Run("way", python(submit), **given)
    assert load("begin")["attempt"] == 1
    assert load("submit") == "the platform's answer"
    told = load.xcoms["load.submit", "kafka_eos"]
    assert (told["attempt"], read_spec(f"@{told['spec_file']}")) == (1, read_spec(asked[0]))
    assert told["spec_file"].startswith(manifests)
    assert committed_values(kafka.bootstrap_servers, given["topics"][0], 1) == []
    made = load("collect")
    assert (made["records"], made["attempt"], made["verdict"]) == (100, 1, "commit")
    finish("way")
    all_there_once(kafka, "way", given["topics"][0], 1, HUNDRED)
    # cleared: nothing runs, and both say the same
    assert load("submit") is None and len(asked) == 1
    assert load("collect")["verdict"] == "commit"
    assert [row.number for row in attempts("way")] == [1]


def test_each_try_has_an_attempt_of_its_own(kafka: LocalKafka, given: dict[str, Any]) -> None:
    """Rule: one-application-per-attempt."""
    load = Run("tries", python(error="no disk"), **given)
    load("begin")
    with pytest.raises(Exception, match="no disk"):
        load("submit")
    good = Run("tries", python(), **given)
    good("submit")
    assert len({read_spec(one) for one in asked}) == 2
    first, second = attempts("tries")
    assert first.is_submitted and not first.is_prepared and first.verdict is not None and second.verdict is None
    assert good("collect")["attempt"] == 2
    finish("tries")
    all_there_once(kafka, "tries", given["topics"][0], 1, HUNDRED)


def test_what_the_application_said_comes_before_the_operators_error(given: dict[str, Any]) -> None:
    def fails(argument: str, word: str) -> None:
        spec = ApplicationSpec.from_json(read_spec(argument))
        ManifestStore(spec.options.manifest_dir).note_failed(spec.options.attempt, word)
        raise RuntimeError("run 17 has failed")

    load = Run("said", python(fails, word="RecordError: row 7 has no topic"), **given)
    load("begin")
    with ends("RecordError: row 7 has no topic"):
        load("submit")
    load = Run("said", python(fails, word="BrokerUnavailableError: it is away"), **given)
    with pytest.raises(AirflowException, match="BrokerUnavailableError: it is away") as caught:
        load("submit")
    assert not isinstance(caught.value, AirflowFailException)
    with session() as opened:
        row = opened.ledger.load(LoadIdentity("airflow", LOAD, "said"))
        assert row is not None and "submit failed: " in row.reason and "it is away" in row.reason


def test_a_skip_of_the_operators_stays_one(given: dict[str, Any]) -> None:
    def skips(argument: str) -> None:
        spec = ApplicationSpec.from_json(read_spec(argument))
        ManifestStore(spec.options.manifest_dir).note_failed(spec.options.attempt, "RecordError: row 7 has no topic")
        raise AirflowSkipException("nothing today")

    load = Run("skipped", python(skips), **given)
    load("begin")
    with pytest.raises(AirflowSkipException, match="nothing today"):
        load("submit")


def test_what_is_lost_is_prepared_again(kafka: LocalKafka, given: dict[str, Any], manifests: str) -> None:
    from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference, submit

    run("begin", "lost", topics=given["topics"])
    with session() as opened:
        row = submit(opened, LoadIdentity("airflow", LOAD, "lost"), owner="dag/run#group=load")
        spec = Run("lost", python(), **given).group().prepare._spec(ManifestStore(manifests), 2**42)
        application(spec(reference(opened, row)))
        manifest = ManifestStore(manifests).read(reference(opened, row))
        record_prepared(opened, manifest)
    lose(kafka, "lost", manifest, 0)
    load = Run("lost", python(), **given)
    load("submit")
    assert "load.repairs" in read_spec(asked[-1])
    made = load("collect")
    assert (made["prepared_again"], made["records"], made["verdict"]) == ([0], 100, "commit")
    finish("lost")
    all_there_once(kafka, "lost", given["topics"][0], 1, HUNDRED)
    assert load("submit") is None and "prepared_again" not in load("collect")


def test_other_rows_are_not_taken_for_what_was_lost(kafka: LocalKafka, given: dict[str, Any]) -> None:
    written_and_lost(kafka, "other", given)
    changed = Run("other", python(numbers=99), **given)
    changed("submit")
    with ends("InDoubtError.*what was prepared again is not what was lost"):
        changed("collect")
    wait_until(lambda: open_ids("other") == [], "the end of what was prepared again")
    assert state("other") is LoadState.IN_DOUBT


def test_another_runs_repair_is_never_collected(kafka: LocalKafka, given: dict[str, Any]) -> None:
    written_and_lost(kafka, "repairs", given)
    mine = Run("repairs", python(), **given)
    mine("submit")
    other = Run("repairs", python(claims), run_id="other", **given)
    other("submit")
    assert [repair.opened_by for repair in open_repairs("repairs")] == [
        f"dag/{run}#group=load" for run in ("run", "other")
    ]
    assert mine("collect")["prepared_again"] == [0]
    finish("repairs")
    all_there_once(kafka, "repairs", given["topics"][0], 1, HUNDRED)


def test_a_repair_that_is_still_written_is_waited_for_by_retries(kafka: LocalKafka, given: dict[str, Any]) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(60)

    def submit(argument: str) -> None:
        platform.submit(application, argument, wait=wait)
        assert begun.wait(60)

    written_and_lost(kafka, "waited for", given)
    with ThreadPoolExecutor(1) as platform:
        load = Run("waited for", python(submit), **given)
        load("submit")
        try:
            with pytest.raises(NotFinishedError):
                load("collect")
        finally:
            go_on.set()
    assert len(open_repairs("waited for")) == 1
    assert load("collect")["prepared_again"] == [0]
    finish("waited for")
    all_there_once(kafka, "waited for", given["topics"][0], 1, HUNDRED)


# --- bad platforms


def test_an_operator_that_runs_nothing_is_found_out(given: dict[str, Any]) -> None:
    load = Run("nothing", python(lambda argument: None), **given)
    load("begin")
    load("submit")
    with ends("ManifestError: no application has claimed the attempt"):
        load("collect")
    assert open_ids("nothing") == []


@pytest.mark.parametrize("key", ["transaction.two.phase.commit", "topics"])
def test_an_application_that_does_not_keep_to_its_specification_is_found_out(
    kafka: LocalKafka, given: dict[str, Any], topic: Callable[..., str], key: str
) -> None:
    """A dual write that wants two-phase commit would go without."""
    other = {"topics": (topic(1),), "default_topic": None}
    kept: dict[str, Any] = {"two_phase_commit": "off"} if key != "topics" else other

    def goes_its_own_way(argument: str) -> None:
        spec = ApplicationSpec.from_json(read_spec(argument))
        application(replace(spec, options=replace(spec.options, **kept)).to_json())

    transactions = Transactions(two_phase_commit="off" if key == "topics" else "required")
    load = Run(f"own way {key}", python(goes_its_own_way), transactions=transactions, **given)
    with session() as opened:  # what a broker without it refuses beforehand is not what this is about
        opened.ledger.begin(LoadIdentity("airflow", LOAD, load.key), owner="dag/run#group=load")
    load("submit")
    with ends(f"has not kept to its specification: {re.escape(key)}=.* was asked for"):
        load("collect")
    assert attempts(load.key)[-1].prepared_at is None


def test_an_earlier_tries_specification_is_found_out(kafka: LocalKafka, given: dict[str, Any]) -> None:
    """As of a platform that takes a second request with the same token for the first one."""
    first: list[str] = []

    def with_a_token(argument: str) -> None:
        if not first:
            first.append(argument)
            raise RuntimeError("the connection is gone")
        with pytest.raises(SupersededError, match="by dag/run"):
            application(first[0])

    load = Run("token", python(with_a_token), **given)
    load("begin")
    with pytest.raises(RuntimeError, match="the connection is gone"):
        load("submit")
    load("submit")
    with ends("ManifestError: no application has claimed the attempt"):
        load("collect")
    assert [row.is_prepared for row in attempts("token")] == [False, False]
    assert open_ids("token") == []
    assert committed_values(kafka.bootstrap_servers, given["topics"][0], 1) == []


def test_two_applications_of_one_attempt_are_one(kafka: LocalKafka, given: dict[str, Any]) -> None:
    def twice(argument: str) -> None:
        application(argument)
        with pytest.raises(Exception, match="was already claimed by"):
            application(argument)

    load = Run("twice", python(twice), **given)
    load("begin")
    load("submit")
    load("collect")
    finish("twice")
    all_there_once(kafka, "twice", given["topics"][0], 1, HUNDRED)


def test_a_platform_that_is_not_through_is_waited_for_by_retries(
    kafka: LocalKafka, given: dict[str, Any]
) -> None:
    load = Run("slow", python(claims), **given)
    load("begin")
    load("submit")
    with pytest.raises(Exception, match="a driver that is at work has claimed") as caught:
        load("collect")
    assert not isinstance(caught.value, AirflowFailException)


def test_another_runs_attempt_is_never_collected(kafka: LocalKafka, given: dict[str, Any]) -> None:
    mine = Run("both", python(), **given)
    mine("begin")
    mine("submit")
    other = Run("both", python(), run_id="other", **given)
    other("submit")
    with ends(r"SupersededError: attempt 1, which the task before has had written, was aborted by .*dag/other"):
        mine("collect")
    assert other("collect")["attempt"] == 2
    finish("both")
    all_there_once(kafka, "both", given["topics"][0], 1, HUNDRED)


# --- an application that begins when all is over


@pytest.fixture
def late(given: dict[str, Any]) -> Run:
    """The worker is killed while the platform's cluster starts, and no retry is left."""
    load = Run("late", python(asked.append), transactions=Transactions(quiet_period=0.5), **given)
    load("begin")
    load("submit")
    return load


def begins_now() -> None:
    """Rule: writers-have-a-deadline."""
    with pytest.raises(SupersededError, match=r"by dag/run#group=load at .*: cleanup"):
        application(asked[-1])
    assert open_ids("late") == []


def test_an_application_that_begins_behind_cleanup_opens_nothing(late: Run) -> None:
    assert late("cleanup")["problem"] is None
    begins_now()


def test_nor_where_the_triggerer_has_looked(late: Run) -> None:
    with session() as opened:
        load = LoadIdentity("airflow", LOAD, "late")
        opened.ledger.make_undecidable(load, up_to=1, decided_by="dag/run#group=load", reason="cleanup")
    found: dict[str, Any] = {"load": "late", "aborted": [], "problem": None, "state": "ABORTED"}
    task = late.group().cleanup
    context = late.context("cleanup")
    task.render_template_fields(context)
    assert task.execute_complete(context, {"status": "done", "summary": found}) == found
    begins_now()


def test_a_store_that_is_away_fails_no_cleanup(
    late: Run, manifests: str, capsys: pytest.CaptureFixture[str]
) -> None:
    away = Path(manifests).rename(f"{manifests} away")
    Path(manifests).write_text("no folder")
    assert late("cleanup")["problem"] is None
    assert "begins only now is not told that its attempt is over" in "".join(capsys.readouterr())
    Path(manifests).unlink()
    away.rename(manifests)
    late("begin")  # the next one tells it
    with pytest.raises(SupersededError):
        application(asked[-1])


# --- deferring


class Deferring(BaseOperator):
    """Submits, and is called back elsewhere; its fields were rendered anew by then."""

    template_fields = ("argument", "name")

    def __init__(self, *, argument: str, name: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.argument, self.name = argument, name

    def execute(self, context: Any) -> None:
        from datetime import timedelta

        self.defer(
            trigger=TimeDeltaTrigger(timedelta(seconds=1)),
            method_name="back",
            kwargs={"argument": self.argument, "name": self.name},
        )

    def back(self, context: Any, argument: str, name: str) -> str:
        assert (self.argument, self.name) == (argument, name)
        application(argument.partition(" ")[2])
        return name


def test_a_deferred_operator_goes_on_with_its_own_attempt(kafka: LocalKafka, given: dict[str, Any]) -> None:
    submit = Submit(Deferring, argument="--spec {{ kafka_eos.spec }}", name="n-{{ kafka_eos.attempt }}")
    load = Run("deferred", submit, **given)
    load("begin")
    with pytest.raises(TaskDeferred) as caught:
        load("submit")
    task: Any = load.group().submit
    context = load.context("submit")
    task.render_template_fields(context)
    assert task.resume_execution(caught.value.method_name, caught.value.kwargs, context) == "n-1"
    assert load("collect")["attempt"] == 1
    assert [row.number for row in attempts("deferred")] == [1]
    finish("deferred")
    all_there_once(kafka, "deferred", given["topics"][0], 1, HUNDRED)


def test_a_token_is_one_trys_and_the_same_behind_its_deferral(given: dict[str, Any]) -> None:
    submit = Submit(Deferring, argument="--spec {{ kafka_eos.spec }}", name="{{ kafka_eos.token }}")
    tokens = []
    for key, number in (("token", 1), ("token", 2), ("another day", 1)):
        load = Run(key, submit, run_id=f"run of {key}", **given)
        load("begin")
        with pytest.raises(TaskDeferred) as caught:
            load("submit", try_number=number)
        came_back: Any = (caught.value.method_name, caught.value.kwargs)
        tokens.append(came_back[1]["name"])
        task: Any = load.group().submit
        context = load.context("submit", try_number=number)
        task.render_template_fields(context)
        assert task.resume_execution(*came_back, context) == tokens[-1]
    assert len({*tokens}) == 3 and all(re.fullmatch("kafka-eos-[0-9a-f]{24}", token) for token in tokens)


@pytest.mark.parametrize("before", ["an answer", "a timeout"])
def test_what_was_answered_before_a_clear_is_not_taken_up(
    kafka: LocalKafka, given: dict[str, Any], before: str
) -> None:
    """Rule: event-of-its-own-try. Airflow clears a task that runs, and keeps what it came back with."""
    submit = Submit(Deferring, argument="--spec {{ kafka_eos.spec }}", name="n-{{ kafka_eos.attempt }}")
    load = Run(f"cleared behind {before}", submit, **given)
    load("begin")
    with pytest.raises(TaskDeferred) as first:
        load("submit")
    came_back: Any = (first.value.method_name, first.value.kwargs)
    if before == "a timeout":
        came_back = ("__fail__", {"error": "Trigger timeout"})
    again: Any = load.group().submit
    context = load.context("submit", try_number=2)
    again.render_template_fields(context)
    with pytest.raises(TaskDeferred) as second:
        again.resume_execution(*came_back, context)
    assert [row.verdict for row in attempts(load.key)] == [Verdict.ABORT, None]
    task: Any = load.group().submit
    context = load.context("submit", try_number=2)
    task.render_template_fields(context)
    assert task.resume_execution(second.value.method_name, second.value.kwargs, context) == "n-2"
    assert load("collect")["attempt"] == 2
    finish(load.key)
    all_there_once(kafka, load.key, given["topics"][0], 1, HUNDRED)


# --- beside the task


def test_a_driver_beside_the_task_gets_the_settings_and_nobody_else_does(given: dict[str, Any]) -> None:
    seen: list[tuple[bool, bool]] = []

    def look(argument: str) -> None:
        seen.append((SETTINGS_VARIABLE in os.environ, PARENT_VARIABLE in os.environ))

    for here in (True, False):
        submit = Submit(PythonOperator, runs_here=here, python_callable=look, op_args=[WORD])
        load = Run(f"here {here}", submit, run_id=f"run {here}", **given | {"job": "rows:load"})
        load("begin")
        load("submit")
    assert seen == [(True, True), (False, False)]
    assert SETTINGS_VARIABLE not in os.environ and PARENT_VARIABLE not in os.environ


def test_begin_looks_ahead_for_the_operator(home: Path, given: dict[str, Any]) -> None:
    with ends("TopicError.*nowhere"):
        Run("ahead", python(), **given | {"topics": ["nowhere"]})("begin")
    beside = Submit(BashOperator, runs_here=True, bash_command=WORD)
    with ends(r"job='gone\.py': the file .* is not there on .*where the Spark driver runs"):
        Run("ahead job", beside, **given | {"job": "gone.py"})("begin")
    assert Run("elsewhere", python(), **given | {"job": "gone.py"})("begin")["attempt"] == 1


def test_clearing_collect_alone_reloads_nothing(kafka: LocalKafka, given: dict[str, Any]) -> None:
    """begin comes along with every clear: another generation would have nothing to collect."""
    load = Run("reload", python(), on_committed="reload", **given)
    load.xcoms["load.begin", "return_value"] = begun = load("begin")
    load._given["load_key"] = begun["load_key"]
    load("submit")
    load("collect")
    finish("reload")
    assert load("begin", **{"load.submit": "success"})["load_key"] == "reload"
    assert load("begin")["load_key"] == "reload~reload-2"


@pytest.mark.spark
def test_a_bash_operator_has_spark_submit_write_it(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    name = topic(1)
    command = "spark-submit --master 'local[2]' {{ kafka_eos.application }} --spec @{{ kafka_eos.spec_file }}"
    submit = Submit(
        BashOperator, runs_here=True, bash_command=command, env={"PYSPARK_PYTHON": "{{ kafka_eos.python }}"},
        append_env=True,
    )  # fmt: skip
    sql = "SELECT cast(id AS string) key, 'v' || id value FROM range(100) WHERE :quoted = 'it''s'"
    load = Run("bash", submit, topics=[name], job=None, sql=sql, job_args={"quoted": "it's"})
    load("begin")
    load("submit")
    assert load("collect")["verdict"] == "commit"
    finish("bash")
    all_there_once(kafka, "bash", name, 1, HUNDRED)
    bad = Run("bash bad", submit, run_id="another", topics=[name], job=None, sql="SELECT 1 AS colour")
    bad("begin")
    with ends("ConfigurationError: the DataFrame has a column 'colour'"):
        bad("submit")
