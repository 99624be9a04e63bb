"""What the Arrow writer computes for whole columns, each against the plain way of doing it for one value."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_pythons_murmur2
from kafka.record.util import encode_varint

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.producer.arrow import columns, encoding
from airflow_kafka_eos.kafka.producer.arrow.batcher import cut, upper_bounds
from airflow_kafka_eos.kafka.producer.arrow.binary import binary, data_of, lengths_of
from airflow_kafka_eos.kafka.producer.arrow.encoding import FRAME_MOST
from airflow_kafka_eos.kafka.producer.arrow.partitioner import assign, crc32, evenly, murmur2
from airflow_kafka_eos.kafka.producer.options import PARTITIONERS
from airflow_kafka_eos.kafka.records.compression import CODES, compressor
from airflow_kafka_eos.kafka.records.digest import header_section
from airflow_kafka_eos.kafka.records.varint import zig_zag
from tests.kafka.arrow_support import DISGUISES, HEADERS, disguised

# the edges of 1 to 10 bytes
_EDGES = [s * (2**p + d) for p in range(0, 61) for d in (-1, 0, 1) for s in (1, -1)]
_INTS = st.sampled_from(_EDGES) | st.integers(-(2**60), 2**60)
_KEYS = st.lists(st.none() | st.binary(max_size=40), max_size=30)


def plain_varint(number: int) -> bytes:
    out: list[int] = []
    encode_varint(number, out.append)
    return bytes(out)


@given(st.lists(_INTS, min_size=1, max_size=40))
def test_varints_of_a_column_are_those_of_its_numbers(numbers: list[int]) -> None:
    data, offsets = encoding.rows([encoding.field(np.array(numbers))], len(numbers))
    found = [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)]
    assert found == [plain_varint(n) for n in numbers] == [zig_zag(n) for n in numbers]


@given(st.lists(st.tuples(_INTS, st.integers(-(2**30), 2**30 - 1)), min_size=1, max_size=20), st.integers(0, 255))
def test_fields_stand_side_by_side_row_after_row(rows: list[tuple[int, int]], literal: int) -> None:
    wide, narrow = (np.array(c) for c in zip(*rows, strict=True))
    fields: list[encoding.Field] = [literal, encoding.field(wide), 7, encoding.field(narrow)]
    data, offsets = encoding.rows(fields, len(rows))
    found = [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)]
    byte = bytes([literal])
    assert found == [byte + plain_varint(a) + b"\x07" + plain_varint(b) for a, b in rows]


# -- binary columns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", DISGUISES)
@given(_KEYS)
def test_lengths_and_bytes_of_a_column_whatever_its_memory_looks_like(
    how: str, values: list[bytes | None]
) -> None:
    column = binary(disguised(pa.array(values, pa.binary()), how))
    assert lengths_of(column).tolist() == [-1 if v is None else len(v) for v in values]
    assert bytes(data_of(column)) == b"".join(v or b"" for v in values)


def test_the_padding_behind_the_last_byte_is_not_part_of_the_column() -> None:
    column = pa.array([b"a" * 10, b"b"], pa.binary())
    assert column.buffers()[2].size >= 11
    assert bytes(data_of(column)) == b"a" * 10 + b"b"
    assert bytes(data_of(column.slice(0, 1))) == b"a" * 10


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_texts_are_their_utf8(kind: pa.DataType) -> None:
    column = pa.array(["ä", None, "", "日本"], kind)
    assert binary(column).to_pylist() == ["ä".encode(), None, b"", "日本".encode()]
    assert binary(column.slice(1, 2)).to_pylist() == [None, b""]


def test_a_large_column_may_begin_beyond_32_bits() -> None:
    # 2 GiB of zeros that no memory is taken for: only their end is ever touched
    data = np.zeros(2**31 + 9, np.uint8)
    data[-4:] = list(b"abcd")
    offsets = np.array([0, 2**31 + 5, 2**31 + 8, 2**31 + 9], np.int64)
    column = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    assert binary(column.slice(1)).to_pylist() == [b"abc", b"d"]


# -- partitioners --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", DISGUISES)
@given(_KEYS)
def test_murmur2_is_kafka_pythons(how: str, keys: list[bytes | None]) -> None:
    found = murmur2(binary(disguised(pa.array(keys, pa.binary()), how)))
    assert found.tolist() == [kafka_pythons_murmur2(k or b"") & 0xFFFFFFFF for k in keys]


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        # Kafka's own UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(key: bytes, wanted: int) -> None:
    assert murmur2(pa.array([key, b"other", key], pa.binary())).view(np.int32)[[0, 2]].tolist() == [wanted] * 2


@pytest.mark.parametrize("how", DISGUISES)
@given(_KEYS)
def test_crc32_is_zlibs(how: str, keys: list[bytes | None]) -> None:
    found = crc32(binary(disguised(pa.array(keys, pa.binary()), how)))
    assert found.tolist() == [zlib.crc32(k or b"") for k in keys]


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@given(_KEYS, st.integers(1, 300), st.integers(0, 1000))
def test_every_row_has_a_partition_and_equal_keys_have_the_same(
    partitioner: str, keys: list[bytes | None], partitions: int, start: int
) -> None:
    found = assign(pa.array(keys, pa.binary()), len(keys), partitions, partitioner, start=start)
    assert len(found) == len(keys)
    assert all(0 <= p < partitions for p in found)
    hashed: Callable[[bytes | None], bool] = {
        "murmur2_random": lambda k: k is not None,
        "murmur2": lambda k: True,
        "consistent_random": bool,
        "consistent": lambda k: True,
        "random": lambda k: False,
    }[partitioner]
    for key, partition in zip(keys, found, strict=True):
        if hashed(key):
            java = "murmur2" in partitioner
            number = kafka_pythons_murmur2(key or b"") & 0x7FFFFFFF if java else zlib.crc32(key or b"")
            assert partition == number % partitions
    spread = [p for k, p in zip(keys, found, strict=True) if not hashed(k)]
    assert spread == evenly(len(spread), partitions, start).tolist()


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_without_a_key_column_rows_are_as_with_null_keys(partitioner: str) -> None:
    nulls = pa.nulls(50, pa.binary())
    assert assign(None, 50, 7, partitioner).tolist() == assign(nulls, 50, 7, partitioner).tolist()


@given(st.integers(0, 500), st.integers(1, 60), st.integers(0, 10**6))
def test_rows_without_a_key_are_spread_evenly_in_runs(rows: int, partitions: int, start: int) -> None:
    found = evenly(rows, partitions, start).tolist()
    counts = [found.count(p) for p in range(partitions)]
    assert max(counts) - min(counts) <= 1
    runs = [p for p, _ in itertools.groupby(found)]
    assert len(runs) == len(set(runs))
    assert not found or found[0] == start % partitions


# -- headers -------------------------------------------------------------------------------------------------------

_HEADER = st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=200))
_ROW_OF_HEADERS = st.none() | st.lists(_HEADER, max_size=4)


@given(st.lists(_ROW_OF_HEADERS, min_size=1, max_size=12), st.integers(0, 3))
def test_header_sections_are_those_of_each_row(
    rows: list[list[tuple[str, bytes | None]] | None], skipped: int
) -> None:
    skipped = min(skipped, len(rows) - 1)
    column = pa.array([None if r is None else [{"key": k, "value": v} for k, v in r] for r in rows], HEADERS)
    found, content = columns.sections(column.slice(skipped))
    wanted = [r or [] for r in rows[skipped:]]
    if not any(wanted):
        assert found is None and content is None
        return
    assert found is not None and content is not None
    assert found.to_pylist() == [header_section(r) for r in wanted]
    assert content.tolist() == [sum(len(k.encode()) + len(v or b"") for k, v in r) for r in wanted]


def test_headers_behind_a_null_list_do_not_count() -> None:
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2]), pa.array([{"key": "x", "value": b"1"}, {"key": "y", "value": b"2"}], HEADERS.value_type)
    )
    hidden = pa.ListArray.from_buffers(
        HEADERS, 2, [pa.py_buffer(b"\x02"), lists.buffers()[1]], children=[lists.values]
    )
    found, _ = columns.sections(hidden)
    assert found is not None and found.to_pylist() == [header_section([]), header_section([("y", b"2")])]


@pytest.mark.parametrize("bad", [None, {"key": None, "value": b"v"}])
def test_a_header_without_a_name_is_refused(bad: dict[str, bytes | None] | None) -> None:
    column = pa.array([[{"key": "k", "value": b"v"}], [bad]], HEADERS)
    with pytest.raises(columns.NamelessHeader):
        columns.sections(column)
    assert columns.sections(column.slice(0, 1))[0] is not None


# -- cutting -------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 300), max_size=60),
    st.integers(40, 400),
    st.integers(0, 400),
    st.integers(0, 10),
    st.integers(0, 10),
)
def test_no_batch_is_above_its_limit_and_no_row_is_lost(
    sizes: list[int], limit: int, used: int, before: int, after: int
) -> None:
    # rows of other partitions stand before and behind
    fixed = np.array([7] * before + sizes + [9] * after, np.int32)
    cumulated = upper_bounds(fixed, timed=False)
    start, end = before, before + len(sizes)
    ends = cut(cumulated, start, end, min(used, limit), limit)
    assert ends == sorted(ends) and ends[-1] == end
    edges = [start, *ends]
    taken = [int(cumulated[b] - cumulated[a]) for a, b in itertools.pairwise(edges)]
    for n, ((a, b), size) in enumerate(zip(itertools.pairwise(edges), taken, strict=True)):
        room = limit - min(used, limit) if n == 0 else limit
        assert size <= room or (b - a == 1 and room == limit), (edges, taken)
        # a batch ends only where the next row would not fit
        if n < len(ends) - 1:
            assert size + int(fixed[b]) + FRAME_MOST > room
        assert b > a or n == 0 or not sizes


# -- compression ---------------------------------------------------------------------------------------------------


def test_unknown_codecs_and_levels_are_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match=r"'zip'.*none, gzip, snappy, lz4, zstd"):
        compressor("zip")
    with pytest.raises(ConfigurationError, match=r"level is 23, zstd has 1 to 22"):
        compressor("zstd", 23)
    assert [compressor(name)[0] for name in CODES] == [0, 1, 2, 3, 4]
    assert compressor("none", 9) == (0, None)


def compressed(data: bytes, name: str, level: int | None = None) -> bytes:
    _, compress = compressor(name, level)
    assert compress is not None
    return compress(data)


def test_levels_reach_the_codecs() -> None:
    data = bytes(range(256)) * 40 + b"abcabcabd" * 3000
    for name, low, high in (("gzip", 1, 9), ("lz4", 0, 12), ("zstd", 1, 19)):
        assert len(compressed(data, name, high)) < len(compressed(data, name, low)), name
    # Java's and librdkafka's zstd default is 3, pyarrow's own is 1
    assert compressed(data, "zstd") == compressed(data, "zstd", 3)
