"""Guards of what stands still or looks elsewhere: deciding in prepare, paused DAGs, a process with another ledger."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_AT_ONCE = "tests/adapters/test_at_once.py::test_prepare_leaves_it_to_decide_where_an_author_stands_between"
_PAUSED = "tests/adapters/test_paused_dags.py::"
_OTHER_HOME = "tests/airflow/test_other_home.py::"
_OTHERS = "tests/protocol/test_other_ledgers.py::"
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
    Mutation(
        "same-ledger",
        "loaded-in-another-ledger",
        "a ledger that has made itself begins no load of a name that another ledger has loaded",
        "airflow_kafka_eos/protocol/stages/begin.py",
        "    check_no_other_ledger(session, load)\n",
        "",
        (_OTHERS + "test_what_another_ledger_has_loaded_is_not_begun_in_a_new_one",),
    ),
    Mutation(
        "same-ledger",
        "batch-in-another-ledger",
        "nor a batch of a query",
        "airflow_kafka_eos/protocol/stages/batches.py",
        "        check_no_other_ledger(session, load)\n",
        "",
        (_OTHERS + "test_nor_is_a_batch_of_a_query",),
    ),
    Mutation(
        "same-ledger",
        "pooled-in-another-ledger",
        "pooled ids show that a name was loaded, too",
        "airflow_kafka_eos/protocol/guards/other_ledgers.py",
        "found.load_name if isinstance(found, PooledId) else found.load.name",
        '"" if isinstance(found, PooledId) else found.load.name',
        (_OTHERS + "test_what_another_ledger_has_loaded_is_not_begun_in_a_new_one",),
    ),
    Mutation(
        "same-ledger",
        "hidden-by-a-moving-coordinator",
        "what a coordinator that moves hides is not taken for nothing",
        "airflow_kafka_eos/protocol/guards/other_ledgers.py",
        "        if not watch.has_moved():\n            return\n",
        "        return\n",
        (_OTHERS + "test_where_a_coordinator_moves_it_is_not_known",),
    ),
    Mutation(
        "same-ledger",
        "asked-for-each-load",
        "brokers are asked for no name that the ledger has loaded",
        "airflow_kafka_eos/ledger/queries.py",
        "    return connection.execute(decided).first() is None\n",
        "    return decided is not None\n",
        (_OTHERS + "test_once_a_load_of_the_name_is_decided_brokers_are_asked_no_more",),
    ),
    Mutation(
        "same-ledger",
        "attempt-taken-for-a-load",
        "an attempt that is not decided does not make a name known",
        "airflow_kafka_eos/ledger/queries.py",
        "        select(of.id).join(t.decisions, d.load_id == of.id)\n"
        "        .where(of.namespace == namespace, of.name == name, d.verdict == Verdict.COMMIT.value)\n"
        "        .limit(1)",
        "        select(of.id)\n        .where(of.namespace == namespace, of.name == name)\n        .limit(1)",
        (_OTHERS + "test_an_attempt_alone_says_nothing",),
    ),
    Mutation(
        "same-ledger",
        "new-id-refused",
        "a ledger with a new id is meant to begin",
        "airflow_kafka_eos/ledger/queries.py",
        "        return False\n    of, d = ",
        "        assert namespace\n    of, d = ",
        (_OTHERS + "test_a_ledger_that_a_person_has_given_a_new_id_begins_anew",),
    ),
)
