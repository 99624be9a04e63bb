"""Compression of a batch's records, framed as brokers and Java clients read it; and its reverse.

Seen: Arrow's own lz4 frames link their blocks, which Kafka refuses; `lz4` can make them independent. Java reads
snappy in the frames of snappy-java ("xerial"): blocks of at most 32 KiB behind their lengths. pyarrow's zstd has
level 1 when none is given, Java's and librdkafka's clients have 3.

pyarrow is imported where it is needed: it may be missing where commit copies what was lost.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import lz4.frame

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.librdkafka import LIBRDKAFKA_NUMBERS, only_librdkafka
from airflow_kafka_eos.kafka.records import varint
from airflow_kafka_eos.kafka.records.batch import COMPRESSIONS, Compressor
from airflow_kafka_eos.kafka.records.split import BrokenRecords

#: Name (the setting ``compression.type``) -> the code in a batch's attributes.
CODES = {name: code for code, name in enumerate(COMPRESSIONS)}
#: Name -> (lowest, highest, default level); zlib's, lz4's and the Java client's zstd default.
LEVELS = {"gzip": (1, 9, 6), "lz4": (0, 12, 0), "zstd": (1, 22, 3)}

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_VERSIONS = struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024


def compressor(name: str, level: int | None = None) -> tuple[int, Compressor | None]:
    """The code and the function for a compression; (0, None) for none.

    :param level: None for the codec's default.
    :raises OnlyLibrdkafkaError: the codec does not have the level, and librdkafka takes it for the nearest.
    :raises ConfigurationError: unknown name, or a level that nobody has.
    """
    if name not in CODES:
        raise ConfigurationError(
            f"the Kafka setting compression.type is {name!r}", remedy=f"Use one of {', '.join(CODES)}"
        )
    if name in ("none", "snappy"):  # have no levels
        return CODES[name], None if name == "none" else _snappy
    low, high, default = LEVELS[name]
    level = default if level is None else level
    if not low <= level <= high:
        problem = f"the Kafka setting compression.level is {level}, {name} has {low} to {high}"
        remedy = "Correct it, or remove it for the codec's default"
        if level in LIBRDKAFKA_NUMBERS["compression.level"]:
            raise only_librdkafka(problem, remedy)
        raise ConfigurationError(problem, remedy=remedy)
    return CODES[name], _WITH_LEVEL[name](level)


def _gzip(level: int) -> Compressor:
    return lambda data: gzip.compress(data, compresslevel=level, mtime=0)


def _lz4(level: int) -> Compressor:
    return lambda data: lz4.frame.compress(data, compression_level=level, block_linked=False)


def _zstd(level: int) -> Compressor:
    import pyarrow as pa

    codec = pa.Codec("zstd", compression_level=level)
    # asbytes: the memoryview of what pyarrow returns otherwise has a wrong length
    return lambda data: codec.compress(data, asbytes=True)


_WITH_LEVEL: Mapping[str, Callable[[int], Compressor]] = {"gzip": _gzip, "lz4": _lz4, "zstd": _zstd}


def _snappy(data: Any) -> bytes:
    import pyarrow as pa

    codec = pa.Codec("snappy")
    view = memoryview(data)
    out = [_XERIAL, _XERIAL_VERSIONS]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = codec.compress(view[start : start + _XERIAL_BLOCK], asbytes=True)
        out += (struct.pack(">i", len(block)), block)
    return b"".join(out)


def decompressed(code: int, data: memoryview) -> bytes | memoryview:
    """Records as they were before compression by the codec of that code.

    :raises BrokenRecords: there is no such codec, or it did not make these bytes.
    :raises ConfigurationError: zstd or snappy without pyarrow.
    """
    if not 0 <= code < len(COMPRESSIONS):
        raise BrokenRecords(f"its compression {code} is none of Kafka's")
    codec = COMPRESSIONS[code]
    if codec == "none":
        return data
    if codec in ("snappy", "zstd"):
        _need_pyarrow(codec)
    try:
        return _REVERSE[codec](data)
    except MemoryError:
        raise
    except Exception as e:  # each codec has several of its own for that
        raise BrokenRecords(f"{codec} cannot decompress it: {e}") from e


def _need_pyarrow(codec: str) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            f"records compressed with {codec} cannot be checked without pyarrow",
            remedy="Install pyarrow where commit runs, then run it again",
        ) from None


def _from_lz4(data: memoryview) -> bytes:
    return bytes(lz4.frame.decompress(data))


def _from_zstd(data: memoryview) -> bytes:
    import pyarrow as pa

    with pa.input_stream(pa.py_buffer(data), compression="zstd") as stream:
        return bytes(stream.read())


def _from_snappy(data: memoryview) -> bytes:
    import pyarrow as pa

    codec = pa.Codec("snappy")
    # snappy begins with the length that it will have
    blocks = ((block, varint.read_unsigned(block, 0)[0]) for block in _snappy_blocks(data))
    return b"".join(bytes(codec.decompress(block, decompressed_size=size, asbytes=True)) for block, size in blocks)


_REVERSE: Mapping[str, Callable[[memoryview], bytes]] = {
    "gzip": gzip.decompress, "lz4": _from_lz4, "snappy": _from_snappy, "zstd": _from_zstd,
}  # fmt: skip


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    """snappy-java's blocks behind their lengths, or one block as librdkafka may write it."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        yield data
        return
    at = len(_XERIAL) + len(_XERIAL_VERSIONS)
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        yield data[at : at + size]
        at += size
