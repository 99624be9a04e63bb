"""FLIP-319's committables, of both schemas, as bytes. No I/O.

A committable is what a two-phase sink keeps of one prepared transaction. FLIP-319 replaced its schema, and wants the
old one to be read and migrated:

| version | bytes, as Java's DataOutputStream writes them |
| --- | --- |
| 1 | short producer epoch, long producer id, UTF transactional id |
| 2 | UTF transactional id, UTF PreparedTxnState |

A PreparedTxnState is nothing but producer id and epoch (KIP-939), so nothing is lost on the way. The version stands
beside the bytes, not in them: whoever stored them keeps it.

A file of committables (:func:`read_file`) has one behind the other, as Flink's ``SimpleVersionedSerialization`` writes
each to a stream: int version, int length, bytes. Or it is text, as people write it: a JSON object a line, with
``transactional_id``, ``producer_id`` and ``producer_epoch``, which Flink's log lines have too.
"""

from __future__ import annotations

import json
import struct

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState

VERSION = 2
_IDENTITY = struct.Struct(">hq")
_LENGTH = struct.Struct(">H")
_FRAME = struct.Struct(">ii")
_FIELDS = {"transactional_id": str, "producer_id": int, "producer_epoch": int}


def write(transaction: PreparedTransaction) -> bytes:
    """Bytes of version :data:`VERSION`.

    :raises ConfigurationError: without a producer id there is nothing to commit; or the id is too long for Java's UTF.
    """
    _check(transaction, VERSION)
    return _utf(transaction.transactional_id) + _utf(str(transaction.state))


def read(version: int, data: bytes) -> PreparedTransaction:
    """The prepared transaction that a committable of either version names.

    :raises ConfigurationError: an unknown version, bytes too few or too many, no text, or numbers out of range.
    """
    if version == 1:
        if len(data) < _IDENTITY.size:
            raise _torn(version, data, "ends within producer epoch and producer id")
        epoch, producer_id = _IDENTITY.unpack_from(data)
        name, end = _text(version, data, _IDENTITY.size, "transactional id")
        state = PreparedTxnState(producer_id, epoch)
    elif version == 2:
        name, end = _text(version, data, 0, "transactional id")
        text, end = _text(version, data, end, "PreparedTxnState")
        state = PreparedTxnState.parse(text)
    else:
        raise ConfigurationError(
            f"committable version {version} is not known, versions 1 and {VERSION} are",
            remedy="Read it with the version of this package that wrote it, or a newer one",
        )
    if end != len(data):
        raise _torn(version, data, f"has {len(data) - end} bytes too many")
    transaction = PreparedTransaction(name, state)
    _check(transaction, version)
    return transaction


def read_file(data: bytes) -> list[PreparedTransaction]:
    """All committables of a file, in their order.

    :raises ConfigurationError: it is empty, torn, or not of either form; it names the byte or the line.
    """
    if not data.strip():
        raise ConfigurationError("it has no committables", remedy="Write them into it; see docs/two-phase-commit.md")
    return _lines(data) if data.lstrip().startswith(b"{") else _frames(data)


def _lines(data: bytes) -> list[PreparedTransaction]:
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
        except (ValueError, RecursionError):
            given = None
        # bool is an int to Python, and no number to anybody
        if not isinstance(given, dict) or {name: type(value) for name, value in given.items()} != _FIELDS:
            raise ConfigurationError(
                f"line {number} is not a JSON object of {', '.join(_FIELDS)}",
                remedy='Write {"transactional_id": "sink-0-1", "producer_id": 1000, "producer_epoch": 7}',
            )
        state = PreparedTxnState(given["producer_id"], given["producer_epoch"])
        transaction = PreparedTransaction(given["transactional_id"], state)
        _check(transaction, VERSION)
        found.append(transaction)
    return found


def _frames(data: bytes) -> list[PreparedTransaction]:
    found, at = [], 0
    while at < len(data):
        if len(data) - at < _FRAME.size:
            raise _no_file(at, "ends within version and length")
        version, length = _FRAME.unpack_from(data, at)
        if version not in (1, VERSION):
            raise _no_file(at, f"has version {version}, versions 1 and {VERSION} are known")
        begin = at + _FRAME.size
        if not 0 <= length <= len(data) - begin:
            raise _no_file(at, f"says that {length} bytes follow, and {len(data) - begin} do")
        found.append(read(version, data[begin : begin + length]))
        at = begin + length
    return found


def _no_file(at: int, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"the committable at byte {at} of the file {what}",
        remedy="Write each by SimpleVersionedSerialization.writeVersionAndSerialize(serializer, committable, out), or "
        "a JSON object a line; see docs/two-phase-commit.md",
    )


def _check(transaction: PreparedTransaction, version: int) -> None:
    if not transaction.transactional_id:
        raise ConfigurationError(
            f"a committable of version {version} has an empty transactional id",
            remedy="It names no transaction: drop it",
        )
    if transaction.state.is_empty:
        raise ConfigurationError(
            f"a committable of version {version} has no producer id and epoch: it names no transaction",
            remedy="Nothing was prepared under this id; what may be open there is ended by cleanup",
            transactional_id=transaction.transactional_id,
        )


def _utf(text: str) -> bytes:
    # Java's "modified UTF-8": NUL as two bytes, characters beyond 16 bits as two surrogates of three bytes each
    units = text.encode("utf-16-be", "surrogatepass")
    encoded = b"".join(_unit(high << 8 | low) for high, low in zip(units[::2], units[1::2], strict=True))
    if len(encoded) > 0xFFFF:
        raise ConfigurationError(
            f"a text of {len(encoded)} bytes does not fit a committable, 65535 is the most",
            remedy="Shorten namespace, load name or load_key",
        )
    return _LENGTH.pack(len(encoded)) + encoded


def _unit(code: int) -> bytes:
    return b"\xc0\x80" if code == 0 else chr(code).encode("utf-8", "surrogatepass")


def _text(version: int, data: bytes, start: int, field: str) -> tuple[str, int]:
    begin = start + _LENGTH.size
    if len(data) < begin:
        raise _torn(version, data, f"ends before its {field}")
    (length,) = _LENGTH.unpack_from(data, start)
    end = begin + length
    if len(data) < end:
        raise _torn(version, data, f"ends within its {field}")
    encoded = data[begin:end]
    text = None
    try:
        units = encoded.replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
        text = units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeDecodeError:
        pass
    if text is None or _utf(text)[_LENGTH.size :] != encoded:  # canonical form only: one committable, one meaning
        raise _torn(version, data, f"has a {field} that is no text")
    return text, end


def _torn(version: int, data: bytes, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"a committable of version {version} and {len(data)} bytes {what}",
        remedy="Pass version and bytes as they were stored; a damaged one can only be restored from a backup",
    )
