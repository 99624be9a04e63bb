"""Texts for people (owners, reasons), made fit for every database. Pure."""

from __future__ import annotations

from airflow_kafka_eos.ledger.tables import PEOPLE_LENGTH

REASON_LENGTH = 4000


def for_people(text: str, longest: int = PEOPLE_LENGTH) -> str:
    """Replace what PostgreSQL or UTF-8 refuse, cut what is too long: a note must never stop a decision."""
    clean = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"


def for_reason(text: str) -> str:
    """Like :func:`for_people`, with more room."""
    return for_people(text, REASON_LENGTH)
