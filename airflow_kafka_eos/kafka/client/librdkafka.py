"""What librdkafka takes for a setting where our own writer differs, and the error that says so.

Below whatever reads settings and records alike: codecs have levels, writers have options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from airflow_kafka_eos.errors import ConfigurationError

_LONG = 2**31 - 1


class Range(NamedTuple):
    """Whole numbers that a setting may be."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"from {self.least} to {self.most}"

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.least <= value <= self.most


#: Setting -> the numbers that librdkafka takes (2.16), which a test asks it.
LIBRDKAFKA_NUMBERS: Mapping[str, Range] = {
    "compression.level": Range(-1, 12),
    "batch.size": Range(1, _LONG),
    "queue.buffering.max.kbytes": Range(1, _LONG),
    "message.timeout.ms": Range(0, _LONG),
    "request.timeout.ms": Range(1, 900_000),
    "message.max.bytes": Range(1000, 1_000_000_000),
    "socket.timeout.ms": Range(10, 300_000),
}


class OnlyLibrdkafkaError(ConfigurationError):
    """A value that librdkafka takes, and the arrow writer cannot follow: the confluent writer can.

    What neither takes is a plain ConfigurationError: nothing may fall back for a slip of the hand.
    """


def only_librdkafka(problem: str, remedy: str) -> OnlyLibrdkafkaError:
    """The error for a right value that the arrow writer has no way to follow."""
    return OnlyLibrdkafkaError(
        f"{problem}, which the arrow writer does not have",
        remedy=f"{remedy}. librdkafka has it: writer=confluent, which has neither two-phase commit nor scope=load",
    )
