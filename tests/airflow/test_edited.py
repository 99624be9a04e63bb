"""The DAG file names another load than the run has begun: each step, on real parts (rule: key-names-the-data)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad, Submit
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.airflow.steps import LOAD, OWNER, a_prepared_load, open_ids, operator, run, session, state
from tests.airflow.steps import in_try as context_of_try

STEPS = ("prepare", "decide", "commit", "loaded")


def group(key: str, group_id: str = "load", **arguments: Any) -> Any:
    """The load in a DAG as its file has it."""
    with DAG("dag", schedule=None, start_date=datetime(2026, 1, 1)):
        return ExactlyOnceLoad(group_id, **{"load_name": LOAD, "load_key": key, "topics": ["t"], "job": "/j.py"}
                               | arguments)  # fmt: skip


def context(xcoms: dict[tuple[str, str], Any] | None = None, index: int = -1) -> Any:
    found = context_of_try(1, xcoms)
    found["ti"].map_index = index
    return found


def begun(key: str, **names: str) -> dict[tuple[str, str], Any]:
    told = {"namespace": "airflow", "load_name": LOAD, "load_key": key} | names
    return {("load.begin", "return_value"): told}


def begin(made: Any, index: int = -1) -> Any:
    return made.begin.execute(context(index=index))


@pytest.mark.parametrize("step", STEPS)
def test_a_step_behind_begin_refuses_another_load_than_begin_has_begun(step: str) -> None:
    made = group("b").__dict__[step]
    for same in (begun("b"), {}, begun("b", other="x")):
        made.pre_execute(context(same))
    for other in (begun("a"), begun("b", load_name="former"), begun("b", namespace="team")):
        with pytest.raises(AirflowFailException, match=r"was edited meanwhile.*Put the old") as refused:
            made.pre_execute(context(other))
        old = next(iter(other.values()))
        command = f"loads show {old['load_name']!r} {old['load_key']} --namespace {old['namespace']}"
        assert command.replace("'former'", "former") in str(refused.value)


def test_a_step_says_what_was_edited_where_the_run_was_to_load_once_more() -> None:
    with pytest.raises(AirflowFailException, match=r"no on_committed='reload' any more.*Put it back"):
        group("b").decide.pre_execute(context(begun("b~reload-2")))


def test_a_submitter_refuses_it_before_it_opens_an_attempt() -> None:
    submit = Submit(BashOperator, runs_here=True, bash_command="{{ kafka_eos.spec }}")
    made = group("b", submit=submit)
    with pytest.raises(AirflowFailException, match="was edited meanwhile"):
        made.submit.execute(context(begun("a")))


def test_a_step_whose_begin_is_not_known_asks_nobody() -> None:
    """Written by hand: two loads in one group, or none in a DAG."""
    operator("prepare", "b").pre_execute(context(begun("a")))


def test_cleanup_sweeps_what_begin_has_begun(home: Path, kafka: LocalKafka, topic: Callable[..., str]) -> None:
    a_prepared_load(home, kafka, "swept", topic(), 3)
    assert len(open_ids("swept")) == 1
    cleanup = group("edited", deferrable=False).cleanup
    told = context(begun("swept")) | {"dag": cleanup.dag}
    told["ti"].get_task_states = lambda **_: {}
    cleanup.poke_interval = 0.2
    cleanup.pre_execute(told)
    assert cleanup.execute(told)["load"] == f"airflow/{LOAD}/swept"
    assert (open_ids("swept"), state("swept")) == ([], LoadState.ABORTED)


def test_begin_refuses_what_this_run_has_loaded_under_another_name(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    name = topic()
    a_prepared_load(home, kafka, "loaded as a", name, 3)
    b = group("loaded as b", topics=[name])
    ends = r"`airflow-kafka-eos cleanup 'a.b/ü %' 'loaded as a' --namespace airflow`"
    with pytest.raises(AirflowFailException, match=rf"is loading airflow/.* would be there twice.*{ends}"):
        begin(b)
    run("decide", "loaded as a")
    for step in ("decide", "commit"):
        run(step, "loaded as a")
        with pytest.raises(AirflowFailException, match=rf"has loaded airflow/.* into {name} .* would be there twice"):
            begin(b)
    for other in ({"load_name": "b"}, {"namespace": "team"}):
        with pytest.raises(AirflowFailException, match=r"would be there twice.*loads set-committed"):
            begin(group("loaded as a", topics=[name], **other))
    with session() as opened:
        assert opened.ledger.load(LoadIdentity("airflow", LOAD, "loaded as b")) is None, "nothing was opened"


def test_a_group_that_the_dag_has_no_more_may_be_this_one_renamed_or_other_data(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    """What is told to do loses nothing, whichever it is."""
    name = topic()
    sql: dict[str, Any] = {"job": None, "sql": "SELECT 1"}

    def begin_as(group_id: str, key: str, **more: Any) -> Any:
        told = context()
        told["ti"].task_id = f"{group_id}.begin"
        made = group(key, group_id, load_name=f"dag.{group_id}", topics=[name], **sql, **more)
        return made.begin.execute(told)

    def prepared_as(group_id: str, key: str) -> None:
        owner = f"{OWNER.partition('=')[0]}={group_id}"
        a_prepared_load(home, kafka, key, name, 3, name=f"dag.{group_id}", owner=owner)

    def decide_as(group_id: str, key: str) -> None:
        told = context()
        told["ti"].task_id = f"{group_id}.decide"
        operator("decide", key, load_name=f"dag.{group_id}").execute(told)

    begin_as("known", "of a run before")
    prepared_as("gone", "gone")
    renamed = r"is loading airflow/dag\.gone.* set load_name='dag\.gone' .* `airflow-kafka-eos cleanup dag\.gone gone"
    for asked in ("skip", "reload"):  # that is for what is committed: this one may be decided at any moment
        with pytest.raises(AirflowFailException, match=renamed):
            begin_as("new", "gone", on_committed=asked)
    decide_as("gone", "gone")
    for group_id in ("new", "known"):  # its former name, put back
        with pytest.raises(AirflowFailException, match=r"has loaded airflow/dag\.gone.*set load_name=") as caught:
            begin_as(group_id, "gone")
        assert "on_committed='reload'" in str(caught.value) and "set-committed" not in str(caught.value)
    assert begin_as("new", "gone", on_committed="reload")["attempt"] == 1, "other data, as a person has said"

    begin_as("known", "beside it")
    prepared_as("gone", "both")
    decide_as("gone", "both")
    assert begin_as("known", "both")["attempt"] == 1, "both have loaded by turns: they are two"


def test_what_a_new_name_has_to_know_is_said(home: Path, kafka: LocalKafka, topic: Callable[..., str]) -> None:
    """By set-committed alone, a new name would read all that its source has once more."""
    name = topic()
    a_prepared_load(home, kafka, "moved", name, 3)
    run("decide", "moved")
    refused = "would be there twice"
    with pytest.raises(AirflowFailException, match=refused) as no_cursor:
        begin(group("moved", topics=[name], load_name="new"))
    with pytest.raises(AirflowFailException, match=refused) as other_key:
        begin(group("new", topics=[name]))
    with session() as opened:
        opened.ledger.set_cursor("airflow", LOAD, expected=None, moves=None, to=7, by="ann", reason="as a load does")
    with pytest.raises(AirflowFailException, match=refused) as cursor:
        begin(group("moved", topics=[name], load_name="new"))
    with pytest.raises(AirflowFailException, match=refused) as its_own:
        begin(group("new", topics=[name]))
    made = "`airflow-kafka-eos cursors set new --namespace airflow --new --to … --reason renamed`, with the position "
    made += "that `airflow-kafka-eos cursors show 'a.b/ü %' --namespace airflow` prints"
    told = [str(one.value) for one in (no_cursor, other_key, its_own, cursor)]
    assert [made in text for text in told] == [False, False, False, True]
    assert all("on_committed='reload' until this run is through" in text for text in told)
    assert told[3].index("cursors set") < told[3].index("loads set-committed new moved --namespace airflow")


def test_begin_passes_what_is_no_double(home: Path, kafka: LocalKafka, topic: Callable[..., str]) -> None:
    name = topic()
    a_prepared_load(home, kafka, "single", name, 3)
    run("decide", "single")
    run("commit", "single")
    assert begin(group("single", topics=[name]))["note"], "the same"
    sql: dict[str, Any] = {"job": None, "sql": "SELECT 1"}
    assert begin(group("elsewhere", topics=[topic()], **sql))["attempt"] == 1, "the same data into another topic"
    again = begin(group("single", topics=[name], on_committed="reload", **sql))
    assert again["load_key"] == "single~reload-2", "asked for"
    by_another_run = context()
    by_another_run["ti"].run_id = "another"
    assert group("another run's", topics=[name], **sql).begin.execute(by_another_run)["attempt"] == 1


def test_begin_knows_a_mapped_load_by_its_item(home: Path, kafka: LocalKafka, topic: Callable[..., str]) -> None:
    """By its index it is another one behind each change of the list."""
    name = topic()

    def begun_as(key: str, item: str, index: int) -> Any:
        made, told = group(key, topics=[name], item=item, job=None, sql="SELECT 1").begin, context(index=index)
        made.pre_execute(told)
        return made.execute(told)

    first = begun_as("mapped", "x", 0)
    with session() as opened:
        load = LoadIdentity("airflow", LOAD, first["load_key"])
        opened.ledger.submit(load, owner=f"{OWNER}#map_index=0", deadline_ms=1)
    assert begun_as("mapped", "y", 0)["attempt"] == 1, "the list was turned round"
    with pytest.raises(AirflowFailException, match=r"is loading airflow/a\.b/ü %/mapped/x"):
        begun_as("edited", "x", 0)
    assert begun_as("us", "x", 1)["attempt"] == 1, "another index may have the item under a key of its own"
    assert begun_as("edited", "y", 0)["attempt"] == 1, "only opened before"


def test_what_was_only_opened_is_closed_and_begun_anew(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    """begin has failed where it looks ahead, or its try was lost; the file was corrected."""
    name = topic()
    begin(group("opened", topics=[name], job=None, sql="SELECT 1"))
    assert begin(group("corrected", topics=[name], job=None, sql="SELECT 1"))["attempt"] == 1
    assert (state("opened"), state("corrected")) == (LoadState.ABORTED, LoadState.PREPARING)
