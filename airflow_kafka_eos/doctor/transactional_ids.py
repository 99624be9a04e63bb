"""Transactional ids of the namespace: what this login may do with them, how many there are, and whose. No I/O.

The permissions were tried with an id that never has a transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from airflow_kafka_eos.doctor.commands import Commands
from airflow_kafka_eos.doctor.finding import Asked, ClusterSeen, Finding, Judgement, LedgerSeen, Unknown
from airflow_kafka_eos.kafka.admin.capabilities import lacking
from airflow_kafka_eos.naming import LEDGER_ID_PATTERN, PooledId, namespace_prefix, parse
from airflow_kafka_eos.protocol.guards.id_caps import WARN_AT


def all_of(namespace: str) -> str:
    """What every transactional id of a namespace starts with, of whichever ledger."""
    return namespace_prefix(namespace, "").removesuffix(".")


_MAY_END = frozenset({"ALTER", "CLUSTER_ACTION"})
_MEANS = {
    "DESCRIBE": "Brokers leave the loads' transactions out of listings without saying so: cleanup refuses to work",
    "WRITE": "Transactions can neither be begun nor ended",
}


def check_access(seen: ClusterSeen, asked: Asked, commands: Commands) -> Iterator[Finding]:
    """DESCRIBE and WRITE on the namespace's ids; ALTER on the cluster."""
    prefix = all_of(asked.namespace)
    for operation, missing in (("DESCRIBE", seen.may_describe), ("WRITE", seen.may_write)):
        id, subject = f"acl-transactional-id-{operation.lower()}", f"transactional ids {prefix}*"
        if missing is None:
            yield Judgement(id, subject, f"{operation} is granted").ok("As it must be")
        elif missing.is_refused:
            remedy = commands.allow("WRITE", "transactional-id", prefix, prefixed=True)
            yield Judgement(id, subject, missing.reason).error(_MEANS[operation], remedy)
        else:
            yield Finding.not_seen(id, subject, missing)
    yield _alter(seen, commands)


def _alter(seen: ClusterSeen, commands: Commands) -> Finding:
    id, subject = "acl-cluster-alter", "cluster"
    rights = seen.cluster_rights
    if isinstance(rights, Unknown):
        return Finding.not_seen(id, subject, rights)
    found = Judgement(id, subject, f"allowed: {', '.join(sorted(rights)) or 'nothing'}")
    versions = (b.versions for b in seen.brokers if not isinstance(b.versions, Unknown))
    if rights & _MAY_END and any(one.capability.warns for v in versions for one in lacking(v.requests)):
        return found.ok("It is granted, and of no use: see broker-requests-optional")
    if rights & _MAY_END:
        return found.ok("commit and cleanup can end what a restarted broker has forgotten to end")
    return found.warning(
        "A broker that is restarted may forget end markers. Readers then wait until somebody who has ALTER (or "
        "CLUSTER_ACTION) runs `loads recover`, or `transactions hanging --abort`. Nothing else needs it",
        commands.allow("ALTER", "cluster"),
    )


def check_ids(seen: ClusterSeen, ledger: LedgerSeen, asked: Asked) -> Iterator[Finding]:
    """Does anyone else use the namespace, and how many ids does it have?"""
    subject = f"namespace {asked.namespace}"
    if isinstance(seen.ids, Unknown):
        yield Finding.not_seen("namespace-shared", subject, seen.ids)
        yield Finding.not_seen("ids-near-cap", subject, seen.ids)
        return
    yield _shared(seen, ledger, asked, subject)
    if isinstance(ledger.ledger_id, Unknown):
        yield Finding.not_seen("ids-near-cap", subject, ledger.ledger_id)
        return
    parsed = (parse(one.transactional_id) for one in seen.ids)
    ours = [one for one in parsed if one is not None and one.ledger_id == ledger.ledger_id]
    yield _cap(subject, len(ours), asked.caps.per_namespace)
    names = Counter(one.load_name if isinstance(one, PooledId) else one.load.name for one in ours)
    for name, count in names.most_common(1):
        yield _cap(f"load name {name}", count, asked.caps.per_name)


def _cap(subject: str, count: int, cap: int | None) -> Finding:
    text = f"transactional ids on the brokers: {count}, cap: {cap if cap is not None else 'none'}"
    found = Judgement("ids-near-cap", subject, text)
    remedy = (
        "Use transaction_naming='pooling', or wait until brokers forget unused ids (transactional.id.expiration.ms); "
        "raise max_transactional_ids only where the coordinators have the memory"
    )
    if cap is not None and count >= cap:
        return found.error("The cap is reached: an attempt that would add ids is refused", remedy)
    if cap is not None and count >= WARN_AT * cap:
        return found.warning("The cap is near: beyond it attempts are refused", remedy)
    return found.ok("Far from the cap")


def _shared(seen: ClusterSeen, ledger: LedgerSeen, asked: Asked, subject: str) -> Finding:
    assert not isinstance(seen.ids, Unknown)
    if isinstance(ledger.ledger_id, Unknown):
        return Finding.not_seen("namespace-shared", subject, ledger.ledger_id)
    start = all_of(asked.namespace)
    every, open_ = Counter[str](), Counter[str]()
    for one in seen.ids:
        ledger_id = one.transactional_id.removeprefix(start).partition(".")[0]
        if LEDGER_ID_PATTERN.fullmatch(ledger_id) and ledger_id != ledger.ledger_id:
            every[ledger_id] += 1
            open_[ledger_id] += one.is_open
    others = ", ".join(f"ledger {name} has {count} ids ({open_[name]} open)" for name, count in sorted(every.items()))
    found = Judgement("namespace-shared", subject, others or f"only ids of ledger {ledger.ledger_id}")
    if not every:
        return found.ok("No other ledger uses it")
    return (found.error if sum(open_.values()) else found.warning)(
        "Another deployment uses this namespace, or this ledger was created anew. Neither ends the other's "
        "transactions. But neither knows the other's loads: one load may arrive once from each",
        "Give each deployment a namespace of its own (ExactlyOnceLoad(namespace=…)), or let them share one ledger. If "
        "the other ledger is not used any more, end by it what is open; its other ids expire by themselves",
    )
