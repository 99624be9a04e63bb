"""Guards of Spark Connect: what a server's executors look at before they write, and what goes to a server once."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_TASK = "airflow_kafka_eos/connect/task.py"
_REMOTE = "airflow_kafka_eos/connect/remote.py"
_FENCE = "airflow_kafka_eos/spark/fence.py"
_ENGINE = "tests/connect/test_engine.py::"
_STEPS = "tests/airflow/test_connect_steps.py::"

OF_CONNECT: tuple[Mutation, ...] = (
    Mutation(
        "one-cluster-per-attempt",
        "any-cluster-of-that-name",
        "an executor writes only to the cluster that the ledger has pinned",
        _TASK,
        "            if work.cluster_id not in (None, found):\n",
        "            if work.cluster_id is found is None:\n",
        (_ENGINE + "test_executors_that_come_to_another_cluster_write_nothing",),
    ),
    Mutation(
        "one-application-per-attempt",
        "write-sent-again",
        "a write that a server may have run is not sent to it again",
        _REMOTE,
        "                if request.operation_id in self._sent:\n",
        "                if request.operation_id is None:\n",
        ("tests/connect/test_remote.py::test_an_operation_that_must_not_run_twice_is_sent_once",),
    ),
    Mutation(
        "one-application-per-attempt",
        "any-run-of-the-server",
        "a restarted server, whose task attempts are counted from 0 again, writes nothing of an attempt",
        _TASK,
        "        if application_id != work.application_id:\n",
        "        if application_id is work.application_id is None:\n",
        (_ENGINE + "test_another_run_of_the_server_writes_nothing",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "fence-not-looked-at",
        "a task whose attempt is over begins nothing, though its client is dead",
        _TASK,
        "        if seen is None or seen.state != work.fence:\n",
        "        if seen is None:\n",
        (_ENGINE + "test_an_orphan_of_a_killed_client_begins_nothing_more_once_its_attempt_is_over",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "fence-stays",
        "whoever leaves the note that an attempt is over moves its fence",
        "airflow_kafka_eos/operators/submitting.py",
        "    return move(store, session.coordinator, refs)\n",
        "    return False\n",
        (_STEPS + "test_begin_prepare_and_cleanup_move_the_fence_of_what_is_over",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "fence-of-a-repair-stays",
        "who prepares again under a repair that is given up begins nothing more",
        "airflow_kafka_eos/operators/preparing.py",
        "            tell_abandoned(session, store, row.load)\n",
        "            pass\n",
        (_STEPS + "test_a_zombie_of_an_earlier_repair_begins_nothing",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "fence-put-up-too-late",
        "behind its fence a client looks once more whether its attempt is over",
        _FENCE,
        "    if (by := store.superseded_by(ref)) is not None:\n",
        "    if (by := store.superseded_by(ref)) == \"\":\n",
        (_ENGINE + "test_an_attempt_that_is_over_before_it_begins_sends_nothing",),
    ),
    Mutation(
        "decide-what-is-confirmed",
        "reports-not-counted",
        "a manifest is made of all the reports that the server has counted",
        "airflow_kafka_eos/connect/engine.py",
        "    if (seen := _counted(counted, reports)) != len(reports):\n",
        "    if (seen := _counted(counted, reports)) < len(reports):\n",
        (_ENGINE + "test_reports_that_do_not_all_come_make_no_manifest",),
    ),
)
