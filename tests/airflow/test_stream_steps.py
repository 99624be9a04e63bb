"""cleanup and loaded of a streaming query on a real ledger and broker; contexts and batches are made by hand."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psutil
import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_kafka_eos.hooks import KafkaEosHook
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.micro_batch import StreamRun
from airflow_kafka_eos.naming import name_prefix
from airflow_kafka_eos.operators import stream_loaded
from airflow_kafka_eos.operators.stream import CleanupStreamOperator, RunStreamOperator
from airflow_kafka_eos.operators.stream_loaded import StreamLoadedSensor
from airflow_kafka_eos.protocol.stages.stream_runs import sweep_left
from airflow_kafka_eos.triggers import BatchesTrigger
from tests.airflow.steps import CONTEXT, OWNER, in_try, session
from tests.kafka.open_transactions import wait_until
from tests.protocol.test_batches import Query
from tests.protocol.world import World

pytestmark = pytest.mark.broker

OWN = StreamRun("/checkpoint", "driver 1", OWNER)
#: of the same DAG, and of another one
BEFORE = StreamRun("/checkpoint", "driver 0", "dag/before#group=load")
OTHER = StreamRun("/checkpoint", "driver 2", "other/run#group=load")


class Batches(Query):
    def batch(self, number: int, offsets: str | None = None, before: str | None = None) -> Any:
        return replace(super().batch(number, offsets, before), namespace="airflow")


def query(opened: Any, topic: str) -> Batches:
    settings = KafkaEosHook().resolve().settings
    world = World(opened, settings, topic, LoadIdentity("airflow", topic, "any"))
    return Batches(world, f"query of {topic}", str(uuid4()))


def loaded(name: str, **given: Any) -> StreamLoadedSensor:
    given = {"asset_events": False, "deferrable": False, "poke_interval": 0.2} | given
    return StreamLoadedSensor(task_id="loaded", load_name=name, topics=["any"], **given)


def test_loaded_tells_of_what_nobody_was_told_of(
    home: Path, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with session() as opened:
        batches = query(opened, topic())
        none = loaded(batches.name)
        none.outlets = [Asset("o")]
        monkeypatch.setattr(stream_loaded, "told_up_to", lambda of, query_id: None)
        assert (none.execute(CONTEXT)["batches"], none.outlets) == (None, []), "there is no such query yet"
        batches.load(batches.batch(0), ["0"], run=OTHER)
        batches.load(batches.batch(1), ["1"], run=BEFORE)  # whose run has failed behind it
        batches.load(batches.batch(2), ["2"], run=OWN)
        found = loaded(batches.name).execute(CONTEXT)
        assert (found["batches"], found["records"], found["loads"]) == ([1, 2], 2, 2)
        assert "load" not in found, "there is no load of that key"
        monkeypatch.setattr(stream_loaded, "told_up_to", lambda of, query_id: 1)
        assert loaded(batches.name).execute(CONTEXT)["batches"] == [2, 2]
        monkeypatch.setattr(stream_loaded, "told_up_to", lambda of, query_id: 2)
        assert loaded(batches.name).execute(CONTEXT)["batches"] is None
        # behind what was told all is new, whoever has committed it
        batches.load(batches.batch(3), ["3"], run=replace(OTHER, identity="driver 3"))
        assert loaded(batches.name).execute(CONTEXT)["batches"] == [3, 3]


@pytest.mark.parametrize(("told", "left"), [(0, [1, 2]), (1, [2, 2]), (2, None), (7, None)])
def test_loaded_tells_of_nothing_that_another_run_has_told_of_while_it_waited(
    home: Path, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, told: int, left: list[int] | None
) -> None:
    """Two runs' loaded wait for the same readers; the other one was first."""
    with session() as opened:
        batches = query(opened, topic())
        for number in range(3):
            batches.load(batches.batch(number), [str(number)], run=OWN)
        found = iter([None, told])
        monkeypatch.setattr(stream_loaded, "told_up_to", lambda of, query_id: next(found))
        task = loaded(batches.name)
        result = task.execute(CONTEXT)
        assert result["batches"] == left
        assert (result["records"], result["by"]) == (0 if left is None else 3 - left[0], OWNER)


