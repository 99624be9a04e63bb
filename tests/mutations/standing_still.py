"""Guards of what stands still or looks elsewhere: deciding in prepare, paused DAGs, a process with another ledger."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_AT_ONCE = "tests/adapters/test_at_once.py::test_prepare_leaves_it_to_decide_where_an_author_stands_between"
_PAUSED = "tests/adapters/test_paused_dags.py::"
_OTHER_HOME = "tests/airflow/test_other_home.py::"
_NEVER = _OTHER_HOME + "test_a_trigger_never_takes_another_ledgers_word_nor_makes_one"

OF_STANDING_STILL: tuple[Mutation, ...] = (
    Mutation(
        "decide-at-once",
        "decided-before-the-author",
        "prepare decides nothing that a task of the author's stands before",
        "airflow_kafka_eos/operators/preparing.py",
        "    if others:\n",
        "    if not others and others:\n",
        (_AT_ONCE,),
    ),
    Mutation(
        "decide-at-once",
        "decided-past-a-hook",
        "prepare decides nothing that a hook of the author's stands before",
        "airflow_kafka_eos/operators/preparing.py",
        "    if decide._pre_execute_hook is not None or prepare._post_execute_hook is not None:\n",
        "    if False:\n",
        (_AT_ONCE,),
    ),
    Mutation(
        "decide-at-once",
        "paused-at-work",
        "maintenance leaves alone what a task of a paused DAG is at work on",
        "airflow_kafka_eos/operators/maintenance.py",
        " and not self._is_at_work(dag_id, run_id, attempt)",
        "",
        (_PAUSED + "test_a_task_of_the_group_that_is_at_work_is_waited_for",),
    ),
    Mutation(
        "decide-at-once",
        "paused-driver-at-work",
        "maintenance leaves alone what a paused DAG's deferred prepare waits for",
        "airflow_kafka_eos/operators/maintenance.py",
        ' or (state == "deferred" and task.rpartition(".")[2] in waits)',
        "",
        (_PAUSED + "test_a_driver_that_a_deferred_prepare_waits_for_is_at_work",),
    ),
    Mutation(
        "decide-at-once",
        "paused-sibling-at-work",
        "a task that waits for an attempt's end does not keep it from being ended",
        "airflow_kafka_eos/operators/maintenance.py",
        ' and task.rpartition(".")[2] in waits)',
        ")",
        (_PAUSED + "test_another_that_has_deferred_may_wait_for_this_very_attempts_end",),
    ),
    Mutation(
        "decide-at-once",
        "paused-of-a-name-cut-off",
        "maintenance takes no run for still whose name the ledger has not kept whole",
        "airflow_kafka_eos/operators/maintenance.py",
        " or len(run_part) >= MAX_OWNER_PART",
        "",
        (_PAUSED + "test_what_is_not_known_to_stand_still_is_left_alone",),
    ),
    Mutation(
        "same-ledger",
        "clean-in-another-ledger",
        "a trigger takes no word of a ledger with another id",
        "airflow_kafka_eos/ledger/ledger.py",
        "        if ledger_id is not None and opened.ledger_id != ledger_id:\n",
        "        if False:\n",
        (_NEVER,),
    ),
    Mutation(
        "same-ledger",
        "clean-in-a-new-ledger",
        "a trigger makes no ledger",
        "airflow_kafka_eos/triggers.py",
        "existing=True, ",
        "",
        (_NEVER,),
    ),
    Mutation(
        "same-ledger",
        "clean-of-an-unknown-load",
        "a trigger calls no load clean, or invisible, that its ledger does not know",
        "airflow_kafka_eos/triggers.py",
        "        return ledger.load(self.load_identity) is not None\n",
        "        return True\n",
        (_NEVER,),
    ),
    Mutation(
        "same-ledger",
        "clean-of-an-unknown-attempt",
        "a trigger calls no attempt clean that its ledger does not know",
        "airflow_kafka_eos/triggers.py",
        "self.up_to == 0 or ",
        "True or ",
        (_NEVER,),
    ),
)
