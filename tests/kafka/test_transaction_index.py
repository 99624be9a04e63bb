"""What one Fetch by read_committed tells of a transaction, and each way to read more out of it than it says.

Rule: log-is-the-evidence.
"""

from __future__ import annotations

from typing import Any

import pytest

from airflow_kafka_eos.kafka.records.scan import Sought, TailScan
from airflow_kafka_eos.kafka.records.transaction_index import Answer, IndexScan, Told, judge, may_be_believed
from airflow_kafka_eos.transaction import Marker
from tests.kafka.test_log_scan import ABORTED, CONTROL, batch, own

#: Its records stand at offsets 2 to 4.
OURS = Sought(7, 3, 4, 2)


def answer(records: bytes | None = None, *, stable: int = 9, aborted: Any = (), **changes: Any) -> Answer:
    return Answer(own() if records is None else records, stable, aborted, **changes)


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        # --- readers are past it, and the batch with its last record is its own
        (answer(), Told.COMMITTED),
        (answer(aborted=[(7, 2)]), Told.ABORTED),
        (answer(aborted=[(8, 2), (9, 4)]), Told.COMMITTED),  # others' that overlap it
        (answer(aborted=[(8, 0), (7, 2)]), Told.ABORTED),
        (answer(stable=5), Told.COMMITTED),
        # a replica that was built anew behind DeleteRecords lists a later first offset
        (answer(aborted=[(7, 4)]), Told.ABORTED),
        (answer(aborted=[(7, 3)]), Told.ABORTED),
        # the next transaction of the same producer id was aborted, and the answer reaches so far
        (answer(own() + batch(5) + own(6), aborted=[(7, 6)]), Told.COMMITTED),
        # --- readers are not past it: open, or held back by others, or not replicated yet
        (answer(b"", stable=4), Told.UNDECIDED),
        (answer(b"", stable=0), Told.UNDECIDED),
        (answer(b"", stable=4, aborted=None), Told.UNDECIDED),
        # --- no list, as the second partition of a Fetch with little room has it
        (answer(b"", aborted=None), Told.UNKNOWN),
        (answer(b""), Told.UNKNOWN),
        (answer(aborted=None), Told.UNKNOWN),
        (answer(own()[:-1]), Told.UNKNOWN),  # cut off
        # --- another one's batch in its place, so the list is about something else
        (answer(own(producer_id=8)), Told.UNKNOWN),
        (answer(own(epoch=4)), Told.UNKNOWN),
        (answer(own(epoch=2), aborted=[(7, 2)]), Told.UNKNOWN),
        (answer(batch(4, attributes=CONTROL)), Told.UNKNOWN),  # a marker
        (answer(batch(4, attributes=0)), Told.UNKNOWN),  # data without a transaction
        (answer(own(5)), Told.UNKNOWN),  # compacted away: what comes next is another one
        (answer(own(3)), Told.UNKNOWN),
        # --- errors
        (answer(b"", stable=-1, is_out_of_range=True), Told.UNREADABLE),
        (answer(is_out_of_range=True), Told.UNREADABLE),
        (answer(b"", stable=-1, aborted=None, error_code=6), Told.UNKNOWN),
        (answer(error_code=56), Told.UNKNOWN),
    ],
)
def test_the_table_of_answers(seen: Answer, told: Told) -> None:
    assert judge(seen, OURS) is told


APACHE = {"metadata.version": 27}
PLAIN = {"cleanup.policy": "delete", "remote.storage.enable": "false"}


@pytest.mark.parametrize(
    ("config", "features", "is_believed"),
    [
        (PLAIN, APACHE, True),
        (PLAIN | {"cleanup.policy": "compact"}, APACHE, False),
        (PLAIN | {"cleanup.policy": "compact,delete"}, APACHE, False),
        (PLAIN | {"remote.storage.enable": "true"}, APACHE, False),
        # not shown: the login may not see it, or the broker has no such setting
        ({"cleanup.policy": "delete"}, APACHE, False),
        ({"remote.storage.enable": "false"}, APACHE, False),
        ({}, APACHE, False),
        (PLAIN, {}, False),
        (PLAIN, {"transaction.version": 2}, False),
    ],
)
def test_where_the_list_is_believed(config: dict[str, str], features: dict[str, int], is_believed: bool) -> None:
    assert may_be_believed(config, features) is is_believed


# -- many transactions in one partition -------------------------------------------------------------------------------


