"""Ids that an attempt may have and that nobody has reported, asked for by name: for where a listing shows nothing.

A listing can be hidden: by a coordinator that moves, by rights, by a proxy that has no ListTransactions. What can be
asked for without it: the one id of scope ``load``, and the ids of a slot, which are numbered from 0 on. Asked is by
Describe, never by InitProducerId as in FLIP-511's probing: it makes no id, and ends nothing (rule: describe-then-ask).

What cannot: incrementing ids of scope ``task`` end in Spark's ``taskAttemptId()``, which nobody knows beforehand. Where
listing is never possible, use pooling, or scope ``load``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from airflow_kafka_eos.naming import AttemptRef, IdRole, PooledId
from airflow_kafka_eos.transaction import TransactionDescription

Describe = Callable[[Iterable[str]], Mapping[str, TransactionDescription]]

#: Spark partitions asked about at once. So many in a row without an id end the search: empty ones have none.
PARTITIONS = 256
#: Ids of a Spark partition asked about at once: Spark tries a task four times (spark.task.maxFailures).
TRIES = 4


def probe(describe: Describe, ref: AttemptRef) -> set[str]:
    """The ids of an attempt that coordinators know, of those that can be guessed.

    :param describe: what coordinators show of ids; those that none knows are left out.
    """
    common = str(ref.common_id(IdRole.LOAD))
    if ref.slot is None:
        return set(describe([common]))
    known: set[str] = set()
    first, beside = 0, [common]  # with the first block: a request of its own it does not need
    while True:
        wanted = [(p, n) for p in range(first, first + PARTITIONS) for n in range(TRIES)]
        found = set(describe([*beside, *(str(ref.task_id(p, n)) for p, n in wanted)]))
        known |= found
        tasks = found - {common}
        if not tasks:
            return known
        known |= _more(describe, ref, tasks)
        first, beside = first + PARTITIONS, []


def _more(describe: Describe, ref: AttemptRef, found: set[str]) -> set[str]:
    """Higher numbers of the Spark partitions all of whose ids were known so far."""
    known: set[str] = set()
    while last := [i for name in found if (i := PooledId.parse(name)) and (i.number or 0) % TRIES == TRIES - 1]:
        wanted = [(i.spark_partition or 0, (i.number or 0) + k) for i in last for k in range(1, TRIES + 1)]
        found = set(describe([str(ref.task_id(p, n)) for p, n in wanted]))
        known |= found
    return known
