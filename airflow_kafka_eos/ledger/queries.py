"""Reading the ledger's tables into rows, and the lock of a load's row. Functions take a connection."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, Select, and_, func, select, update

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow, TransactionRow, read_row
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionScope, Verdict, check_move
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.transaction import DONE, Outcome, PreparedTransaction, PreparedTxnState, TopicPartition

T = TypeVar("T")

#: Values in one IN (...): databases have a limit.
_AT_ONCE = 500


@dataclass(frozen=True)
class Locked:
    """A load whose row this transaction holds, with all of its attempts as they are now."""

    id: int
    row: LoadRow
    attempts: tuple[AttemptRow, ...]
    attempt_ids: Mapping[int, int]

    @property
    def newest(self) -> AttemptRow | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def committed(self) -> AttemptRow | None:
        """The attempt that is decided to be committed: one at most."""
        return next((a for a in self.attempts if a.verdict is Verdict.COMMIT), None)

    def attempt(self, number: int) -> AttemptRow:
        """:raises ConfigurationError: there is no such attempt."""
        for attempt in self.attempts:
            if attempt.number == number:
                return attempt
        raise ConfigurationError(
            f"the ledger has no attempt {number} of this load",
            remedy="Check that the task uses the ledger that opened the attempt",
            load=str(self.row.load),
            attempt=number,
        )

    def attempt_id(self, number: int) -> int:
        return self.attempt_ids[self.attempt(number).number]


def lock(connection: Connection, load: LoadIdentity) -> Locked | None:
    """Lock the load's row until the transaction ends (rule: one-decision-per-load); None when there is no such load."""
    found = connection.execute(select(t.loads).where(_is(load)).with_for_update()).one_or_none()
    if found is None:
        return None
    row = _load_row(found)
    if row.load != load:
        # MySQL pads texts with spaces when it compares them
        raise ConfigurationError(
            f"this database cannot tell the load from {row.load}",
            remedy="Use names and keys that differ in more than spaces at their end",
            load=str(load),
        )
    attempts = connection.execute(_of_load(load)).all()
    return Locked(found.id, row, tuple(map(_attempt_row, attempts)), {one.number: one.id for one in attempts})


def must_lock(connection: Connection, load: LoadIdentity) -> Locked:
    """:raises ConfigurationError: there is no such load."""
    locked = lock(connection, load)
    if locked is None:
        raise ConfigurationError(
            "the ledger does not know this load",
            remedy="Run `begin` first, and check that all tasks use the same ledger",
            load=str(load),
        )
    return locked


def move(connection: Connection, locked: Locked, new: LoadState, **columns: Any) -> None:
    """Bring the locked load to a state that may follow its present one.

    :raises UndecidableError: it may not follow.
    """
    check_move(locked.row.load, locked.row.state, new)
    values = {"state": new.value, "updated_at": now()} | columns
    connection.execute(update(t.loads).where(t.loads.c.id == locked.id).values(values))


