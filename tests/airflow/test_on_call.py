"""What a person on call reads at night: task logs, the ledger's reasons, and what the page says will come next."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from tests.airflow.conftest import SECRET, Place
from tests.airflow.held import Held, right
from tests.airflow.rest import TASKS, Run, wait_for
from tests.airflow.stored import contents

pytestmark = pytest.mark.timeout(900)

#: libraries that we use, and that have nothing to say of a load that goes well
OTHERS = ("kafka", "alembic", "botocore", "aiobotocore", "py4j", "urllib3", "sqlalchemy", "confluent_kafka")
#: how each step's last line looks, once the load's name is taken out
LAST = {
    "begin": r"load L attempt 1: opened, in [\d.]+ s",
    "prepare": r"load L attempt 1: prepared 200 records, [\d,]+ bytes in 2 transactions \(scope task, [^)]+\); "
    r"decided: commit, in (\d+ min \d+|[\d.]+) s",
    "decide": r"load L attempt 1: was decided before, by plain/\S+ at \S+: commit 200 records, [\d,]+ bytes, "
    r"2 transactions; the load is COMMITTED, in [\d.]+ s",
    "commit": r"load L attempt 1: the load is COMMITTED already, before this task: 200 records, [\d,]+ bytes, "
    r"2 transactions, in [\d.]+ s",
    "cleanup": r"load L attempt 1: clean: nothing was open; the load is COMMITTED, in [\d.]+ s",
    "loaded": r"load L attempt 1: readers see 200 records in plain; asset events: kafka://\S+/plain, in [\d.]+ s",
}


def logged(place: Place, dag: str, run: str, task: str, number: int = 1) -> list[dict[str, Any]]:
    path = place.airflow.home / "logs" / f"dag_id={dag}" / f"run_id={run}" / f"task_id=load.{task}"
    lines = (path / f"attempt={number}.log").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def is_ours(record: dict[str, Any]) -> bool:
    return "airflow_kafka_eos" in str(record.get("logger"))


def shown(place: Place, dag: str, run: str) -> dict[str, Any]:
    """The run's load on the page."""
    answer = httpx.get(f"{place.airflow.url}/kafka-eos/api/loads", params={"dag_id": dag, "run_id": run}, timeout=60)
    (load,) = answer.raise_for_status().json()["loads"]
    found: dict[str, Any] = load
    return found


def test_each_step_of_a_load_that_goes_well_ends_with_one_line_of_what_it_did(place: Place) -> None:
    run = Run(place.airflow, "plain", "on-call")
    run.start()
    assert run.wait() == "success", run.tasks()
    for task in TASKS:
        records = logged(place, "plain", run.id, task)
        ours = [r for r in records if is_ours(r)]
        texts = [str(r["event"]).replace("airflow/plain.load/on-call", "L") for r in ours]
        assert texts and re.fullmatch(LAST[task], texts[-1]), (task, texts)
        assert len(texts) <= (2 if task in ("prepare", "loaded") else 1), (task, texts)
        assert [r for r in records if str(r.get("logger")).partition(".")[0] in OTHERS] == []
        assert [r for r in records if r["level"] not in ("info", "debug")] == [], task
        # Spark has its own; what is the same but for figures is the same to a reader
        same = Counter(re.sub(r"[\d.,]+", "N", text) for text in texts)
        assert max(same.values()) == 1, same
        assert not [t for t in texts if "{}" in t or "[]" in t or "None" in t]


