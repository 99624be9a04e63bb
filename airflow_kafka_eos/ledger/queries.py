"""Reading the ledger's tables into rows, and the lock of a load's row. Functions take a connection."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Row, Select, and_, func, or_, select, update

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow, Summary, TransactionRow, read_row, summary_of
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionScope, Verdict, check_move
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.transaction import DONE, Outcome, PreparedTransaction, PreparedTxnState, TopicPartition

T = TypeVar("T")

#: States of what is decided to be committed, and is not there yet, as the database has them.
UNVERIFIED = tuple(state.value for state in LoadState if state.is_unverified)
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


def load_rows(
    connection: Connection,
    namespace: str | None = None,
    name: str | None = None,
    states: Collection[LoadState] | None = None,
) -> list[LoadRow]:
    """Oldest first.

    :param states: only loads in one of them; None: in any.
    """
    query = _of(select(t.loads), namespace, name, states).order_by(t.loads.c.id)
    return [_load_row(row) for row in connection.execute(query)]


def names(connection: Connection, namespace: str) -> list[str]:
    """Of the namespace's loads, each once."""
    query = select(t.loads.c.name).distinct().where(t.loads.c.namespace == namespace)
    return sorted(connection.execute(query).scalars())


def is_new_to(connection: Connection, namespace: str, name: str) -> bool:
    """Whether it never had another id, and no load of the name is decided to be committed."""
    if connection.execute(select(t.ledger.c.id_changed_at)).scalar_one() is not None:
        return False
    of, d = t.loads.c, t.decisions.c
    decided = (
        select(of.id).join(t.decisions, d.load_id == of.id)
        .where(of.namespace == namespace, of.name == name, d.verdict == Verdict.COMMIT.value)
        .limit(1)
    )  # fmt: skip
    return connection.execute(decided).first() is None


def keys(connection: Connection, namespace: str, name: str, at_most: int) -> list[str]:
    """Of the loads of a name that were begun last."""
    c = t.loads.c
    query = select(c.load_key).where(c.namespace == namespace, c.name == name).order_by(c.id.desc()).limit(at_most)
    return list(connection.execute(query).scalars())


def with_undecided(connection: Connection) -> list[LoadRow]:
    """Loads with attempts that nobody has decided."""
    open_ = (
        select(t.attempts.c.load_id)
        .outerjoin(t.decisions, t.decisions.c.attempt_id == t.attempts.c.id)
        .where(t.attempts.c.pruned_at.is_(None), t.attempts.c.closed_at.is_(None), t.decisions.c.attempt_id.is_(None))
    )
    query = select(t.loads).where(t.loads.c.id.in_(open_)).order_by(t.loads.c.id)
    return [_load_row(row) for row in connection.execute(query)]


LoadAndNewest = tuple[LoadRow, AttemptRow | None]


def overview(
    connection: Connection,
    namespace: str | None = None,
    name: str | None = None,
    *,
    states: Collection[LoadState] | None = None,
    at_most: int | None = None,
) -> list[LoadAndNewest]:
    """Each load with its newest attempt, oldest first: two queries, however many there are.

    :param states: only loads in one of them; None: in any.
    :param at_most: only so many, those that were begun last; None: all.
    """
    query = _of(select(t.loads), namespace, name, states)
    if at_most is not None:
        loads = connection.execute(query.order_by(t.loads.c.id.desc()).limit(at_most)).all()[::-1]
        return _with_newest(connection, loads)
    loads = list(connection.execute(query.order_by(t.loads.c.id)))
    attempts = _of(_attempts_of_all(), namespace, name, states)
    attempts = attempts.where(t.attempts.c.number == t.loads.c.newest_attempt)
    newest = {row.load_id: _attempt_row(row) for row in connection.execute(attempts)}
    return [(_load_row(row), newest.get(row.id)) for row in loads]


def overview_of(connection: Connection, ids: Iterable[int]) -> list[LoadAndNewest]:
    """The loads with these row ids, each with its newest attempt, oldest first."""
    loads: list[Row[Any]] = []
    for some in slices(sorted(set(ids)), _AT_ONCE):
        loads += connection.execute(select(t.loads).where(t.loads.c.id.in_(some)).order_by(t.loads.c.id))
    return _with_newest(connection, loads)


