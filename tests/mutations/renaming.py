"""Guards of a streaming query that has several names, one after the other, and of what a person says of it."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_LEDGER = "airflow_kafka_eos/ledger/streams.py"
_LEDGER_TESTS = "tests/ledger/test_ledger_streams.py::"

OF_RENAMING: tuple[Mutation, ...] = (
    Mutation(
        "batches-in-turn",
        "renamed-unasked",
        "under another name a query goes on where a person says",
        _LEDGER,
        "            decided = None\n        values = {\n",
        "            pass\n        values = {\n",
        (f"{_LEDGER_TESTS}test_a_query_whose_name_was_set_free_begins_under_another_one_where_a_person_says",),
    ),
    Mutation(
        "batches-in-turn",
        "renamed-back-unasked",
        "nor does it under a name that it had before, where another one has later batches",
        _LEDGER,
        "        if decided is not None and any(",
        "        if known is None and any(",
        (f"{_LEDGER_TESTS}"
         "test_a_query_that_comes_back_to_its_name_has_not_forgotten_what_it_decided_under_another_one",),
    ),
    Mutation(
        "batches-in-turn",
        "other-frames-doubted",
        "a name that the query is bound to again is another frame's",
        _LEDGER,
        "_C.id != stream_id, not_(is_bound)\n",
        "_C.id != stream_id\n",
        (f"{_LEDGER_TESTS}test_a_frame_that_comes_back_is_not_in_doubt_for_the_others_sake",),
    ),
    Mutation(
        "batches-in-turn",
        "said-while-under-way",
        "nobody says which batch is the last one while one is decided that readers may not see yet",
        _LEDGER,
        "        if of is not None and of[0] == stream.query_id:\n",
        "        if False:\n",
        (f"{_LEDGER_TESTS}test_nothing_is_said_of_a_query_while_a_batch_of_it_is_under_way",),
    ),
    Mutation(
        "batches-in-turn",
        "said-to-be-missing",
        "what was decided under another name is not said to be missing",
        _LEDGER,
        "        if of is not None and of[1] > number:\n",
        "        if False:\n",
        (f"{_LEDGER_TESTS}test_what_was_decided_under_another_name_is_not_said_to_be_missing",),
    ),
)
