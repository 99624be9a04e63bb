"""Force-terminate one transaction, with guards (KIP-939's admin call).

Rules: decide-before-kafka, describe-then-ask, unknown-commit-stops.

KIP-939's forceTerminateTransaction sends InitProducerId without KeepPreparedTxn: whatever is open under the id *by
then* is aborted, also the transaction of a writer that has just begun anew, or one that a decision has just named. Here
the ledger is asked first, then exactly the identity that was described is ended by EndTxn; if another one is open by
then, the broker refuses.
"""

from __future__ import annotations

import logging
import time

from airflow_kafka_eos.errors import ConfigurationError, InDoubtError, NotFinishedError, UndecidableError
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.naming import PooledId
from airflow_kafka_eos.protocol.guards.ownership import (
    check_cluster,
    check_ours,
    ending_the_unknown,
    holder_of,
    present_holder,
)
from airflow_kafka_eos.protocol.guards.restored_ledger import check_commits_known, check_may_abort
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import CoordinatorState, PreparedTransaction, TransactionDescription

log = logging.getLogger(__name__)


def force_terminate(
    session: Session,
    transactional_id: str,
    *,
    by: str,
    reason: str,
    deadline_s: float = 30,
    of: AttemptRow | None = None,
) -> PreparedTransaction | None:
    """Abort what is open under one transactional id of ours, and see it end.

    The attempt that it belongs to can be decided no more, in the ledger, before Kafka is told. Its other transactions
    are left to cleanup. Safe to repeat. A pooled id is its slot's holder's; if it goes to another attempt meanwhile,
    what that one has open is left alone.

    :param by: who asks, for the ledger.
    :param reason: why, for the ledger.
    :param of: the attempt that is meant; when the id is another's, nothing is done. None: whoever holds the id.
    :returns: what was ended; None when nothing was open.
    :raises ConfigurationError: the id is not of this namespace and ledger (rule: only-our-ids).
    :raises OtherClusterError: its attempt was written to another cluster, and is not closed.
    :raises UndecidableError: it is decided to be committed, and its load is not given up. Nothing is changed, unless
        it was decided just now.
    :raises InDoubtError: it is open, and the ledger does not know its attempt (restored from a backup?); or brokers
        show a commit of its load, or another attempt, that the ledger does not know; or its id is pooled, and they show
        such a commit under the load's name. Nothing is changed.
    :raises NotFinishedError: it has not ended at the deadline; or a coordinator is moving or away, so that brokers may
        know more than they show.
    """
    check_ours(session, transactional_id)
    seen = _describe(session, transactional_id)
    attempt = present_holder(session, transactional_id, seen)
    if of is not None and not _is_same(attempt, of):
        return None
    if attempt is None:
        _check_known(transactional_id, seen)
        return None
    check_cluster(session, [attempt])
    if seen is not None and seen.is_open:
        # what is refused anyway costs its load no repair that is under way
        _check_not_decided(session, PreparedTransaction(transactional_id, seen.state), attempt)
    check_may_abort(session, attempt.load)
    if PooledId.parse(transactional_id) is not None:
        # also of a decided load: its slot may have had holders since that the ledger has forgotten
        check_commits_known(session, attempt.load)
    # before anything is looked at again: from here on nobody decides it (rule: decide-before-kafka)
    session.ledger.make_undecidable(attempt.load, up_to=attempt.number, decided_by=by, reason=reason)
    give_up = time.monotonic() + deadline_s
    ended: PreparedTransaction | None = None
    while True:
        # described first, then the ledger is asked, then exactly that identity is ended (rule: describe-then-ask)
        seen = _describe(session, transactional_id)
        if seen is None or not seen.is_open:
            return ended
        identity = PreparedTransaction(transactional_id, seen.state)
        if not _is_same(holder_of(session, identity), attempt):
            return ended  # ours is over, and its slot was given to another attempt
        # what is open may be a repair's: nobody enters it either; with nothing open, none is given up for nothing
        session.ledger.abandon_repairs(attempt.load, reason=f"force-terminated by {by}: {reason}")
        _check_not_decided(session, identity, attempt)
        if seen.coordinator_state is CoordinatorState.ONGOING:
            log.warning("force-terminating %s of %s attempt %d", identity, attempt.load, attempt.number)
            session.coordinator.end(identity, Verdict.ABORT)
            ended = identity
        if time.monotonic() >= give_up:
            raise NotFinishedError(
                f"the transaction is still {seen.coordinator_state.value} after {deadline_s:g} s",
                remedy="Look at the brokers, then run it again",
                load=str(attempt.load),
                attempt=attempt.number,
                transactional_id=transactional_id,
            )
        time.sleep(0.1)


def _describe(session: Session, transactional_id: str) -> TransactionDescription | None:
    return session.coordinator.describe([transactional_id]).get(transactional_id)


def _is_same(one: AttemptRow | None, other: AttemptRow) -> bool:
    return one is not None and (one.load, one.number) == (other.load, other.number)


def _check_known(transactional_id: str, seen: TransactionDescription | None) -> None:
    if seen is None:
        raise ConfigurationError(
            "neither the ledger nor a coordinator knows this transactional id",
            remedy="Take it from `airflow-kafka-eos transactions list`",
            transactional_id=transactional_id,
        )
    if seen.is_open:
        raise InDoubtError(
            f"the transaction is {seen.coordinator_state.value}, and the ledger does not know its attempt",
            remedy=ending_the_unknown(transactional_id),
            transactional_id=transactional_id,
        )


def _check_not_decided(session: Session, identity: PreparedTransaction, attempt: AttemptRow) -> None:
    if not session.ledger.is_decided_commit(identity):
        return
    # COMMITTED: each of its commit markers was seen (rule: zombie-behind-the-commit), so what is open now is what a
    # zombie began behind them
    if session.ledger.state(attempt.load) in (LoadState.COMMITTED, LoadState.GIVEN_UP):
        return
    raise UndecidableError(
        "the transaction is decided to be committed: it can only be rolled forward",
        remedy=f"Run `airflow-kafka-eos loads recover {attempt.load.in_command}`; give the load up by name first if it "
        "must never be completed",
        load=str(attempt.load),
        attempt=attempt.number,
        transactional_id=identity.transactional_id,
    )
