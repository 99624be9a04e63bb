"""Floating-point numbers as Java 19 and newer write them (``Double.toString``, ``Float.toString``), by column. No I/O.

The shortest decimal number that reads back as the same, the nearest of them; of one digit only, the nearest of two.
From 10**-3 to 10**7 as ``12.5``, else as ``1.25E10``. Specification: the javadoc of ``java.lang.Double.toString``.
Java 17 writes some numbers with more digits than needed (JDK-4511638).
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.kafka.producer.arrow.binary import binary

#: Where Arrow's text of a number has the same digits. Of two decimals that are equally near, Java takes the even one: a
#: float has such pairs from 2**21 on, a double only where Java writes an exponent.
_PLAIN_TO = {pa.float64(): 1e7, pa.float32(): 2.0**21}
_PLAIN_FROM = 1e-3


def texts(column: pa.Array) -> pa.BinaryArray:
    """
    :param column: floats or doubles, all of them finite; a null stays one.
    """
    plain = binary(pc.cast(column, pa.string()))
    values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    size = np.abs(values)
    whole = pa.array(values == np.trunc(values))
    plain = pc.if_else(whole, pc.binary_join_element_wise(plain, b".0", b""), plain)
    far = ((size < _PLAIN_FROM) & (size != 0)) | (size >= _PLAIN_TO[column.type])
    if not far.any():
        return plain
    write = _double if pa.types.is_float64(column.type) else _float
    made = [write(value) for value in values[far]]
    return pc.replace_with_mask(plain, pa.array(far), pa.array(made, pa.binary()))


def _double(value: np.float64) -> bytes:
    text, two = repr(float(value)), f"{value:.1e}"
    return _written(text, two, float(two) == value)


def _float(value: np.float32) -> bytes:
    text, two = np.format_float_scientific(value, unique=True), f"{float(value):.1e}"
    return _written(text, two, np.float32(two) == value)


def _written(shortest: str, two_digits: str, is_two_digits: bool) -> bytes:
    sign, digits, exponent = Decimal(shortest).as_tuple()
    assert isinstance(exponent, int)
    power = exponent + len(digits) - 1
    text = "".join(map(str, digits)).rstrip("0")
    if len(text) == 1 and is_two_digits:
        sign, digits, exponent = Decimal(two_digits).as_tuple()
        assert isinstance(exponent, int)
        power = exponent + 1
        text = "".join(map(str, digits))
    minus = "-" if sign else ""
    if 0 <= power < 7:
        text = text.ljust(power + 1, "0")
        return f"{minus}{text[: power + 1]}.{text[power + 1 :] or '0'}".encode()
    return f"{minus}{text[0]}.{text[1:] or '0'}E{power}".encode()
