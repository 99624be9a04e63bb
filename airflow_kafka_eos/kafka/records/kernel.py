"""What is done for each record, by a few lines of C (``kernel.c``): encoding, murmur2, and taking a batch apart.

A wheel for Linux brings it; an installation from source compiles it if there is a C compiler (docs/adr/0029). Where it
is missing, or is for another CPU, slower ways are taken, with the same results (tests/kafka/test_kernel.py).

Neither numpy nor pyarrow is imported: they may be missing where commit copies what was lost.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from pathlib import Path

from airflow_kafka_eos.kafka.records.split import LENGTHS_BYTES, Split, check_room, malformed

_log = logging.getLogger(__name__)

#: ``kernel.c`` has the same one.
VERSION = 2
#: Not .so: whoever walks through the package would take it for an extension module, and import it.
LIBRARY = Path(__file__).with_name("kernel.elf")
#: Environment variable; ``off``: the slower ways are taken. For whoever has to find out whether it is the kernel.
SWITCH = "AIRFLOW_KAFKA_EOS_KERNEL"


class Column(ctypes.Structure):
    """A column of Arrow's, as ``kernel.c`` takes it."""

    _fields_ = (("offsets", ctypes.c_void_p), ("data", ctypes.c_void_p), ("lengths", ctypes.c_void_p))


class Streams(ctypes.Structure):
    """Room for what the digest takes, as ``kernel.c`` takes it."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("keys", "values", "headers", "lengths"))


_Sizes = ctypes.c_int64 * 3


class Kernel:
    """The compiled functions. ``records`` and ``murmur2`` are as they stand in ``kernel.c``: they check nothing.

    :raises OSError: the library is not there, or not for this machine.
    """

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        if loaded.kafka_eos_version() != VERSION:
            raise OSError(f"{library} is of another version")
        column, pointer = ctypes.POINTER(Column), ctypes.c_void_p
        number = ctypes.c_int64
        self.records = loaded.kafka_eos_records
        self.records.argtypes = [
            number, pointer, number, column, column, column, ctypes.c_int32, pointer, number, pointer,
            ctypes.POINTER(Streams),
        ]  # fmt: skip
        self.records.restype = number
        self.murmur2 = loaded.kafka_eos_murmur2
        self.murmur2.argtypes = [number, column, pointer]
        self.murmur2.restype = None
        self._split = loaded.kafka_eos_split
        self._split.argtypes = [pointer, number, number, pointer, pointer, ctypes.POINTER(number)]
        self._split.restype = number

    def split(self, section: bytes | memoryview, count: int) -> Split:
        """See :func:`.split.split`, which does the same."""
        size = len(section)
        check_room(size, count)
        # one room for all: lengths, what is read (ctypes has no address of what may not be written), what is found
        begin = count * LENGTHS_BYTES
        end = begin + size
        room = bytearray(end + size + 1)  # an empty one would have no address
        room[begin:end] = section
        address = ctypes.addressof(ctypes.c_char.from_buffer(room))
        sizes = _Sizes()
        found = self._split(address + begin, size, count, address, address + end, sizes)
        if found < 0:
            raise malformed(-1 - found, count)
        view, values = memoryview(room), end + sizes[0]
        headers = values + sizes[1]
        return Split(view[:begin], view[end:values], view[values:headers], view[headers : headers + sizes[2]])


@cache
def kernel() -> Kernel | None:
    """The kernel of this installation; None where there is none, which is said once."""
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "false"):
        return None
    try:
        return Kernel(LIBRARY)
    except (OSError, AttributeError) as e:
        why = "the kernel cannot be loaded"
        _log.info("records are encoded and taken apart in slower ways, which costs more CPU: %s (%s)", why, e)
        return None
