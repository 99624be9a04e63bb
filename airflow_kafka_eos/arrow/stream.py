"""What the author's function returns, read batch by batch: bounded, and as its schema says all the way.

Whoever speaks the Arrow C stream protocol (``__arrow_c_stream__``) can be read: pyarrow's tables and readers, Polars,
pandas, DuckDB, ADBC. A dataset and its scanner (pyarrow) have a reader instead.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_kafka_eos.amounts import size_text
from airflow_kafka_eos.errors import CheckFailedError, ConfigurationError, KafkaEosError, StreamError

#: Rows and bytes that a writer gets at a time, as from Spark (spark/write.py).
PIECE_ROWS = 50_000
PIECE_BYTES = 4 * 1024 * 1024
#: The first rows of a batch, which say how large what is made of the others becomes.
_TRIED_ROWS = 256
#: Packages and types whose rows can be read as often as one likes.
_BEGIN_ANEW = frozenset(
    {("pyarrow", "Table"), ("pyarrow", "RecordBatch"), ("pandas", "DataFrame"), ("polars", "DataFrame"),
     *(("pyarrow", f"{kind}Dataset") for kind in ("FileSystem", "InMemory", "Union"))}
)  # fmt: skip
#: All others that jobs have returned in this process, as far as they are still there.
_returned: list[Callable[[], Any]] = []


@dataclass(frozen=True)
class Bounds:
    """What a stream may be.

    :param batch_bytes: of one batch of the stream, as it comes.
    :param records: of all of it; None: any number.
    """

    batch_bytes: int
    records: int | None = None


def reader_of(found: Any, job: str) -> pa.RecordBatchReader:
    """
    :param found: what the author's function has returned.
    :param job: its name, for errors.
    :raises ConfigurationError: it is no stream of record batches, or one that was read in this process before.
    :raises StreamError: it cannot be opened.
    """
    _check_unread(found, job)
    if isinstance(found, pa.RecordBatchReader):
        return found
    try:
        if (dataset := _of_a_dataset(found)) is not None:
            return dataset
        if hasattr(found, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(found)
    except KafkaEosError:
        raise
    except Exception as e:
        if isinstance(e, (pa.ArrowInvalid, pa.ArrowTypeError, TypeError)):
            raise _no_stream(found, job, f" ({e})") from e
        raise _broken(job, 0, e) from e
    raise _no_stream(found, job, "")


def _check_unread(found: Any, job: str) -> None:
    """A reader that was read half, and is returned once more, has the other half: a short load that looks whole.

    In ``airflow dags test`` all tries are one process; elsewhere each has its own.

    :raises ConfigurationError: it was returned before, and may not begin anew.
    """
    kind = type(found)
    is_stream = hasattr(found, "__arrow_c_stream__") or kind.__module__.startswith("pyarrow._dataset")
    if not is_stream or (kind.__module__.partition(".")[0], kind.__name__) in _BEGIN_ANEW:
        return
    if any(one() is found for one in _returned):
        raise ConfigurationError(
            f"{job} has returned the same {kind.__name__} before, in this process: what was read of it then would be "
            "missing",
            remedy="Make the stream inside the function, with all that it reads from, so that each call begins anew",
        )
    try:
        _returned.append(weakref.ref(found))
    except TypeError:  # kept, so that no other object has its place
        _returned.append(lambda: found)


def _of_a_dataset(found: Any) -> pa.RecordBatchReader | None:
    if not type(found).__module__.startswith("pyarrow._dataset"):
        return None
    scanner = _frugal(found) if hasattr(found, "scanner") else found
    reader: pa.RecordBatchReader | None = scanner.to_reader() if hasattr(scanner, "to_reader") else None
    return reader


def _frugal(dataset: Any) -> Any:
    """A scanner that holds little: pyarrow's own reads many batches ahead, by a thread for each core, and of a Parquet
    file it keeps what it has read: 4 million records of 140 bytes had 407 MiB allocated at most, by this 97.
    """
    import pyarrow.dataset as ds

    ahead = {"batch_readahead": 1, "fragment_readahead": 1}
    few: dict[str, Any] = {"batch_size": PIECE_ROWS, "use_threads": False} | ahead
    parquet = getattr(ds, "ParquetFileFormat", None)
    if parquet is not None and isinstance(getattr(dataset, "format", None), parquet):
        few["fragment_scan_options"] = ds.ParquetFragmentScanOptions(pre_buffer=False)
    return dataset.scanner(**few)


def batches(reader: pa.RecordBatchReader, job: str, bounds: Bounds) -> Iterator[pa.RecordBatch]:
    """Each batch of the stream, once it is known to be good.

    :raises StreamError: the stream ends in an error.
    :raises ConfigurationError: a batch is above the bound, or of another schema than the stream.
    :raises CheckFailedError: there are more records than the bound.
    """
    schema, records = reader.schema, 0
    while True:
        try:
            batch = reader.read_next_batch()
            batch.validate()
        except StopIteration:
            return
        except KafkaEosError:
            raise
        except Exception as e:
            raise _broken(job, records, e) from e
        if not batch.schema.equals(schema):
            raise ConfigurationError(
                f"the stream of {job} changes its schema behind {records:,} records: {_text(batch.schema)}; it began "
                f"with {_text(schema)}",
                remedy="Bring all batches into one schema before they are returned",
            )
        if batch.nbytes > bounds.batch_bytes:
            raise ConfigurationError(
                f"a batch of the stream of {job} has {batch.num_rows:,} rows and {size_text(batch.nbytes)}, above "
                f"max_batch_bytes={bounds.batch_bytes}",
                remedy="Return smaller batches (docs/arrow-engine.md, A large frame, or table): by a scanner's "
                "batch_size, which also needs batch_readahead=1; by DuckDB's to_arrow_reader(rows); of a "
                "table, or of a Polars frame's to_arrow(), by pyarrow.RecordBatchReader.from_batches(table.schema, "
                "table.to_batches(max_chunksize=rows)). Or raise max_batch_bytes where the worker has the memory",
            )
        records += batch.num_rows
        if bounds.records is not None and records > bounds.records:
            raise CheckFailedError(
                f"the stream of {job} has more than max_records={bounds.records} records: reading it was stopped at "
                f"{records:,}",
                remedy="Raise max_records, or look why the source has so many",
            )
        yield batch


def pieces(
    found: Iterator[pa.RecordBatch], take: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Batches of a size that is good for a writer: large ones cut, small ones put together.

    How they are cut follows from the stream alone: rows without a key go to the same partitions whenever its batches
    are the same.

    :param take: makes a piece what a writer takes; a large batch is never copied as a whole.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in found:
        for made in _cut(batch, take):
            if held and (rows + made.num_rows > PIECE_ROWS or size + made.nbytes > PIECE_BYTES):
                yield _joined(held)
                held, rows, size = [], 0, 0
            held.append(made)
            rows, size = rows + made.num_rows, size + made.nbytes
    if held:
        yield _joined(held)


def _cut(batch: pa.RecordBatch, take: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Made of a batch, a part of it at a time.

    Its first rows are made twice where it has many: of a dictionary, of views or of booleans a hundred times as much
    may be made as there is.
    """
    wide = max(1, batch.nbytes // max(1, batch.num_rows))
    if batch.num_rows > _TRIED_ROWS:
        wide = max(wide, take(batch.slice(0, _TRIED_ROWS)).nbytes // _TRIED_ROWS)
    start = 0
    while start < batch.num_rows:
        part = batch.slice(start, max(1, min(PIECE_ROWS, PIECE_BYTES // wide)))
        start += part.num_rows
        yield (made := take(part))
        wide = max(wide, made.nbytes // part.num_rows)


def _joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(held) == 1:
        return held[0]
    (batch,) = pa.Table.from_batches(held).combine_chunks().to_batches()
    return batch


def _no_stream(found: Any, job: str, why: str) -> ConfigurationError:
    what = "nothing" if found is None else type(found).__name__
    return ConfigurationError(
        f"{job} returned {what}, which is no stream of Arrow record batches{why}",
        remedy="Return a pyarrow Table, RecordBatchReader or dataset, a Polars or pandas DataFrame, a DuckDB relation, "
        "or what else has __arrow_c_stream__",
    )


def _broken(job: str, records: int, error: Exception) -> StreamError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = f": {lines[0]}" if lines else ""
    return StreamError(
        f"the stream of {job} ended in an error behind {records:,} records: {type(error).__name__}{said}",
        remedy="Nothing of it is visible. A retry calls the function once more, and reads from the beginning",
    )


def _text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
