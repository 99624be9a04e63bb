"""The table: what is done to a run, at which moment, in which state it ends, and whether readers see its load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psutil

from tests.airflow.held import Held, wait_gone
from tests.airflow.processes import kill
from tests.airflow.rest import TASKS

Act = Callable[[Held, str], None]


@dataclass(frozen=True)
class At:
    """Something done at a moment of a run, while whoever has come there waits."""

    moment: str
    do: Act


@dataclass(frozen=True)
class Leg:
    """From a click to the end of the run; the first click starts it.

    :param attempts: how many the ledger must have by then; None: any number.
    """

    ends: str
    whole: bool
    at: tuple[At, ...] = ()
    click: Callable[[Held], None] = Held.start
    attempts: int | None = None


@dataclass(frozen=True)
class Scenario:
    name: str
    legs: tuple[Leg, ...]
    dag: str = "clicks"


def told(act: Callable[[Held], None]) -> Act:
    """Airflow ends the task that waits there because of what it is told; only then the test goes on."""

    def do(run: Held, moment: str) -> None:
        process = run.process(moment)
        act(run)
        wait_gone(process)

    return do


def clear(*tasks: str) -> Callable[[Held], None]:
    return lambda run: run.clear(*tasks)


def clear_from(task: str) -> Callable[[Held], None]:
    return lambda run: run.clear(task, downstream=True)


def clear_from_prepare(run: Held) -> None:
    run.skip(False)
    run.clear("prepare", downstream=True)


def clear_from_prepare_with_skip(run: Held) -> None:
    run.skip(True)
    run.clear("prepare", downstream=True)


def mark(task: str, state: str) -> Callable[[Held], None]:
    return lambda run: run.mark(task, state)


def mark_run(state: str) -> Callable[[Held], None]:
    return lambda run: run.mark_run(state)


def kill_task(run: Held, moment: str) -> None:
    kill(run.process(moment))


def kill_jvm(run: Held, moment: str) -> None:
    jvm = run.jvm()
    kill(jvm, *jvm.children(recursive=True))


def kill_supervisor(run: Held, moment: str) -> None:
    task: psutil.Process = run.process(moment)
    run.kill_supervisor(moment)
    # the task itself lives on, an orphan: it may do its work, the scheduler gives it up later
    assert task.is_running()


def _clears_after() -> Scenario:
    """A committed load: nothing is written again, whatever is cleared."""
    clicks = [*([task] for task in TASKS), list(TASKS)]
    legs = [Leg("success", whole=True, click=clear(*tasks), attempts=1) for tasks in clicks]
    return Scenario("clears-after", (Leg("success", whole=True, attempts=1), *legs))


def _marked_failed(task: str, moment: str, first: Callable[[Held], None], whole: bool) -> Leg:
    return Leg("failed", whole, (At(moment, told(mark(task, "failed"))),), click=first)


def _run_marked(state: str, moment: str, first: Callable[[Held], None], whole: bool = False) -> Leg:
    """Marked by hand, whatever as: it never shows as done what is not, and never hides that it was marked failed."""
    return Leg("failed", whole, (At(moment, told(mark_run(state))),), click=first)


#: A scenario costs as many Spark applications as it prepares loads: those that can follow each other in one run do.
SCENARIOS = (
    _clears_after(),
    Scenario(
        "clears-running",
        (
            Leg(
                "success",
                whole=True,
                at=(
                    At("before-begin", told(clear("begin"))),
                    At("writing", told(clear("prepare"))),
                    At("before-decide", told(clear("decide"))),
                    # decide is shown the prepared attempt of before, all others what they did
                    At("checking", told(clear(*TASKS))),
                    At("before-commit", told(clear("commit"))),
                    At("before-cleanup", told(clear("cleanup"))),
                    At("before-loaded", told(clear("loaded"))),
                ),
            ),
        ),
    ),
    Scenario(
        "marks-done",
        (
            Leg("failed", whole=False, at=(At("writing", told(mark("prepare", "success"))),)),
            Leg("failed", False, (At("before-decide", told(mark("decide", "success"))),), clear_from("prepare")),
            Leg(
                "success",
                whole=True,
                at=(
                    At("before-commit", told(mark("commit", "success"))),
                    At("before-cleanup", told(mark("cleanup", "success"))),
                    At("before-loaded", told(mark("loaded", "success"))),
                ),
                click=clear_from("prepare"),
            ),
        ),
    ),
    Scenario(
        "marks-failed",
        (
            _marked_failed("begin", "before-begin", Held.start, whole=False),
            _marked_failed("prepare", "writing", clear_from("begin"), whole=False),
            _marked_failed("decide", "before-decide", clear_from("prepare"), whole=False),
            # decided means committed: nobody can take that back by a mark
            _marked_failed("commit", "before-commit", clear_from("prepare"), whole=True),
            _marked_failed("loaded", "before-loaded", clear_from("commit"), whole=True),
            _marked_failed("cleanup", "before-cleanup", clear("loaded", "cleanup"), whole=True),
            Leg("success", whole=True, click=clear("cleanup")),
        ),
    ),
    Scenario(
        "marks-run",
        (
            _run_marked("failed", "before-begin", Held.start),
            _run_marked("failed", "writing", clear_from("begin")),
            # what a person's check may do comes to the same: everything behind it is skipped
            Leg("failed", whole=False, click=clear_from_prepare_with_skip),
            _run_marked("success", "checking", clear_from_prepare),
            _run_marked("failed", "before-commit", clear_from("begin"), whole=True),
            # committed, and commit shows success; but nobody waits for loaded, which wakes its readers
            _run_marked("success", "before-commit", clear_from("commit"), whole=True),
            Leg("success", whole=True, click=clear("loaded", "cleanup")),
        ),
    ),
    Scenario(
        "kills-tasks",
        (
            Leg(
                "success",
                whole=True,
                at=tuple(
                    At(moment, kill_task)
                    for task in TASKS
                    for moment in {
                        "prepare": ("before-prepare", "writing", "after-prepare"),
                        "decide": ("before-decide", "checking", "after-decide"),
                    }.get(task, (f"before-{task}", f"after-{task}"))
                ),
            ),
        ),
    ),
    Scenario(
        "at-once",
        (
            Leg("failed", False, (At("checking", told(mark("prepare", "failed"))),), attempts=1),
            Leg("success", True, (At("checking", kill_task),), clear_from("prepare"), attempts=3),
            Leg("success", True, (), clear("decide"), attempts=3),
            Leg("success", True, (), clear_from("prepare"), attempts=3),
        ),
        dag="at_once",
    ),
    Scenario(
        "kills-scope-load",
        (
            Leg(
                "success",
                whole=True,
                at=(At("writing", kill_task), At("after-prepare", kill_task), At("after-decide", kill_task)),
            ),
        ),
        dag="whole",
    ),
    Scenario(
        "kills-others",
        (
            Leg(
                "success",
                whole=True,
                at=(
                    At("writing", kill_jvm),
                    At("after-prepare", kill_supervisor),
                    At("before-commit", kill_supervisor),
                ),
            ),
        ),
    ),
)
