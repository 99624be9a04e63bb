"""Transactional ids of the namespace, of this ledger and of others. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from airflow_kafka_eos.doctor.finding import Asked, ClusterSeen, Finding, Judgement, LedgerSeen, Unknown
from airflow_kafka_eos.naming import LEDGER_ID_PATTERN, PooledId, namespace_prefix, parse
from airflow_kafka_eos.protocol.guards.id_caps import WARN_AT


def all_of(namespace: str) -> str:
    """What every transactional id of a namespace starts with, of whichever ledger."""
    return namespace_prefix(namespace, "").removesuffix(".")


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
        return found.ok("Nobody else uses it")
    return (found.error if sum(open_.values()) else found.warning)(
        "Another deployment works in this namespace, or this ledger was made anew. Neither ends the other's "
        "transactions; but each holds its own loads for the only ones: one load may arrive once from each",
        "Give each deployment a namespace of its own (ExactlyOnceLoad(namespace=…)), or let them share one ledger; a "
        "ledger that is no longer used: end what is open with the old ledger, its other ids expire by themselves",
    )
