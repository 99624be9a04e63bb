"""FLIP-319's committables, of both schemas, as bytes. No I/O.

A committable is what a two-phase sink keeps of one prepared transaction. FLIP-319 replaced its schema, and wants the
old one to be read and migrated:

| version | bytes, as Java's DataOutputStream writes them |
| --- | --- |
| 1 | short producer epoch, long producer id, UTF transactional id |
| 2 | UTF transactional id, UTF PreparedTxnState |

A PreparedTxnState is nothing but producer id and epoch (KIP-939), so nothing is lost on the way. The version stands
beside the bytes, not in them: whoever stored them keeps it.
"""

from __future__ import annotations

import struct

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState

VERSION = 2
_IDENTITY = struct.Struct(">hq")
_LENGTH = struct.Struct(">H")


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
