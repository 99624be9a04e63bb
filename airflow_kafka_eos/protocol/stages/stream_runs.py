"""What a run of Airflow's has to do with a streaming query: what it has left open, and what has become visible.

An attempt of a batch names the run that has started its driver as its owner, so that each run sweeps its own, and never
what another one is at work on (rule: up-to-its-own-attempt).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from airflow_kafka_eos.errors import KafkaEosError, NotFinishedError
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import AttemptRow, StreamRow
from airflow_kafka_eos.ledger.tables import for_people
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.micro_batch import is_of_a_query
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.guards.ownership import check_cluster
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.visible import behind
from airflow_kafka_eos.transaction import TopicPartition

#: Batches that are looked through for what nobody was told of.
MOST_BATCHES = 10_000
#: Batches of which each is told by itself, the newest; of others only what they have together.
MOST_TOLD = 100
_PASSES, _PAUSE_S = 20, 0.2


def left_by(ledger: Ledger, namespace: str, name: str, *, run: str) -> dict[LoadIdentity, int]:
    """Batches of a query with attempts of a run's that nobody has closed: each with the last one of that run's.

    :param run: as owners of attempts name it.
    """
    owner = for_people(run)
    return {
        row.load: row.number
        for row in ledger.unfinished(namespace)
        if row.load.name == name and is_of_a_query(row.load, row.submitted_by) and row.responsible == owner
    }


def sweep_left(session: Session, name: str, *, run: str, reason: str) -> list[str]:
    """End what a run's drivers have left open, and roll forward what they have decided: one look, that waits for
    nobody.

    The run's drivers are dead, or are to be. One that is not fails in this batch: its attempt is undecidable first
    (rule: decide-before-kafka).

    :returns: the transactional ids that were aborted.
    :raises KafkaEosError: the first error; the others were tried.
    """
    aborted: list[str] = []
    failed: KafkaEosError | None = None
    for load, up_to in left_by(session.ledger, session.namespace, name, run=run).items():
        try:
            for _ in range(_PASSES):
                report = sweep(session, load, up_to=up_to, by=run, reason=reason)
                aborted += report.aborted
                if report.is_complete:
                    break
                time.sleep(_PAUSE_S)  # a coordinator that moves may hide something (rule: listing-only-adds)
        except KafkaEosError as e:
            failed = failed or e
    if failed is not None:
        raise failed
    return aborted


def committed_batches(
    ledger: Ledger, stream: StreamRow, *, above: int, go_on: Callable[[AttemptRow], bool] = lambda row: True
) -> list[tuple[int, AttemptRow]]:
    """The last batches of a query that are committed, the newest first, each with its decided attempt.

    :param above: only those behind this batch.
    :param go_on: none from the first one on, counted from the newest, that this says no to.
    """
    found: list[tuple[int, AttemptRow]] = []
    if stream.query_id is None or stream.decided is None:
        return found
    for number in range(stream.decided, max(above, stream.decided - MOST_BATCHES, -1), -1):
        load = LoadIdentity(stream.namespace, stream.name, f"{stream.query_id}-{number}")
        decided = next((row for row in ledger.attempts(load) if row.verdict is Verdict.COMMIT), None)
        if decided is None:
            break  # a person has said that the topics have it
        if not go_on(decided):
            break
        if ledger.state(load) is LoadState.COMMITTED:
            found.append((number, decided))
        elif ledger.state(load) is not LoadState.GIVEN_UP:
            found = []  # not all there yet: it is told of with those behind it
    return found


class BatchesPoll:
    """Wait until read_committed readers see all of some committed batches (rule: loaded-is-visible).

    :param first, last: batch ids of the query; none where ``last`` is less.
    :param by: who is told of them.
    """

    def __init__(self, namespace: str, name: str, query_id: str, first: int, last: int, by: str) -> None:
        self._query = namespace, name, query_id
        self._numbers = range(first, last + 1)
        self._by = by
        self._seen: dict[str, Any] = {}
        self._arrival: dict[str, Any] = {}

    def __call__(self, session: Session) -> str | None:
        """See :class:`~airflow_kafka_eos.protocol.cleanup.poll.Poll`."""
        # once: what is committed stays so, and there may be thousands
        arrival = self._seen = self._seen or arrival_of_batches(session, *self._query, self._numbers)
        needed = {
            TopicPartition(topic, int(partition)): last
            for topic, of in arrival["topics"].items()
            for partition, (_, last) in of["offsets"].items()
        }
        waiting = behind(session, needed)
        if not waiting:
            self._arrival = arrival | {"by": self._by}
            return None
        return f"{arrival['load']} is committed, readers are held back: {'; '.join(map(str, waiting[:5]))}"

    def summary(self) -> dict[str, Any]:
        """See :func:`arrival_of_batches`; ``by`` beside."""
        return self._arrival


def arrival_of_batches(session: Session, namespace: str, name: str, query_id: str, numbers: range) -> dict[str, Any]:
    """What committed batches have put into their topics, as the ledger has it; JSON values.

    :returns: as :func:`.visible.arrival_of`, of all together. ``load``: the query and the batches. ``batches``: the
        first and the last, none where there are none. ``loads``: how many were committed; one that was given up is not.
        By topic also ``by_batch``: by batch id, as a text, ``records`` and ``offsets``; of the last
        :data:`MOST_TOLD`.
    :raises NotFinishedError: one of them is not committed yet.
    """
    topics: dict[str, Any] = {}
    found: dict[str, Any] = {"loads": 0, "records": 0, "attempts": 0, "repaired": 0, "decided_at": None}
    for number in numbers:
        load = LoadIdentity(namespace, name, f"{query_id}-{number}")
        state = session.ledger.state(load)
        if state is LoadState.GIVEN_UP:
            continue
        row = next((r for r in session.ledger.attempts(load) if r.verdict is Verdict.COMMIT), None)
        if row is None or state is not LoadState.COMMITTED:
            raise NotFinishedError(
                f"the batch is {'not known' if state is None else state.value}, not COMMITTED",
                remedy="Wait for the next run of the query: it rolls forward what is decided",
                load=str(load),
            )
        check_cluster(session, [row], closed_too=True)
        summary = session.ledger.summary(load, row.number)
        found["loads"] += 1
        found["records"] += row.records or 0
        found["attempts"] += row.number
        found["repaired"] += summary.repaired
        found["decided_at"] = max(filter(None, (found["decided_at"], row.decided_at)))
        for topic, of in summary.topics.items():
            _add(topics.setdefault(topic, {"records": 0, "bytes": 0, "offsets": {}, "by_batch": {}}), number, of)
    return found | {
        "load": f"{namespace}/{name}/{query_id}-" + (f"{numbers[0]}..{numbers[-1]}" if numbers else "none"),
        "query_id": query_id,
        "batches": [numbers[0], numbers[-1]] if numbers else None,
        "topics": dict(sorted(topics.items())),
    }


def _add(topic: dict[str, Any], number: int, of: dict[str, Any]) -> None:
    topic["records"] += of["records"]
    topic["bytes"] += of["bytes"]
    for partition, (first, last) in of["offsets"].items():
        known = topic["offsets"].get(partition, (first, last))
        topic["offsets"][partition] = [min(known[0], first), max(known[1], last)]
    by_batch = topic["by_batch"]
    by_batch[str(number)] = {"records": of["records"], "offsets": of["offsets"]}
    while len(by_batch) > MOST_TOLD:
        del by_batch[next(iter(by_batch))]
