"""How many transactional ids there are, how old, and what they cost the brokers (FLIP-511's safeguards).

Counted are ids that a coordinator knows, in whatever state: it keeps each in memory, and in its log, until it was not
used for ``transactional.id.expiration.ms``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_kafka_eos.errors import AccessError, ConfigurationError
from airflow_kafka_eos.ledger.rows import SlotRow
from airflow_kafka_eos.load import LoadIdentity, TransactionNaming
from airflow_kafka_eos.naming import MAX_IDS_OF_NAME, MAX_IDS_OF_NAMESPACE, AnyId, PooledId, parse
from airflow_kafka_eos.protocol.guards.ownership import hidden_by_acls
from airflow_kafka_eos.protocol.session import Session

log = logging.getLogger(__name__)

EXPIRATION = "transactional.id.expiration.ms"
#: Heap that one id takes in its coordinator, without its text: measured on Kafka 4.4.0 (docs/adr/0013). Every replica
#: of the partition of ``__transaction_state`` has its record on the disk besides.
BYTES_PER_ID = 450
#: Where a warning is due: so much of a cap.
WARN_AT = 0.8


@dataclass(frozen=True)
class Caps:
    """The most ids that brokers may know when an attempt is submitted; None: no cap."""

    per_name: int | None = MAX_IDS_OF_NAME
    per_namespace: int | None = MAX_IDS_OF_NAMESPACE

    def __post_init__(self) -> None:
        for value in (self.per_name, self.per_namespace):
            if value is not None and value < 1:
                raise ConfigurationError(
                    f"a cap of {value} transactional ids allows none",
                    remedy="Set it to a number from 1 on, or to None for no cap",
                )


@dataclass(frozen=True)
class NameIds:
    """The ids of one load name.

    ``slots``, and of them ``leased``, ``quarantined`` (not to be leased yet, or retired) and ``in_doubt``, as the
    ledger has them; ``slots_in_doubt``: which these are; ``pooled`` and ``incrementing``: ids that coordinators
    know. ``oldest_s``: seconds since the ledger last handed out the one that was not used for longest; None when it
    knows of none. ``expired``: how many were not handed out for longer than the brokers keep an unused id.
    ``bytes``: an estimate of what they cost in coordinators' memory.
    """

    load_name: str
    slots: int
    leased: int
    quarantined: int
    in_doubt: int
    slots_in_doubt: tuple[int, ...]
    pooled: int
    incrementing: int
    oldest_s: float | None
    expired: int
    bytes: int

    @property
    def ids(self) -> int:
        return self.pooled + self.incrementing


@dataclass(frozen=True)
class IdsReport:
    """All ids of a namespace. ``expiration_ms``: the brokers' shortest; None where it may not be read. ``hidden``: why
    there may be more of them; None when ACLs have hidden none."""

    namespace: str
    expiration_ms: int | None
    names: tuple[NameIds, ...]
    hidden: AccessError | None = None

    @property
    def ids(self) -> int:
        return sum(n.ids for n in self.names)

    @property
    def bytes(self) -> int:
        return sum(n.bytes for n in self.names)


def ids_report(session: Session) -> IdsReport:
    """Look at the session's namespace; nothing is changed.

    Ids that the login may not DESCRIBE are left out by the brokers without a word: ``hidden`` says it.

    :raises BrokerUnavailableError: a broker did not answer; a part is never taken for the whole.
    """
    found = _known_ids(session)
    report = summary(
        session.namespace,
        found,
        session.ledger.slots(session.namespace),
        session.ledger.submitted_times({one.load for one in found if not isinstance(one, PooledId)}),
        min(session.broker_limits(EXPIRATION), default=None),
        session.ledger.clock(),
    )
    return replace(report, hidden=hidden_by_acls(session))


def check_caps(session: Session, load: LoadIdentity, naming: TransactionNaming, caps: Caps) -> None:
    """Before an attempt is taken: refuse one that would add ids at a cap, and warn near it.

    With pooling and a free slot of the name nothing is refused: its ids are there already. Ids that ACLs hide are not
    counted; the log says so.

    :raises ConfigurationError: the cap is reached.
    """
    if caps.per_name is None and caps.per_namespace is None:
        return
    found = _known_ids(session)
    adds = naming is not TransactionNaming.POOLING or not _has_free_slot(session, load)
    if (hidden := hidden_by_acls(session)) is not None:
        log.warning("transactional ids are counted against their cap, and some may be hidden: %s", hidden)
    own = sum(_name(i) == load.name for i in found)
    for count, cap, what in (
        (own, caps.per_name, f"load name {load.name!r}"),
        (len(found), caps.per_namespace, f"namespace {load.namespace!r}"),
    ):
        if cap is not None and count >= cap and adds:
            raise ConfigurationError(
                f"the brokers know {count} transactional ids of {what}, the cap is {cap}",
                remedy=f"Use transaction_naming='pooling', which neither Spark Connect nor a cursor can have; wait "
                f"until brokers forget unused ids ({EXPIRATION}); or raise max_transactional_ids (of a namespace: "
                "max_transactional_ids_of_namespace). "
                "`airflow-kafka-eos ids report` shows whose they are",
                load=str(load),
            )
        if cap is not None and count >= cap * WARN_AT:
            log.warning("the brokers know %d transactional ids of %s, the cap is %d", count, what, cap)


def summary(
    namespace: str,
    found: Iterable[AnyId],
    slots: Iterable[SlotRow],
    submitted: Mapping[tuple[LoadIdentity, int], str],
    expiration_ms: int | None,
    now: datetime,
) -> IdsReport:
    """The report of what was listed. No I/O.

    :param submitted: (load, attempt) -> when its application was submitted.
    """
    by_name: dict[str, tuple[list[AnyId], list[SlotRow]]] = {}
    for one in found:
        by_name.setdefault(_name(one), ([], []))[0].append(one)
    for slot in slots:
        by_name.setdefault(slot.load_name, ([], []))[1].append(slot)
    names = []
    for name, (ids, mine) in sorted(by_name.items()):
        leased_at = {s.number: s.leased_at for s in mine}
        ages = [
            (now - datetime.fromisoformat(used)).total_seconds()
            for one in ids
            if (used := _used_at(one, leased_at, submitted)) is not None
        ]
        pooled = sum(isinstance(one, PooledId) for one in ids)
        in_doubt = tuple(sorted(s.number for s in mine if s.doubt is not None))
        names.append(
            NameIds(
                load_name=name,
                slots=len(mine),
                leased=sum(s.is_leased for s in mine),
                quarantined=sum(_is_quarantined(s, now) for s in mine),
                in_doubt=len(in_doubt),
                slots_in_doubt=in_doubt,
                pooled=pooled,
                incrementing=len(ids) - pooled,
                oldest_s=max(ages, default=None),
                expired=0 if expiration_ms is None else sum(age * 1000 > expiration_ms for age in ages),
                bytes=sum(BYTES_PER_ID + len(str(one)) for one in ids),
            )
        )
    return IdsReport(namespace, expiration_ms, tuple(names))


def _known_ids(session: Session) -> list[AnyId]:
    return [found for name in session.coordinator.list_known(session.id_prefix) if (found := parse(name)) is not None]


def _name(found: AnyId) -> str:
    return found.load_name if isinstance(found, PooledId) else found.load.name


def _used_at(
    found: AnyId, leased_at: Mapping[int, str], submitted: Mapping[tuple[LoadIdentity, int], str]
) -> str | None:
    if isinstance(found, PooledId):
        return leased_at.get(found.slot)
    return submitted.get((found.load, found.attempt))


def _is_quarantined(slot: SlotRow, now: datetime) -> bool:
    until = slot.quarantined_until
    return until is not None and datetime.fromisoformat(until) > now


def _has_free_slot(session: Session, load: LoadIdentity) -> bool:
    now = session.ledger.clock()
    return any(
        not s.is_leased and s.doubt is None and not _is_quarantined(s, now)
        for s in session.ledger.slots(load.namespace, load.name)
    )
