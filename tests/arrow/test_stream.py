"""What may be read as a stream, and what ends the reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from airflow_kafka_eos.arrow.stream import PIECE_BYTES, PIECE_ROWS, Bounds, batches, pieces, reader_of
from airflow_kafka_eos.errors import CheckFailedError, ConfigurationError, RecordError, StreamError

SCHEMA = pa.schema([("value", pa.string())])
WIDE = Bounds(1024 * 1024)


class Foreign:
    """Another library's object: nothing but the protocol."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self._reader.__arrow_c_stream__(requested_schema)


def batch(*values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})


def stream(found: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(SCHEMA, found)


def read(found: Any, bounds: Bounds = WIDE) -> list[str]:
    return [row for part in batches(reader_of(found, "job"), "job", bounds) for row in part.column(0).to_pylist()]


SOURCES: dict[str, Callable[[pa.Table, Path], Any]] = {
    "a table": lambda table, _: table,
    "a record batch": lambda table, _: table.to_batches()[0],
    "a reader": lambda table, _: table.to_reader(),
    "pandas": lambda table, _: pd.DataFrame(table.to_pydict()),
    "another library": lambda table, _: Foreign(table),
    "a dataset": lambda _, path: ds.dataset(path),
    "a scanner": lambda _, path: ds.dataset(path).scanner(batch_size=1),
}


@pytest.mark.parametrize("source", SOURCES)
def test_whoever_speaks_the_protocol_is_read(source: str, tmp_path: Path) -> None:
    table = pa.table({"value": ["a", "b", "c"]})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert read(SOURCES[source](table, tmp_path / "rows.parquet")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (None, "job returned nothing, which is no stream of Arrow record batches."),
        ([batch("a")], "job returned list, which is no stream"),
        ("rows", "job returned str, which is no stream"),
        (pa.chunked_array([["a"]]), "job returned ChunkedArray, which is no stream of Arrow record batches ("),
        (Foreign(pa.chunked_array([["a"]])), "job returned Foreign, which is no stream of Arrow record batches ("),
    ],
    ids=["nothing", "a list", "a text", "a chunked array", "another library's"],
)
def test_what_is_no_stream_is_refused_by_its_type(found: Any, what: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(found)
    assert what in str(caught.value) and "Return a pyarrow Table" in str(caught.value)


@pytest.mark.parametrize("wrap", [lambda reader: reader, Foreign], ids=["pyarrow", "another library"])
def test_a_stream_that_was_returned_before_is_refused(wrap: Callable[[Any], Any]) -> None:
    """In one process a retry would read the rest, and its manifest would be whole."""
    found = wrap(stream(iter([batch("a"), batch("b")])))
    reader = reader_of(found, "job")
    assert next(batches(reader, "job", Bounds(10**6))).num_rows == 1
    reader.close()
    with pytest.raises(ConfigurationError, match="Make the stream inside the function"):
        reader_of(found, "job")
    assert read(wrap(stream(iter([batch("a"), batch("b")])))) == ["a", "b"], "another one"


def test_what_begins_anew_each_time_may_be_returned_again(tmp_path: Path) -> None:
    table = pa.Table.from_batches([batch("a", "b")])
    pq.write_table(table, tmp_path / "rows.parquet")
    for found in (table, ds.dataset(tmp_path / "rows.parquet"), table.to_pandas()):
        assert read(found) == read(found) == ["a", "b"]


def broken() -> Iterator[pa.RecordBatch]:
    yield batch("a", "b")
    raise OSError("the disk is gone\nand more")


@pytest.mark.parametrize("wrap", [lambda reader: reader, Foreign], ids=["pyarrow", "another library"])
def test_a_stream_that_ends_in_an_error_says_behind_how_many_records(wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(StreamError, match=r"of job ended in an error behind 2 records: .*the disk is gone") as caught:
        read(wrap(stream(broken())))
    assert "and more" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_stream_that_cannot_be_opened_is_an_error_of_the_stream() -> None:
    class Closed:
        def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
            raise ConnectionError("no such host")

    with pytest.raises(StreamError, match="behind 0 records: ConnectionError: no such host"):
        read(Closed())


def test_an_error_of_ours_stays_what_it_is() -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield batch("a")
        raise RecordError("the row is bad")

    with pytest.raises(RecordError, match="the row is bad"):
        read(stream(rows()))


def test_a_stream_that_changes_its_schema_is_refused() -> None:
    other = pa.RecordBatch.from_pydict({"value": pa.array([b"c"], pa.binary())})
    with pytest.raises(ConfigurationError, match=r"behind 1 records: value binary; it began with value string"):
        read(stream(iter([batch("a"), other])))


def test_a_batch_above_the_bound_is_refused_before_it_is_handed_on() -> None:
    seen = []
    with pytest.raises(ConfigurationError, match=r"has 1 rows and .*above max_batch_bytes=100"):
        for part in batches(stream(iter([batch("a"), batch("b" * 200)])), "job", Bounds(100)):
            seen.append(part)
    assert len(seen) == 1


def test_a_stream_above_max_records_is_not_read_to_its_end() -> None:
    asked = count()
    endless = (batch("a", "b") for _ in asked)
    with pytest.raises(CheckFailedError, match="more than max_records=5 records: reading it was stopped at 6"):
        read(stream(endless), Bounds(1000, 5))
    assert next(asked) == 3
    assert read(stream(iter([batch("a", "b")])), Bounds(1000, 2)) == ["a", "b"]


def cut(found: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return list(pieces(iter(found), lambda part: part))


def test_small_batches_are_put_together_and_large_ones_cut_in_order() -> None:
    made = cut([batch(), *(batch(str(n)) for n in range(10)), batch()])
    assert [part.column(0).to_pylist() for part in made] == [[str(n) for n in range(10)]]
    rows = PIECE_ROWS * 2 + 1
    made = cut([batch(*map(str, range(rows)))])
    assert max(part.num_rows for part in made) == PIECE_ROWS
    assert [row for part in made for row in part.column(0).to_pylist()] == [str(n) for n in range(rows)]
    assert cut([]) == [] == cut([batch()])


def test_pieces_are_bounded_by_bytes() -> None:
    wide = batch(*("x" * 100_000 for _ in range(200)))
    made = cut([wide, wide])
    assert sum(part.num_rows for part in made) == 400
    assert max(part.nbytes for part in made) <= PIECE_BYTES + 1024
    assert [part.num_rows for part in cut([batch("x" * (PIECE_BYTES + 1), "y")])] == [1, 1]


def test_pieces_are_bounded_by_the_bytes_of_what_is_made() -> None:
    """A dictionary of long texts: 20,000 rows in 24 kB, and 80 MB of what is made of them."""
    text = "x" * 4_000
    short = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int8()), [text])
    found = pa.RecordBatch.from_pydict({"value": short})
    assert found.nbytes < 100_000

    def plain(part: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"value": part.column(0).cast(pa.string())})

    made = list(pieces(iter([found]), plain))
    assert max(part.nbytes for part in made) <= PIECE_BYTES
    assert sum(part.num_rows for part in made) == 20_000


def test_pieces_become_smaller_where_rows_become_larger() -> None:
    texts = ["x" * (1 if n < 10_000 else 4_000) for n in range(20_000)]
    index = pa.array([0 if len(text) == 1 else 1 for text in texts], pa.int8())
    found = pa.RecordBatch.from_pydict({"value": pa.DictionaryArray.from_arrays(index, ["x", "x" * 4_000])})

    def plain(part: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"value": part.column(0).cast(pa.string())})

    sizes = [part.nbytes for part in pieces(iter([found, found]), plain)]
    assert len([size for size in sizes if size > PIECE_BYTES * 2]) <= 2, "one for each batch, at most"
