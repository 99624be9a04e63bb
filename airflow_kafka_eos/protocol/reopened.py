"""A zombie that begins anew under an identity that is committed: transaction version 1 bumps no epoch at an end.

Rule: zombie-behind-the-commit.
"""

from __future__ import annotations

import logging

from airflow_kafka_eos.evidence import Outcome
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import CoordinatorState, TransactionDescription

log = logging.getLogger(__name__)


def began_anew(session: Session, load: LoadIdentity, number: int, found: TransactionDescription) -> bool:
    """Whether the open transaction that was described is another one than the committed one of the same identity.

    So it is when the ledger has the commit's markers on record (rule: zombie-behind-the-commit), and every partition's
    leader shows the open one to begin behind the committed one's last record. Aborting that identity cannot hurt the
    committed one then: its markers are in the log, and an EndTxn(abort) that finds it instead is refused
    (INVALID_TXN_STATE).
    """
    if found.coordinator_state is not CoordinatorState.ONGOING:
        return False
    rows = [
        t
        for t in session.ledger.transactions(load, number)
        if t.transaction.transactional_id == found.transactional_id and t.outcome is Outcome.COMMITTED
    ]
    if not rows:
        return False
    last = {w.topic_partition: w.last_offset for w in rows[0].writes}
    identity = (found.state.producer_id, found.state.producer_epoch)
    for tp, states in session.partitions.producers(found.partitions).items():
        for state in states:
            mine = (state.producer_id, state.producer_epoch) == identity and state.txn_start_offset >= 0
            if mine and state.txn_start_offset <= last.get(tp, -1):
                return False
    log.warning("a zombie began anew as %s (%s), behind the commit", found.transactional_id, found.state)
    return True
