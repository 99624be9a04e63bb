"""What Fetch answers prove, and what a broker cannot easily be made to show: markers emptied, cut off, of no type."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from airflow_kafka_eos.kafka.records.scan import LogScan, Sought, StillThere
from airflow_kafka_eos.transaction import Marker

CONTROL, DATA = 0x30, 0x10
ONES = struct.pack(">hh", 0, 1)


def batch(
    base: int, *, producer_id: int = 7, epoch: int = 3, attributes: int = CONTROL, key: bytes = ONES, count: int = 1
) -> bytes:
    """A record batch v2 with one record (or none): length, attributes, two deltas, key, value, headers."""
    record = b"\x00\x00\x00" + bytes([len(key) * 2]) + key + b"\x0c" + b"\x00" * 6 + b"\x00"
    records = (bytes([len(record) * 2]) + record) * count
    rest = struct.pack(">ibIhiqqqhii", 0, 2, 0, attributes, 0, 0, 0, producer_id, epoch, -1, count) + records
    return struct.pack(">qi", base, len(rest)) + rest


OURS = Sought(7, 3, 4)
ABORTED = struct.pack(">hh", 0, 0)


def own(base: int = 4, **changes: Any) -> bytes:
    """The batch with the transaction's last record, or an earlier one."""
    return batch(base, attributes=DATA, **changes)


def scanned(*answers: bytes, sought: Sought = OURS, end: int | None = None, whole: bool = False) -> Marker | None:
    """What is found behind offset 4; ``end``: the high watermark is reached then."""
    scan = LogScan([sought], whole=whole)
    for answer in answers:
        scan.feed(answer)
    if end is not None and not scan.is_done:
        scan.end(end)
    return scan.found.get(sought)


@pytest.mark.parametrize(("kind", "marker"), [(0, Marker.ABORT), (1, Marker.COMMIT), (2, Marker.UNREADABLE)])
def test_the_key_of_a_control_record_is_the_verdict(kind: int, marker: Marker) -> None:
    assert scanned(own() + batch(5, key=struct.pack(">hh", 0, kind))) is marker


def test_a_marker_that_compaction_emptied_is_unreadable() -> None:
    later = batch(9)  # a later transaction's
    assert scanned(own() + batch(5, count=0) + later) is Marker.UNREADABLE


def test_what_lies_before_the_last_record_is_not_looked_at() -> None:
    assert scanned(batch(2, key=ABORTED) + own(3) + own() + batch(5)) is Marker.COMMIT


def test_other_producers_are_passed_by_and_a_cut_off_batch_is_left_for_the_next_fetch() -> None:
    others = own() + batch(5, producer_id=8) + batch(6, producer_id=9, attributes=DATA)
    for rest in (batch(7)[:-1], batch(7)[:40], b""):
        scan = LogScan([OURS])
        scan.feed(others + rest)
        assert (scan.found, scan.next_offset) == ({}, 7)
        scan.feed(batch(7))
        assert scan.found == {OURS: Marker.COMMIT}


@pytest.mark.parametrize(
    ("epoch", "kind", "marker"),
    [
        (3, ONES, Marker.COMMIT),
        (4, ONES, Marker.COMMIT),
        (5, ONES, Marker.UNREADABLE),
        (3, ABORTED, Marker.ABORT),
        (4, ABORTED, Marker.ABORT),
        (5, ABORTED, Marker.ABORT),  # Kafka 4.0.0: KAFKA-19367
        (6, ABORTED, Marker.UNREADABLE),
        (2, ABORTED, Marker.UNREADABLE),
    ],
)
def test_a_marker_has_an_epoch_that_its_transaction_can_have(epoch: int, kind: bytes, marker: Marker) -> None:
    assert scanned(own() + batch(5, epoch=epoch, key=kind)) is marker


def test_a_control_record_without_a_proper_key_is_unreadable() -> None:
    assert scanned(own() + batch(5, key=b"\x00")) is Marker.UNREADABLE
    assert scanned(own() + batch(5, key=b"")) is Marker.UNREADABLE


def test_the_ends_of_many_are_found_in_one_pass_each_behind_its_own_last_record() -> None:
    log = own() + own(5, producer_id=9) + batch(6, key=ABORTED) + own(7, producer_id=9) + own(8) + batch(9) + own(10)
    first, second, other, open_ = Sought(7, 3, 4), Sought(7, 3, 8), Sought(9, 3, 5), Sought(7, 3, 10)
    scan = LogScan([first, second, other, open_])
    scan.feed(log)
    scan.end(11)
    assert scan.found == {
        first: Marker.ABORT, second: Marker.COMMIT, other: Marker.UNREADABLE, open_: Marker.MISSING,
    }  # fmt: skip
    # nothing is read behind the last one that is needed
    scan = LogScan([first])
    scan.feed(log)
    assert (scan.is_done, scan.next_offset) == (True, 7)


