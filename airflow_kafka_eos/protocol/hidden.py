"""What a listing of the whole namespace may not show: Kafka leaves out what one may not describe, without a word."""

from __future__ import annotations

from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.kafka.listing_rights import why_short
from airflow_kafka_eos.protocol.session import Session


def hidden_by_acls(session: Session) -> AccessError | None:
    """Why a listing of the session's namespace may be short, to be raised or shown; None when it is whole.

    With rights on single load names only, it is whole as far as the ledger's own names go.

    :raises AccessError: the login itself is refused.
    """
    ledger, namespace = session.ledger, session.namespace
    return why_short(
        session.coordinator, namespace, ledger.ledger_id, lambda: {row.load.name for row in ledger.loads(namespace)}
    )