def _with_newest(connection: Connection, loads: Sequence[Row[Any]]) -> list[LoadAndNewest]:
    newest: dict[int, AttemptRow] = {}
    for some in slices(loads, _AT_ONCE):
        query = _attempts_of_all().where(
            t.loads.c.id.in_([row.id for row in some]), t.attempts.c.number == t.loads.c.newest_attempt
        )
        newest |= {row.load_id: _attempt_row(row) for row in connection.execute(query)}
    return [(_load_row(row), newest.get(row.id)) for row in loads]


class Owned(NamedTuple):
    """Whose a load is: by whom its newest attempt was opened and submitted. Little of it, for there are many."""

    id: int
    updated_at: str
    namespace: str
    name: str
    owner: str | None
    submitted_by: str | None


def owned(
    connection: Connection,
    *,
    behind: Owned | None = None,
    at_most: int | None = None,
    states: Collection[LoadState] | None = None,
) -> list[Owned]:
    """Loads and whose they are, what changed last first.

    :param behind: only those behind it, to go on where an answer has ended.
    """
    c, of = t.loads.c, t.attempts.c
    query: Select[Any] = (
        select(c.id, c.updated_at, c.namespace, c.name, of.owner, of.submitted_by)
        .outerjoin(t.attempts, and_(of.load_id == c.id, of.number == c.newest_attempt))
        .order_by(c.updated_at.desc(), c.id.desc())
    )
    query = _of(query, None, None, states)
    if behind is not None:
        earlier = or_(c.updated_at < behind.updated_at, c.id < behind.id)
        query = query.where(c.updated_at <= behind.updated_at, earlier)
    return [Owned._make(row) for row in connection.execute(query.limit(at_most))]


