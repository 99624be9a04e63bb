"""KIP-939's producer calls, for one transactional id, over our ledger.

| KIP-939 | here |
| --- | --- |
| `initTransactions(keepPreparedTxn=true)` | :func:`init_transactions`: what is prepared is found and kept |
| `initTransactions(false)` | the same with ``keep_prepared=False``: what is open is aborted, ledger first |
| `prepareTransaction()` | a writer's ``prepare()`` flushes; :func:`prepared_state` is what the ledger has of it |
| `completeTransaction(state)` | :func:`complete_transaction` |
| `forceTerminateTransaction(id)` | :func:`airflow_kafka_eos.protocol.cleanup.force_terminate.force_terminate` |

No released broker grants KeepPreparedTxn: 4.4.0 answers UNSUPPORTED_VERSION. It is not needed either. Our
PreparedTxnState is producer id and epoch, and EndTxn with both of them resumes a transaction on every broker from 3.9
on, from any process, as often as one likes. A broker that granted it would bump the epoch, and so fence whoever else is
committing the same load; therefore it is never asked for with an id that something was written with
(:func:`is_keep_prepared_granted` asks with one that is not).

The dual-write recipe of KIP-939 needs none of these in an Airflow load: `decide` writes decision and states in one
database transaction, and a rerun of `commit` or `cleanup` is the recovery.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_kafka_eos.errors import AccessError, BrokerTooOldError, InDoubtError, UndecidableError
from airflow_kafka_eos.ledger.rows import AttemptRow, TransactionRow
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.naming import IdRole, PooledId, TransactionalId, parse
from airflow_kafka_eos.protocol.cleanup.force_terminate import force_terminate
from airflow_kafka_eos.protocol.evidence import evidence
from airflow_kafka_eos.protocol.guards.ownership import check_cluster, check_ours, holder_of
from airflow_kafka_eos.protocol.guards.restored_ledger import check_not_restored
from airflow_kafka_eos.protocol.guards.slots import decided_of, is_unknown_commit
from airflow_kafka_eos.protocol.repair.recover import recover
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState

_PROBE_TIMEOUT_MS = 1000


@dataclass(frozen=True)
class Completion:
    """How a transaction was completed.

    :param transaction: what it was about; None: nothing was open, nothing was decided.
    """

    verdict: Verdict
    transaction: PreparedTransaction | None


def prepared_state(session: Session, transactional_id: str) -> PreparedTxnState:
    """What the ledger has recorded for an id: its PreparedTxnState, EMPTY when it was never reported as prepared.

    Of a pooled id: what the attempt has reported that holds its slot now, or held it last; no earlier one's.

    :raises ConfigurationError: the id is not of this namespace and ledger.
    :raises UndecidableError: the ledger has forgotten it: its attempt was closed, and pruned since.
    """
    check_ours(session, transactional_id)
    attempt = holder_of(session, PreparedTransaction(transactional_id, PreparedTxnState.EMPTY))
    if attempt is not None and attempt.pruned_at is not None:
        raise _pruned(PreparedTransaction(transactional_id, PreparedTxnState.EMPTY), attempt)
    return PreparedTxnState.EMPTY if attempt is None else _recorded(session, attempt, transactional_id)


def init_transactions(
    session: Session, transactional_id: str, *, keep_prepared: bool, by: str, deadline_s: float = 30
) -> PreparedTxnState:
    """Come back to a transactional id of an earlier process.

    With ``keep_prepared``: the state that is prepared and still open, EMPTY when there is none; nothing is ended,
    nothing is initialised. Without: what is open is aborted (:func:`force_terminate`, with its guards and errors), and
    the answer is EMPTY. An id that was written with is not initialised again here: attempts get theirs from the ledger
    (rule: one-init-per-transaction). A pooled id is taken for its present holder's, whoever that is.

    :raises UndecidableError: another transaction than the recorded one is open under the id (a zombie's).
    :raises OtherClusterError: its attempt was written to another cluster, and is not closed.
    """
    if not keep_prepared:
        force_terminate(session, transactional_id, by=by, reason="init_transactions", deadline_s=deadline_s)
        return PreparedTxnState.EMPTY
    recorded = prepared_state(session, transactional_id)
    holder = holder_of(session, PreparedTransaction(transactional_id, recorded))
    check_cluster(session, [] if holder is None else [holder])
    seen = session.coordinator.describe([transactional_id]).get(transactional_id)
    if seen is None or not seen.is_open or recorded.is_empty:
        return PreparedTxnState.EMPTY
    if seen.state != recorded:
        raise UndecidableError(
            f"{seen.state} is open under the id, prepared was {recorded}",
            remedy="The prepared transaction has ended: `loads recover` tells from the log how. cleanup ends the "
            "open one",
            transactional_id=transactional_id,
        )
    return recorded


def complete_transaction(
    session: Session, transactional_id: str, state: PreparedTxnState, *, by: str, deadline_s: float = 60
) -> Completion:
    """Commit if the recorded decision names this very state, abort else (KIP-939's recovery recipe).

    The decision is the ledger's, not that a state was prepared: what nobody has decided is aborted, and its attempt
    made undecidable before Kafka is told (rule: decide-before-kafka). A decision covers its load: all of its
    transactions are committed, or their replacements (rule: repair-replaces-lost-row), and the answer stays the same
    however often it is asked.

    With pooled ids the state tells whose transaction is meant. When the id has gone to another attempt since then,
    nothing of that one is touched. Without a state the present holder's is meant.

    "Abort" is never answered where the brokers show a commit that the ledger does not know: it was restored from a
    backup, and the answer would have the caller load the same data again.

    :param state: what the caller's database has for the id; EMPTY when it has none.
    :raises InDoubtError: the ledger has forgotten what became of it: coordinators or logs show a commit under the id,
        or of its load, that is not decided; or nobody remembers a state that the ledger has never recorded. Nothing is
        touched.
    :raises OtherClusterError: its attempt was written to another cluster, and is not closed.
    :raises UndecidableError: it is decided to be committed with another state: the two databases contradict each
        other, and a decision is never taken back; or the ledger has forgotten the state: an attempt that was committed,
        and pruned since, may have had it.
    :raises KafkaEosError: see :func:`~airflow_kafka_eos.protocol.repair.recover.recover` and :func:`force_terminate`.
    """
    check_ours(session, transactional_id)
    given, reason = PreparedTransaction(transactional_id, state), "complete_transaction: no decision"
    attempt = holder_of(session, given)
    if attempt is not None:
        check_cluster(session, [attempt])
    _check_not_pruned(session, attempt, given)
    _check_not_forgotten(session, attempt, given)
    if attempt is not None:
        if _is_of_an_earlier_holder(session, attempt, given):
            return Completion(Verdict.ABORT, None)
        # before its verdict counts: from here on nobody decides it (rule: decide-before-kafka)
        session.ledger.make_undecidable(attempt.load, up_to=attempt.number, decided_by=by, reason=reason)
        if _is_decided_commit(session, attempt, given):
            recover(session, attempt.load, by=by, deadline_s=deadline_s)
            return Completion(Verdict.COMMIT, given)
    ended = force_terminate(session, transactional_id, by=by, reason=reason, deadline_s=deadline_s, of=attempt)
    return Completion(Verdict.ABORT, ended)


def is_keep_prepared_granted(session: Session, probe: TransactionalId) -> bool:
    """Whether the brokers grant KeepPreparedTxn. None that is released does.

    :param probe: an id of role ``probe``: nothing is ever written with it, so nothing can be lost by asking.
    :raises AccessError: the ids may not be written with at all.
    """
    assert probe.role is IdRole.PROBE  # a broker that grants it bumps the epoch of what is open
    try:
        session.coordinator.init_producer_id(
            str(probe), _PROBE_TIMEOUT_MS, enable_2pc=True, keep_prepared=True
        )
    except BrokerTooOldError:
        return False
    except AccessError:
        session.coordinator.init_producer_id(str(probe), _PROBE_TIMEOUT_MS)  # is it two-phase commit that is refused?
        return False
    return True


def _check_not_pruned(session: Session, attempt: AttemptRow | None, given: PreparedTransaction) -> None:
    """Refuse to say "abort" of what may have been committed, and is forgotten."""
    if attempt is not None and attempt.pruned_at is not None and attempt.verdict is Verdict.COMMIT:
        raise _pruned(given, attempt)
    parsed = PooledId.parse(given.transactional_id)
    if parsed is None or given.state.is_empty:
        return
    if attempt is not None and _recorded(session, attempt, given.transactional_id) == given.state:
        return
    if session.ledger.has_pruned(parsed.namespace, parsed.load_name, parsed.slot):
        raise _pruned(given, None)


def _pruned(given: PreparedTransaction, attempt: AttemptRow | None) -> UndecidableError:
    when = "" if attempt is None or attempt.pruned_at is None else f" at {attempt.pruned_at}"
    return UndecidableError(
        f"what was prepared under the id may have been pruned from the ledger{when}: whether this very state was "
        "decided is not known any more",
        remedy="Nothing was touched. `airflow-kafka-eos loads list` has the loads of its name and what became of them. "
        "Prune later than the longest time after which your programs come back (`ledger prune --older-than`)",
        load=None if attempt is None else str(attempt.load),
        attempt=None if attempt is None else attempt.number,
        transactional_id=given.transactional_id,
    )


def _recorded(session: Session, attempt: AttemptRow, transactional_id: str) -> PreparedTxnState:
    """What an attempt has reported for an id, also when it was replaced since then."""
    row = _row(session, attempt, transactional_id)
    return PreparedTxnState.EMPTY if row is None else row.transaction.state


def _row(session: Session, attempt: AttemptRow, transactional_id: str) -> TransactionRow | None:
    rows = session.ledger.transactions(attempt.load, attempt.number)
    return next((row for row in rows if row.transaction.transactional_id == transactional_id), None)


def _is_of_an_earlier_holder(session: Session, attempt: AttemptRow, given: PreparedTransaction) -> bool:
    """Whether a pooled id's state is neither its attempt's nor open: what nobody has reported is over then."""
    if given.state.is_empty or PooledId.parse(given.transactional_id) is None:
        return False
    if _recorded(session, attempt, given.transactional_id) == given.state:
        return False
    seen = session.coordinator.describe([given.transactional_id]).get(given.transactional_id)
    return seen is None or not seen.is_open or seen.state != given.state


def _check_not_forgotten(session: Session, attempt: AttemptRow | None, given: PreparedTransaction) -> None:
    """Refuse to go on where brokers show more than the ledger knows, as after a restore; a decided load is known."""
    name = given.transactional_id
    seen = session.coordinator.describe([name]).get(name)
    if seen is not None and is_unknown_commit(seen, decided_of(session, [seen])):
        raise _doubt(given, attempt, f"its coordinator shows it as committed ({seen.state})")
    if attempt is not None and attempt.verdict is Verdict.COMMIT:
        return
    recorded = None if attempt is None else _row(session, attempt, name)
    if attempt is not None and recorded is not None and _may_be_committed(session, recorded):
        now = session.ledger.attempt(attempt.load, attempt.number)
        if now is None or now.verdict is not Verdict.COMMIT:  # it may have been decided, and committed, meanwhile
            raise _doubt(given, attempt, "the log has its commit markers")
        return
    parsed = parse(name)
    load = attempt.load if attempt else parsed.load if isinstance(parsed, TransactionalId) else None
    if load is not None:
        check_not_restored(session, load)
    if attempt is not None and attempt.is_undecided and recorded is None and seen is None and not given.state.is_empty:
        doubt = _doubt(given, attempt, f"the caller has {given.state}, and neither ledger nor coordinator know of it")
        doubt.remedy += ". Else `airflow-kafka-eos cleanup NAME KEY` makes its attempt undecidable"
        raise doubt


def _may_be_committed(session: Session, recorded: TransactionRow) -> bool:
    """Whether a partition's log has a commit marker that is this transaction's, or may be."""
    return any(marker.may_be_commit for marker in evidence(session, recorded).values())


def _doubt(given: PreparedTransaction, attempt: AttemptRow | None, what: str) -> InDoubtError:
    return InDoubtError(
        f"the ledger knows no decision to commit the transaction, and {what}",
        remedy="Nothing was touched. If the ledger was restored from a backup, see what it has forgotten by "
        "`airflow-kafka-eos ledger compare`, take its load back by `airflow-kafka-eos loads reinstate`, and go through "
        "the steps of docs/howto-on-call.md, The ledger was restored, before `airflow-kafka-eos ledger new-id`",
        load=None if attempt is None else str(attempt.load),
        attempt=None if attempt is None else attempt.number,
        transactional_id=given.transactional_id,
    )


def _is_decided_commit(session: Session, attempt: AttemptRow, given: PreparedTransaction) -> bool:
    """Whether the attempt is decided with that very state.

    Unlike the ledger's ``is_decided_commit`` also for what a repair has replaced.

    :raises UndecidableError: it is decided with another one.
    """
    now = session.ledger.attempt(attempt.load, attempt.number)
    recorded = _recorded(session, attempt, given.transactional_id)
    if now is None or now.verdict is not Verdict.COMMIT or recorded.is_empty:
        return False
    if recorded == given.state:
        return True
    raise UndecidableError(
        f"the transaction is decided to be committed as {recorded}, the caller has {str(given.state) or 'nothing'}",
        remedy="One of the databases was restored from a backup, or they are not of one load: compare them",
        load=str(attempt.load),
        attempt=attempt.number,
        transactional_id=given.transactional_id,
    )
