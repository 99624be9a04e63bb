"""Behind a ledger that was restored: what brokers show of its loads that it has forgotten, taking those back that a
manifest tells of, and a person's word on the others.

Rules: unknown-commit-stops, one-key-loads-once, decide-before-kafka.

Brokers show what was done last under a transactional id, for as long as they remember it
(``transactional.id.expiration.ms``, 7 days). Ids of a load's own say which load it was; pooled ones say the load name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from airflow_kafka_eos.errors import AccessError, ConfigurationError, InDoubtError
from airflow_kafka_eos.kafka.admin.list_permissions import why_short
from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.manifest import AttemptRef, Manifest, sha256
from airflow_kafka_eos.naming import PooledId, TransactionalId, check_length, namespace_prefix, parse, prefix
from airflow_kafka_eos.protocol.guards.coordinator_watch import CoordinatorWatch
from airflow_kafka_eos.protocol.guards.ownership import number_of
from airflow_kafka_eos.protocol.guards.restored_ledger import check_not_restored
from airflow_kafka_eos.protocol.guards.slots import decided_of, is_unknown_commit, may_show
from airflow_kafka_eos.protocol.repair.recover import recover
from airflow_kafka_eos.protocol.session import Session

_SHOWN = 5


@dataclass(frozen=True)
class Forgotten:
    """What brokers show of an attempt, or of a slot, and the ledger would leave behind with its present id.

    :param key: None: of a slot, whose ids do not say it.
    :param attempt: its number; None: of a slot.
    :param slot: its number; None: the attempt has ids of its own.
    :param state: the load's, as the ledger has it; None: it does not know the load, or which load it is.
    :param committed: ids whose last transaction was committed, and is not decided in the ledger.
    :param open: ids with a transaction open.
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
    """What brokers show of the ledger's transactions in the session's namespace that it would leave behind.

    Committed, and not decided; and all that is open, which nothing ends any more once the ledger has another id. While
    loads run, what they have open is shown, too. Reads only.

    :param ledger_id: one that the ledger had before ``ledger new-id``; None: the one that it has.
    """
    ledger_id = ledger_id or session.ledger.ledger_id
    watch = CoordinatorWatch(session)
    listed = session.coordinator.list_states(namespace_prefix(session.namespace, ledger_id))
    # the ledger is asked behind the listing: what is decided meanwhile is known (rule: decide-before-kafka)
    committed = _committed(session, {name for name, state in listed if state.is_committed})
    described = session.coordinator.describe({name for name, state in listed if not state.is_at_rest})
    open_ = [name for name, seen in described.items() if seen.is_open]
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


def reinstate(
    session: Session,
    load: LoadIdentity,
    read: Callable[[AttemptRef], Manifest],
    *,
    by: str,
    writers_left: Callable[[Manifest], bool],
    deadline_s: float,
) -> LoadRow:
    """Take back a load that the ledger has forgotten, by its manifest, and roll it forward.

    No transaction is committed before all of its attempt is decided to be (rule: decide-before-kafka). So where brokers
    show one as committed, the attempt was decided, with the manifest that names it: what else that manifest names may
    be committed too, and nothing else of the load may.

    :param read: reads the manifest of an attempt.
    :param writers_left: whether an attempt's writers may live on.
    :returns: the load, COMMITTED: every end marker was seen.
    :raises ConfigurationError: brokers show no commit of it, or it is nothing that can be taken back.
    :raises InDoubtError: more than one attempt or repair of it is committed, or what is committed is not what the
        manifest names.
    :raises ManifestError: there is no manifest, or it is not whole.
    :raises KafkaEosError: see :func:`.ledger.admin.reinstate` and :func:`.recover.recover`.
    """
    check_length(load, session.ledger.ledger_id)
    listed = session.coordinator.list_committed(prefix(load, session.ledger.ledger_id))
    numbers = {name: n for name in listed if (n := number_of(session, load, name)) is not None}
    if not numbers:
        raise ConfigurationError(
            "brokers show no commit of this load under ids of its own, so nothing says that it was decided",
            remedy="`airflow-kafka-eos ledger compare` shows what there is. If its topics have it, say so by "
            "`airflow-kafka-eos loads set-committed`, behind `ledger new-id`",
            load=str(load),
        )
    if len(set(numbers.values())) > 1:
        raise _not_to_be_told(load, f"attempts or repairs {sorted(set(numbers.values()))} of it show a commit", listed)
    (number,) = set(numbers.values())
    manifest = read(AttemptRef(load, session.ledger.ledger_id, number))
    recorded = {t.transactional_id: t.state for t in manifest.transactions}
    described = session.coordinator.describe(numbers)
    others = sorted(
        name for name, seen in described.items() if name not in recorded or not may_show(recorded[name], seen.state)
    )
    if others:
        raise _not_to_be_told(load, "brokers show a commit of it that its manifest does not name", others)
    session.ledger.reinstate(
        manifest, sha256(manifest), by=by, writers_left=writers_left(manifest), cluster_id=session.cluster_id
    )
    return recover(session, load, by=by, deadline_s=deadline_s)


def _not_to_be_told(load: LoadIdentity, what: str, names: list[str]) -> InDoubtError:
    return InDoubtError(
        f"{what}: {', '.join(names[:_SHOWN])}{'' if len(names) <= _SHOWN else f' and {len(names) - _SHOWN} more'}",
        remedy="Nothing was changed. Compare the topics with the source; if they have the load, say so by "
        "`airflow-kafka-eos loads set-committed`, behind `ledger new-id`",
        load=str(load),
        transactional_id=names[0],
    )
