"""Slots of pooled transactional ids: leased with the attempt's submission, given back by its verified end.

Rule: verified-end-before-reuse.

A slot is held by one attempt at a time. It stays that attempt's after it was given back, until the next one takes it:
whatever is open under its ids in between is that attempt's zombie's.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, false, func, insert, not_, or_, select, update

from airflow_kafka_eos.errors import InDoubtError
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.database import insert_first
from airflow_kafka_eos.ledger.queries import ids_of, must_lock, slices
from airflow_kafka_eos.ledger.rows import RETIRED, AttemptRow, SlotRow, read_row
from airflow_kafka_eos.ledger.tables import for_reason
from airflow_kafka_eos.load import END_BY_HAND, LoadIdentity, Verdict
from airflow_kafka_eos.transaction import MAX_PRODUCER_EPOCH, PreparedTransaction, PreparedTxnState

#: How long after a writer's deadline its last InitProducerId may still reach a broker. The deadline is looked at before
#: the request is sent; then Linux sends its segments again for 15 minutes at most (net.ipv4.tcp_retries2=15), and for
#: the rest a broker may be slow to read it, and the writer's clock behind the ledger's.
LONGEST_REQUEST_DELAY = timedelta(minutes=20)
#: Attempts of a slot whose reported ids are described by name at its next lease.
_LAST_ATTEMPTS = 20
#: So many attempts are gone back over that have leased a slot and not used it: retries while brokers are away.
_LAST_UNUSED = 500


def clock(connection: Connection) -> datetime:
    """Now, by the ledger's own clock: that of the database server, one for all workers."""
    name = connection.dialect.name
    if name == "sqlite":  # no server: the host's
        return datetime.now(UTC)
    asked = func.clock_timestamp() if name == "postgresql" else func.utc_timestamp(6)
    found: datetime = connection.execute(select(asked)).scalar_one()
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def lease(
    connection: Connection, load: LoadIdentity, attempt_id: int, cluster_id: str | None
) -> tuple[int, tuple[LoadIdentity, int] | None]:
    """Take the lowest free slot of the load's name for an attempt, or a new one.

    In the database transaction that submits the attempt, so that no submitted application shares one
    (rule: one-application-per-attempt). A slot stays in the Kafka cluster of its last holder: in another one, the same
    id may get the same producer id and epoch as a transaction that is recorded already, and nobody could tell the two
    apart (rule: recorded-identity).

    :param cluster_id: where it is written to; None: not known.
    :returns: its number, and load and number of the attempt that has used it last, where that left no writer.
    :raises InDoubtError: a slot of that name is in doubt: nothing more is written until a person has looked.
    """
    c = t.slots.c
    moment = clock(connection)
    free = and_(
        c.released_at.is_not(None),
        c.doubt.is_(None),
        or_(c.quarantined_until.is_(None), c.quarantined_until <= text_of(moment)),
        not_(_is_of_other_cluster(cluster_id)),
    )
    taken = {
        "attempt_id": attempt_id,
        "leased_at": text_of(moment),
        "checked_at": None,
        "released_at": None,
        "quarantined_until": None,
    }
    while True:  # each round that is lost, somebody else has won
        check_no_doubt(connection, load)
        row = connection.execute(
            select(c.id, c.number, c.attempt_id, c.quarantined_until)
            .where(_is(load.namespace, load.name), free)
            .order_by(c.number)
            .limit(1)
        ).one_or_none()
        if row is not None:
            # a compare-and-set: the load's row is locked, but loads of one name share their slots
            if connection.execute(update(t.slots).where(c.id == row.id, free).values(taken)).rowcount == 1:
                number, holder_id = int(row.number), int(row.attempt_id)
                was_used = row.quarantined_until is not None  # by a writer that may have been left
                return number, None if was_used else _left(connection, load, number, holder_id)
            continue
        highest = select(func.max(c.number)).where(_is(load.namespace, load.name))
        number = connection.execute(highest).scalar_one()
        number = 0 if number is None else number + 1
        names = {"namespace": load.namespace, "load_name": load.name, "number": number}
        if insert_first(connection, insert(t.slots).values(names | taken | {"created_at": text_of(moment)})):
            return number, None


