"""What an error tells a query's operator to do: in a query's words, for the rules' errors speak of a load's tasks.

Of a load one clears a task in Airflow, and its times are arguments of the task group. A query has neither: it is
started again, by whoever keeps it at work, and has options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_kafka_eos.errors import KafkaEosError

_CLEARED = (
    r"lear (?:the task that submits it|(?:begin|prepare|decide|commit)\b(?: again)?)"
    r"(?:, or prepare together with its setup)?(?:,? with what is downstream)?"
)
_INSTEAD = (
    (re.compile(rf"\bC{_CLEARED}"), "Start the query again"),
    (re.compile(rf"\bc{_CLEARED}"), "start the query again"),
    (re.compile(r"\bLet this task fail\b"), "Start the query again"),
    (re.compile(r"\bhold_time\b"), "transaction.timeout.ms"),
    (re.compile(r"\btwo_phase_commit\b"), "transaction.two.phase.commit"),
)


def of_a_query(remedy: str) -> str:
    """A load's remedy, as it reads for a query."""
    for words, instead in _INSTEAD:
        remedy = words.sub(instead, remedy)
    return remedy


@contextmanager
def told_to_a_query() -> Iterator[None]:
    """Around what Spark calls; a decorator, too.

    :raises KafkaEosError: what comes out of it, with the remedy of a query.
    """
    try:
        yield
    except KafkaEosError as e:
        e.remedy = of_a_query(e.remedy)
        raise
