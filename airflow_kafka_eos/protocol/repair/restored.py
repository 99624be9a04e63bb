"""Behind a ledger that was restored: what brokers show of its loads that it has forgotten, taking those back that a
manifest tells of, and a person's word on the others.

Rules: unknown-commit-stops, one-key-loads-once, decide-before-kafka.

Brokers show what was done last under a transactional id, for as long as they remember it
(``transactional.id.expiration.ms``, 7 days). Ids of a load's own say which load it was; pooled ones say the load name.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from airflow_kafka_eos.errors import (
    AccessError,
    ConfigurationError,
    InDoubtError,
    ManifestError,
    NotFinishedError,
)
from airflow_kafka_eos.kafka.admin.list_permissions import describe_listed, why_short
from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow, TransactionRow
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.manifest import AttemptRef, Manifest, sha256
from airflow_kafka_eos.naming import (
    AnyId,
    PooledId,
    TransactionalId,
    check_length,
    parse,
    prefix,
    prefix_of_all_ledgers,
)
from airflow_kafka_eos.protocol.evidence import evidence_of
from airflow_kafka_eos.protocol.guards.coordinator_watch import CoordinatorWatch
from airflow_kafka_eos.protocol.guards.ownership import check_cluster, number_of
from airflow_kafka_eos.protocol.guards.restored_ledger import check_not_restored
from airflow_kafka_eos.protocol.guards.slots import decided_of, is_unknown_commit, may_show
from airflow_kafka_eos.protocol.repair.recover import recover
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.decide import observe, problems
from airflow_kafka_eos.transaction import CoordinatorState, Outcome, PreparedTransaction, judge_decided

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

    :param other_ledgers: how many ids of other ledgers show a commit in the namespace, by ledger id: of a ledger that
        was restored twice, what was loaded since has the id that it got in between.
    :param hidden: why there may be more: ACLs limit the listing; None when they do not.
    :param has_moved: a transaction coordinator moved meanwhile, or was away: there may be more, too.
    :param open_of_others: how many ids of other ledgers have a transaction open, by ledger id: one that was restored
        before it had committed anything under that id shows no commit.
    """

    forgotten: tuple[Forgotten, ...]
    other_ledgers: Mapping[str, int]
    hidden: AccessError | None
    has_moved: bool
    open_of_others: Mapping[str, int] = field(default_factory=dict)


