"""A micro-batch of a streaming query, which is a load: its key is made of query id and batch id. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from airflow_kafka_eos.errors import InvalidNameError, UndecidableError
from airflow_kafka_eos.load import LoadIdentity

#: How Spark writes a query's id: a UUID.
_QUERY_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_OWNER = "stream "
_KEY = re.compile(rf"({_QUERY_ID.pattern})-(0|[1-9][0-9]{{0,18}})", re.ASCII)


@dataclass(frozen=True)
class MicroBatch:
    """A batch as its checkpoint has it.

    Query ids are random, so that batch ids which start again are never taken for old ones.

    :param name: of the query, which is the load's name.
    :param query_id: Spark's, a UUID: it is the checkpoint's, and the same in every run on it.
    :param number: Spark's batch id, from 0 on.
    :param offsets_sha256: of where the batch ends in each of its sources.
    :param before_sha256: the same of the batch before; None for batch 0.
    """

    namespace: str
    name: str
    query_id: str
    number: int
    offsets_sha256: str
    before_sha256: str | None = None

    def __post_init__(self) -> None:
        if _QUERY_ID.fullmatch(self.query_id) is None or self.number < 0:
            raise InvalidNameError(
                f"query id {self.query_id!r} or batch id {self.number} are none of Spark's",
                remedy="Pass both as Spark names them",
            )

    @property
    def load(self) -> LoadIdentity:
        return LoadIdentity(self.namespace, self.name, f"{self.query_id}-{self.number}")

    def check_same(self, query_id: str | None, batch_id: str | None) -> None:
        """Whether this, which was read out of the checkpoint, is the batch that Spark runs.

        :param query_id, batch_id: as Spark tells them, in local properties.
        :raises UndecidableError: it is not: another driver has gone on in the checkpoint.
        """
        if (query_id, batch_id) != (self.query_id, str(self.number)):
            raise UndecidableError(
                f"the checkpoint has planned {self}, and Spark runs batch {batch_id} of query {query_id}",
                remedy="Does a second driver run the query, or is checkpointLocation another query's? End one of them",
                load=str(self.load),
            )

    def __str__(self) -> str:
        return f"batch {self.number} of query {self.name} ({self.query_id})"


@dataclass(frozen=True)
class StreamRun:
    """A run of a query: one driver's.

    :param checkpoint: where its checkpoint is, as :func:`~airflow_kafka_eos.spark.checkpoint.normal` writes it.
    :param identity: different for each driver, the same in all batches of a run; 255 characters at most.
    :param opened_by: the run of Airflow's that has started the driver, as owners of attempts name it; empty: none has.
    :param beside: (namespace, query name) of all frames that a function of ``foreachBatch`` has written in this run;
        None: the query is no such one, and has one name.
    """

    checkpoint: str
    identity: str
    opened_by: str = ""
    beside: Collection[tuple[str, str]] | None = field(default=None, compare=False)

    @property
    def owner(self) -> str:
        """Who writes its attempts, as the ledger notes it."""
        return f"{_OWNER}{self.identity}"


def batch_of(load: LoadIdentity) -> tuple[str, int] | None:
    """Query id and batch id of a load's key; None where it is none of a micro-batch."""
    found = _KEY.fullmatch(load.key)
    return None if found is None else (found[1], int(found[2]))


def is_of_a_query(load: LoadIdentity, submitted_by: str | None) -> bool:
    """Whether an attempt is one of a micro-batch. The key alone does not tell: an author's may look like it.

    :param submitted_by: as the ledger has noted it: a run of a query, or of a DAG, whose id has no space.
    """
    return batch_of(load) is not None and is_driver(submitted_by)


def is_driver(owner: str | None) -> bool:
    """Whether it is a query's driver, as :attr:`StreamRun.owner` names it; no DAG has an id with a space."""
    return (owner or "").startswith(_OWNER)
