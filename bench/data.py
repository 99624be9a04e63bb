"""The records that everybody writes: made once, kept in the cache, the same bytes for Spark and for Java.

Values are JSON as orders have it: numbers, names out of small and large sets, times, a few random ids. They neither
repeat nor are they noise: zstd (level 3, 512 KiB) makes a fifth to a quarter of them, as of real JSON.

The Parquet files that Spark reads are ``plain``, neither encoded nor compressed: then the least of the time goes into
reading them. Or ``zstd``, compressed and dictionary-encoded, as people have them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.cases import PLAIN, ZSTD
from bench.murmur2 import partitions_of

#: A change of what is in the records makes another folder.
FORMAT = 1
CHUNK = 250_000
KEY_BYTES = 12
WORDS = Path(__file__).with_name("words.txt").read_text().split()


@dataclass(frozen=True)
class Dataset:
    """What was made.

    :param bytes: of keys and values together, as they are written.
    :param per_partition: records that each Kafka partition must get (murmur2 of the key); None where no key says it.
    :param parquet: ``plain`` or ``zstd``: which files Spark reads.
    """

    name: str
    folder: Path
    records: int
    bytes: int
    per_partition: tuple[int, ...] | None
    parquet: str = PLAIN

    @property
    def keyed(self) -> bool:
        """Whether the keys are written, too."""
        return self.per_partition is not None

    @property
    def wanted(self) -> tuple[int, ...] | int:
        """What :func:`bench.logcheck.check` is to find."""
        return self.records if self.per_partition is None else self.per_partition

    @property
    def parquet_files(self) -> list[Path]:
        """One for each Spark task; columns key and value, binary."""
        return sorted(self.folder.glob(f"{self.parquet}-*.parquet"))

    @property
    def java_file(self) -> Path:
        """See ``Records.java``."""
        return self.folder / "records.bin"

    def without_keys(self) -> Dataset:
        """The same files, of which the values alone are written."""
        return replace(self, bytes=self.bytes - self.records * KEY_BYTES, per_partition=None) if self.keyed else self


def dataset(root: Path, name: str, records: int, tasks: int, partitions: int, parquet: str = PLAIN) -> Dataset:
    """Make a set of records, or find the one that was made before.

    :param name: ``small`` (about 140 bytes of key and value) or ``large`` (about 1 KiB).
    :param parquet: ``plain`` or ``zstd``.
    """
    folder = root / f"{name}-{records}-{tasks}-v{FORMAT}"
    if not folder.is_dir():
        unfinished = root / f".{folder.name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        size = _write(unfinished, name, records, tasks)
        (unfinished / "facts.json").write_text(json.dumps({"bytes": size}))
        unfinished.rename(folder)
    size = json.loads((folder / "facts.json").read_text())["bytes"]
    plain = Dataset(name, folder, records, size, _per_partition(folder, partitions))
    if parquet == ZSTD:
        _pack(plain)
    return replace(plain, parquet=parquet)


def _write(folder: Path, name: str, records: int, tasks: int) -> int:
    """Returns the bytes of all keys and values."""
    size = 0
    with open(folder / "records.bin", "wb") as java:
        java.write(np.array([records], ">i4").tobytes())
        for task in range(tasks):
            first, last = records * task // tasks, records * (task + 1) // tasks
            with pq.ParquetWriter(
                folder / f"{PLAIN}-{task}.parquet",
                pa.schema([("key", pa.binary()), ("value", pa.binary())]),
                compression="none",
                use_dictionary=False,
                write_statistics=False,
            ) as parquet:
                for chunk in _chunks(name, first, last):
                    parquet.write_table(chunk, row_group_size=CHUNK)
                    java.write(_with_lengths(chunk))
                    size += sum(pc.sum(pc.binary_length(column)).as_py() for column in chunk.columns)
    return size


def _pack(plain: Dataset) -> None:
    """The same rows once more, as people have them: a writer's defaults but for the codec."""
    for file in plain.parquet_files:
        packed = file.with_name(file.name.replace(PLAIN, ZSTD, 1))
        if not packed.exists():
            unfinished = packed.with_suffix(".unfinished")
            read = pq.ParquetFile(file)
            with pq.ParquetWriter(unfinished, read.schema_arrow, compression="zstd", use_dictionary=True) as writer:
                for group in range(read.num_row_groups):
                    writer.write_table(read.read_row_group(group), row_group_size=CHUNK)
            unfinished.rename(packed)


