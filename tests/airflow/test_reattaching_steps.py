"""prepare and a driver that runs elsewhere, try by try: what a retry finds, what a clear must not, who comes back.

A try that dies is one whose operator is left where it was: deferred, or told to stop while it waits. The platform is
:mod:`.yarn`; the application is one without Spark, whose start takes the time.
"""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_kafka_eos.errors import StoppedError
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.operators import application_watch, reattaching
from airflow_kafka_eos.operators.application_watch import MOST_FAILED, ApplicationWatch
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.triggers import OVER, ApplicationTrigger
from tests.airflow.steps import LOAD, run, session, state
from tests.airflow.test_own_steps import HUNDRED
from tests.airflow.test_repreparing_steps import lose
from tests.airflow.tries import STARTED, Tries
from tests.kafka.open_transactions import wait_until
from tests.reading import committed_values

pytestmark = pytest.mark.timeout(600)
#: What nobody may find anywhere.
SECRET = "hunter2-never-shown"


def finished(tries: Tries, kafka: LocalKafka) -> None:
    for step in ("decide", "commit", "cleanup"):
        run(step, tries.key, **({"manifest_dir": str(tries.manifests)} if step == "decide" else {}))
    assert state(tries.key) is LoadState.COMMITTED
    assert committed_values(kafka.bootstrap_servers, tries.topic, 1) == HUNDRED


def test_a_retry_waits_for_the_very_application_and_the_load_is_there_once(tries: Tries, kafka: LocalKafka) -> None:
    """Rule: reattach-to-its-own."""
    first = tries.deferred()
    second = tries.deferred()
    assert tries.there.applications() == ["application_1_0001"] and len(tries.attempts()) == 1
    assert first.trigger.serialize() == second.trigger.serialize()
    tries.go()
    tries.is_over()
    made = tries.resumed(second, {"status": OVER, "lost": None})
    assert (made["attempt"], made["records"]) == (1, 100)
    finished(tries, kafka)


def test_a_worker_that_waits_by_itself_is_told_to_stop_and_the_retry_finds_it_done(tries: Tries) -> None:
    task = tries.operator(wait_in_triggerer=False)
    ended: list[BaseException] = []

    def execute() -> None:
        try:
            task.execute(tries.context())
        except BaseException as e:
            ended.append(e)

    thread = threading.Thread(target=execute)
    thread.start()
    wait_until(lambda: task._stop_waiting is not None or bool(ended), "that it waits", 120)
    task.on_kill()
    thread.join(60)
    assert isinstance(ended[0], StoppedError) and "which goes on" in str(ended[0])
    assert tries.there.state("application_1_0001")[0] == "RUNNING", "a worker that is restarted ends nothing"
    tries.go()
    tries.is_over()
    assert tries.operator(wait_in_triggerer=False).execute(tries.context())["attempt"] == 1
    assert tries.there.applications() == ["application_1_0001"]


