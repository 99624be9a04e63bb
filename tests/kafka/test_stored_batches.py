"""Batches as the log has them, whatever wrote and compressed them; and as the copy sends them."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys

import pytest

from airflow_kafka_eos.kafka.records import stored
from airflow_kafka_eos.kafka.records.batch import OpenBatch, seal
from airflow_kafka_eos.kafka.records.compression import CODES, compressor
from airflow_kafka_eos.kafka.records.digest import PartitionDigest, header_section
from airflow_kafka_eos.kafka.records.split import BrokenRecords
from airflow_kafka_eos.kafka.records.stored import StoredBatch, batches, feed, reframe
from airflow_kafka_eos.kafka.records.varint import zig_zag
from airflow_kafka_eos.transaction import PreparedTxnState, TopicPartition

TP = TopicPartition("orders", 3)
RECORDS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (b"k" * 300, b"v" * 70_000, [("a", b"\x00"), ("ä", None)]),
    (None, b"", []),
    (b"", None, [("", b"")]),
    (b"x", b"y" * 64, []),
]


def encoded(number: int, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> bytes:
    body = b"\x00" + zig_zag(number * 1000) + zig_zag(number)
    for part in (key, value):
        body += zig_zag(-1) if part is None else zig_zag(len(part)) + part
    body += header_section(headers)
    return zig_zag(len(body)) + body


def sealed(codec: str = "none", base: int = 0) -> bytes:
    pieces = [encoded(n, *record) for n, record in enumerate(RECORDS)]
    batch = OpenBatch(1_700_000_000_000, 1_700_000_003_000, pieces, len(RECORDS))
    done = seal(batch, TP, 0, PreparedTxnState(7, 3), 0, compressor(codec))
    data = bytearray(b"".join(bytes(piece) for piece in done.data))
    struct.pack_into(">q", data, 0, base)
    return bytes(data)


def digest() -> str:
    expected = PartitionDigest()
    for record in RECORDS:
        expected.update(*record)
    return expected.hexdigest()


@pytest.fixture(params=["kernel", "python"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to take a batch apart."""
    if request.param == "python":
        monkeypatch.setattr(stored, "kernel", lambda: None)
    elif shutil.which("cc") is None:
        pytest.skip("there is no C compiler")


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("codec", CODES)
def test_a_stored_batch_gives_the_digest_of_its_records(codec: str) -> None:
    (batch,) = batches(sealed(codec))
    found = PartitionDigest()
    feed(batch, found)
    assert found.hexdigest() == digest()
    assert batch.is_whole and batch.is_intact and not batch.is_control


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("codec", CODES)
def test_what_its_header_does_not_count_is_refused_and_not_digested(codec: str) -> None:
    (batch,) = batches(sealed(codec))
    found = PartitionDigest()
    for count in (3, 5, 0, -1, 2**31 - 1):
        with pytest.raises(BrokenRecords, match="record"):
            feed(batch._replace(records=count), found)
    assert found.hexdigest() == PartitionDigest().hexdigest()


@pytest.mark.parametrize("codec", [c for c in CODES if c != "none"])
@pytest.mark.parametrize("keep", [0, 1, 5, 20, -8, -1])
def test_what_is_not_whole_cannot_be_decompressed(codec: str, keep: int) -> None:
    data = sealed(codec)
    (batch,) = batches(data)
    cut = batch._replace(data=memoryview(data[:61] + data[61:][:keep]))
    with pytest.raises(BrokenRecords):  # some take nothing for the compression of nothing
        feed(cut, PartitionDigest())
    junk = batch._replace(data=memoryview(data[:61] + b"\xff" * 100))
    with pytest.raises(BrokenRecords, match=f"{codec} cannot decompress it"):
        feed(junk, PartitionDigest())


@pytest.mark.parametrize("code", [5, 6, 7])
def test_a_compression_that_kafka_does_not_have_is_refused(code: int) -> None:
    (batch,) = batches(sealed())
    with pytest.raises(BrokenRecords, match=f"compression {code} is none"):
        feed(batch._replace(attributes=batch.attributes | code), PartitionDigest())


@pytest.mark.parametrize("codec", CODES)
def test_the_copy_has_the_same_records_under_another_producer(codec: str) -> None:
    (batch,) = batches(sealed(codec, base=900))
    copy = reframe(batch, TP, 5, PreparedTxnState(11, 0), 40)
    (read,) = batches(b"".join(bytes(piece) for piece in copy.data))
    assert (read.producer_id, read.producer_epoch, read.base_offset, read.last_offset) == (11, 0, 0, 3)
    assert (copy.partition, copy.order, copy.sequence, copy.records, copy.bytes) == (TP, 5, 40, 4, len(read.data))
    assert (read.base_timestamp, read.max_timestamp) == (1_700_000_000_000, 1_700_000_003_000)
    assert read.is_intact
    assert read.data[61:] == batch.data[61:]
    assert read.attributes == batch.attributes


def test_only_codec_and_transaction_are_taken_over_from_the_attributes() -> None:
    """Not that the broker stamped the records (0x08), nor compaction's delete horizon (0x40)."""
    (batch,) = batches(sealed("lz4"))
    stamped = batch._replace(attributes=batch.attributes | 0x48)
    (read,) = batches(b"".join(map(bytes, reframe(stamped, TP, 0, PreparedTxnState(11, 0), 0).data)))
    assert read.attributes == batch.attributes == 0x13


def test_an_answer_ends_anywhere_and_holds_what_others_wrote() -> None:
    whole = sealed(base=5)
    old = struct.pack(">qiiB", 4, 10, 0, 1) + b"\x00" * 5 + b"\x00" * 100
    old = old[:8] + struct.pack(">i", len(old) - 12) + old[12:]
    found = list(batches(old + whole + whole[:-1]))
    assert [(b.base_offset, b.last_offset, b.producer_id) for b in found] == [(4, 4, -1), (5, 8, 7)]
    assert list(batches(b"")) == list(batches(whole[:40])) == []


@pytest.mark.parametrize("length", [-12, -13, -(2**31)])
def test_a_length_that_leads_back_ends_it(length: int) -> None:
    """Or the same batch would be read for ever."""
    whole, broken = sealed("none"), bytearray(sealed("none", base=4))
    struct.pack_into(">i", broken, 8, length)
    assert [b.base_offset for b in batches(whole + broken)] == [0]


def test_a_flipped_bit_and_a_record_that_is_missing_are_seen() -> None:
    data = bytearray(sealed())
    data[-1] ^= 1
    (batch,) = batches(bytes(data))
    assert not batch.is_intact
    holed: StoredBatch = batch._replace(records=3)
    assert not holed.is_whole


def test_a_repair_needs_neither_pyarrow_nor_numpy() -> None:
    """commit runs on Airflow's workers, where they need not be."""
    code = (
        "import sys; sys.modules['pyarrow'] = sys.modules['numpy'] = None;"
        "import airflow_kafka_eos.protocol.stages.commit, airflow_kafka_eos.protocol.repair.recover"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
