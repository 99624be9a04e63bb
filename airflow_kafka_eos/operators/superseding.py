"""Whoever opens an attempt tells the drivers of older ones that they may stop; how they look is in spark/superseded.py.

The ledger has given them up before (rule: decide-before-kafka); what they have open is swept in any case.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.load import Verdict

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.protocol.session import Session
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

log = logging.getLogger(__name__)


def tell_superseded(session: Session, store: ManifestStore, row: AttemptRow) -> None:
    """Leave a note for each application that may still write an attempt that is over. Never raises.

    :param row: the attempt that is open now.
    """
    from airflow_kafka_eos.manifest import AttemptRef

    if row.verdict is not None:
        return  # decided: no attempt was opened, and that of the decision has its manifest
    try:
        for old in session.ledger.attempts(row.load):
            if old.number < row.number and old.verdict is Verdict.ABORT and old.is_submitted and not old.is_prepared:
                by = f"aborted by {old.decided_by} at {old.decided_at}: {old.reason}"
                store.note_superseded(AttemptRef(row.load, session.ledger.ledger_id, old.number, old.slot), by)
    except KafkaEosError as e:
        log.warning("load %s: drivers of older attempts that still run are not told to stop: %s", row.load, e)
