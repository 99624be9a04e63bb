"""A ledger that knows less than the broker was restored from a backup: nothing is guessed, nothing is ended.

The ledger is always written before Kafka is told (rule 1), so asked behind a listing it knows everything that the
listing shows. Under the ledger's own random id (rule 6) nobody else writes.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_kafka_eos.errors import InDoubtError
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.naming import TransactionalId, prefix
from airflow_kafka_eos.protocol.session import Session

_SHOWN = 5
_REMEDY = (
    "Nothing is ended or written. If the ledger was restored from a backup, restore a newer one, or compare the topics "
    "with the source, note which loads are there, and run `airflow-kafka-eos ledger new-id`: it says what follows"
)


def refuse_unknown_attempts(session: Session, load: LoadIdentity, listed: Iterable[str]) -> None:
    """Refuse to go on where ids of attempts were listed that the ledger has never opened.

    :param listed: transactional ids, listed before this call.
    :raises InDoubtError: there are such ids.
    """
    numbered = {name: n for name in listed if (n := _attempt(session, load, name)) is not None}
    if not numbered:
        return
    row = session.ledger.load(load)
    # repairs are numbered behind the attempts
    newest = max([row.newest_attempt if row is not None else 0, *(r.number for r in session.ledger.repairs(load))])
    unknown = sorted(name for name, number in numbered.items() if number > newest)
    if unknown:
        raise _doubt(load, f"has opened {newest} attempts, and the broker shows transactions of later ones", unknown)


def refuse_restored(session: Session, load: LoadIdentity) -> None:
    """Refuse to open an attempt where the broker knows more: a later attempt, or a commit that nobody decided.

    A commit is seen for as long as its coordinator remembers the id (``transactional.id.expiration.ms``, 7 days).

    :raises InDoubtError: there is such a transaction.
    """
    own = prefix(load, session.ledger.ledger_id)
    refuse_unknown_attempts(session, load, session.coordinator.list_open(own))
    listed = session.coordinator.list_committed(own)
    committed = [name for name in listed if _attempt(session, load, name) is not None]
    if committed and all(row.verdict is not Verdict.COMMIT for row in session.ledger.attempts(load)):
        raise _doubt(load, "knows no decision to commit, and the broker shows committed transactions", committed)


def _attempt(session: Session, load: LoadIdentity, name: str) -> int | None:
    parsed = TransactionalId.parse(name)
    if parsed is None or parsed.load != load or parsed.ledger_id != session.ledger.ledger_id:
        return None
    return parsed.attempt


def _doubt(load: LoadIdentity, what: str, names: list[str]) -> InDoubtError:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return InDoubtError(
        f"the ledger {what}: {', '.join(names[:_SHOWN])}{more}",
        remedy=_REMEDY,
        load=str(load),
        transactional_id=names[0],
    )
