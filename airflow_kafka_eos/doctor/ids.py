"""Transactional ids of the namespace, of this ledger and of others. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from airflow_kafka_eos.doctor.finding import Finding, Judgement, Unknown
from airflow_kafka_eos.doctor.seen import Asked, ClusterSeen, LedgerSeen
from airflow_kafka_eos.naming import LEDGER_ID_PATTERN, namespace_prefix

_NEAR = 0.8


def all_of(namespace: str) -> str:
    """What every transactional id of a namespace starts with, of whichever ledger."""
    return namespace_prefix(namespace, "").removesuffix(".")


def check(seen: ClusterSeen, ledger: LedgerSeen, asked: Asked) -> Iterator[Finding]:
    """Does anyone else use the namespace, and how many ids does it have?"""
    subject = f"namespace {asked.namespace}"
    if isinstance(seen.ids, Unknown):
        yield Finding.not_seen("namespace-shared", subject, seen.ids)
        yield Finding.not_seen("ids-near-cap", subject, seen.ids)
        return
    yield _shared(seen, ledger, asked, subject)
    count = len(seen.ids)
    found = Judgement("ids-near-cap", subject, f"{count} transactional ids on the brokers, cap {asked.max_ids}")
    remedy = (
        "They go away by themselves, transactional.id.expiration.ms after their last use. Use fewer Spark partitions "
        "per load, or pooled ids; or raise the cap where the brokers have the memory"
    )
    if count >= asked.max_ids:
        yield found.error("The cap is reached: each id costs every broker's coordinator memory", remedy)
    elif count >= _NEAR * asked.max_ids:
        yield found.warning("The cap is near: each id costs the coordinators memory", remedy)
    else:
        yield found.ok("Far from the cap")


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
