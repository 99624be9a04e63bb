"""Behind a ledger that was restored: what brokers show of its loads that it has forgotten, and a person's word on it.

Rules: unknown-commit-stops, one-key-loads-once.

Brokers show what was done last under a transactional id, for as long as they remember it
(``transactional.id.expiration.ms``, 7 days). Ids of a load's own say which load it was; pooled ones say the load name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.kafka.admin.list_permissions import why_short
from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.naming import PooledId, TransactionalId, check_length, namespace_prefix, parse
from airflow_kafka_eos.protocol.guards.coordinator_watch import CoordinatorWatch
from airflow_kafka_eos.protocol.guards.ownership import holders_of
from airflow_kafka_eos.protocol.guards.restored_ledger import check_not_restored
from airflow_kafka_eos.protocol.guards.slots import decided_of, is_unknown_commit
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import PreparedTransaction


@dataclass(frozen=True)
class Forgotten:
    """What brokers show of an attempt, or of a slot, that the ledger does not know.

    :param key: None: of a slot, whose ids do not say it.
    :param attempt: its number; None: of a slot.
    :param slot: its number; None: the attempt has ids of its own.
    :param state: the load's, as the ledger has it; None: it does not know the load, or which load it is.
    :param committed: ids whose last transaction was committed, and is not decided in the ledger.
    :param open: ids with a transaction open that the ledger does not know, or has not decided.
    """

    name: str
    key: str | None
    attempt: int | None
    slot: int | None
    state: LoadState | None
    committed: tuple[str, ...]
    open: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """All of it, by name, key and number.

    :param hidden: why there may be more: ACLs limit the listing; None when they do not.
    :param has_moved: a transaction coordinator moved meanwhile, or was away: there may be more, too.
    """

    forgotten: tuple[Forgotten, ...]
    hidden: AccessError | None
    has_moved: bool


def compare(session: Session, ledger_id: str | None = None) -> Comparison:
    """What brokers show of the ledger's transactions in the session's namespace that the ledger does not know.

    Committed, and not decided; open, and of no attempt that it knows; open, and undecided. Reads only.

    :param ledger_id: one that the ledger had before ``ledger new-id``, of which all that is open is shown, for nothing
        ends it any more; None: the one that it has.
    """
    is_present = ledger_id in (None, session.ledger.ledger_id)
    ledger_id = ledger_id or session.ledger.ledger_id
    watch = CoordinatorWatch(session)
    listed = session.coordinator.list_states(namespace_prefix(session.namespace, ledger_id))
    # the ledger is asked behind the listing: what is decided meanwhile is known (rule: decide-before-kafka)
    committed = _committed(session, {name for name, state in listed if state.is_committed})
    described = session.coordinator.describe({name for name, state in listed if not state.is_at_rest})
    seen = [PreparedTransaction(name, d.state) for name, d in described.items() if d.is_open]
    holders = holders_of(session, seen) if is_present else {}
    open_ = [t.transactional_id for t in seen if t not in holders or holders[t].is_undecided]
    by: dict[tuple[str, str | None, int], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for which, names in enumerate((committed, open_)):
        for name in names:
            match parse(name):
                case TransactionalId() as of:
                    by[of.load.name, of.load.key, of.attempt][which].append(name)
                case PooledId() as of:
                    by[of.load_name, None, of.slot][which].append(name)
    found = []
    for name, key, number in sorted(by, key=lambda k: (k[0], k[1] or "", k[2])):
        shown = (tuple(sorted(names)) for names in by[name, key, number])
        state = None if key is None else session.ledger.state(LoadIdentity(session.namespace, name, key))
        attempt, slot = (None, number) if key is None else (number, None)
        found.append(Forgotten(name, key, attempt, slot, state, *shown))
    hidden = why_short(
        session.coordinator, session.namespace, ledger_id, lambda: session.ledger.names(session.namespace)
    )
    return Comparison(tuple(found), hidden, watch.has_moved())


def _committed(session: Session, names: Iterable[str]) -> list[str]:
    """Those that show a commit which the ledger has not decided."""
    rows = {row.load: row for row in session.ledger.loads(session.namespace)}  # once for all: they may be many
    found, pooled = [], []
    for name in names:
        match parse(name):
            case TransactionalId() as of:
                row = rows.get(of.load)
                if row is None or not row.state.is_decided or not _is_known(session, row, of.attempt):
                    found.append(name)
            case PooledId():
                pooled.append(name)
    described = session.coordinator.describe(pooled) if pooled else {}
    decided = decided_of(session, described.values())
    return found + [name for name, seen in described.items() if is_unknown_commit(seen, decided)]


def _is_known(session: Session, row: LoadRow, number: int) -> bool:
    """Whether a decided load has an attempt, or a repair, of that number."""
    return number <= row.newest_attempt or number in {r.number for r in session.ledger.repairs(row.load)}


def set_committed(session: Session, load: LoadIdentity, *, by: str, reason: str) -> AttemptRow:
    """Record what a person says of a load that the ledger does not know to be loaded: its topics have it, once.

    No run writes it from here on. See :func:`.ledger.admin.set_committed`.

    :raises InvalidNameError: no load can have such a key.
    :raises InDoubtError: under the ledger's present id brokers know more of it: ``ledger new-id`` comes first.
    """
    check_length(load, session.ledger.ledger_id)
    check_not_restored(session, load)
    return session.ledger.set_committed(load, by=by, reason=reason, cluster_id=session.cluster_id)
