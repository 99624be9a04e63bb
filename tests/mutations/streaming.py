"""Guards of streaming queries, whose micro-batches are loads."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_LEDGER = "airflow_kafka_eos/ledger/streams.py"
_STAGE = "airflow_kafka_eos/protocol/stages/batches.py"
_TESTS = "tests/protocol/test_batches.py::"

OF_STREAMS: tuple[Mutation, ...] = (
    Mutation(
        "one-name-one-query",
        "name-of-any-query",
        "a name that is bound to a query is no other's",
        _LEDGER,
        "    if stream.query_id != batch.query_id:",
        "    if stream.query_id is None:",
        (f"{_TESTS}test_a_name_is_one_querys",),
    ),
    Mutation(
        "one-name-one-query",
        "any-checkpoint",
        "a query's checkpoint is no copy",
        _LEDGER,
        "    if stream.checkpoint != run.checkpoint:",
        "    if not run.checkpoint:",
        (f"{_TESTS}test_a_name_is_one_querys",),
    ),
    Mutation(
        "newest-run-begins",
        "older-run-goes-on",
        "a run that is not the newest neither begins nor decides",
        _LEDGER,
        "    if number != stream.newest_run:",
        "    if number is None:",
        (f"{_TESTS}test_a_run_that_is_not_the_newest_neither_begins_nor_decides",),
    ),
    Mutation(
        "batches-in-turn",
        "begun-out-of-turn",
        "a batch is begun only behind the one before it",
        _LEDGER,
        "    if batch.number > stream.decided + 1:",
        "    if batch.number < 0:",
        (f"{_TESTS}test_a_batch_is_begun_in_its_turn_only",),
    ),
    Mutation(
        "batches-in-turn",
        "decided-uncounted",
        "a batch that is decided is counted",
        _LEDGER,
        ".values(decided=batch.number, updated_at=moment)",
        ".values(updated_at=moment)",
        (f"{_TESTS}test_batches_of_a_query_are_there_once_and_each_is_a_load",),
    ),
    Mutation(
        "decided-is-not-written",
        "decided-left-as-it-is",
        "what is decided is rolled forward before it is told as done",
        _STAGE,
        "    if row.verdict is Verdict.COMMIT:\n        _roll_forward(session, load, deadline_s)\n",
        "    if row.verdict is Verdict.COMMIT:\n",
        (f"{_TESTS}test_a_decided_batch_is_rolled_forward_and_never_written_again",),
    ),
    Mutation(
        "same-range",
        "any-range",
        "a decided batch is believed with the offsets that it was decided with only",
        _LEDGER,
        "        if number in decided and decided[number] != found:",
        "        if number in decided and found is None:",
        (f"{_TESTS}test_a_checkpoint_that_was_put_back_is_found_out",),
    ),
    Mutation(
        "decide-by-compare-and-set",
        "aborted-batch-decided",
        "a batch is decided only while its attempt is neither aborted nor superseded",
        "airflow_kafka_eos/ledger/attempts.py",
        "    problem = why_undecidable(locked, attempt)",
        '    problem = ""',
        (f"{_TESTS}test_a_batch_is_decided_only_while_its_attempt_is_the_newest",),
    ),
    Mutation(
        "decide-before-done",
        "done-undecided",
        "Spark hears that a batch is done behind its decision",
        _STAGE,
        "    record_prepared(session, manifest, writers_left=writers_left)\n",
        "    return\n    record_prepared(session, manifest, writers_left=writers_left)\n",
        (f"{_TESTS}test_done_is_said_behind_the_decision_only",),
    ),
    Mutation(
        "sweep-at-start",
        "unswept-attempt",
        "what an earlier attempt of the batch has open is ended before it is written anew",
        _STAGE,
        "    if row.number > 1:\n        sweep(",
        "    if row.number < 1:\n        sweep(",
        (f"{_TESTS}test_what_a_dead_run_has_left_is_ended_when_the_next_one_begins",),
    ),
    Mutation(
        "sweep-at-start",
        "unswept-batches",
        "what other batches of the name have open is ended, too",
        _STAGE,
        "    sweep_earlier(session, batch, by=by, deadline_s=deadline_s)\n",
        "",
        (f"{_TESTS}test_what_is_left_of_another_batch_is_ended_too",),
    ),
    Mutation(
        "sweep-asks-the-ledger",
        "sweeps-what-is-at-work",
        "maintenance beside a query ends nothing that may be at work",
        "airflow_kafka_eos/protocol/cleanup/namespace.py",
        "        is_at_work = row.is_undecided and is_young\n",
        "        is_at_work = False\n",
        (f"{_TESTS}test_maintenance_beside_a_query_at_work_ends_nothing_of_it",),
    ),
    Mutation(
        "unknown-commit-stops",
        "batch-decided-blindly",
        "brokers are asked behind what was prepared, before a batch is decided",
        _STAGE,
        "    check_batches_known(session, batch)\n",
        "",
        (f"{_TESTS}test_a_ledger_that_was_put_back_while_the_query_runs_decides_nothing_twice",),
    ),
)
