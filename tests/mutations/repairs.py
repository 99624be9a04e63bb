"""Guards around repairs: what may be copied, what may enter the decision, what is ended.

Rules: repair-replaces-lost-row, only-equal-records.
"""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_LEDGER = "airflow_kafka_eos/ledger/repairs.py"
_REPAIRING = "airflow_kafka_eos/protocol/repair/copy.py"
_SWEEPING = "airflow_kafka_eos/protocol/cleanup/sweep.py"
_COPYING = "airflow_kafka_eos/kafka/producer/copier.py"
_SPLITTING = "airflow_kafka_eos/kafka/records/split.py"
_SPLIT = "tests/kafka/test_split.py::"
_TESTS = "tests/ledger/test_ledger_repairs.py::"
_AGAIN = "tests/ledger/test_ledger_repreparing.py::"
_REAL = "tests/protocol/test_repairing.py::"
_CUT_OFF = "tests/protocol/test_repair_cut_off.py::"

OF_REPAIRS: tuple[Mutation, ...] = (
    Mutation(
        "repair-replaces-lost-row",
        "repaired-unlost",
        "only what the ledger has as lost is repaired",
        _LEDGER,
        "    if _outcome(connection, attempt_id, lost) is not Outcome.LOST:\n        return None",
        "    if _outcome(connection, attempt_id, lost) is Outcome.IN_DOUBT:\n        return None",
        (_TESTS + "test_only_what_is_lost_is_repaired",),
    ),
    Mutation(
        "repair-replaces-lost-row",
        "given-up-repairing",
        "repairs that are under way are undecidable with the moment in which their load is given up",
        "airflow_kafka_eos/ledger/decisions.py",
        '    end_open(connection, attempt_id, "the load is given up")\n',
        "",
        (_TESTS + "test_a_load_is_given_up_by_name_and_nothing_follows",),
    ),
    Mutation(
        "repair-replaces-lost-row",
        "repairs-attempts-id",
        "a repair's number, and with it its id, is no attempt's",
        _LEDGER,
        "    own = max(highest or 0, locked.row.newest_attempt) + 1",
        "    own = (highest or 0) + 1",
        (_TESTS + "test_a_repair_is_an_attempt_of_its_own_with_an_id_of_ours",),
    ),
    Mutation(
        "recorded-identity",
        "anybodys-copy-adopted",
        "only what was prepared under the repair's own id enters the decision",
        _LEDGER,
        "    if not _is_of(row, transaction.transactional_id) or transaction.state.is_empty:",
        "    if row is None:",
        (_TESTS + "test_only_the_repairs_own_transaction_is_adopted",),
    ),
    Mutation(
        "doubt-stops-for-a-person",
        "adopted-in-doubt",
        "nothing enters the decision of a load that a person is asked about",
        _LEDGER,
        "    if locked.row.state is not LoadState.REPAIRING:\n        return _end(",
        "    if locked.row is None:\n        return _end(",
        (_TESTS + "test_nothing_is_adopted_while_a_person_is_asked",),
    ),
    Mutation(
        "doubt-stops-for-a-person",
        "doubt-taken-back",
        "a look at a load in doubt does not take it back from the person who is asked",
        "airflow_kafka_eos/ledger/decisions.py",
        "        case LoadState.IN_DOUBT:\n            return True\n",
        "        case LoadState.IN_DOUBT:\n            move(connection, locked, LoadState.REPAIRING)\n"
        "            return True\n",
        (_AGAIN + "test_a_load_in_doubt_is_taken_back_by_who_repairs_it_and_nobody_else",),
    ),
    Mutation(
        "repair-replaces-lost-row",
        "lost-mapping-kept",
        "KIP-939's mapping names the replacement, and no more what it replaced",
        _LEDGER,
        "    connection.execute(delete(mapping).where(mapping.c.transactional_id == row.lost_transactional_id))\n",
        "",
        (_TESTS + "test_one_ledger_transaction_replaces_the_lost_row_and_decides_the_repair",),
    ),
    Mutation(
        "repair-replaces-lost-row",
        "adopted-abandoned",
        "a repair that was adopted is decided: nobody makes it undecidable",
        _LEDGER,
        "    return _end(connection, attempt_id, row, reason) if row.state is RepairState.OPEN else row",
        "    return _end(connection, attempt_id, row, reason)",
        (_TESTS + "test_a_repair_that_was_made_undecidable_never_enters_the_decision",),
    ),
    Mutation(
        "decide-before-kafka",
        "repair-swept-by-kafka-only",
        "cleanup makes repairs undecidable in the ledger before it ends what they have open",
        _SWEEPING,
        '        session.ledger.abandon_repairs(load, reason=f"cleanup by {by}")\n',
        "",
        (_REAL + "test_sweeping_ends_an_abandoned_repair_and_no_decided_one",),
    ),
    Mutation(
        "repair-replaces-lost-row",
        "adopted-repair-ended",
        "what is decided of a repair is not ended with what other task attempts of it have left",
        _REPAIRING,
        "        and not session.ledger.is_decided_commit(identity := PreparedTransaction(name, d.state))",
        "        and (identity := PreparedTransaction(name, d.state))",
        ("tests/protocol/test_repreparing.py::"
         "test_one_that_dies_behind_the_adoption_is_rolled_forward_and_copied_if_it_is_lost",),
    ),
    Mutation(
        "repair-replaces-lost-row",
        "straggler-forgotten",
        "cleanup looks at closed repairs too: a straggler may have begun behind their end",
        _SWEEPING,
        "end_abandoned(session, load, closed_too=True, partitions=report.partitions)",
        "end_abandoned(session, load, partitions=report.partitions)",
        (_REAL + "test_a_straggler_whose_repair_was_closed_is_found_by_the_sweep",),
    ),
    Mutation(
        "repair-replaces-lost-row",
        "repaired-and-told-alone",
        "commit asks brokers of a repaired load that is COMMITTED too: a straggler may be open",
        "airflow_kafka_eos/operators/base.py",
        "    if ledger.state(load) is not LoadState.COMMITTED or ledger.repairs(load):",
        "    if ledger.state(load) is not LoadState.COMMITTED:",
        ("tests/ledger/test_committed_before.py::"
         "test_a_repaired_load_may_have_stragglers_that_are_to_be_ended",),
    ),
    Mutation(
        "decide-before-kafka",
        "maybe-adopted-ended",
        "where the answer to the adoption was lost, nothing is ended before the ledger says that it was none",
        _REPAIRING,
        "    if row.state is RepairState.UNDECIDABLE:\n        copier.abort()",
        "    if row is not None:\n        copier.abort()",
        (_CUT_OFF + "test_a_repair_whose_adoption_was_not_answered_is_not_ended",),
    ),
    Mutation(
        "repair-replaces-lost-row",
        "overtaken-is-an-error",
        "a repairer that another one has overtaken leaves it at that",
        _REPAIRING,
        "        if overtaken and isinstance(e, KafkaEosError):",
        "        if overtaken is None:",
        (_REAL + "test_a_repairer_that_is_overtaken_while_it_copies_leaves_it_at_that",),
    ),
    Mutation(
        "only-equal-records",
        "unequal-copy",
        "only a copy with the recorded digest is let in",
        _COPYING,
        "        if (found.records, found.digest.hexdigest()) != (w.records, w.digest):",
        "        if found.records != w.records:",
        (_REAL + "test_records_that_are_not_what_was_recorded_are_not_let_in",),
    ),
    Mutation(
        "only-equal-records",
        "copied-beyond",
        "a batch of another transaction of the same producer id ends the copy",
        _COPYING,
        "                if (batch.producer_id, batch.producer_epoch) != identity or batch.is_control:",
        "                if batch.producer_id < 0:",
        (
            "tests/kafka/test_copying.py::"
            "test_what_another_transaction_of_the_same_producer_wrote_is_not_taken_over",
        ),
    ),
    Mutation(
        "only-equal-records",
        "broken-batch-passed-over",
        "a batch that does not hold the records of its header is in doubt",
        _COPYING,
        '        raise unusable(lost, w, f"the batch at offset {batch.base_offset} is broken: {e}") from e',
        "        return",
        ("tests/kafka/test_copying.py::test_a_batch_that_does_not_hold_its_records_is_in_doubt",),
    ),
    Mutation(
        "only-equal-records",
        "length-below-null",
        "a record whose key or value is shorter than null is none",
        _SPLITTING,
        "            if key_length < -1 or value_length < -1 or not at < end <= len(data):",
        "            if not at < end <= len(data):",
        (_SPLIT + "test_a_record_is_malformed",),
    ),
    Mutation(
        "only-equal-records",
        "record-ends-before-itself",
        "a record ends behind what is in it",
        _SPLITTING,
        "            if key_length < -1 or value_length < -1 or not at < end <= len(data):",
        "            if key_length < -1 or value_length < -1 or end > len(data):",
        (_SPLIT + "test_a_negative_size_leads_nowhere",),
    ),
    Mutation(
        "only-equal-records",
        "headers-unread",
        "what is behind a record's value is headers, all of it",
        _SPLITTING,
        "            if headers != NO_HEADERS and not _are_headers(headers):",
        "            if not headers:",
        (_SPLIT + "test_a_record_is_malformed",),
    ),
    Mutation(
        "only-equal-records",
        "more-than-counted",
        "a batch's records fill their section",
        _SPLITTING,
        "    if at != len(data):\n        raise malformed(count, count)\n",
        "",
        (_SPLIT + "test_nothing_may_be_behind_it",),
    ),
    Mutation(
        "only-equal-records",
        "copied-from-another-topic",
        "a topic that was made anew has nothing to copy",
        _COPYING,
        "            if now[topic].topic_id != topic_id:",
        "            if now[topic].topic_id is None:",
        ("tests/kafka/test_copying.py::test_a_topic_that_was_made_anew_has_nothing_to_copy",),
    ),
    Mutation(
        "unknown-commit-stops",
        "repaired-twice-by-a-restored-ledger",
        "nothing is repaired where the broker shows a repair that the ledger does not know",
        "airflow_kafka_eos/protocol/stages/commit.py",
        "                    check_repairs_known(session, load)\n",
        "",
        ("tests/protocol/test_repair_restored.py::"
         "test_what_was_repaired_behind_the_backup_is_not_repaired_again",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "late-repair-is-final",
        "a repair that could not begin in time is tried again, for the load is decided",
        _REPAIRING,
        "        if isinstance(e, UndecidableError):\n            raise _too_late(opened, e) from e\n",
        "",
        (_CUT_OFF + "test_a_repair_that_cannot_begin_in_time_is_tried_again",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "late-repair",
        "a repair that has not begun by its deadline never does",
        _COPYING,
        "            before_sending=lambda: left_ms(self._deadline_ms, int(time.time() * 1000), str(self._name)),\n",
        "",
        ("tests/kafka/test_copying.py::test_past_its_deadline_a_copy_begins_nothing",),
    ),
)