def test_an_answer_that_has_the_last_batches_of_several_tells_of_all_of_them() -> None:
    first, second, far = Sought(7, 3, 4, 2), Sought(8, 3, 6, 5), Sought(9, 3, 20, 19)
    scan = IndexScan([far, second, first])
    assert scan.next_offset == 4
    scan.see(answer(own() + batch(5, producer_id=9) + own(6, producer_id=8), stable=30, aborted=[(8, 5)]))
    assert (scan.told, scan.is_done, scan.next_offset) == (
        {first: Told.COMMITTED, second: Told.ABORTED}, False, 20,
    )  # fmt: skip
    scan.see(answer(own(20, producer_id=9), stable=30))
    assert (scan.told[far], scan.is_done) == (Told.COMMITTED, True)


def test_what_readers_are_not_past_is_not_asked_for_one_by_one() -> None:
    every = [Sought(7, 3, 4, 2), Sought(8, 3, 6, 5)]
    scan = IndexScan(every)
    scan.see(answer(b"", stable=3))
    assert (scan.told, scan.is_done) == (dict.fromkeys(every, Told.UNDECIDED), True)
    scan = IndexScan(every)
    scan.see(answer(stable=5))
    assert scan.told == {every[0]: Told.COMMITTED, every[1]: Told.UNDECIDED}


def test_one_that_is_not_there_says_nothing_of_those_behind_it() -> None:
    first, second = Sought(7, 3, 4, 2), Sought(8, 3, 6, 5)
    scan = IndexScan([first, second])
    scan.see(answer(b"", stable=-1, is_out_of_range=True))
    assert (scan.told, scan.next_offset) == ({first: Told.UNREADABLE}, 6)
    scan.unreadable()
    assert scan.told == {first: Told.UNREADABLE, second: Told.UNREADABLE}


@pytest.mark.parametrize(
    ("behind", "marker"),
    [
        (batch(5), Marker.COMMIT),
        (batch(5, key=ABORTED), Marker.ABORT),
        (batch(5, producer_id=8) + batch(6), Marker.COMMIT),
        (own(5), Marker.UNREADABLE),  # written behind the manifest
        (batch(5, epoch=6), Marker.UNREADABLE),  # not its own
        (b"", None),
    ],
)
def test_an_answer_that_reaches_the_marker_is_the_log_itself(behind: bytes, marker: Marker | None) -> None:
    scan = IndexScan([OURS])
    scan.see(answer(own() + behind))
    assert scan.shown == ({} if marker is None else {OURS: marker})


# -- behind the known end offset --------------------------------------------------------------------------------------


def tail(*answers: bytes, behind: int = 10, end: int | None = None, most_bytes: int | None = None) -> TailScan:
    scan = TailScan({OURS: behind}, most_bytes=most_bytes)
    for read in answers:
        scan.feed(read)
    if end is not None and not scan.is_done:
        scan.end(end)
    return scan


def test_the_first_batch_of_the_producer_behind_the_end_is_the_marker_or_a_reason_to_read_all() -> None:
    others = batch(10, producer_id=8) + own(11, producer_id=9)
    assert tail(others + batch(12)).found == {OURS: Marker.COMMIT}
    assert tail(others, batch(12, key=ABORTED)).found == {OURS: Marker.ABORT}
    assert tail(others + own(12) + batch(13)).found == {OURS: Marker.UNREADABLE}  # written behind the manifest
    assert tail(others + batch(12, epoch=6)).found == {OURS: Marker.UNREADABLE}
    # what stands before the end offset of its own is another one's matter
    assert tail(batch(8) + own(9) + batch(10)).found == {OURS: Marker.COMMIT}


def test_with_no_marker_up_to_the_end_it_goes_on_there_next_time() -> None:
    scan = tail(batch(10, producer_id=8), end=11)
    assert (scan.found, scan.at_end, scan.next_offset) == ({}, {OURS}, 11)
    # cut off by the limit, it has seen no end
    scan = tail(batch(10, producer_id=8), most_bytes=10)
    assert (scan.found, scan.at_end, scan.is_done) == ({}, set(), True)


def test_where_something_is_missing_nothing_is_found() -> None:
    assert tail(batch(11)).found == {}
    scan = tail()
    scan.out_of_range()
    assert (scan.found, scan.at_end, scan.is_done) == ({}, set(), True)


def test_each_has_an_end_offset_of_its_own() -> None:
    second = Sought(7, 4, 12, 11)
    scan = TailScan({OURS: 10, second: 13})
    scan.feed(batch(10) + own(11, epoch=4) + own(12, epoch=4))
    assert (scan.found, scan.is_done) == ({OURS: Marker.COMMIT}, False)
    scan.feed(batch(13, epoch=4, key=ABORTED))
    assert (scan.found, scan.is_done) == ({OURS: Marker.COMMIT, second: Marker.ABORT}, True)