def _left(
    connection: Connection, load: LoadIdentity, number: int, holder_id: int
) -> tuple[LoadIdentity, int] | None:
    """Load and number of the attempt that has used a slot last; None where a writer may be left, or none is known.

    Not of one that has leased it and failed before it was looked at: its application was never told of it, and what
    the ids show is still of the one before it.
    """
    of = t.attempts.c
    query = (
        select(
            of.id, of.number, of.prepared_at, of.writers_left, of.writers_until, of.submitted_at, t.loads.c.load_key
        )
        .join(t.loads, t.loads.c.id == of.load_id)
        .where(t.loads.c.namespace == load.namespace, t.loads.c.name == load.name, of.slot == number)
    )
    holder = connection.execute(query.where(of.id == holder_id)).one()
    holders = [holder]
    if holder.prepared_at is None:  # it would be in quarantine, had the slot been looked at
        before = query.where(of.id != holder.id).order_by(of.id.desc()).limit(_LAST_UNUSED)
        holders += sorted(connection.execute(before), key=lambda row: str(row.submitted_at), reverse=True)
    leased_next = None
    for row in holders:
        if row.prepared_at is not None:
            is_known = row.writers_left is False
            return (LoadIdentity(load.namespace, load.name, row.load_key), int(row.number)) if is_known else None
        # the next lease was before its deadline, so there was no quarantine; else nobody knows
        if leased_next is not None and not leased_next < (row.writers_until or ""):
            return None
        leased_next = row.submitted_at
    return None


def _is_of_other_cluster(cluster_id: str | None) -> ColumnElement[bool]:
    if cluster_id is None:
        return false()
    of = t.attempts.c
    return select(of.id).where(of.id == t.slots.c.attempt_id, of.cluster_id != cluster_id).exists()


def note_checked(connection: Connection, holder: AttemptRow) -> bool:
    """Its ids show nothing that the ledger does not know: from here on what opens there is its holder's.

    :returns: False where it holds the slot no more: that was given back, and may be another's. It must not write.
    """
    c = t.slots.c
    # whoever gives it back holds that lock too, and goes by whether this is noted
    locked = must_lock(connection, holder.load)
    held = and_(c.attempt_id == locked.attempt_id(holder.number), c.released_at.is_(None))
    noted = update(t.slots).where(held).values(checked_at=text_of(clock(connection)))
    return connection.execute(noted).rowcount == 1


def release(connection: Connection, attempt_id: int, *, quarantine: bool) -> None:
    """Give an attempt's slot back; only when the end of all that it has prepared is verified.

    :param quarantine: writers of it may be left: nobody gets the slot until the last request of any has come or never
        will (rule: verified-end-before-reuse). Not of one that was not looked at: its application was never told of it.
    """
    c = t.slots.c
    held = and_(c.attempt_id == attempt_id, c.released_at.is_(None))
    found = connection.execute(select(c.checked_at).where(held)).one_or_none()
    if found is None:
        return
    until = None
    if quarantine and found.checked_at is not None:
        deadline = connection.execute(
            select(t.attempts.c.writers_until).where(t.attempts.c.id == attempt_id)
        ).scalar_one()
        until = text_of(last_request(deadline))
    values = {"released_at": text_of(clock(connection)), "quarantined_until": until}
    connection.execute(update(t.slots).where(held).values(values))


def last_request(writers_until: str) -> datetime:
    """When the last request of writers with that deadline has come, or never will."""
    return datetime.fromisoformat(writers_until) + LONGEST_REQUEST_DELAY


def put_in_doubt(connection: Connection, namespace: str, name: str, number: int, reason: str) -> None:
    """Nobody gets it, nor any other slot of the name, until a person has looked; what is there stays as it is."""
    values = {"doubt": for_reason(reason)}
    connection.execute(update(t.slots).where(_is(namespace, name), t.slots.c.number == number).values(values))