def test_loaded_waits_in_the_triggerer_for_who_holds_readers_back(home: Path, topic: Callable[..., str]) -> None:
    with session() as opened:
        batches = query(opened, topic())
        holds = replace(batches, name=f"{batches.name}, other", query_id=str(uuid4()))
        holds.write(holds.begin(holds.batch(0), OTHER), ["a"])
        batches.load(batches.batch(0), ["a"], run=OWN)  # the same key, so in the same partition
        task = loaded(batches.name, deferrable=True)
        with pytest.raises(TaskDeferred) as deferred:
            task.execute(in_try(1))
        kind, fields = deferred.value.trigger.serialize()
        assert kind == f"{BatchesTrigger.__module__}.BatchesTrigger"
        trigger = BatchesTrigger(**fields)
        assert trigger.is_known_to(opened.ledger)
        assert not BatchesTrigger(**fields | {"load_name": "unknown"}).is_known_to(opened.ledger)

        async def event() -> Any:
            waits = asyncio.ensure_future(anext(trigger.run()))
            done, _ = await asyncio.wait([waits], timeout=3)
            assert not done, "readers are held back"
            await asyncio.to_thread(sweep_left, opened, holds.name, run=OTHER.opened_by, reason="it held")
            return (await asyncio.wait_for(waits, 120)).payload

        again = loaded(batches.name, deferrable=True)
        assert again.execute_complete(CONTEXT, asyncio.run(event()))["batches"] == [0, 0]


def test_cleanup_ends_what_its_own_run_has_left_and_nothing_else(home: Path, topic: Callable[..., str]) -> None:
    def cleanup() -> Any:
        task = CleanupStreamOperator(task_id="cleanup", load_name=batches.name, quiet_period=0)
        return task.execute(CONTEXT)

    with session() as opened:
        batches = query(opened, topic())
        assert cleanup() == {"aborted": [], "problem": None}
        batches.write(batches.begin(batches.batch(0), OWN), ["dead"])
        manifest = batches.write(batches.begin(batches.batch(0), OTHER), ["at work"])
        cleanup()
        batches.decide(batches.batch(0), manifest, OTHER)
        batches.write(batches.begin(batches.batch(1), replace(OWN, identity="driver 3")), ["dead too"])
        assert len(cleanup()["aborted"]) == 1
        (row,) = opened.ledger.attempts(batches.batch(1).load)
        assert (row.verdict, row.closed_at is not None) == (Verdict.ABORT, True)
        assert cleanup() == {"aborted": [], "problem": None}
        assert batches.world.visible() == ["at work"]


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_a_task_that_times_out_ends_its_driver_before_what_that_has_open(
    home: Path, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow raises it inside execute, and calls on_kill behind it: the driver would go on meanwhile."""
    name = topic(2)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("".join(f"{n}\n" for n in range(100)))
    (tmp_path / "writing.hold").touch()
    run = RunStreamOperator(
        task_id="run", load_name="late", job=f"{Path(__file__).parent}/stream_dags/jobs/lines.py", topics=[name],
        job_args={"folder": f"{tmp_path}/in", "switches": str(tmp_path)}, checkpoint=f"{tmp_path}/checkpoint",
    )  # fmt: skip
    ti = SimpleNamespace(**vars(CONTEXT["ti"]), try_number=1)

    def drivers() -> list[str]:
        found = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it may end meanwhile
                if any("streams/application.py" in word for word in process.cmdline()):
                    found.append(process.name())
        return found

    def late(*given: Any) -> None:
        assert drivers()
        raise AirflowTaskTimeout("late")

    swept: list[list[str]] = []
    real = RunStreamOperator._end_what_is_open

    def end_what_is_open(self: RunStreamOperator, *given: Any) -> None:
        swept.append([name for name in drivers() if "java" in name])
        real(self, *given)

    monkeypatch.setattr(RunStreamOperator, "_end_what_is_open", end_what_is_open)
    main, before = threading.main_thread().ident, signal.signal(signal.SIGUSR1, late)
    assert main is not None

    def tell() -> None:
        wait_until((tmp_path / "writing.here").exists, "a batch in its middle", 900)
        signal.pthread_kill(main, signal.SIGUSR1)

    threading.Thread(target=tell, daemon=True).start()
    try:
        with pytest.raises(AirflowTaskTimeout):
            run.execute(CONTEXT | {"ti": ti})
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert swept == [[]], "the JVM was gone by then"
    with session() as opened:
        stream = opened.ledger.stream("airflow", "late")
        assert stream is not None and stream.decided == -1
        (row,) = opened.ledger.attempts(LoadIdentity("airflow", "late", f"{stream.query_id}-0"))
        assert (row.verdict, row.responsible) == (Verdict.ABORT, OWNER)
        assert "run failed: " in row.reason
        of_the_name = name_prefix("airflow", opened.ledger.ledger_id, "late")  # other tests leave theirs open
        wait_until(lambda: opened.coordinator.list_open(of_the_name) == [], "the end of what was open")
