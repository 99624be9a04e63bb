"""Guards of what a log proves where compaction has been (docs/adr/0003)."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_PROTOCOL = "airflow_kafka_eos/protocol/"
_KAFKA = "airflow_kafka_eos/kafka/"

OF_COMPACTING: tuple[Mutation, ...] = (
    Mutation(
        "compacted-is-doubt",
        "anybodys-batch",
        "what stands where our last record was must be our own batch",
        _KAFKA + "records/scan.py",
        "            if not is_of(batch, track.sought):\n",
        "            if not batch:\n",
        ("tests/kafka/test_log_scan.py::test_what_stands_in_place_of_the_last_record_must_be_of_the_transaction",),
    ),
    Mutation(
        "compacted-is-doubt",
        "marker-without-a-batch",
        "without a batch of the transaction a marker may be the next one's",
        _KAFKA + "records/scan.py",
        "            marker = _FOLLOWED.get(marker, Marker.COMPACTED)\n",
        "            pass\n",
        (
            "tests/kafka/test_log_scan.py::"
            "test_without_a_batch_of_the_transaction_a_marker_may_be_the_next_one_s",
            "tests/protocol/test_compacted.py::"
            "test_the_next_transaction_of_a_producer_is_not_taken_for_an_aborted_one_whose_end_is_gone",
        ),
    ),
    Mutation(
        "compacted-is-doubt",
        "batch-of-another-moment",
        "where offsets are missing, the batch must still be there behind the marker",
        _KAFKA + "records/scan.py",
        "            track.is_unsure = track.own_in != self._answers\n",
        "            pass\n",
        (
            "tests/kafka/test_log_scan.py::"
            "test_where_offsets_are_missing_the_batch_must_still_be_there_behind_the_marker",
        ),
    ),
    Mutation(
        "compacted-is-doubt",
        "gap-behind-a-deleted-record",
        "where the last record is deleted, no offset may be missing up to the marker",
        _KAFKA + "records/scan.py",
        "        elif self._gap > last and track.is_cut_off:\n",
        "        elif False:\n",
        ("tests/kafka/test_log_scan.py::test_with_a_gap_behind_a_deleted_record_nothing_counts",),
    ),
    Mutation(
        "compacted-is-doubt",
        "old-marker-believed",
        "a marker behind records that are gone counts only while its own cannot be gone",
        _PROTOCOL + "evidence.py",
        "        if not may_be_gone(configs",
        "        if configs or not may_be_gone(configs",
        ("tests/protocol/test_compacted.py::test_an_old_marker_behind_records_that_are_gone_is_not_believed",),
    ),
    Mutation(
        "compacted-is-doubt",
        "missing-for-good-is-open",
        "what has ended without a marker is in doubt, not open",
        _PROTOCOL + "stages/commit.py",
        "            never = missing_for_good(session, late, progress)\n",
        "            never: dict[str, dict[TopicPartition, Marker]] = {}\n",
        ("tests/protocol/test_compacted.py::test_what_has_ended_and_has_no_marker_is_in_doubt_not_open",),
    ),
    Mutation(
        "compacted-is-doubt",
        "open-is-missing-for-good",
        "what readers are not past may still get its marker",
        _PROTOCOL + "evidence.py",
        "marker is Marker.MISSING and stable[tp] > last[tp]",
        "marker is Marker.MISSING",
        ("tests/protocol/test_compacted.py::test_what_has_ended_and_has_no_marker_is_in_doubt_not_open",),
    ),
    Mutation(
        "log-is-the-evidence",
        "epochs-of-4-0-0",
        "Kafka 4.0.0 raises the epoch twice on an abort",
        _KAFKA + "records/scan.py",
        "(0, 1, 2) if marker is Marker.ABORT else (0, 1)",
        "(0, 1)",
        ("tests/kafka/test_log_scan.py::test_a_marker_has_an_epoch_that_its_transaction_can_have",),
    ),
    Mutation(
        "compacted-is-doubt",
        "doubt-by-an-absent-leader",
        "a batch that cannot be looked for now is no doubt",
        _KAFKA + "admin/find_markers.py",
        "            del markers[tp][one]  # nothing is said",
        "            pass  # nothing is said",
        ("tests/protocol/test_compacted.py::test_one_batch_that_is_left_proves_the_commit",),
    ),
)