def settle(connection: Connection, namespace: str, name: str, number: int) -> bool:
    """A person has looked: the doubt is gone, and the slot retired. False when there was none.

    What its ids have shown, coordinators show until they forget it: the next lease would doubt again. So there is none,
    and nothing under them is ended by program any more.
    """
    c = t.slots.c
    doubtful = and_(_is(namespace, name), c.number == number, c.doubt.is_not(None))
    values = {"doubt": None} | _retired(connection)
    return connection.execute(update(t.slots).where(doubtful).values(values)).rowcount == 1


def retire_held(connection: Connection, attempt_ids: Collection[int]) -> None:
    """Slots of attempts whose Kafka cluster is gone: nobody leases them again, in any cluster.

    A new cluster begins its producer ids from 0, so the same id may get an identity there that the ledger has as
    decided (rule: recorded-identity). One in doubt is left to :func:`settle`, which retires it too.
    """
    c = t.slots.c
    for some in slices(sorted(attempt_ids), 500):
        held = and_(c.attempt_id.in_(some), c.doubt.is_(None))
        connection.execute(update(t.slots).where(held).values(_retired(connection)))


def _retired(connection: Connection) -> dict[str, Any]:
    """Of a slot that nobody leases again; one that is held is given back."""
    released = func.coalesce(t.slots.c.released_at, text_of(clock(connection)))
    return {"checked_at": None, "released_at": released, "quarantined_until": RETIRED}


def check_no_doubt(connection: Connection, load: LoadIdentity) -> None:
    """:raises InDoubtError: a slot of the load's name is in doubt."""
    c = t.slots.c
    found = connection.execute(
        select(c.number, c.doubt).where(_is(load.namespace, load.name), c.doubt.is_not(None)).limit(1)
    ).one_or_none()
    if found is not None:
        raise InDoubtError(
            f"slot {found.number} of load name {load.name!r} is in doubt: {found.doubt}",
            remedy=in_doubt_remedy(load.namespace, load.name, found.number),
            load=str(load),
        )


def in_doubt_remedy(namespace: str, name: str, number: int) -> str:
    """What a person does with a slot that is in doubt; no command of ours ends what is open there."""
    settle = shlex.join(["ids", "settle", name, str(number), "--namespace", namespace])
    return (
        "If the ledger was restored from a backup, begin with docs/howto-on-call.md, The ledger was restored: what is "
        "open may be decided. Otherwise a writer was alive after its quarantine: stop it, and end what is open under "
        f"the slot's ids by {END_BY_HAND}; docs/howto-on-call.md, Transactional ids, has the steps. Only then run "
        f"`airflow-kafka-eos {settle} --kafka-conn-id …`, with the load's connection, which retires the slot"
    )


def slot_rows(connection: Connection, namespace: str | None = None, name: str | None = None) -> list[SlotRow]:
    """By namespace, load name and number."""
    c = t.slots.c
    query = _query().order_by(c.namespace, c.load_name, c.number)
    if namespace is not None:
        query = query.where(c.namespace == namespace)
    if name is not None:
        query = query.where(c.load_name == name)
    return [_row(found) for found in connection.execute(query)]


def slot_row(connection: Connection, namespace: str, name: str, number: int) -> SlotRow | None:
    found = connection.execute(_query().where(_is(namespace, name), t.slots.c.number == number)).one_or_none()
    return None if found is None else _row(found)


def slot_ids(connection: Connection, namespace: str, name: str, number: int) -> list[str]:
    """Transactional ids that the slot's last attempts have reported: those to describe by name.

    Rule: listing-only-adds.

    What older ones have reported, and these have not, was at rest at the leases since.
    """
    query = (
        select(t.attempts.c.id)
        .join(t.loads, t.loads.c.id == t.attempts.c.load_id)
        .where(t.loads.c.namespace == namespace, t.loads.c.name == name, t.attempts.c.slot == number)
        .order_by(t.attempts.c.id.desc())
        .limit(_LAST_ATTEMPTS)
    )
    last = list(connection.execute(query).scalars())  # MySQL has no LIMIT within IN
    c = t.transactions.c
    ids = select(c.transactional_id).distinct().where(c.attempt_id.in_(last)).order_by(c.transactional_id)
    return list(connection.execute(ids).scalars())