def _per_partition(folder: Path, partitions: int) -> tuple[int, ...]:
    """Kept beside the records, for each number of partitions that was ever asked for."""
    kept = folder / f"partitions-{partitions}.json"
    if not kept.exists():
        counts = np.zeros(partitions, int)
        for file in folder.glob(f"{PLAIN}-*.parquet"):
            keys = pq.read_table(file, columns=["key"])["key"]
            counts += np.bincount(partitions_of(keys, partitions), minlength=partitions)
        unfinished = kept.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(counts.tolist()))
        unfinished.rename(kept)
    return tuple(json.loads(kept.read_text()))


def _chunks(name: str, first: int, last: int) -> Iterator[pa.Table]:
    for start in range(first, last, CHUNK):
        numbers = np.arange(start, min(start + CHUNK, last))
        random = np.random.default_rng([FORMAT, start])
        customer = _padded(random.integers(0, 1_000_000, len(numbers)), KEY_BYTES - 2)
        key = pc.binary_join_element_wise("c-", customer, "")
        value = _order(random, numbers, customer, items=0 if name == "small" else 9)
        yield pa.table({"key": key.cast(pa.binary()), "value": value.cast(pa.binary())})


def _order(random: np.random.Generator, numbers: np.ndarray, customer: pa.Array, items: int) -> pa.Array:
    n = len(numbers)
    at = pa.array(1_790_000_000_000 + numbers * 7 + random.integers(0, 5000, n), pa.timestamp("ms"))
    parts = [
        '{"order":"', _hex(random, n), _hex(random, n),
        '","customer":"c-', customer,
        '","status":"', _one_of(random, n, ["new", "paid", "packed", "shipped", "returned"]),
        '","country":"', _one_of(random, n, ["DE", "FR", "NL", "PL", "ES", "IT", "SE", "CZ"]),
        '","amount":', _money(random, n, 50_000),
        ',"at":"', pc.strftime(at, "%Y-%m-%dT%H:%M:%S"), 'Z"',
    ]  # fmt: skip
    if items:
        parts += [',"to":"', _one_of(random, n, WORDS), " ", _one_of(random, n, WORDS), " street ",
                  _text(random.integers(1, 400, n)), ", ", _text(random.integers(10_000, 99_999, n)), '"']  # fmt: skip
    for item in range(items):
        parts += [
            ',"items":[' if item == 0 else ",",
            '{"sku":"', _padded(random.integers(0, 200_000, n), 8),
            '","ean":', _text(random.integers(4_000_000_000_000, 4_999_999_999_999, n)),
            ',"title":"', _one_of(random, n, WORDS), " ", _one_of(random, n, WORDS), " ", _one_of(random, n, WORDS),
            '","count":', _text(random.geometric(0.4, n)),
            ',"price":', _money(random, n, 9_000), "}",
        ]  # fmt: skip
    return pc.binary_join_element_wise(*parts, "]}" if items else "}", "")


def _text(numbers: np.ndarray) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _padded(numbers: np.ndarray, width: int) -> pa.Array:
    return pc.utf8_lpad(_text(numbers), width, padding="0")


def _money(random: np.random.Generator, n: int, cents: int) -> pa.Array:
    amount = random.integers(100, cents, n)
    return pc.binary_join_element_wise(_text(amount // 100), _padded(amount % 100, 2), ".")


@cache
def _digits() -> pa.Array:
    return pa.array([f"{i:05x}" for i in range(1 << 20)])


def _hex(random: np.random.Generator, n: int) -> pa.Array:
    return _digits().take(pa.array(random.integers(0, 1 << 20, n)))


def _one_of(random: np.random.Generator, n: int, words: list[str]) -> pa.Array:
    return pa.array(words).take(pa.array(random.integers(0, len(words), n)))


def _with_lengths(chunk: pa.Table) -> bytes:
    lengths = [
        pa.array([n.to_bytes(4, "big") for n in pc.binary_length(chunk[c]).to_pylist()]) for c in ("key", "value")
    ]
    columns = [chunk[c].combine_chunks() for c in ("key", "value")]
    joined = pc.binary_join_element_wise(*lengths, *columns, b"")
    return b"".join(joined.to_pylist())