def now() -> str:
    """Now, in UTC, of fixed width."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def slices(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (items[i : i + size] for i in range(0, len(items), size))


def ledger_id(connection: Connection) -> str:
    return str(connection.execute(select(t.ledger.c.ledger_id)).scalar_one())


def load_row(connection: Connection, load: LoadIdentity) -> LoadRow | None:
    found = connection.execute(select(t.loads).where(_is(load))).one_or_none()
    return None if found is None else _load_row(found)


def load_rows(connection: Connection, namespace: str | None = None, name: str | None = None) -> list[LoadRow]:
    """Oldest first."""
    query = _of(select(t.loads), namespace, name).order_by(t.loads.c.id)
    return [_load_row(row) for row in connection.execute(query)]


def overview(
    connection: Connection, namespace: str | None = None, name: str | None = None
) -> list[tuple[LoadRow, AttemptRow | None]]:
    """Each load with its newest attempt, oldest first: two queries, however many there are."""
    loads = connection.execute(_of(select(t.loads), namespace, name).order_by(t.loads.c.id)).all()
    query = _attempts_of_all(namespace, name).where(t.attempts.c.number == t.loads.c.newest_attempt)
    newest = {row.load_id: _attempt_row(row) for row in connection.execute(query)}
    return [(_load_row(row), newest.get(row.id)) for row in loads]


def attempt_row(connection: Connection, load: LoadIdentity, number: int) -> AttemptRow | None:
    return next((a for a in attempt_rows(connection, load) if a.number == number), None)


def attempt_rows(connection: Connection, load: LoadIdentity) -> list[AttemptRow]:
    """Oldest first."""
    return [_attempt_row(row) for row in connection.execute(_of_load(load))]


def unfinished(connection: Connection, namespace: str) -> list[AttemptRow]:
    """Attempts that are neither verified committed nor swept, by load and number."""
    c = t.attempts.c
    query = _attempts_of_all(namespace).where(c.closed_at.is_(None)).order_by(c.load_id, c.number)
    return [_attempt_row(row) for row in connection.execute(query)]


def with_same_arguments(connection: Connection, load: LoadIdentity, arguments_sha256: str) -> list[AttemptRow]:
    """Committed attempts of the same namespace and name, of any key, whose job was asked for the same; oldest first."""
    c = t.attempts.c
    is_same = and_(c.arguments_sha256 == arguments_sha256, t.decisions.c.verdict == Verdict.COMMIT.value)
    query = _attempts_of_all(load.namespace, load.name).where(is_same).order_by(c.id)
    return [_attempt_row(row) for row in connection.execute(query)]


def topics(connection: Connection, namespace: str) -> set[str]:
    """Topics that prepared attempts of a namespace have written to; of others the ledger knows none."""
    of = t.transactions.c.topic_ids
    query = (
        select(of)
        .distinct()
        .join(t.attempts, t.attempts.c.id == t.transactions.c.attempt_id)
        .join(t.loads, t.loads.c.id == t.attempts.c.load_id)
        .where(t.loads.c.namespace == namespace)
    )
    return {topic for found in connection.execute(query).scalars() for topic in json.loads(found)}


def transaction_rows(connection: Connection, load: LoadIdentity, number: int) -> list[TransactionRow]:
    """Of an attempt that was prepared, by Spark partition; none for any other.

    Undecided and aborted attempts have them too: look at the attempt's ``verdict``, or ask
    :func:`is_decided_commit`, before ending one.
    """
    query = (
        select(t.transactions)
        .join(t.attempts, t.attempts.c.id == t.transactions.c.attempt_id)
        .join(t.loads, t.loads.c.id == t.attempts.c.load_id)
        .where(_is(load), t.attempts.c.number == number)
        .order_by(t.transactions.c.spark_partition)
    )
    return [_transaction_row(row) for row in connection.execute(query)]


def end_offsets(connection: Connection, load: LoadIdentity, number: int) -> dict[TopicPartition, int]:
    """Where the partitions of an attempt ended when it was decided to be committed; empty where that is not known.

    The end markers of its transactions stand at these offsets or behind them, and none of its records does.
    """
    query = (
        select(t.decisions.c.end_offsets)
        .join(t.attempts, t.attempts.c.id == t.decisions.c.attempt_id)
        .join(t.loads, t.loads.c.id == t.attempts.c.load_id)
        .where(_is(load), t.attempts.c.number == number)
    )
    found = json.loads(connection.execute(query).scalar() or "{}")
    return {TopicPartition(topic, int(p)): end for topic, of in found.items() for p, end in of.items()}


def prepared_as(
    connection: Connection, states: Collection[PreparedTxnState]
) -> list[tuple[AttemptRow, TransactionRow]]:
    """The prepared transactions of these producer ids and epochs, each with its attempt; in no order."""
    columns = [c for c in t.transactions.c if c.name not in ("attempt_id", "records", "bytes")]
    found = []
    for some in slices(sorted({str(state) for state in states}), _AT_ONCE):
        query = (
            _attempts_of_all()
            .join(t.transactions, t.transactions.c.attempt_id == t.attempts.c.id)
            .add_columns(*columns)
            .where(t.transactions.c.prepared_transaction_state.in_(some))
        )
        found += [
            (_attempt_row(row), _transaction_row(row)) for row in connection.execute(query)
        ]
    return found


def is_decided_commit(connection: Connection, transaction: PreparedTransaction) -> bool:
    """Whether that very identity, id and state, is decided to be committed and not replaced since.

    Rules: recorded-identity, repair-replaces-lost-row.
    """
    query = (
        select(t.transactions.c.transactional_id)
        .join(t.decisions, t.decisions.c.attempt_id == t.transactions.c.attempt_id)
        .where(
            t.transactions.c.transactional_id == transaction.transactional_id,
            t.transactions.c.prepared_transaction_state == str(transaction.state),
            t.decisions.c.verdict == Verdict.COMMIT.value,
            func.coalesce(t.transactions.c.outcome, "") != Outcome.SUPERSEDED.value,
        )
    )
    return connection.execute(query).first() is not None


@dataclass(frozen=True)
class Unverified:
    """A load that is decided to be committed, and neither COMMITTED nor given up.

    :param oldest_ms: topic -> the oldest record timestamp (ms) of transactions whose commit was not seen. What
        retention takes of them can neither be verified nor repaired.
    """

    load: LoadIdentity
    state: LoadState
    decided_ms: int
    oldest_ms: Mapping[str, int]

    def age_ms(self, now_ms: int) -> int:
        """Since the decision."""
        return max(0, now_ms - self.decided_ms)

    def retention_left_ms(self, topics: Mapping[str, Mapping[str, str]], now_ms: int) -> int | None:
        """Until retention may take the first of its records; negative when it may have. None: no topic has a limit.

        ``retention.bytes`` is left out: it goes by what others write.

        :param topics: topic -> ``retention.ms``, ``cleanup.policy`` and ``message.timestamp.type``; what is missing
            counts as no limit.
        """
        left = []
        for topic, oldest_ms in self.oldest_ms.items():
            config = topics.get(topic, {})
            retention_ms = int(config.get("retention.ms", "-1"))
            if retention_ms < 0 or "delete" not in config.get("cleanup.policy", "delete").split(","):
                continue
            appended = config.get("message.timestamp.type") == "LogAppendTime"
            left.append((self.decided_ms if appended else oldest_ms) + retention_ms - now_ms)
        return min(left, default=None)


@dataclass(frozen=True)
class UndecidedTwoPhase:
    """An attempt that is prepared in two-phase commit, and undecided: no broker ever ends its transactions."""

    load: LoadIdentity
    attempt: int
    prepared_ms: int

    def age_ms(self, now_ms: int) -> int:
        """Since it was prepared."""
        return max(0, now_ms - self.prepared_ms)


@dataclass(frozen=True)
class Waiting:
    """All that waits in a namespace, the oldest first."""

    unverified: tuple[Unverified, ...] = ()
    undecided: tuple[UndecidedTwoPhase, ...] = ()

    @property
    def topics(self) -> frozenset[str]:
        """Those whose retention matters to unverified loads."""
        return frozenset(topic for one in self.unverified for topic in one.oldest_ms)


NOTHING = Waiting()


def waiting(connection: Connection, namespace: str) -> Waiting:
    """Decisions that are not verified, and prepared two-phase transactions that are not decided."""
    unverified, undecided = [], []
    for row in unfinished(connection, namespace):
        if row.verdict is Verdict.COMMIT and row.decided_at is not None:
            known = load_row(connection, row.load)
            if known is not None and known.state is not LoadState.GIVEN_UP:
                oldest = _oldest(connection, row.load, row.number)
                unverified.append(Unverified(row.load, known.state, _ms(row.decided_at), oldest))
        elif row.is_undecided and row.two_phase_commit and row.prepared_at is not None:
            undecided.append(UndecidedTwoPhase(row.load, row.number, _ms(row.prepared_at)))
    return Waiting(
        tuple(sorted(unverified, key=lambda one: one.decided_ms)),
        tuple(sorted(undecided, key=lambda one: one.prepared_ms)),
    )


def _oldest(connection: Connection, load: LoadIdentity, number: int) -> dict[str, int]:
    oldest: dict[str, int] = {}
    for row in transaction_rows(connection, load, number):
        for w in row.writes if row.outcome not in DONE else ():
            oldest[w.topic] = min(w.oldest_timestamp_ms, oldest.get(w.topic, w.oldest_timestamp_ms))
    return oldest


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _of(query: Select[Any], namespace: str | None, name: str | None) -> Select[Any]:
    if namespace is not None:
        query = query.where(t.loads.c.namespace == namespace)
    if name is not None:
        query = query.where(t.loads.c.name == name)
    return query


def _attempts_of_all(namespace: str | None = None, name: str | None = None) -> Select[Any]:
    d, of = t.decisions.c, t.loads.c
    query = (
        select(t.attempts, d.verdict, d.decided_at, d.decided_by, d.reason, of.namespace, of.name, of.load_key)
        .join(t.loads, of.id == t.attempts.c.load_id)
        .outerjoin(t.decisions, d.attempt_id == t.attempts.c.id)
    )
    return _of(query, namespace, name)


def _identity(row: Row[Any]) -> LoadIdentity:
    return LoadIdentity(row.namespace, row.name, row.load_key)


def _is(load: LoadIdentity) -> Any:
    c = t.loads.c
    return and_(c.namespace == load.namespace, c.name == load.name, c.load_key == load.key)


def _of_load(load: LoadIdentity) -> Select[Any]:
    return _attempts_of_all().where(_is(load)).order_by(t.attempts.c.number)


def _load_row(row: Row[Any]) -> LoadRow:
    interval = None
    if row.data_interval_start is not None:
        interval = (row.data_interval_start, row.data_interval_end)
    return read_row(LoadRow, row, load=_identity(row), state=LoadState(row.state), data_interval=interval)


def _attempt_row(row: Row[Any]) -> AttemptRow:
    return read_row(
        AttemptRow,
        row,
        load=_identity(row),
        verdict=None if row.verdict is None else Verdict(row.verdict),
        scope=None if row.scope is None else TransactionScope(row.scope),
        reason=row.reason or "",
    )


def _transaction_row(row: Row[Any]) -> TransactionRow:
    state = PreparedTxnState.parse(row.prepared_transaction_state)
    return TransactionRow(
        transaction=PreparedTransaction(row.transactional_id, state),
        spark_partition=None if row.spark_partition < 0 else row.spark_partition,
        writes=tuple(PartitionWrites(**w) for w in json.loads(row.writes)),
        topic_ids=json.loads(row.topic_ids),
        outcome=None if row.outcome is None else Outcome(row.outcome),
    )
