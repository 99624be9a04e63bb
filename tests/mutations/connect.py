"""Guards of Spark Connect: what a server's executors look at before they write, and what goes to a server once."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_TASK = "airflow_kafka_eos/connect/task.py"
_REMOTE = "airflow_kafka_eos/connect/remote.py"
_SWEEP = "airflow_kafka_eos/protocol/cleanup/sweep.py"
_FENCES = "tests/protocol/test_fences.py::"
_ENGINE = "tests/connect/test_engine.py::"
_OF_TASKS = "tests/connect/test_task.py::"
_STEPS = "tests/airflow/test_connect_steps.py::"

OF_CONNECT: tuple[Mutation, ...] = (
    Mutation(
        "one-cluster-per-attempt",
        "any-cluster-of-that-name",
        "an executor writes only to the cluster that the ledger has pinned",
        _TASK,
        "            if found is None or found != work.cluster_id:\n",
        "            if found is None:\n",
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
        "        if application_id is None or application_id != work.application_id:\n",
        "        if application_id is None:\n",
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
        "fence-looked-at-once",
        "a task that holds rows back for long looks at its fence again before it sends them",
        _TASK,
        "            if batch.num_rows and (looked is None or time.monotonic() - looked > LOOK_S):\n",
        "            if batch.num_rows and looked is None:\n",
        (_OF_TASKS + "test_a_task_looks_again_between_batches",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "fence-not-looked-at-behind-the-last-row",
        "what a task sends last begins no transaction either, however long its source has kept the end from it",
        _TASK,
        "        if looked is not None and time.monotonic() - looked > LOOK_S:\n",
        "        if looked is None and time.monotonic() < 0:\n",
        (_OF_TASKS + "test_a_task_looks_again_before_it_ends",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "fence-stays",
        "whoever makes an attempt undecidable moves its fence",
        _SWEEP,
        "        fences.move(session.coordinator, fences.of_attempts(session.ledger.ledger_id, rows), report.fences)\n",
        "        pass\n",
        (_FENCES + "test_begin_and_prepare_and_cleanup_move_it",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "fence-moved-behind-the-listing",
        "what begins before its fence moves is in the listing behind that",
        _SWEEP,
        "    failed = _fence(session, rows, report) or failed\n"
        "    lingering = _lingering(session, load, rows, up_to, report, guesses)\n",
        "    lingering = _lingering(session, load, rows, up_to, report, guesses)\n"
        "    failed = _fence(session, rows, report) or failed\n",
        (_FENCES + "test_what_begins_before_it_moves_is_swept_by_the_same_pass",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "probe-taken-for-a-fence",
        "a load that no server writes has no fence: its ids are left alone",
        "airflow_kafka_eos/protocol/fences.py",
        "        if row.has_fence and row.verdict is Verdict.ABORT and row.closed_at is None\n",
        "        if row.verdict is Verdict.ABORT and row.closed_at is None\n",
        (_FENCES + "test_other_loads_ids_are_not_asked_about_nor_initialised",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "pooled-by-connect",
        "an attempt by Spark Connect has ids of its own, and so a fence of its own",
        "airflow_kafka_eos/operators/by_connect.py",
        "    if naming is TransactionNaming.POOLING:\n",
        "    if naming is None:\n",
        (_STEPS + "test_pooled_ids_are_refused_before_an_attempt",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "fence-that-nobody-moves",
        "a client begins only where the ledger knows of its fence, for else nobody moves it",
        "airflow_kafka_eos/protocol/fences.py",
        '    return None if found.has_fence else "the ledger does not know that it has a fence"\n',
        "    return None\n",
        (_FENCES + "test_a_client_whose_fence_nobody_would_move_does_not_begin",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "fence-not-noted",
        "prepare by Spark Connect has the ledger note the fence",
        "airflow_kafka_eos/operators/prepare.py",
        "            self._stop, self._has_fence = threading.Event(), True\n",
        "            self._stop = threading.Event()\n",
        (_STEPS + "test_a_load_goes_its_way_and_what_is_lost_is_left_to_spark_submit",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "prepared-again-by-connect",
        "a repair has no fence: a Spark Connect server does not prepare again",
        "airflow_kafka_eos/operators/by_connect.py",
        "            if taken.again is not None:\n",
        "            if taken.again == 0:\n",
        (_STEPS + "test_a_load_goes_its_way_and_what_is_lost_is_left_to_spark_submit",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "fence-put-up-too-late",
        "behind its fence a client asks the ledger whether its attempt is over",
        "airflow_kafka_eos/connect/fence.py",
        "    if (by := why_over()) is not None:\n",
        "    if (by := why_over()) == \"\":\n",
        (_FENCES + "test_a_client_that_puts_it_up_behind_that_is_told_by_the_ledger",),
    ),
    Mutation(
        "one-decision-per-load",
        "superseded-task-exits",
        "a superseded task does not end by an exit, which Airflow tries again",
        "airflow_kafka_eos/spark/orphan.py",
        "        while self._in_task and time.monotonic() < give_up:\n",
        "        while self._in_task and time.monotonic() < 0:\n",
        ("tests/spark/test_superseded.py::test_a_task_that_does_so_is_woken_and_fails_by_that_error",),
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
