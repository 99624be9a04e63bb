"""Markers that a broker cannot easily be made to show: emptied by compaction, cut off, of unknown type."""

from __future__ import annotations

import struct

import pytest

from airflow_kafka_eos.evidence import Marker
from airflow_kafka_eos.kafka.log_scan import Scan, Sought, scan, scan_all

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


@pytest.mark.parametrize(("kind", "marker"), [(0, Marker.ABORT), (1, Marker.COMMIT), (2, Marker.UNREADABLE)])
def test_the_key_of_a_control_record_is_the_verdict(kind: int, marker: Marker) -> None:
    assert scan(batch(5, key=struct.pack(">hh", 0, kind)), 7, 5, 3) == Scan(marker, 6)


def test_a_marker_that_compaction_emptied_is_unreadable_rule_7() -> None:
    later = batch(9)  # a later transaction's
    assert scan(batch(5, count=0) + later, 7, 5) == Scan(Marker.UNREADABLE, 6)


def test_what_lies_before_the_offset_is_not_looked_at() -> None:
    aborted = struct.pack(">hh", 0, 0)
    assert scan(batch(4, key=aborted) + batch(5), 7, 5) == Scan(Marker.COMMIT, 6)


def test_other_producers_are_passed_by_and_a_cut_off_batch_is_left_for_the_next_fetch() -> None:
    others = batch(5, producer_id=8) + batch(6, producer_id=9, attributes=DATA)
    assert scan(others + batch(7)[:-1], 7, 5) == Scan(None, 7)
    assert scan(others + batch(7)[:40], 7, 5) == Scan(None, 7)
    assert scan(b"", 7, 5) == Scan(None, 5)
    assert scan(others + batch(7), 7, 5) == Scan(Marker.COMMIT, 8)


@pytest.mark.parametrize(("epoch", "marker"), [(3, Marker.COMMIT), (4, Marker.COMMIT), (5, Marker.UNREADABLE)])
def test_a_marker_has_the_epoch_of_its_transaction_or_the_next_one(epoch: int, marker: Marker) -> None:
    assert scan(batch(5, epoch=epoch), 7, 5, 3).marker is marker


def test_a_control_record_without_a_proper_key_is_unreadable() -> None:
    assert scan(batch(5, key=b"\x00"), 7, 5).marker is Marker.UNREADABLE
    assert scan(batch(5, key=b""), 7, 5).marker is Marker.UNREADABLE


def test_the_ends_of_many_are_found_in_one_pass_each_behind_its_own_last_record() -> None:
    aborted = struct.pack(">hh", 0, 0)
    log = batch(5, producer_id=8) + batch(6, key=aborted) + batch(7, producer_id=9, attributes=DATA) + batch(8)
    first, second, other, open_ = Sought(7, 3, 5), Sought(7, 3, 7), Sought(9, 3, 6), Sought(10, 3, 5)
    sought = {7: [first, second], 9: [other], 10: [open_]}
    assert scan_all(log, sought, 5) == (
        {first: Marker.ABORT, second: Marker.COMMIT, other: Marker.UNREADABLE},
        9,
    )
    # nothing is read behind the last one that is needed
    assert scan_all(log, {7: [first]}, 5) == ({first: Marker.ABORT}, 7)


def test_an_older_batch_format_is_passed_by() -> None:
    """Its bytes mean something else: what looks like a large offset must not be gone on from."""
    old = bytearray(batch(5, producer_id=7))
    old[16] = 1
    old[23:27] = b"\x7f\xff\xff\xff"
    assert scan(bytes(old) + batch(6), 7, 5) == Scan(Marker.COMMIT, 7)
    assert scan(bytes(old), 7, 5) == Scan(None, 6)
