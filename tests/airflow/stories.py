"""What does not fit the table of scenarios.py: deleted runs, a zombie of Spark, and three who want one load."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_kafka_eos.errors import SandboxError
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from tests.airflow.conftest import Place
from tests.airflow.counting import PARTITIONS, count, open_ids
from tests.airflow.held import RECORDS, Held, right, wait_gone
from tests.airflow.processes import kill
from tests.airflow.rest import Run, wait_for


def deleted_when_done(place: Place) -> None:
    """The ledger outlives the run: under the same run id, the same load is not loaded again."""
    run = Held(place, "deleted-when-done")
    for _ in range(2):
        run.start()
        assert run.wait() == "success", run.tasks()
        assert run.count(whole=True) == right(whole=True)
        run.delete()
    assert run.attempts() == 1


def deleted_when_marked_failed(place: Place) -> None:
    """A running run cannot be deleted; marked failed, it can, as soon as its cleanup is over."""
    run = Held(place, "deleted-when-failed")
    run.hold("writing")
    run.start()
    run.reached("writing")
    task = run.process("writing")
    try:
        run.delete()
        raise AssertionError("a running run was deleted")
    except SandboxError as refused:
        assert "409" in str(refused)
    run.mark_run("failed")
    wait_gone(task)
    run.go("writing")
    assert run.wait() == "failed"
    run.delete()
    assert run.count(whole=False) == right(whole=False)
    run.start()
    assert run.wait() == "success", run.tasks()
    assert run.count(whole=True) == right(whole=True)


def zombie_spark(place: Place) -> None:
    """A Spark application whose task was killed goes on writing when another attempt has been committed.

    Of its two tasks, one is in the middle of its transaction, one has yet to begin.
    """
    run = Held(place, "zombie")
    run.be_unwatched()
    run.hold("starting")
    run.hold("writing")
    run.start()
    for moment in ("starting", "writing"):
        run.reached(moment, with_open=False)
    jvm = run.jvm()
    kill(run.process("writing"))
    try:
        assert run.wait() == "success", run.tasks()
        assert run.attempts() == 2
        assert run.count(whole=True) == right(whole=True), "before the zombie writes"
        assert jvm.is_running(), "there is no zombie: this tests nothing"
        run.go("starting")
        wait_for(lambda: open_ids(place.bootstrap, ".zombie.1-"), lambda: "the zombie's own transaction")
        run.go("writing")
        wait_for(lambda: run.passed("written"), lambda: "the end of the zombie's other partition")
        seen = run.count(whole=True)
        assert (seen.seen, seen.missing, seen.duplicate) == (RECORDS, 0, 0)
        # of itself: its writer is fenced, so its job fails
        wait_gone(jvm)
    finally:
        if jvm.is_running():
            kill(jvm, *jvm.children(recursive=True))
    # with two-phase commit, no timeout of the broker ends what it may have left: a sweep does
    run.sweep()
    assert run.count(whole=True) == right(whole=True)


def superseded_spark(place: Place) -> None:
    """A Spark application whose task was killed ends when its retry has opened the next attempt, and not at its end."""
    run = Held(place, "superseded")
    run.be_orphaned()
    run.hold("starting")
    run.hold("writing")
    run.start()
    for moment in ("starting", "writing"):
        run.reached(moment, with_open=False)
    shown = f"load {run.load} attempt 1: 0 of 2 tasks done, 2 running, nothing written yet (stage"
    wait_for(lambda: shown in run.log_of("prepare", 1), lambda: f"{shown} in {run.log_of('prepare', 1)}")
    jvm = run.jvm()
    kill(run.process("writing"))
    try:
        wait_for(lambda: not jvm.is_running(), lambda: f"the end of a driver whose tasks wait for ever: {run.tasks()}")
    finally:
        if jvm.is_running():
            kill(jvm, *jvm.children(recursive=True))
    assert run.wait() == "success", run.tasks()
    assert run.attempts() == 2
    assert run.count(whole=True) == right(whole=True)
    assert f"load {run.load} attempt 2: prepared {RECORDS} records in 2 transactions" in run.log_of("prepare", 2)


def three_race_for_one_load(place: Place) -> None:
    """Two DAGs and a manual trigger of one of them, one load name and one key: one copy, whoever wins.

    Rules: one-decision-per-load, one-key-loads-once.
    """
    load = LoadIdentity("airflow", "race", "the one")
    place.kafka.create_topic("race", partitions=PARTITIONS)
    runs = [Run(place.airflow, dag, run_id) for dag, run_id in
            (("racer_one", "scheduled"), ("racer_two", "other"), ("racer_one", "manual"))]  # fmt: skip
    whole = [f"race {n}" for n in range(RECORDS)]
    for run in runs:
        run.start()
    for run in runs:
        ended = run.wait()
        row = place.ledger.load(load)
        assert row is not None
        assert ended == "failed" or row.state is LoadState.COMMITTED, f"{run.id}: {run.tasks()}"
    for run in runs:
        if run.state() == "failed":
            run.clear("begin", downstream=True)
            assert run.wait() == "success", run.tasks()
    assert count(place.bootstrap, "race", whole, ids=".race.the%20one.") == right(whole=True)
    assert [a.verdict for a in place.ledger.attempts(load)].count(Verdict.COMMIT) == 1


STORIES: Mapping[str, Callable[[Place], None]] = {
    "deleted-when-done": deleted_when_done,
    "deleted-when-failed": deleted_when_marked_failed,
    "zombie": zombie_spark,
    "superseded": superseded_spark,
    "race": three_race_for_one_load,
}
