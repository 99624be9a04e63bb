"""Guards of what operators and authors do: force-terminate, KIP-939's calls, hanging transactions, SQL beside a
decision; and of how logs and listings are read."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_PROTOCOL = "airflow_kafka_eos/protocol/"
_LEDGER = "airflow_kafka_eos/ledger/"
_KAFKA = "airflow_kafka_eos/kafka/"
_TERMINATING = "tests/protocol/test_terminating.py::"
_HANGING = "tests/protocol/test_hanging.py::"
_OLD = _HANGING + "TestOnTransactionVersion1::"
_RECIPE = "tests/protocol/test_recipe.py::"
_POOLED = "tests/protocol/test_recipe_pooled.py::"
_BESIDE = "tests/ledger/test_dual_write.py::"

OF_OPERATING: tuple[Mutation, ...] = (
    # --- force-terminate
    Mutation(
        1,
        "terminated-undecided",
        "force-terminate makes the attempt undecidable before Kafka is told",
        _PROTOCOL + "terminating.py",
        "    session.ledger.make_undecidable(attempt.load, up_to=attempt.number, decided_by=by, reason=reason)\n"
        "    session.ledger.abandon_repairs",
        "    session.ledger.abandon_repairs",
        (_TERMINATING + "test_rule_1_the_attempt_is_undecidable_in_the_ledger_before_kafka_is_told",),
    ),
    Mutation(
        11,
        "decided-terminated",
        "force-terminate asks behind each look whether that identity is decided",
        _PROTOCOL + "terminating.py",
        "        _refuse_decided(session, identity, attempt)\n",
        "",
        (_TERMINATING + "test_a_decided_transaction_is_never_terminated_and_still_commits",),
    ),
    Mutation(
        11,
        "unknown-terminated",
        "what is open under an id that the ledger does not know is left to a person",
        _PROTOCOL + "terminating.py",
        "    if seen.is_open:\n        raise InDoubtError(",
        "    if seen is None:\n        raise InDoubtError(",
        (_TERMINATING + "test_an_id_of_ours_that_the_ledger_does_not_know_stops_for_a_person",),
    ),
    Mutation(
        1,
        "repair-terminated-undecided",
        "force-terminate makes repairs that are under way undecidable, too",
        _PROTOCOL + "terminating.py",
        '    session.ledger.abandon_repairs(attempt.load, reason=f"force-terminated by {by}: {reason}")\n',
        "",
        ("tests/protocol/test_repair_cut_off.py::test_rule_1_a_repair_that_is_force_terminated_enters_nothing",),
    ),
    # --- KIP-939's calls
    Mutation(
        1,
        "answered-before-the-ledger",
        "complete_transaction makes the attempt undecidable before its verdict counts",
        _PROTOCOL + "recipe.py",
        "        session.ledger.make_undecidable(attempt.load, up_to=attempt.number, decided_by=by, reason=reason)\n",
        "",
        (_POOLED + "test_rule_1_a_decision_between_the_looks_is_not_answered_with_abort",),
    ),
    Mutation(
        4,
        "other-state-completed",
        "complete_transaction refuses a state that the decision does not name",
        _PROTOCOL + "recipe.py",
        "    if recorded == given.state:\n        return True\n",
        "    if recorded is not None:\n        return True\n",
        (_RECIPE + "test_a_decision_is_not_taken_back_because_a_database_says_otherwise",),
    ),
    Mutation(
        4,
        "zombie-is-prepared",
        "init_transactions keeps the recorded identity only",
        _PROTOCOL + "recipe.py",
        "    if seen.state != recorded:",
        "    if seen.state is None:",
        (_RECIPE + "test_a_zombie_under_the_id_is_not_taken_for_what_was_prepared",),
    ),
    Mutation(
        11,
        "earlier-holder-answered",
        "the answer about an earlier holder of a pooled id touches nothing of the next one",
        _PROTOCOL + "recipe.py",
        "        if _is_of_an_earlier_holder(session, attempt, given):",
        "        if given is None:",
        (_POOLED + "test_a_state_that_was_never_reported_is_not_taken_for_the_present_holder_s",),
    ),
    # --- hanging transactions
    Mutation(
        10,
        "decided-is-hanging",
        "what began before a decided transaction's last record is that transaction",
        _PROTOCOL + "hanging.py",
        "    return producer.txn_start_offset > last.get(producer.partition, -1)",
        "    return True",
        (_HANGING + "test_rule_10_what_began_before_the_last_record_is_the_decided_transaction_itself",),
    ),
    Mutation(
        11,
        "ended-is-hanging",
        "what has ended while we looked is not hanging",
        _PROTOCOL + "hanging.py",
        " or not any(_same(producer, other) for other in still):",
        ":",
        (_HANGING + "test_what_ends_while_we_look_is_not_hanging",),
    ),
    Mutation(
        11,
        "hidden-is-hanging",
        "the ledger's ids are described by name, whatever a listing hides",
        _PROTOCOL + "hanging.py",
        "        names.setdefault(state.producer_id, t.transaction.transactional_id)",
        "        names.setdefault(-1, t.transaction.transactional_id)",
        (_HANGING + "test_rule_11_what_a_listing_hides_is_described_by_the_ledgers_name",),
    ),
    Mutation(
        1,
        "undecided-marked",
        "no abort marker for an attempt that may still be committed",
        _PROTOCOL + "hanging.py",
        "    if attempt.is_undecided:\n        return Whose.UNDECIDED, attempt\n",
        "",
        (_OLD + "test_rule_1_an_undecided_attempts_stray_partition_is_not_ended",),
    ),
    Mutation(
        6,
        "foreign-marked",
        "no abort marker for another application's transaction",
        _PROTOCOL + "hanging.py",
        "    if name is None or not is_ours(session, name):",
        "    if name is None:",
        (_OLD + "test_rule_6_a_foreign_one_is_shown_and_never_ended",),
    ),
    # --- SQL beside a decision
    Mutation(
        2,
        "split-unnoticed",
        "a decision's database transaction that the author's SQL has ended is noticed",
        _LEDGER + "guard.py",
        "    if split:\n        raise SplitTransactionError\n",
        "",
        (_BESIDE + "test_a_commit_past_sqlalchemy_is_noticed_and_said",),
    ),
    Mutation(
        2,
        "author-commits",
        "the author's SQL cannot commit the decision's database transaction",
        _LEDGER + "guard.py",
        "    if connection.get_execution_options().get(_GUARDED, False):\n        raise _refusal(\"commits",
        "    if connection is None:\n        raise _refusal(\"commits",
        (_BESIDE + "test_a_callable_cannot_end_the_transaction",),
    ),
    Mutation(
        1,
        "undurable-decision",
        "a decision is durable whatever the author sets",
        _LEDGER + "beside.py",
        "        insist_on_durability(connection)\n",
        "",
        (_BESIDE + "test_a_decision_is_durable_whatever_the_author_sets",),
    ),
    # --- logs and listings
    Mutation(
        7,
        "deleted-is-done",
        "an offset that the log does not have tells nothing",
        _KAFKA + "log_scan.py",
        "            else:\n                self._settle(track, Marker.UNREADABLE)\n        self._go_on_at",
        "            else:\n                self._settle(track, Marker.COMMIT)\n        self._go_on_at",
        ("tests/kafka/test_partitions.py::test_offsets_that_the_log_does_not_have_are_unreadable_rule_7",),
    ),
    Mutation(
        7,
        "recreated-is-done",
        "a topic that was deleted, or made anew, tells nothing",
        _KAFKA + "log_scan.py",
        "            if track.marker is None:\n                self._settle(track, Marker.UNREADABLE)\n",
        "            if track.marker is None:\n                self._settle(track, Marker.COMMIT)\n",
        ("tests/kafka/test_partitions.py::test_a_recreated_or_deleted_topic_is_unreadable_rule_7",),
    ),
    Mutation(
        7,
        "all-unreadable-at-once",
        "offsets that are gone say nothing of those behind them",
        _KAFKA + "log_scan.py",
        "            if track.marker is not None or track.own_from > self.next_offset:\n",
        "            if track.marker is not None:\n",
        ("tests/kafka/test_partitions.py::test_what_was_deleted_says_nothing_of_what_is_behind_it_rule_7",),
    ),
    Mutation(
        11,
        "renamed-state-hides",
        "a state filter that a broker does not know hides nothing",
        _KAFKA + "listing.py",
        "    if answer.unknown_state_filters and wanted:",
        "    if wanted is None:",
        ("tests/kafka/test_coordinator.py::test_a_state_filter_that_the_broker_does_not_know_hides_nothing",),
    ),
    Mutation(
        6,
        "prefix-is-a-pattern",
        "a prefix is no regular expression",
        _KAFKA + "listing.py",
        "    return f\"^{re.escape(prefix)}.*$\"",
        "    return f\"^{prefix}.*$\"",
        ("tests/kafka/test_coordinator.py::test_a_prefix_is_no_regular_expression",),
    ),
    Mutation(
        6,
        "old-listing-unfiltered",
        "brokers before 4.1 list every application's ids: ours are picked here",
        _KAFKA + "listing.py",
        "        if row.transactional_id.startswith(prefix)\n",
        "",
        ("tests/kafka/test_listing_unfiltered.py",),
    ),
    Mutation(
        11,
        "coordinator-away",
        "a partition of the transaction log without a leader hides its ids: a listing then counts for nothing",
        _KAFKA + "listing.py",
        "    if topic.error_code or any(p.error_code or p.leader_id < 0 for p in topic.partitions):",
        "    if topic.error_code:",
        ("tests/kafka/test_listing_unfiltered.py",),
    ),
)