def decided_states(
    connection: Connection, shown: Collection[PreparedTransaction]
) -> dict[str, set[PreparedTxnState]]:
    """By id, the identities decided to be committed that a coordinator may show so.

    Two of the table's primary keys for each, however long the id's history is; see
    :func:`~airflow_kafka_eos.protocol.guards.slots.may_show`.
    """
    found: dict[str, set[PreparedTxnState]] = {}
    c = t.transactions.c
    for some in slices(sorted(shown, key=str), 200):
        states = {str(s) for one in some for s in _before(one.state)}
        # epochs are used up: the id has another producer id
        anew = [one.transactional_id for one in some if one.state.producer_epoch == 0]
        last = or_(*(c.prepared_transaction_state.like(f"%:{MAX_PRODUCER_EPOCH - n}") for n in (0, 1)))
        query = (
            select(c.transactional_id, c.prepared_transaction_state)
            .join(t.decisions, t.decisions.c.attempt_id == c.attempt_id)
            .where(
                or_(
                    and_(
                        c.transactional_id.in_([one.transactional_id for one in some]),
                        c.prepared_transaction_state.in_(sorted(states)),
                    ),
                    and_(c.transactional_id.in_(anew), last),
                ),
                t.decisions.c.verdict == Verdict.COMMIT.value,
            )
        )
        for name, state in connection.execute(query):
            found.setdefault(name, set()).add(PreparedTxnState.parse(state))
    return found


def _before(state: PreparedTxnState) -> list[PreparedTxnState]:
    """A state, and the one that an end has made it from (KIP-890)."""
    if state.producer_epoch < 1:
        return [state]
    return [state, PreparedTxnState(state.producer_id, state.producer_epoch - 1)]


def submitted_times(connection: Connection, loads: Collection[LoadIdentity]) -> dict[tuple[LoadIdentity, int], str]:
    """(load, attempt) -> when its application was submitted; without those that never were.

    :param loads: of these only.
    """
    found = {}
    of = t.attempts.c
    for some in slices(ids_of(connection, loads), 500):
        query = (
            select(t.loads.c.namespace, t.loads.c.name, t.loads.c.load_key, of.number, of.submitted_at)
            .join(t.attempts, of.load_id == t.loads.c.id)
            .where(t.loads.c.id.in_(some), of.submitted_at.is_not(None))
        )
        for row in connection.execute(query):
            found[LoadIdentity(row.namespace, row.name, row.load_key), row.number] = row.submitted_at
    return found


def has_pruned(connection: Connection, namespace: str, name: str, number: int) -> bool:
    """Whether an attempt that was committed, and pruned since, had the slot."""
    c = t.attempts.c
    query = (
        select(c.id)
        .join(t.loads, t.loads.c.id == c.load_id)
        .join(t.summaries, t.summaries.c.attempt_id == c.id)
        .where(t.loads.c.namespace == namespace, t.loads.c.name == name, c.slot == number)
    )
    return connection.execute(query.limit(1)).first() is not None


def text_of(moment: datetime) -> str:
    """As the ledger keeps times."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _is(namespace: str, name: str) -> Any:
    return and_(t.slots.c.namespace == namespace, t.slots.c.load_name == name)


def _query() -> Any:
    return (
        select(t.slots, t.attempts.c.number.label("attempt"), t.loads.c.load_key)
        .join(t.attempts, t.attempts.c.id == t.slots.c.attempt_id)
        .join(t.loads, t.loads.c.id == t.attempts.c.load_id)
    )


def _row(row: Row[Any]) -> SlotRow:
    return read_row(SlotRow, row, holder=LoadIdentity(row.namespace, row.load_name, row.load_key))
