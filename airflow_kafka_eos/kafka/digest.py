"""An order-independent digest of records: equal sets of records have equal digests, whatever their order.

Each record is hashed on its own, and the hashes are added modulo 2**128 (``manifest.DIGEST_MODULUS``). Adding, not
xor: a record written twice must show. This guards against our own mistakes, not against someone who forges records.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

#: A header as Kafka has it: a name and a value that may be null.
Header = tuple[str, bytes | None]

_LENGTH = struct.Struct(">q").pack
_NULL = _LENGTH(-1)


def _encode(value: bytes | None) -> bytes:
    # length first, -1 for null: no two different records have one encoding
    return _NULL if value is None else _LENGTH(len(value)) + value


def record_digest(key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> int:
    """128-bit blake2b over key, value and headers, as a whole number.

    Each field is its length (8 bytes, big endian, -1 for null) and its bytes; the headers follow as their number,
    then name and value of each, in order. Topic, partition, offset and timestamp are not part of it.
    """
    hasher = blake2b(_encode(key) + _encode(value) + _LENGTH(len(headers)), digest_size=16)
    for name, content in headers:
        hasher.update(_encode(name.encode()) + _encode(content))
    return int.from_bytes(hasher.digest(), "big")


def record_bytes(key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> int:
    """Bytes of key, value and headers, before Kafka's own framing and compression."""
    size = len(key or b"") + len(value or b"")
    return size + sum(len(name.encode()) + len(content or b"") for name, content in headers)
