"""What a listing may not show, of ours or of others: Kafka leaves out what one may not describe, without a word."""

from __future__ import annotations

from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.kafka.every_id import why_some_hidden
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


def others_hidden(session: Session) -> AccessError | None:
    """Why a listing of everybody's transactions may be short; None where it is proven that it is whole.

    :raises BrokerUnavailableError: a broker does not answer.
    """
    return why_some_hidden(session.partitions.wire)