def compare(session: Session, ledger_id: str | None = None) -> Comparison:
    """What brokers show of the ledger's transactions in the session's namespace that it would leave behind.

    Committed, and not decided; and all that is open, which nothing ends any more once the ledger has another id, but
    for what is decided: that keeps it from getting one. While loads run, what they have open is shown, too. Reads only.

    :param ledger_id: one that the ledger had before ``ledger new-id``; None: the one that it has.
    """
    ledger_id = ledger_id or session.ledger.ledger_id
    watch = CoordinatorWatch(session)
    listed = [(name, parse(name), state) for name, state in
              session.coordinator.list_states(prefix_of_all_ledgers(session.namespace))]  # fmt: skip
    ours = {name: of for name, of, _ in listed if of is not None and of.ledger_id == ledger_id}
    theirs = [(of.ledger_id, state) for _, of, state in listed if of is not None and of.ledger_id != ledger_id]
    others = Counter(other for other, state in theirs if state.is_committed)
    open_of_others = Counter(other for other, state in theirs if state.is_open)
    # the ledger is asked behind the listing: what is decided meanwhile is known (rule: decide-before-kafka)
    committed = _committed(session, {n: ours[n] for n, _, state in listed if n in ours and state.is_committed})
    states = {row.load: row.state for row in session.ledger.loads(session.namespace)}
    open_ = _open(session, {n: ours[n] for n, _, state in listed if n in ours and not state.is_at_rest}, states)
    by: dict[tuple[str, str | None, int], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for which, names in enumerate((committed, open_)):
        for name in names:
            match ours[name]:
                case TransactionalId() as of:
                    by[of.load.name, of.load.key, of.attempt][which].append(name)
                case PooledId() as of:
                    by[of.load_name, None, of.slot][which].append(name)
    found = []
    for name, key, number in sorted(by, key=lambda k: (k[0], k[1] or "", k[2])):
        shown = (tuple(sorted(names)) for names in by[name, key, number])
        state = None if key is None else states.get(LoadIdentity(session.namespace, name, key))
        attempt, slot = (None, number) if key is None else (number, None)
        found.append(Forgotten(name, key, attempt, slot, state, *shown))
    hidden = why_short(
        session.coordinator, session.namespace, ledger_id, lambda: session.ledger.names(session.namespace)
    )
    return Comparison(tuple(found), dict(others), hidden, watch.has_moved(), dict(open_of_others))


def _committed(session: Session, ids: Mapping[str, AnyId]) -> list[str]:
    """Those that show a commit which the ledger has not decided."""
    known = session.ledger.committing_numbers(session.namespace)  # once for all: they may be many
    found, unsure = [], []
    for name, of in ids.items():
        if of.ledger_id == session.ledger.ledger_id and isinstance(of, TransactionalId):
            if of.attempt not in known.get(of.load, ()):
                found.append(name)
        elif not _is_retired(session, of):
            unsure.append(name)  # by what was done under it: numbers of another id say nothing here
    described = session.coordinator.describe(unsure) if unsure else {}
    decided = decided_of(session, described.values())
    return found + [name for name, seen in described.items() if is_unknown_commit(seen, decided)]


def _is_retired(session: Session, of: AnyId) -> bool:
    """Whether a person has looked at the slot, and settled it."""
    if not isinstance(of, PooledId) or of.ledger_id != session.ledger.ledger_id:
        return False
    slot = session.ledger.slot(of.namespace, of.load_name, of.slot)
    return slot is not None and slot.is_retired


def _open(session: Session, ids: Mapping[str, AnyId], states: Mapping[LoadIdentity, LoadState]) -> list[str]:
    """Those that are open, and no part of a decision that is being carried out: behind that a zombie began anew."""
    described = session.coordinator.describe(ids) if ids else {}
    seen = {name: PreparedTransaction(name, d.state) for name, d in described.items() if d.is_open}
    decided = session.ledger.decided_among(seen.values()) if seen else set()

    def is_over(of: AnyId) -> bool:
        return isinstance(of, TransactionalId) and states.get(of.load) in (LoadState.COMMITTED, LoadState.GIVEN_UP)

    return [name for name, transaction in seen.items() if transaction not in decided or is_over(ids[name])]


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
    """Take back a load that the ledger has forgotten, by its manifest, and commit what of it is still open.

    No transaction is committed before all of its attempt is decided to be (rule: decide-before-kafka). So where brokers
    show one as committed, and its manifest names it, the attempt was decided with that manifest: what else it names may
    be committed too, and nothing else of the load may. Only where each of them is committed by the log's own word, or
    open just as it was prepared: one that was aborted may have been written anew since, by a repair or by hand.

    :param read: reads the manifest of an attempt.
    :param writers_left: whether an attempt's writers may live on.
    :returns: the load, COMMITTED: every end marker was seen.
    :raises ConfigurationError: the ledger knows it as decided, or brokers show no commit of it, or it is nothing that
        can be taken back.
    :raises InDoubtError: not all of it is proven. Nothing was changed.
    :raises ManifestError: there is no manifest, or it is not whole. Nothing was changed.
    :raises NotFinishedError: a coordinator was away or moved. Nothing was changed.
    :raises KafkaEosError: see :func:`.ledger.admin.reinstate` and :func:`.recover.recover`.
    """
    check_length(load, session.ledger.ledger_id)
    session.ledger.check_no_batch(load)  # before its manifest is looked for, which batches have not
    known = session.ledger.load(load)
    if known is not None and known.state.is_decided:
        raise ConfigurationError(
            f"the ledger knows this load: it is {known.state.value}",
            remedy="There is nothing to take back. `airflow-kafka-eos loads recover NAME KEY` completes it",
            load=str(load),
        )
    check_cluster(session, session.ledger.attempts(load))
    manifest = _decided_manifest(session, load, read)
    committed = _check_all_there(session, manifest)
    session.ledger.reinstate(
        manifest, sha256(manifest), committed, by=by, writers_left=writers_left(manifest), cluster_id=session.cluster_id
    )
    return recover(session, load, by=by, deadline_s=deadline_s)


def _decided_manifest(session: Session, load: LoadIdentity, read: Callable[[AttemptRef], Manifest]) -> Manifest:
    """The one manifest that all of the load's commits at the brokers are of."""
    watch = CoordinatorWatch(session)
    listed = session.coordinator.list_committed(prefix(load, session.ledger.ledger_id))
    numbers = {name: n for name in listed if (n := number_of(session, load, name)) is not None}
    described = describe_listed(session.coordinator, load, session.ledger.ledger_id, numbers, pooled=False)
    if watch.has_moved():
        raise NotFinishedError(
            "a transaction coordinator is moving or away: it is not known what brokers have of the load",
            remedy="Nothing was changed. Check that all replicas of __transaction_state are up, then try again",
            load=str(load),
        )
    if not numbers:
        raise ConfigurationError(
            f"brokers show no commit of this load under ids of its own, of ledger {session.ledger.ledger_id}: nothing "
            "says that it was decided",
            remedy=f"Nothing was changed. `airflow-kafka-eos ledger compare` shows what there is. {_IF_THERE}",
            load=str(load),
        )
    if len(set(numbers.values())) > 1:
        shown = sorted(set(numbers.values()))
        raise _not_proven(load, f"attempts or repairs {shown} of it show a commit", sorted(numbers))
    (number,) = set(numbers.values())
    try:
        manifest = read(AttemptRef(load, session.ledger.ledger_id, number))
    except ManifestError as e:
        e.remedy = f"Nothing was changed; clear nothing. Does --manifest-dir name the folder of the loads? {_IF_THERE}"
        raise
    recorded = {t.transactional_id: t.state for t in manifest.transactions}
    others = sorted(
        name for name, seen in described.items() if name not in recorded or not may_show(recorded[name], seen.state)
    )
    if others:
        raise _not_proven(load, "brokers show a commit of it that its manifest does not name", others)
    return manifest


def _check_all_there(session: Session, manifest: Manifest) -> list[str]:
    """Refuse where a transaction of it is neither committed, by the log, nor open as it was prepared.

    :returns: the ids of those that are committed.
    """
    load = manifest.attempt.load
    described = session.coordinator.describe(t.transactional_id for t in manifest.transactions)
    ending = sorted(n for n, seen in described.items() if seen.coordinator_state is CoordinatorState.PREPARE_COMMIT)
    if ending:
        raise NotFinishedError(
            f"{len(ending)} of its transactions are being committed just now",
            remedy="Nothing was changed. Check that all replicas of the topics are up, then run it again",
            load=str(load),
            transactional_id=ending[0],
        )
    rows = [
        TransactionRow(
            p.transaction, p.spark_partition, p.writes,
            {w.topic: manifest.topics[w.topic].topic_id for w in p.writes}, None,
        )
        for p in manifest.prepared
    ]  # fmt: skip
    found, error = evidence_of(session, rows)
    if error is not None:
        raise error
    outcomes = {name: judge_decided(markers.values()) for name, markers in found.items()}
    neither = sorted(name for name, of in outcomes.items() if of not in (Outcome.COMMITTED, Outcome.OPEN))
    if neither:
        said = ", ".join(sorted({outcomes[name].value for name in neither}))
        raise _not_proven(load, f"transactions of it are neither committed, by the log, nor open ({said})", neither)
    open_ = {name for name, of in outcomes.items() if of is Outcome.OPEN}
    if open_ == set(outcomes):
        raise _not_proven(load, "no log shows the end of a transaction of it", sorted(open_))
    left = tuple(
        e for e in manifest.entries if e.transaction is not None and e.transaction.transactional_id in open_
    )
    if left:
        waiting = replace(manifest, entries=left)
        wrong = problems(waiting, observe(session, waiting, 0), now_ms=int(time.time() * 1000), margin_ms=0)
        if wrong:
            raise _not_proven(load, f"what is open is not as it was prepared ({'; '.join(wrong[:3])})", sorted(open_))
    return sorted(set(outcomes) - open_)


_IF_THERE = (
    "If the load's topics have all of it, say so by `airflow-kafka-eos loads set-committed`, behind "
    "`airflow-kafka-eos ledger new-id`"
)


def _not_proven(load: LoadIdentity, what: str, names: list[str]) -> InDoubtError:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return InDoubtError(
        f"{what}: {', '.join(names[:_SHOWN])}{more}",
        remedy=f"Nothing was changed. Compare the topics with the source. {_IF_THERE}",
        load=str(load),
        transactional_id=names[0],
    )
