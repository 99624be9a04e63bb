"""The kernel writes what numpy and Arrow write, and is done without where it is missing or is another machine's.

That batches are the same byte for byte holds in all of test_arrow_batcher.py; here are the edges. How it reads
what a log has: test_split.py.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.kafka.producer.arrow import kernel_rows
from airflow_kafka_eos.kafka.producer.arrow.columns import sections
from airflow_kafka_eos.kafka.producer.arrow.encoding import Columns, GatheredRows, Segment
from airflow_kafka_eos.kafka.producer.arrow.kernel_rows import KernelRows
from airflow_kafka_eos.kafka.producer.arrow.partitioner import assign, murmur2
from airflow_kafka_eos.kafka.records import kernel as module
from airflow_kafka_eos.kafka.records.digest import PartitionDigest
from airflow_kafka_eos.kafka.records.kernel import SWITCH, VERSION, Kernel, kernel
from tests.kafka.arrow_support import DISGUISES, HEADERS, disguised

needs_kernel = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

_BYTES = st.none() | st.binary(max_size=40) | st.sampled_from([b"x" * 63, b"y" * 64, b"z" * 8192, b"-" * 1_100_000])
_HEADERS = st.lists(st.fixed_dictionaries({"key": st.text(max_size=4), "value": st.none() | st.binary(max_size=9)}))
_ROWS = st.lists(
    st.tuples(_BYTES, _BYTES, st.none() | _HEADERS, st.integers(-(2**62), 2**62)), min_size=1, max_size=30
)


@pytest.fixture(autouse=True)
def found_anew() -> Iterator[None]:
    kernel.cache_clear()
    yield
    kernel.cache_clear()


def built() -> Kernel:
    found = kernel()
    assert found is not None, "`make setup` compiles it where there is a C compiler"
    return found


@needs_kernel
@given(
    _ROWS,
    st.sampled_from(DISGUISES),
    st.sets(st.sampled_from(["key", "value", "headers", "timestamps"])),
    st.booleans(),
    st.randoms(use_true_random=False),
    st.integers(0, 2**31 - 40),
)
def test_the_same_bytes_and_digests_whatever_the_rows_are(
    rows: list[tuple[bytes | None, bytes | None, object, int]],
    how: str,
    absent: set[str],
    ordered: bool,
    chance: object,
    first_delta: int,
) -> None:
    key, value, headers, stamps = (list(of) for of in zip(*rows, strict=True))
    encoded, header_bytes = sections(pa.array(headers, HEADERS))
    if "headers" in absent:
        encoded = header_bytes = None
    columns = Columns(
        len(rows),
        None if "key" in absent else disguised(pa.array(key, pa.binary()), how).cast(pa.binary()),
        None if "value" in absent else disguised(pa.array(value, pa.binary()), how).cast(pa.binary()),
        encoded,
        header_bytes,
        None if "timestamps" in absent else np.array(stamps, np.int64),
    )
    order = None
    if ordered:
        places = list(range(len(rows)))
        chance.shuffle(places)  # type: ignore[attr-defined]
        order = np.array(places, np.intp)
    plain, native = GatheredRows(columns, order), KernelRows(built(), columns, order)
    assert plain.fixed.tolist() == native.fixed.tolist()
    assert (plain.timestamps is None) == (native.timestamps is None)
    stamps = [None if of.timestamps is None else of.timestamps.tolist() for of in (plain, native)]
    assert stamps[0] == stamps[1]
    bounds = np.concatenate([[0], np.cumsum(plain.fixed.astype(np.int64) + 30)])
    middle = len(rows) // 2
    segments = [
        Segment(a, b, int(bounds[b] - bounds[a]), delta, 5, True)
        for a, b, delta in ((0, middle, first_delta), (middle, len(rows), 0))
        if b > a
    ]
    for one, other in zip(plain.encode(segments), native.encode(segments), strict=True):
        assert b"".join(one.pieces) == b"".join(other.pieces)
        assert one.content == other.content
        digests = PartitionDigest(), PartitionDigest()
        for digest, run in zip(digests, (one, other), strict=True):
            digest.update_columns(run.lengths, run.keys, run.values, run.headers)
        assert digests[0].hexdigest() == digests[1].hexdigest()
    assert [plain.content_of(n) for n in range(len(rows))] == [native.content_of(n) for n in range(len(rows))]


@needs_kernel
@given(st.lists(st.none() | st.binary(max_size=40), max_size=30), st.sampled_from(DISGUISES))
def test_murmur2_is_the_same(keys: list[bytes | None], how: str) -> None:
    column = disguised(pa.array(keys, pa.binary()), how).cast(pa.binary())
    assert kernel_rows.murmur2(built(), column).tolist() == murmur2(column).tolist()


@needs_kernel
def test_the_partitioner_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = pa.array([b"a", b"b"], pa.binary())
    monkeypatch.setattr(kernel_rows, "murmur2", lambda kernel, keys: np.array([7, 8], np.uint32))
    assert assign(keys, 2, 100, "murmur2_random").tolist() == [7, 8]


# -- where it cannot be had ----------------------------------------------------------------------------------------


def refused(library: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> str:
    monkeypatch.setattr(module, "LIBRARY", library)
    with caplog.at_level(logging.INFO, module.__name__):
        assert kernel() is None
        assert kernel() is None
    (record,) = caplog.records
    return record.getMessage()


def test_a_missing_one_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert "costs more CPU" in refused(tmp_path / "kernel.elf", monkeypatch, caplog)


def test_another_cpus_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "kernel.elf"
    # the beginning of an ELF file for a machine that nobody has
    other.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xfe\xfe\x01" + bytes(4096))
    assert str(other) in refused(other, monkeypatch, caplog)


@needs_kernel
def test_one_of_another_version_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = module.LIBRARY.with_name("kernel.c").read_text()
    (tmp_path / "kernel.c").write_text(source.replace(f"{{ return {VERSION}; }}", "{ return 0; }"))
    other = tmp_path / "kernel.elf"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", other, tmp_path / "kernel.c"], check=True)
    assert "another version" in refused(other, monkeypatch, caplog)


@needs_kernel
def test_it_can_be_switched_off() -> None:
    ask = "from airflow_kafka_eos.kafka.records.kernel import kernel; print(kernel() is None)"
    for value, off in (("off", "True"), ("", "False")):
        run = subprocess.run(
            [sys.executable, "-c", ask], env=os.environ | {SWITCH: value}, capture_output=True, text=True, check=True
        )
        assert run.stdout.strip() == off