def test_a_job_that_fails_says_why_in_its_log_the_ledger_the_page_and_the_command_line(place: Place) -> None:
    place.kafka.create_topic("failing", partitions=2)
    run = Run(place.airflow, "failing", "why")
    run.start()
    run.wait_task("prepare", "up_for_retry", "failed")
    why = "the Spark application failed: ValueError: no table of orders for ***, and 4 is no table"
    load = LoadIdentity("airflow", "failing.load", "why")
    row = place.ledger.load(load)
    assert row is not None and (row.state, row.reason) == (LoadState.PREPARING, f"prepare failed: {why}")
    found = shown(place, "failing", run.id)
    assert (found["prospect"], found["decision"]) == ("waits for its retry", None)
    assert "load.prepare (try 1 of 2) failed, and is tried again" in found["outlook"]
    assert found["reason"] == row.reason
    records = logged(place, "failing", run.id, "prepare")
    (last,) = [r for r in records if is_ours(r) and r["level"] == "error"]
    named = re.escape(str(load))
    assert re.fullmatch(rf"load {named} attempt 1: prepare failed after .+ s: {re.escape(why)}", last["event"])

    # nobody goes on: what was noted becomes the reason of the abort
    run.mark("prepare", "failed")
    assert run.wait() == "failed"
    (attempt,) = place.ledger.attempts(load)
    assert (attempt.verdict, attempt.reason) == (Verdict.ABORT, f"cleanup: prepare failed: {why}")
    row = place.ledger.load(load)
    assert row is not None and (row.state, row.reason) == (LoadState.ABORTED, "")
    found = shown(place, "failing", run.id)
    assert (found["reason"], found["prospect"]) == (attempt.reason, None)
    code = "import sys; from airflow_kafka_eos.cli import main; sys.exit(main())"
    for command in (["list", "--name", load.name], ["show", load.name, load.key]):
        done = subprocess.run(
            [sys.executable, "-c", code, "loads", *command],
            env=place.airflow.env, capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        assert why in " ".join(done.stdout.split()), done.stdout
    # 8 seconds of looks, each second one: it is told once what is waited for
    cleanup = [str(r["event"]) for r in logged(place, "failing", run.id, "cleanup") if is_ours(r)]
    assert [t for t in cleanup if "this must stay so for 8 s" in t] == cleanup[:1], cleanup
    end = rf"load {named} attempt 1: clean: nothing was open; the load is ABORTED, in .+ s"
    assert re.fullmatch(end, cleanup[-1])
    assert len(cleanup) == 2, cleanup
    # whoever reads ledger, manifests or a log, the scheduler's too, has no business with passwords
    files = dict(contents(place.airflow.home))
    assert any(path.name == "1.failed" for path in files)
    assert [path for path, content in files.items() if SECRET.encode() in content] == []


def test_the_page_tells_a_run_at_work_from_one_that_stands_still(place: Place) -> None:
    run = Held(place, "looked-at", "at_once")
    run.hold("writing")
    run.start()
    run.reached("writing")
    wait_for(run.held_back, lambda: f"an open transaction of {run.id}: {run.tasks()}")

    def now() -> tuple[str | None, str, set[str]]:
        found = shown(place, "at_once", run.id)
        asked = {"dag_id": "at_once", "run_id": run.id}
        answer = httpx.get(f"{place.airflow.url}/kafka-eos/api/transactions", params=asked, timeout=60)
        looks = answer.raise_for_status().json()["clusters"]
        return found["prospect"], found["outlook"], {t["standing"] for look in looks for t in look["transactions"]}

    prospect, outlook, standings = now()
    assert (prospect, standings) == ("at work", {"undecided"})
    assert outlook == "load.prepare (try 1 of 5) is running. There is nothing to do."
    run.pause(True)  # what runs, runs on
    try:
        assert now() == (prospect, outlook, standings)
        run.go("writing")
        run.wait_task("prepare", "success")
        wait_for(lambda: shown(place, "at_once", run.id)["state"] == "COMMITTED", lambda: f"commit: {run.tasks()}")
        assert now()[:2] == (None, "")
    finally:
        run.pause(False)
    assert run.wait() == "success", run.tasks()
    assert run.count(whole=True) == right(whole=True)


def test_what_decide_refuses_is_the_reason_everywhere(place: Place) -> None:
    (place.switches / "refuse").touch()
    try:
        run = Run(place.airflow, "refused", "refused-why")
        run.start()
        assert run.wait() == "failed", run.tasks()
    finally:
        (place.switches / "refuse").unlink()
    found = shown(place, "refused", run.id)
    assert (found["state"], found["reason"]) == ("ABORTED", "check: the switch is set")
    (last,) = [r for r in logged(place, "refused", run.id, "decide") if is_ours(r)]
    assert re.fullmatch(
        r"load airflow/refused\.load/refused-why( attempt 1)?: decide failed after [\d.]+ s: CheckFailedError: "
        r"the load is refused: the switch is set\. .+", last["event"],
    )  # fmt: skip
    link = place.airflow.get(f"/dags/refused/dagRuns/{quote(run.id)}/taskInstances/load.decide")
    assert link["try_number"] == 1, "a refusal is not tried again"