def test_a_worker_that_is_stopped_right_behind_the_submission_ends_nothing(
    tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while the id is noted, before the first look."""
    task = tries.operator()
    real = ManifestStore.note_submitted

    def stopped(*arguments: Any) -> None:
        real(*arguments)
        task.on_kill()

    monkeypatch.setattr(ManifestStore, "note_submitted", stopped)
    with pytest.raises(StoppedError, match="which goes on"):
        task.execute(tries.context())
    assert tries.there.state("application_1_0001")[0] == "RUNNING"


@pytest.mark.parametrize(
    ("retries", "then"),
    [
        (2, {"cleared": 1}),
        (2, {"max_tries": 3}),
        (1, {}),
        (2, {"started": STARTED + timedelta(hours=1)}),
        (2, {"try_number": 1}),
    ],
    ids=["while it ran", "behind its end", "with other retries", "a run made again", "a task instance made again"],
)
def test_a_clear_never_takes_up_the_application_of_before(tries: Tries, retries: int, then: dict[str, Any]) -> None:
    """Its attempt is over by then, and its driver told so. (``max_tries`` alone: 1 try and 3 retries are 2 and 2.)"""
    tries.deferred()
    tries.deferred(tries.operator(retries=retries), **then)
    assert tries.there.applications() == ["application_1_0001", "application_1_0002"]
    assert [row.is_undecided for row in tries.attempts()] == [False, True]
    assert list(tries.manifests.rglob("1.superseded"))


def test_where_airflow_does_not_count_clears_nobody_reattaches(tries: Tries) -> None:
    assert reattaching.this_go(tries.context(), tries.operator()) is not None
    assert reattaching.this_go(tries.context(cleared=None), tries.operator()) is None
    assert reattaching.this_go(tries.context(started=None), tries.operator()) is None


@pytest.mark.parametrize(("version", "counts"), [("3.1.8", False), ("3.2.0", True), ("3.10.1rc1", True)])
def test_airflow_3_1_counts_no_clear_of_a_run_that_runs(
    tries: Tries, monkeypatch: pytest.MonkeyPatch, version: str, counts: bool
) -> None:
    monkeypatch.setattr(reattaching, "AIRFLOW", version)
    assert (reattaching.this_go(tries.context(), tries.operator()) is not None) is counts


def test_another_runs_application_is_not_taken_up(tries: Tries) -> None:
    tries.deferred()
    context = tries.context()
    context["ti"].run_id = "another"
    with pytest.raises(TaskDeferred):
        tries.operator().execute(context)
    assert len(tries.there.applications()) == 2


@pytest.mark.parametrize("event", [{"status": "cannot look", "error": "why"}, {"status": OVER, "lost": None}, None, {}])
def test_who_comes_back_defers_no_more_and_submits_nothing(tries: Tries, event: Any) -> None:
    """A trigger that hands back at once, each time, would have it go in circles for ever; it waits itself."""
    deferred = tries.deferred()
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(tries.resumed(deferred, event)))
    thread.start()
    before = tries.there.asked
    wait_until(lambda: tries.there.asked > before + 2 or not thread.is_alive(), "looks of its own", 120)
    assert thread.is_alive()
    tries.go()
    thread.join(120)
    assert made[0]["attempt"] == 1
    assert tries.there.applications() == ["application_1_0001"]


def test_who_comes_back_takes_no_other_load_nor_another_tasks_attempt(tries: Tries) -> None:
    """load_key was edited while it was deferred; or the number is that of another run's attempt."""
    deferred = tries.deferred()
    tries.go()
    tries.is_over()
    run("begin", f"{tries.key} edited")
    with pytest.raises(AirflowFailException, match="was edited meanwhile"):
        tries.resumed(deferred, {"status": OVER, "lost": None}, tries.operator(load_key=f"{tries.key} edited"))
    context = tries.context(try_number=1)
    context["ti"].run_id = "another"
    with pytest.raises(AirflowFailException, match=r"not its own: application_1_0001 was submitted by dag/run task"):
        tries.operator().resume_execution(deferred.method_name, {**(deferred.kwargs or {}), "event": None}, context)
    assert tries.resumed(deferred, {"status": OVER, "lost": None}, try_number=1)["attempt"] == 1


def test_a_trigger_that_fails_or_times_out_is_followed_by_a_look(tries: Tries) -> None:
    """Airflow resumes with ``__fail__`` then; what is done is not reported failed."""
    tries.deferred()
    tries.go()
    tries.is_over()
    made = tries.operator().resume_execution("__fail__", {"error": "Trigger timeout"}, tries.context(try_number=1))
    assert made["attempt"] == 1


@pytest.mark.parametrize(("retries", "then"), [(2, {"cleared": 1}), (3, {})], ids=["another task", "retries edited"])
def test_who_comes_back_goes_on_though_another_task_was_cleared_or_the_dag_was_edited(
    tries: Tries, retries: int, then: dict[str, Any]
) -> None:
    """A clear of its own would have ended its deferral."""
    deferred = tries.deferred()
    tries.go()
    tries.is_over()
    made = tries.resumed(deferred, {"status": OVER, "lost": None}, tries.operator(retries=retries), **then)
    assert made["attempt"] == 1


@pytest.mark.parametrize("then", [{"cleared": 1, "try_number": 2}, {"cleared": 1}], ids=["a clear", "a clear, no try"])
def test_behind_a_trigger_that_failed_a_task_that_was_cleared_begins_anew(tries: Tries, then: dict[str, Any]) -> None:
    tries.deferred()
    tries.go()
    tries.is_over()
    with pytest.raises(TaskDeferred):
        tries.operator().resume_execution("__fail__", {"error": "Trigger timeout"}, tries.context(**then))
    assert len(tries.attempts()) == 2


def test_behind_a_trigger_that_failed_no_other_tasks_attempt_is_taken(tries: Tries) -> None:
    tries.deferred()
    tries.go()
    tries.is_over()
    context = tries.context(try_number=1)
    context["ti"].run_id = "another"
    with pytest.raises(TaskDeferred):
        tries.operator().resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    assert len(tries.attempts()) == 2


def test_a_task_that_was_cleared_behind_its_deferral_begins_anew(tries: Tries) -> None:
    """Airflow keeps where a task that runs goes on, also when that is cleared."""
    deferred = tries.deferred()
    tries.go()
    tries.is_over()
    with pytest.raises(TaskDeferred):
        tries.resumed(deferred, {"status": OVER, "lost": None}, try_number=2, cleared=1)
    assert [row.is_undecided for row in tries.attempts()] == [False, True]


@pytest.mark.parametrize(
    "edited",
    [{"job_args": {"day": 2}}, {"value_format": "json"}, {"scope": "load"}, {"py_files": "/opt/jobs.zip"}],
    ids=lambda edited: str(*edited),
)
def test_a_dag_that_was_edited_is_not_answered_with_what_it_asked_for_before(
    tries: Tries, edited: dict[str, Any]
) -> None:
    """All arguments: tests/adapters/test_same_go.py."""
    tries.deferred(tries.operator(job_args={"day": 1}))
    tries.deferred(tries.operator(**{"job_args": {"day": 1}} | edited))
    assert len(tries.there.applications()) == 2


def test_what_the_broker_has_ended_meanwhile_is_written_anew(tries: Tries) -> None:
    """A heartbeat's timeout and a retry's delay may eat the hold time."""
    short: dict[str, Any] = {"hold_time": timedelta(seconds=8), "two_phase_commit": "off"}
    deferred = tries.deferred(tries.operator(**short))
    tries.go()
    tries.is_over()
    with pytest.raises(AirflowException, match=r"can no longer be committed.*A retry opens a new attempt") as caught:
        tries.resumed(deferred, {"status": OVER, "lost": None}, tries.operator(**short))
    assert not isinstance(caught.value, AirflowFailException)
    assert tries.operator(wait_in_triggerer=False).execute(tries.context())["attempt"] == 2


def test_a_driver_that_cleanup_could_not_find_is_not_left_to_itself(tries: Tries) -> None:
    """cleanup does not know a templated folder: there the worker ends its driver, as before."""
    task = tries.operator(manifest_dir="/{{ ds }}", wait_in_triggerer=False)
    task.manifest_dir = str(tries.manifests)  # rendered
    tries.go()
    assert task.execute(tries.context())["attempt"] == 1
    assert not list(tries.manifests.rglob("1.submitted"))


def test_a_class_of_the_authors_that_checks_behind_execute_is_waited_for_by_itself(tries: Tries) -> None:
    """What comes back from the triggerer would go past its execute."""

    class Checked(PrepareLoadOperator):
        def execute(self, context: Any) -> Any:
            made = super().execute(context)
            raise ValueError(f"{made['records']} records are not enough")

    tries.go()
    with pytest.raises(ValueError, match="100 records are not enough"):
        tries.operator(kind=Checked).execute(tries.context())


def test_a_repair_is_not_left_to_a_retry(tries: Tries, kafka: LocalKafka) -> None:
    """Whoever comes back would take the decided load for done, and what was lost would never be adopted."""
    tries.go()
    assert tries.operator(wait_in_triggerer=False).execute(tries.context())["records"] == 100
    with session() as opened:
        (row,) = opened.ledger.attempts(LoadIdentity("airflow", LOAD, tries.key))
        manifest = ManifestStore(str(tries.manifests)).read(reference(opened, row))
    lose(kafka, tries.key, manifest, 0)
    made = tries.operator().execute(tries.context(cleared=1))
    assert (made["prepared_again"], made["records"]) == ([0], 100)
    run("commit", tries.key)
    wait_until(lambda: committed_values(kafka.bootstrap_servers, tries.topic, 1) == HUNDRED, "the repair", 60)
    assert state(tries.key) is LoadState.COMMITTED


@pytest.mark.parametrize("given", [{"post_submit_commands": ["true"]}, {"yarn_rm_auth": ("user", SECRET)}])
def test_what_a_retry_elsewhere_or_the_triggerer_would_not_have_is_waited_for_here(
    tries: Tries, given: dict[str, Any]
) -> None:
    tries.go()
    given |= {"wait_in_triggerer": "yarn_rm_auth" in given}
    assert tries.operator(**given).execute(tries.context())["attempt"] == 1
    assert bool(list(tries.manifests.rglob("1.submitted"))) is ("yarn_rm_auth" in given)


def test_what_is_done_stays_so_when_its_platform_cannot_be_asked(tries: Tries) -> None:
    deferred = tries.deferred()
    tries.go()
    tries.is_over()
    tries.there.down = True
    before = tries.there.asked
    assert tries.resumed(deferred, {"status": "cannot look", "error": "down"})["attempt"] == 1
    assert tries.there.asked == before


def test_a_retry_that_cannot_ask_waits_and_begins_nothing(tries: Tries) -> None:
    """Not to know is not to be gone."""
    tries.deferred()
    tries.there.down = True
    made: list[Any] = []
    task = tries.operator(wait_in_triggerer=False)
    thread = threading.Thread(target=lambda: made.append(task.execute(tries.context())))
    thread.start()
    before = tries.there.asked
    wait_until(lambda: tries.there.asked > before + 2 * MOST_FAILED or not thread.is_alive(), "looks", 120)
    assert thread.is_alive()
    tries.go()
    thread.join(120)
    assert made[0]["attempt"] == 1
    assert (tries.there.applications(), len(tries.attempts())) == (["application_1_0001"], 1)


def test_an_application_that_its_platform_has_forgotten_is_lost(tries: Tries, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ResourceManager that has restarted without its state answers with 404."""
    monkeypatch.setattr(application_watch, "MOST_WORDLESS", 2)
    deferred = tries.deferred()
    tries.there.kill("application_1_0001")
    (tries.there.folder / "application_1_0001").rename(tries.there.folder / "forgotten")
    with pytest.raises(AirflowException, match=r"has ended \(not known to YARN any more\)"):
        tries.resumed(deferred, {"status": "cannot look", "error": ""})
    tries.deferred()
    assert len(tries.attempts()) == 2


def test_an_application_that_was_killed_is_told_and_a_retry_begins_anew(
    tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application_watch, "MOST_WORDLESS", 2)
    deferred = tries.deferred()
    tries.there.kill("application_1_0001")
    tries.is_over()
    with pytest.raises(AirflowException, match=r"application_1_0001 of .* has ended \(FAILED\), and has not said why"):
        tries.resumed(deferred, {"status": OVER, "lost": "FAILED"})
    with pytest.raises(AirflowException, match="has not said why"):
        tries.resumed(deferred, {"status": "cannot look", "error": ""})
    tries.deferred()
    assert tries.there.applications() == ["application_1_0001", "application_1_0002"]


def test_an_application_that_fails_says_why_and_a_retry_begins_anew(tries: Tries) -> None:
    (tries.there.folder / "fail").touch()
    with pytest.raises(AirflowException, match="OSError: the disk is full"):
        tries.operator(wait_in_triggerer=False).execute(tries.context())
    (tries.there.folder / "fail").unlink()
    tries.deferred()
    assert tries.there.applications() == ["application_1_0001", "application_1_0002"]


def test_one_whose_time_is_over_is_given_up(tries: Tries) -> None:
    deferred = tries.deferred()
    short = timedelta(microseconds=1)
    impatient = tries.operator(execution_timeout=short)
    with pytest.raises(AirflowException, match="has not finished until"):
        tries.resumed(deferred, None, impatient)
    tries.deferred(tries.operator(execution_timeout=short))
    assert tries.there.applications() == ["application_1_0001", "application_1_0002"]


def test_an_attempt_that_was_aborted_meanwhile_is_not_taken_over_nor_begun_again(
    tries: Tries, kafka: LocalKafka
) -> None:
    """cleanup of a run that was marked failed; its driver is late, and leaves a manifest all the same."""
    deferred = tries.deferred()
    run("cleanup", tries.key)
    tries.go()
    tries.is_over()
    with pytest.raises(AirflowFailException, match=r"SupersededError.*is over, or not its own: aborted by"):
        tries.resumed(deferred, {"status": OVER, "lost": None})
    assert tries.there.applications() == ["application_1_0001"]
    run("cleanup", tries.key)
    assert committed_values(kafka.bootstrap_servers, tries.topic, 1) == []


class TestTheTrigger:
    """In an event loop, on the same platform."""

    def again(self, deferred: TaskDeferred) -> ApplicationTrigger:
        """As a triggerer makes it of what the database has."""
        path, fields = deferred.trigger.serialize()
        assert path == "airflow_kafka_eos.triggers.ApplicationTrigger"
        return ApplicationTrigger(**json.loads(json.dumps(fields)))

    async def event(self, trigger: ApplicationTrigger) -> Any:
        async for found in trigger.run():
            return found.payload

    def test_it_carries_no_secret_and_survives_its_triggerer(
        self, tries: Tries, kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        extra = {"bootstrap.servers": kafka.bootstrap_servers, "sasl.password": SECRET}
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
        deferred = tries.deferred()
        assert SECRET not in json.dumps(deferred.trigger.serialize())
        once = self.again(deferred)
        assert once.serialize() == deferred.trigger.serialize()
        tries.go()
        assert asyncio.run(self.event(once)) == {"status": OVER, "lost": None}

    def test_no_look_holds_up_the_event_loop(self, tries: Tries, monkeypatch: pytest.MonkeyPatch) -> None:
        """The platform answers only once the loop has gone round."""
        trigger = self.again(tries.deferred())
        turned = threading.Event()
        tries.go()
        tries.is_over()
        real = ApplicationWatch.look

        def slow(watch: ApplicationWatch) -> str | None:
            assert turned.wait(60), "the event loop stands still"
            return real(watch)

        monkeypatch.setattr(ApplicationWatch, "look", slow)

        async def both() -> Any:
            found = asyncio.ensure_future(self.event(trigger))
            await asyncio.sleep(0.5)
            turned.set()
            return await found

        assert asyncio.run(both())["status"] == OVER

    def test_where_it_does_not_see_the_folder_it_hands_back(self, tries: Tries) -> None:
        trigger = self.again(tries.deferred())
        trigger.manifest_dir = str(tries.manifests / "elsewhere")
        found = asyncio.run(self.event(trigger))
        assert found["status"] == "cannot look" and "does not see what prepare has noted" in found["error"]

    def test_where_it_cannot_ask_it_hands_back_and_does_not_take_it_for_gone(
        self, tries: Tries, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trigger = self.again(tries.deferred())
        tries.there.down = True
        before = tries.there.asked
        found = asyncio.run(self.event(trigger))
        assert found["status"] == "cannot look" and "cannot be asked" in found["error"]
        assert tries.there.asked - before == MOST_FAILED

    def test_an_application_without_a_word_is_told_with_what_the_platform_says(
        self, tries: Tries, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trigger = self.again(tries.deferred())
        tries.there.kill("application_1_0001")
        assert asyncio.run(self.event(trigger)) == {"status": OVER, "lost": "FAILED"}