def test_an_older_batch_format_is_passed_by() -> None:
    """Its bytes mean something else: what looks like a large offset must not be gone on from."""
    old = bytearray(batch(5, producer_id=7))
    old[16] = 1
    old[23:27] = b"\x7f\xff\xff\xff"
    assert scanned(own() + bytes(old) + batch(6)) is Marker.COMMIT
    scan = LogScan([OURS])
    scan.feed(own() + bytes(old))
    assert (scan.found, scan.next_offset) == ({}, 6)


# -- whose a marker is (rule: log-is-the-evidence)
# ------------------------------------------------------------------------------------


def test_without_a_batch_of_the_transaction_a_marker_may_be_the_next_one_s() -> None:
    """Compaction took ours and our abort marker; the next transaction of the producer has the same epoch."""
    assert scanned(own(8) + batch(9)) is Marker.COMPACTED
    assert scanned(batch(9)) is Marker.COMPACTED_THEN_COMMIT
    assert scanned(batch(9, key=ABORTED)) is Marker.COMPACTED_THEN_ABORT
    assert scanned(batch(9, count=0)) is Marker.COMPACTED
    assert scanned(batch(9, producer_id=8), end=10) is Marker.COMPACTED
    assert scanned(end=10) is Marker.COMPACTED


def test_a_marker_counts_while_a_batch_of_its_transaction_is_left_though_it_is_empty() -> None:
    assert scanned(own(count=0) + batch(9)) is Marker.COMMIT
    assert scanned(own(count=0) + batch(9, producer_id=8), end=10) is Marker.MISSING


@pytest.mark.parametrize("changes", [{"producer_id": 8}, {"epoch": 4}, {"attributes": CONTROL}, {"attributes": 0}])
def test_what_stands_in_place_of_the_last_record_must_be_of_the_transaction(changes: dict[str, Any]) -> None:
    """Else the log was truncated, and written anew."""
    assert scanned(batch(4, **({"attributes": DATA} | changes)) + batch(5)) is Marker.UNREADABLE


def test_an_earlier_batch_of_it_will_do_where_the_last_one_is_gone() -> None:
    sought = Sought(7, 3, 4, 1)
    assert scanned(own(2) + batch(9), sought=sought) is Marker.COMPACTED_THEN_COMMIT
    assert scanned(own(2) + batch(9), sought=sought, whole=True) is Marker.COMMIT
    others = batch(1, producer_id=8, attributes=DATA)
    assert scanned(others + batch(9), sought=sought, whole=True) is Marker.COMPACTED_THEN_COMMIT
    assert scanned(own(0) + batch(9), sought=sought, whole=True) is Marker.COMPACTED_THEN_COMMIT
    assert scanned(own(2, epoch=2) + batch(9), sought=sought, whole=True) is Marker.UNREADABLE


def test_where_offsets_are_missing_the_batch_must_still_be_there_behind_the_marker() -> None:
    """Compaction may take batch and marker between two answers."""
    scan = LogScan([OURS])
    scan.feed(own())
    scan.feed(batch(9))
    assert (scan.is_done, scan.found) == (True, {})
    for answer, marker in (
        (own(), Marker.COMMIT), (batch(9), Marker.COMPACTED), (own(epoch=4), Marker.COMPACTED),
        (own(producer_id=8), Marker.COMPACTED),
    ):  # fmt: skip
        again = StillThere(scan.unsure)
        assert again.next_offset == 4
        again.feed(b"")
        assert not again.is_done
        again.feed(answer)
        assert again.found == {OURS: marker}


def test_without_a_gap_it_need_not_be() -> None:
    assert scanned(own(), batch(5)) is Marker.COMMIT
    scan = LogScan([OURS])
    scan.out_of_range()  # deleted up to right behind it
    assert scan.next_offset == 5
    scan.feed(batch(5))
    assert scan.found == {OURS: Marker.COMMIT}


def test_with_a_gap_behind_a_deleted_record_nothing_counts() -> None:
    scan = LogScan([OURS])
    scan.out_of_range()
    scan.feed(batch(6))
    assert scan.found == {OURS: Marker.UNREADABLE}
    scan = LogScan([OURS])
    scan.out_of_range()
    scan.out_of_range()
    assert scan.found == {OURS: Marker.UNREADABLE}
    scan = LogScan([OURS])
    scan.out_of_range()
    scan.feed(own(6, producer_id=8))
    scan.end(7)
    assert scan.found == {OURS: Marker.UNREADABLE}


def test_a_last_record_that_the_log_does_not_reach_is_open_unless_there_is_nothing_behind_it_either() -> None:
    scan = LogScan([OURS])
    scan.feed(b"")
    scan.end(4)
    assert (scan.is_done, scan.next_offset) == (False, 5)
    scan.end(4)
    assert scan.found == {OURS: Marker.MISSING}
    scan = LogScan([OURS])
    scan.end(4)
    scan.out_of_range()  # truncated
    assert scan.found == {OURS: Marker.UNREADABLE}