def ids_of(connection: Connection, loads: Iterable[LoadIdentity]) -> list[int]:
    """Row ids of those of these loads that the ledger knows."""
    found: list[int] = []
    for some in slices(sorted(set(loads), key=str), _AT_ONCE // 3):
        # no IN of three columns: SQLite would look at every load
        found += connection.execute(select(t.loads.c.id).where(or_(*map(_is, some)))).scalars()
    return found


def attempt_row(connection: Connection, load: LoadIdentity, number: int) -> AttemptRow | None:
    return next((a for a in attempt_rows(connection, load) if a.number == number), None)


def attempt_rows(connection: Connection, load: LoadIdentity) -> list[AttemptRow]:
    """Oldest first."""
    return [_attempt_row(row) for row in connection.execute(_of_load(load))]


def unfinished(connection: Connection, namespace: str) -> list[AttemptRow]:
    """Attempts that are neither verified committed nor swept, by load and number."""
    c = t.attempts.c
    # what was pruned is closed: the index begins with it
    query = _attempts_of_all(namespace).where(c.pruned_at.is_(None), c.closed_at.is_(None))
    query = query.order_by(c.load_id, c.number)
    return [_attempt_row(row) for row in connection.execute(query)]


#: Attempts that were asked for the same: a job that is always asked for the same has as many as loads.
MOST_SAME = 100


def with_same_arguments(connection: Connection, load: LoadIdentity, arguments_sha256: str) -> list[AttemptRow]:
    """Committed attempts of the same namespace and name, of any key, whose job was asked for the same; oldest first.

    The newest :data:`MOST_SAME` of them.
    """
    found = same_arguments(connection, [arguments_sha256], load.namespace, load.name, at_most=MOST_SAME)
    return found[arguments_sha256] if found else []


def same_arguments(
    connection: Connection,
    arguments: Collection[str],
    namespace: str | None = None,
    name: str | None = None,
    *,
    at_most: int = 10 * MOST_SAME,
) -> dict[str, list[AttemptRow]]:
    """Committed attempts by what their job was asked for, oldest first; of each 500 the newest ``at_most``."""
    c = t.attempts.c
    found: dict[str, list[AttemptRow]] = {}
    for some in slices(sorted(set(arguments)), _AT_ONCE):
        is_same = and_(c.arguments_sha256.in_(some), t.decisions.c.verdict == Verdict.COMMIT.value)
        query = _attempts_of_all(namespace, name).where(is_same).order_by(c.id.desc()).limit(at_most)
        for row in connection.execute(query).all()[::-1]:
            found.setdefault(row.arguments_sha256, []).append(_attempt_row(row))
    return found


def topics(connection: Connection, namespace: str) -> set[str]:
    """Topics that prepared attempts of a namespace have written to; of others the ledger knows none."""
    query = select(t.topics.c.topic).where(t.topics.c.namespace == namespace)
    return set(connection.execute(query).scalars())


def transaction_rows(connection: Connection, load: LoadIdentity, number: int) -> list[TransactionRow]:
    """Of an attempt that was prepared, by Spark partition; none for any other.

    Undecided and aborted attempts have them too: look at the attempt's ``verdict``, or ask
    :func:`is_decided_commit`, before ending one. None either of one that was pruned.
    """
    query = (
        select(t.transactions)
        .join(t.attempts, t.attempts.c.id == t.transactions.c.attempt_id)
        .join(t.loads, t.loads.c.id == t.attempts.c.load_id)
        .where(_is(load), t.attempts.c.number == number)
        .order_by(t.transactions.c.spark_partition)
    )
    return [_transaction_row(row) for row in connection.execute(query)]


def summary(connection: Connection, load: LoadIdentity, number: int) -> Summary:
    """What an attempt has written; the same of a committed one that was pruned. Of an aborted one that was: nothing."""
    rows = transaction_rows(connection, load, number)
    if rows:
        return summary_of(rows)
    # asked second: pruning has put it there with the same commit that took the others away
    query = (
        select(t.summaries)
        .join(t.attempts, t.attempts.c.id == t.summaries.c.attempt_id)
        .join(t.loads, t.loads.c.id == t.attempts.c.load_id)
        .where(_is(load), t.attempts.c.number == number)
    )
    found = connection.execute(query).one_or_none()
    if found is None:
        return Summary()
    return Summary(found.transactions, found.repaired, json.loads(found.topics))


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


class Details(NamedTuple):
    """What there is of an attempt, by one read transaction: commit asks for all of it."""

    attempt: AttemptRow
    load: LoadRow
    transactions: list[TransactionRow]
    end_offsets: dict[TopicPartition, int]


def details(connection: Connection, load: LoadIdentity, number: int) -> Details | None:
    """See :func:`transaction_rows` and :func:`end_offsets`; None: the ledger does not know the attempt."""
    row, of = attempt_row(connection, load, number), load_row(connection, load)
    if row is None or of is None:
        return None
    return Details(row, of, transaction_rows(connection, load, number), end_offsets(connection, load, number))


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
    """Whether that very identity, id and state, is decided to be committed and not replaced since."""
    return transaction in decided_among(connection, [transaction])


def decided_among(
    connection: Connection, transactions: Collection[PreparedTransaction]
) -> set[PreparedTransaction]:
    """Those of these very identities, ids and states, that are decided to be committed and not replaced since.

    Rules: recorded-identity, repair-replaces-lost-row.
    """
    c = t.transactions.c
    found = set()
    for some in slices(sorted(set(transactions), key=str), _AT_ONCE):
        query = (
            select(c.transactional_id, c.prepared_transaction_state)
            .join(t.decisions, t.decisions.c.attempt_id == c.attempt_id)
            .where(
                c.transactional_id.in_([one.transactional_id for one in some]),
                t.decisions.c.verdict == Verdict.COMMIT.value,
                func.coalesce(c.outcome, "") != Outcome.SUPERSEDED.value,
            )
        )
        query = query.where(c.prepared_transaction_state.in_(sorted({str(one.state) for one in some})))
        rows = connection.execute(query).all()
        found |= {PreparedTransaction(name, PreparedTxnState.parse(state)) for name, state in rows}
    return found.intersection(transactions)


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


def _of(
    query: Select[Any], namespace: str | None, name: str | None, states: Collection[LoadState] | None = None
) -> Select[Any]:
    if namespace is not None:
        query = query.where(t.loads.c.namespace == namespace)
    if name is not None:
        query = query.where(t.loads.c.name == name)
    if states is not None:
        query = query.where(t.loads.c.state.in_([state.value for state in states]))
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
