"""The Avro encoder: whole Arrow columns, by the plan of :mod:`.avro`. Spark's tasks and engine="arrow" use the same.

No row becomes a Python object (docs/adr/0026). Each Avro type becomes parts: binary columns of one entry per row,
joined once at the end. A part is empty where its row has nothing to say (its record, array or union branch is null).
Specification: Avro 1.12, "Binary Encoding". fastavro makes the same bytes row by row, and is the oracle in
tests/spark/test_formats_encode.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.errors import RecordError
from airflow_kafka_eos.kafka.producer.arrow.binary import binary, data_of, from_parts, offsets_of
from airflow_kafka_eos.kafka.producer.arrow.encoding import sizes, zigzag
from airflow_kafka_eos.spark.formats.avro import Node, Plans

Mask = npt.NDArray[np.bool_]
Parts = list[pa.BinaryArray]
_EMPTY = pa.scalar(b"", pa.binary())


def encode_by_topic(column: pa.StructArray, topics: pa.StringArray | None, by_topic: Plans) -> pa.BinaryArray:
    """Encode each row by its topic's plan.

    :param topics: as long as ``column``; not asked for where all topics have the same plan.
    :raises RecordError: a topic has no plan, where there are several; see :func:`encode` too.
    """
    if len(different := set(by_topic.values())) == 1:
        ((node, prefix),) = different
        return encode(column, node, prefix)
    assert topics is not None
    check_topics(topics, by_topic)
    made, order = [], []
    for name in pc.unique(topics).to_pylist():
        node, prefix = by_topic[name]
        rows = pc.indices_nonzero(pc.equal(topics, name))
        made.append(encode(column.take(rows), node, prefix))
        order.append(rows)
    if len(made) < 2:
        return made[0] if made else pa.array([], pa.binary())
    return pa.concat_arrays(made).take(pc.sort_indices(pa.concat_arrays(order)))


def check_topics(topics: pa.Array, known: Collection[str]) -> None:
    """
    :raises RecordError: a row asks for another topic than these.
    """
    for name in pc.unique(topics).to_pylist():
        if name not in known:
            raise RecordError(
                f"a row asks for topic {name!r}, which is not among the load's topics: {', '.join(sorted(known))}",
                remedy="Add it to the load's topics, or correct the topic column",
            )


def encode(column: pa.StructArray, node: Node, prefix: bytes = b"") -> pa.BinaryArray:
    """The rows of a struct as Avro records, each with ``prefix`` before it; a null row stays null.

    :param column: as Spark hands over a struct of the type that ``node`` was planned for.
    :raises RecordError: a value does not fit the schema: null, an enum's symbol, a fixed's size, a fraction of a
        millisecond.
    """
    if len(column) == 0:
        return pa.array([], pa.binary())
    live = _valid(column)
    parts = _encode_record(column, node, live)
    joined = pc.binary_join_element_wise(pa.scalar(prefix, pa.binary()), *parts, _EMPTY)
    return joined if live.all() else pc.if_else(pa.array(live), joined, pa.scalar(None, pa.binary()))


def _encode_record(column: pa.StructArray, node: Node, live: Mask) -> Parts:
    # flatten, unlike field, makes a child null where its parent is
    children = column.flatten()
    return [part for child in node.children for part in _any(children[child.index], child, live)]


def _any(column: pa.Array, node: Node, live: Mask) -> Parts:
    valid = _valid(column)
    write = _KINDS[node.kind]
    if node.null_branch is None:
        if (live & ~valid).any():
            raise RecordError(
                f"a row has null in {node.path!r}, which the schema does not allow",
                remedy="Filter such rows or fill them (coalesce), or make the field nullable in the schema",
            )
        return write(column, node, live)
    null, other = (0, 2) if node.null_branch == 0 else (2, 0)  # zig-zag of 0 and 1
    branch = np.where(valid, np.uint8(other), np.uint8(null))
    return [_fixed(branch, live), *write(column, node, valid & live)]


def _long(column: pa.Array, node: Node, live: Mask) -> Parts:
    if not pa.types.is_integer(column.type):
        column = column.view(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    return [_varints(_numbers(column), live)]


def _millis(column: pa.Array, node: Node, live: Mask) -> Parts:
    micros = _numbers(column.view(pa.int64()))
    if (micros % 1000)[live].any():
        raise RecordError(
            f"a row has a fraction of a millisecond in {node.path!r}, the schema has timestamp-millis",
            remedy="Truncate it with date_trunc('MILLISECOND', ...), or register timestamp-micros",
        )
    return [_varints(micros // 1000, live)]


def _float(column: pa.Array, node: Node, live: Mask) -> Parts:
    return [_fixed(_numbers(column).astype("<f4"), live)]


def _double(column: pa.Array, node: Node, live: Mask) -> Parts:
    return [_fixed(_numbers(column).astype("<f8"), live)]


def _boolean(column: pa.Array, node: Node, live: Mask) -> Parts:
    return [_fixed(_numbers(column.cast(pa.uint8())), live)]


def _bytes(column: pa.Array, node: Node, live: Mask) -> Parts:
    content = _content(column)
    return [_varints(_lengths(content), live), content]


def _fixed_bytes(column: pa.Array, node: Node, live: Mask) -> Parts:
    content = _content(column)
    wrong = _lengths(content)[live] != node.size
    if wrong.any():
        raise RecordError(
            f"a row has {int(_lengths(content)[live][wrong][0])} bytes in {node.path!r}, "
            f"the schema has fixed({node.size})",
            remedy="Correct the value's length, or register bytes",
        )
    return [content]


def _enum(column: pa.Array, node: Node, live: Mask) -> Parts:
    found = pc.index_in(column, pa.array(node.symbols, column.type))
    if (live & ~_valid(found)).any():
        raise RecordError(
            f"a row has a text in {node.path!r} that is no symbol of the schema's enum: {', '.join(node.symbols)}",
            remedy="Correct the value, or add the symbol to the schema",
        )
    return [_varints(_numbers(found), live)]


def _decimal(column: pa.Array, node: Node, live: Mask) -> Parts:
    big = _big_endian(column)
    negative = big[:, 0] >> 7
    # a leading byte is needless when it, and the top bit behind it, only repeat the sign
    repeats = (big[:, :-1] == (negative * np.uint8(255))[:, None]) & ((big[:, 1:] >> 7) == negative[:, None])
    needless = np.logical_and.accumulate(repeats, axis=1).sum(axis=1)
    length = big.shape[1] - needless
    there = (np.arange(big.shape[1]) >= needless[:, None]) & live[:, None]
    return [_varints(length, live), from_parts(big[there], _offsets(np.where(live, length, 0)))]


def _fixed_decimal(column: pa.Array, node: Node, live: Mask) -> Parts:
    big = _big_endian(column)
    missing = node.size - big.shape[1]
    if missing > 0:
        sign = np.repeat((big[:, :1] >> 7) * np.uint8(255), missing, axis=1)
        big = np.hstack([sign, big])
    # cutting loses nothing: Avro demands that a fixed can hold its precision, and the column's is not larger
    return [_cells(big[:, -node.size :], live)]


def _array(column: pa.ListArray, node: Node, live: Mask) -> Parts:
    items = column.flatten()  # of this slice only, and without what may stand behind a null
    lengths = _numbers(pc.list_value_length(column))
    return _blocks(lengths, live, lambda every: _any(items, node.children[0], every))


def _map(column: pa.MapArray, node: Node, live: Mask) -> Parts:
    # a map's own keys and items know nothing of slices and nulls; a list's flatten does
    kind = column.type
    pair = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
    lists = column.cast(pa.list_(pair))
    keys, items = lists.flatten().flatten()
    lengths = _numbers(pc.list_value_length(lists))
    return _blocks(
        lengths, live, lambda every: [*_bytes(keys, node, every), *_any(items, node.children[0], every)]
    )


def _blocks(lengths: npt.NDArray[Any], live: Mask, write: Callable[[Mask], Parts]) -> Parts:
    """One block of all items of a row, and the empty one that ends them.

    :param lengths: items of each row, 0 where there is no list.
    :param write: the parts of all rows' items, given that all are alive.
    """
    end = _cells(np.zeros((len(live), 1), np.uint8), live)
    total = int(lengths.sum())
    if total == 0:
        return [end]
    items = pc.binary_join_element_wise(*write(np.ones(total, np.bool_)), _EMPTY)
    # the items of a row lie side by side: its bytes are a longer entry of the same buffer
    rows = from_parts(np.frombuffer(data_of(items), np.uint8), offsets_of(items)[_offsets(lengths)])
    return [_varints(lengths, lengths > 0), rows, end]


_KINDS: dict[str, Callable[[Any, Node, Mask], Parts]] = {
    "record": _encode_record,
    "long": _long,
    "millis": _millis,
    "float": _float,
    "double": _double,
    "boolean": _boolean,
    "bytes": _bytes,
    "fixed": _fixed_bytes,
    "enum": _enum,
    "decimal": _decimal,
    "fixed decimal": _fixed_decimal,
    "array": _array,
    "map": _map,
}


def _valid(column: pa.Array) -> Mask:
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    found: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    # nulls made 0: numpy would turn whole numbers beside nulls into floats
    whole = pc.fill_null(column, 0) if column.null_count else column
    found: npt.NDArray[Any] = whole.to_numpy(zero_copy_only=False)
    return found


def _content(column: pa.Array) -> pa.BinaryArray:
    found = binary(column)
    return pc.fill_null(found, b"") if found.null_count else found


def _lengths(content: pa.BinaryArray) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = np.diff(offsets_of(content))
    return found


def _big_endian(column: pa.Array) -> npt.NDArray[np.uint8]:
    """One row of bytes per decimal: 8, or 16 where the precision needs them."""
    whole = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * 16 : (column.offset + len(column)) * 16]
    width = 8 if column.type.precision <= 18 else 16
    return whole.reshape(-1, 16)[:, :width][:, ::-1]


def _varints(values: npt.NDArray[Any], live: Mask) -> pa.BinaryArray:
    numbers = zigzag(np.where(live, values, 0))
    size = sizes(numbers)
    width = int(size.max())
    matrix = np.empty((len(values), width), np.uint8)
    for k in range(width):
        matrix[:, k] = (numbers >> (7 * k) & 0x7F) | ((size > k + 1) * np.uint8(0x80))
    if width == 1:
        return _cells(matrix, live)
    there = (np.arange(width) < size[:, None]) & live[:, None]
    return from_parts(matrix[there], _offsets(np.where(live, size, 0)))


def _fixed(values: npt.NDArray[Any], live: Mask) -> pa.BinaryArray:
    return _cells(np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1), live)


def _cells(matrix: npt.NDArray[np.uint8], live: Mask) -> pa.BinaryArray:
    return from_parts(np.ascontiguousarray(matrix[live]).reshape(-1), _offsets(live * matrix.shape[1]))


def _offsets(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    found = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=found[1:])
    return found
