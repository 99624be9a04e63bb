"""The steps of a micro-batch where a strike of a stream world falls, in whichever process of the driver comes by.

``hooks/sitecustomize.py`` plants them in each. What is to happen is read at the step, out of the world's folder: one
strike is armed at a time. Nothing but Python's own is imported here until a strike falls.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

FOLDER, LIFE = "STREAM_STRIKES", "STREAM_LIFE"
#: a process waits so long at its step for a strike from outside, seconds
LONGEST_S = 60.0
BEFORE, AFTER = "before", "after"
_BATCHES = "airflow_kafka_eos.protocol.stages.batches"
_DRIVER = "airflow_kafka_eos.streams.driver"
_COORDINATOR = "airflow_kafka_eos.kafka.admin.coordinator"
_WRITER = "airflow_kafka_eos.spark.attempt_writer"


class Step(NamedTuple):
    """A side of a function of a module."""

    module: str
    target: str
    side: str


STEPS: dict[str, Step] = {
    "planned, not begun": Step(_BATCHES, "begin_batch", BEFORE),
    "before the sweep": Step(_BATCHES, "sweep_earlier", BEFORE),
    "behind the sweep": Step(_BATCHES, "sweep_earlier", AFTER),
    "begun": Step(_BATCHES, "begin_batch", AFTER),
    "a task begins to write": Step(_WRITER, "AttemptWriter.write_part", BEFORE),
    "a task has prepared": Step(_WRITER, "AttemptWriter.write_part", AFTER),
    "prepared, not reported": Step(_BATCHES, "record_prepared", BEFORE),
    "reported": Step(_BATCHES, "record_prepared", AFTER),
    "before the decision": Step(_BATCHES, "ask", AFTER),
    "behind the decision": Step(_BATCHES, "commit", BEFORE),
    "behind the commit": Step(_BATCHES, "commit", AFTER),
    "told as done, not noted": Step(_DRIVER, "end", AFTER),
}
#: these are sides of the one function that ends transactions, by its verdict
DECIDED, BETWEEN, ABORTING = "decided, no EndTxn yet", "between two EndTxn", "during the sweep, before an abort"
_END_MANY = {DECIDED: "commit", BETWEEN: "commit", ABORTING: "abort"}
#: where a Python worker of an executor comes by
OF_A_TASK = ("a task begins to write", "a task has prepared")
EVERY: tuple[str, ...] = (*STEPS, *_END_MANY)


def plant() -> None:
    """Put them before what is imported later."""
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps the loaders of the modules that have a step."""

    def __init__(self) -> None:
        self._at: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in (_BATCHES, _DRIVER, _COORDINATOR, _WRITER) or fullname in self._at:
            return None
        self._at.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._at.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _wrap(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _wrap(module: ModuleType) -> None:
    by_target: dict[str, dict[str, str]] = {}
    for name, step in STEPS.items():
        if step.module == module.__name__:
            by_target.setdefault(step.target, {})[step.side] = name
    for target, sides in by_target.items():
        owner_name, _, attribute = target.rpartition(".")
        owner = getattr(module, owner_name) if owner_name else module
        setattr(owner, attribute, _around(getattr(owner, attribute), sides))
    if module.__name__ == _COORDINATOR:
        module.Coordinator.end_many = _ending(module.Coordinator.end_many)


def _around(original: Callable[..., Any], sides: dict[str, str]) -> Callable[..., Any]:
    @functools.wraps(original)
    def around(*given: Any, **more: Any) -> Any:
        if BEFORE in sides:
            passing(sides[BEFORE])
        answer = original(*given, **more)
        if AFTER in sides:
            passing(sides[AFTER])
        return answer

    return around


def _ending(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def around(self: Any, transactions: Any, verdict: Any) -> Any:
        every = list(transactions)
        if not every:
            return original(self, every, verdict)
        if verdict.value == "abort":
            passing(ABORTING)
            return original(self, every, verdict)
        passing(DECIDED)
        if len(every) > 1 and _is_armed(BETWEEN):
            answers = dict(original(self, every[:1], verdict))
            passing(BETWEEN)
            return answers | original(self, every[1:], verdict)
        return original(self, every, verdict)

    return around


# -- the strike that is armed ------------------------------------------------------------------------------------------


def _armed() -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(Path(os.environ[FOLDER], "armed.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError):
        return None
    return found


def _is_armed(step: str) -> bool:
    armed = _armed()
    return armed is not None and armed["step"] == step


def passing(step: str) -> None:
    """A process comes by; where the armed strike is for here and now, it falls."""
    armed = _armed()
    if armed is None or armed["step"] != step:
        return
    folder, number = Path(os.environ[FOLDER]), armed["number"]
    with open(folder / f"passed-{number}", "ab") as passed:
        passed.write(b".")
        passed.flush()
        if passed.tell() < armed["nth"]:
            return
    try:
        (folder / f"taken-{number}").open("x").close()
    except FileExistsError:
        return  # it has fallen
    match armed["kind"]:
        case "driver_kill":
            kill_driver(int((folder / f"pid-{os.environ[LIFE]}").read_text()))
            os.kill(os.getpid(), signal.SIGKILL)
        case "jvm_kill":
            kill_driver(int((folder / f"pid-{os.environ[LIFE]}").read_text()), only_jvm=True)
        case "worker_kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            until = time.monotonic() + LONGEST_S
            while not (folder / f"done-{number}").exists() and time.monotonic() < until:
                time.sleep(0.01)


def kill_driver(pid: int, *, only_jvm: bool = False) -> int:
    """SIGKILL who plans the batches, and with it, unless it is the only one, all that it has started.

    That is the JVM; of a driver by forks, which has none, the process itself.

    :returns: how many processes.
    """
    import psutil

    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
        jvms = [one for one in family if "java" in one.name()] or [root]
    except psutil.NoSuchProcess:
        return 0
    killed = 0
    for one in jvms if only_jvm else family:
        if one.pid != os.getpid():
            try:
                one.kill()
                killed += 1
            except psutil.NoSuchProcess:
                continue
    return killed
