"""Open transactions of a namespace that are of no ledger we know: shown to people, never ended (rule: only-our-ids)."""

from __future__ import annotations

from datetime import timedelta

from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.kafka.listing_rights import why_ledgers_hidden
from airflow_kafka_eos.naming import parse, prefix_of_all_ledgers
from airflow_kafka_eos.protocol.session import Session


def strangers(session: Session, *, longer_than: timedelta) -> list[str]:
    """Ids of the session's namespace with another ledger's id in them, open for longer than that; sorted.

    A deployment that is gone for good, or a ledger that was thrown away, leaves them: with two-phase commit they hold
    readers back until somebody ends them. A deployment that lives and has the same namespace shows up too, once a
    transaction of its is that old.

    :param longer_than: by the brokers' clocks.
    """
    found = session.coordinator.list_open(
        prefix_of_all_ledgers(session.namespace), longer_than_ms=int(longer_than.total_seconds() * 1000)
    )
    parsed = {name: parse(name) for name in found}
    return [
        name for name, of in parsed.items() if of is not None and of.ledger_id != session.ledger.ledger_id
    ]


def hidden_strangers(session: Session) -> AccessError | None:
    """Why other ledgers' transactions in the namespace may not be among them; None where they may be described."""
    return why_ledgers_hidden(session.coordinator, session.namespace)
