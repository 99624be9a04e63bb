"""Guards of rules 7 to 14: what happened, what may be ended, what may be reported done."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_LEDGER = "airflow_kafka_eos/ledger/"
_PROTOCOL = "airflow_kafka_eos/protocol/"
_KAFKA = "airflow_kafka_eos/kafka/"
_SPARK = "airflow_kafka_eos/spark/"

OF_RULES_7_TO_14: tuple[Mutation, ...] = (
    Mutation(
        7,
        "mixed-is-done",
        "COMMIT here and ABORT there stops for a person",
        "airflow_kafka_eos/evidence.py",
        " or {Marker.COMMIT, Marker.ABORT} <= seen",
        "",
        ("tests/test_evidence.py::test_the_table_of_rule_7",),
    ),
    Mutation(
        7,
        "unreadable-is-done",
        "a log that cannot be read tells nothing",
        "airflow_kafka_eos/evidence.py",
        "Marker.UNREADABLE in seen or ",
        "",
        ("tests/test_evidence.py::test_the_table_of_rule_7",),
    ),
    Mutation(
        7,
        "anybodys-marker",
        "a marker counts for its own producer id only",
        _KAFKA + "log_scan.py",
        "for one in sought.get(header[9], ()) if magic == 2 else ():",
        "for one in [o for s in sought.values() for o in s] if attributes & _CONTROL else ():",
        ("tests/kafka/test_partitions.py::test_a_marker_of_another_producer_is_none_of_ours_rule_7",),
    ),
    Mutation(
        7,
        "later-marker",
        "a marker with an epoch that the transaction cannot have is a later one's",
        _KAFKA + "log_scan.py",
        "    if producer_epoch is not None and epoch not in (producer_epoch, producer_epoch + 1):",
        "    if epoch is None:",
        (
            "tests/kafka/test_partitions.py::"
            "test_a_later_transaction_of_the_same_producer_id_is_not_taken_for_ours_rule_7",
        ),
    ),
    Mutation(
        8,
        "miscounted",
        "one InitProducerId per transaction, so that the last sequence + 1 is the count",
        _PROTOCOL + "confirming.py",
        "        if count != w.records % SEQUENCE_MODULUS:",
        "        if count is None:",
        ("tests/protocol/test_deciding.py::test_rule_4_what_the_broker_does_not_confirm_is_aborted",),
    ),
    Mutation(
        9,
        "committed-begun-again",
        "begin opens nothing for a load that is decided to be committed",
        _LEDGER + "attempts.py",
        "    if locked.committed is not None:\n        return locked.committed\n    newest = locked.newest\n"
        "    if newest is not None and newest.is_undecided",
        "    newest = locked.newest\n    if newest is not None and newest.is_undecided",
        ("tests/ledger/test_ledger_attempts.py::test_rule_9_a_committed_load_gets_no_new_attempt",),
    ),
    Mutation(
        9,
        "decided-load-swept",
        "a decided identity is rolled forward, whatever keeps it from that now",
        _PROTOCOL + "sweeping.py",
        "    elif session.ledger.is_decided_commit(identity):",
        "    elif identity is None:",
        (
            "tests/protocol/test_sweeping.py::"
            "test_rule_9_a_decided_load_that_cannot_be_rolled_forward_now_is_not_aborted",
        ),
    ),
    Mutation(
        10,
        "committed-unverified",
        "COMMITTED needs every outcome",
        _LEDGER + "outcomes.py",
        "    if missing:\n        broken",
        "    if missing is None:\n        broken",
        ("tests/ledger/test_ledger_decisions.py::test_rule_10_committed_needs_every_outcome",),
    ),
    Mutation(
        10,
        "committed-is-visible",
        "loaded waits for the last stable offset",
        _PROTOCOL + "visibility.py",
        "        if stable[tp] < offset\n",
        "        if offset is None\n",
        ("tests/protocol/test_committing.py::test_rule_10_loaded_names_who_holds_readers_back",),
    ),
    Mutation(
        11,
        "newer-attempt-swept",
        "cleanup ends attempts up to its own number only",
        _PROTOCOL + "sweeping.py",
        "    if number is None or number > up_to:",
        "    if number is None:",
        (
            "tests/protocol/test_sweeping.py::"
            "test_rule_11_a_newer_attempt_is_left_to_its_own_cleanup_even_when_aborted",
        ),
    ),
    Mutation(
        11,
        "next-holder-terminated",
        "behind each look a slot's holder is asked for again before its transaction is force-terminated",
        _PROTOCOL + "terminating.py",
        "        if not _is_same(holder_of(session, identity), attempt):",
        "        if attempt is None:",
        (
            "tests/protocol/test_recipe_pooled.py::"
            "test_rule_1_what_the_next_holder_of_a_slot_has_open_is_not_terminated",
        ),
    ),
    Mutation(
        11,
        "one-listing",
        "one listing without an open id does not end a cleanup: a coordinator that moves hides its ids",
        _PROTOCOL + "polling.py",
        "        if quiet < quiet_s or self._looks < looks:",
        "        if self._looks < 1:",
        ("tests/protocol/test_sweeping.py::test_rule_11_one_empty_listing_does_not_end_cleanup",),
    ),
    Mutation(
        11,
        "moving-coordinator",
        "a listing while a coordinator moves is not complete, and counts for nothing",
        _PROTOCOL + "polling.py",
        "        if not report.is_complete:",
        "        if report.is_complete is None:",
        ("tests/protocol/test_sweeping.py::test_rule_11_a_listing_while_a_coordinator_moves_counts_for_nothing",),
    ),
    Mutation(
        11,
        "anybodys-slot",
        "an open pooled id is of whoever has its slot now",
        _PROTOCOL + "sweeping.py",
        "    if slot is None or slot.holder != load:",
        "    if slot is None:",
        ("tests/protocol/test_pooling.py::test_rule_11_a_slot_that_went_to_another_load_is_that_load_s",),
    ),
    Mutation(
        11,
        "undecidable-without-end",
        "make_undecidable aborts nothing beyond its number",
        _LEDGER + "decisions.py",
        "        if a.is_undecided and a.number <= up_to\n",
        "        if a.is_undecided\n",
        ("tests/ledger/test_ledger_decisions.py::test_rule_11_undecidable_up_to_its_own_number_only",),
    ),
    Mutation(
        11,
        "listing-only",
        "ids in the ledger are described by name; a listing only adds",
        _PROTOCOL + "sweeping.py",
        "sorted({*known, *listed, *pooled,",
        "sorted({*listed, *pooled,",
        (
            "tests/protocol/test_sweeping.py::test_rule_11_an_id_that_the_listing_does_not_show_is_still_ended",
        ),
    ),
    Mutation(
        12,
        "two-repairs-adopted",
        "the lost row is compared when a repair enters the decision",
        _LEDGER + "repairs.py",
        "    if _outcome(connection, attempt_id, row.lost_transactional_id) is not Outcome.LOST:",
        "    if row is None:",
        ("tests/ledger/test_ledger_repairs.py::test_rule_12_the_lost_row_itself_is_compared",),
    ),
    Mutation(
        12,
        "swept-repair-adopted",
        "a repair that was made undecidable never enters the decision",
        _LEDGER + "repairs.py",
        "    if row.state is not RepairState.OPEN:\n        return row  # lost",
        "    if row.state is RepairState.ADOPTED:\n        return row  # lost",
        (
            "tests/ledger/test_ledger_repairs.py::"
            "test_rule_1_a_repair_that_was_made_undecidable_never_enters_the_decision",
        ),
    ),
    Mutation(
        13,
        "given-up-after-writing",
        "once writing the manifest was tried, nothing may be ended",
        _SPARK + "manifest_store.py",
        '        if self._exists(ref, "writing"):\n            return False\n',
        "",
        ("tests/spark/test_manifest_store.py::test_once_writing_was_tried_nothing_may_be_given_up",),
    ),
    Mutation(
        14,
        "second-run-writes",
        "scope load: a second run of a task writes nothing",
        _SPARK + "one_run.py",
        "options.scope is TransactionScope.LOAD and attempt_number > 0",
        "options.scope is TransactionScope.LOAD and attempt_number < 0",
        ("tests/spark/test_owners.py::test_a_second_run_of_a_task_is_refused_in_scope_load_only",),
    ),
    Mutation(
        14,
        "known-producer-writes",
        "scope load: a partition that knows the producer id is refused",
        _KAFKA + "arrow/enrolling.py",
        "        if self._shared:\n            self._refuse_known(left)\n",
        "",
        ("tests/kafka/test_shared_transaction.py::test_a_second_writer_of_a_partition_is_refused",),
    ),
)
