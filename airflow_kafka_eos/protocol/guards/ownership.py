"""Whose a transactional id is: which attempt holds it, in which Kafka cluster, and what a listing may not show.

Rules: only-our-ids, describe-then-ask, one-cluster-per-attempt.

One ledger may serve several clusters, and connections get changed. In the wrong cluster nothing of an attempt is open
and nothing of it is committed: cleanup would close it, and commit would take it for lost. So nothing is done to it from
there. And brokers leave out of a listing what one may not describe, without a word.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_kafka_eos.errors import AccessError, ConfigurationError, OtherClusterError
from airflow_kafka_eos.kafka.admin.list_permissions import why_short, why_some_hidden
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import END_BY_HAND, LoadIdentity
from airflow_kafka_eos.naming import AnyId, PooledId, TransactionalId, parse
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TransactionDescription

#: By what a command's cluster is named, all of it: whoever is refused may have been led elsewhere by any of them.
CHOSEN_BY = (
    "--kafka-conn-id, --bootstrap-server or --command-config, where none is given AIRFLOW_KAFKA_EOS_KAFKA or "
    "AIRFLOW_KAFKA_EOS_KAFKA_FILE"
)


def is_ours(session: Session, transactional_id: str) -> bool:
    """Whether an id parses as one of this namespace and this ledger."""
    parsed = parse(transactional_id)
    return parsed is not None and (parsed.namespace, parsed.ledger_id) == (
        session.namespace,
        session.ledger.ledger_id,
    )


def check_ours(session: Session, transactional_id: str) -> None:
    """:raises ConfigurationError: the id is not of this namespace and ledger (rule: only-our-ids)."""
    if is_ours(session, transactional_id):
        return
    parsed = parse(transactional_id)
    if parsed is None:
        what, remedy = "is not one of this package's", "that application"
    elif parsed.ledger_id != session.ledger.ledger_id:
        what = f"is of ledger {parsed.ledger_id}, this one is {session.ledger.ledger_id}"
        remedy = "whoever has that ledger"
    else:
        what = f"is of namespace {parsed.namespace!r}, not {session.namespace!r}"
        remedy = f"--namespace {parsed.namespace}"
    raise ConfigurationError(
        f"transactional id {transactional_id!r} {what}: it is never ended from here",
        remedy=f"Leave it to {remedy}",
        transactional_id=transactional_id,
    )


def ending_the_unknown(transactional_id: str) -> str:
    """What a person does with an id of ours that is open and whose attempt the ledger does not know. No I/O."""
    restored = "docs/howto-on-call.md, The ledger was restored, says what is looked at, and in which order it is ended"
    if PooledId.parse(transactional_id) is None:
        return f"Check that this is the ledger that opened it. If it was restored from a backup: {restored}"
    return (
        f"If the ledger was restored from a backup: {restored}. Else its slot is in doubt, or was settled, and this "
        "command ends nothing there: docs/howto-on-call.md, Transactional ids, says what to make sure of before it is "
        f"ended by {END_BY_HAND}"
    )


def open_of_ours(session: Session) -> list[TransactionDescription]:
    """What is open under the ids of this ledger in the session's namespace."""
    listed = [name for name in session.coordinator.list_open(session.id_prefix) if is_ours(session, name)]
    return [seen for seen in session.coordinator.describe(listed).values() if seen.is_open]


def number_of(session: Session, load: LoadIdentity, transactional_id: str) -> int | None:
    """The number of the attempt or repair of the load that an incrementing id is of; None: it is not the load's."""
    parsed = TransactionalId.parse(transactional_id)
    if parsed is None or (parsed.load, parsed.ledger_id) != (load, session.ledger.ledger_id):
        return None
    return parsed.attempt


def holder_of(session: Session, transaction: PreparedTransaction) -> AttemptRow | None:
    """The attempt that a transaction belongs to; None when the ledger does not know any. See :func:`holders_of`."""
    return holders_of(session, [transaction]).get(transaction)


def present_holder(
    session: Session, transactional_id: str, seen: TransactionDescription | None
) -> AttemptRow | None:
    """Whose an id is now: by what is open under it, at rest whom the id was given to last.

    A coordinator at rest may show what an earlier holder of a slot has ended.

    :param seen: what its coordinator shows of it.
    """
    state = seen.state if seen is not None and seen.is_open else PreparedTxnState.EMPTY
    return holder_of(session, PreparedTransaction(transactional_id, state))


def holders_of(
    session: Session, transactions: Iterable[PreparedTransaction]
) -> dict[PreparedTransaction, AttemptRow]:
    """The attempts that transactions belong to; those that the ledger does not know are left out.

    What was prepared under that very identity first, then whom the id was given to: a repair's to the attempt that it
    repairs, a slot's to the last that has leased it. The ledger is asked once for all, and once for each load (and each
    pooled id) with transactions that were never reported.
    """
    every = set(transactions)
    named = session.ledger.prepared_as({t.state for t in every if not t.state.is_empty})
    found = {row.transaction: attempt for attempt, row in named if row.transaction in every}
    attempts: dict[LoadIdentity, dict[int, AttemptRow]] = {}
    for transaction in every - set(found):
        parsed = parse(transaction.transactional_id)
        if parsed is None or parsed.ledger_id != session.ledger.ledger_id:
            continue
        given = _given_to(session, parsed)
        if given is None:
            continue
        load, number = given
        if load not in attempts:
            attempts[load] = _by_number(session, load)
        if number in attempts[load]:
            found[transaction] = attempts[load][number]
    return found


def _given_to(session: Session, parsed: AnyId) -> tuple[LoadIdentity, int] | None:
    if not isinstance(parsed, PooledId):
        return parsed.load, parsed.attempt
    slot = session.ledger.slot(parsed.namespace, parsed.load_name, parsed.slot)
    # a slot that was not looked at may show what this ledger has forgotten
    return (slot.holder, slot.attempt) if slot is not None and slot.checked_at is not None else None


def _by_number(session: Session, load: LoadIdentity) -> dict[int, AttemptRow]:
    """A load's attempts by number; under a repair's number, the attempt that it repairs."""
    found = {row.number: row for row in session.ledger.attempts(load)}
    return found | {r.number: found[r.attempt] for r in session.ledger.repairs(load)}


def check_cluster(session: Session, rows: Iterable[AttemptRow], *, closed_too: bool = False) -> None:
    """Refuse to act on attempts of another cluster; called before anything is changed in ledger or Kafka.

    :param rows: the attempts that are about to be acted on.
    :param closed_too: also those that are closed. Else they are let pass: nothing of them is open any more, so that a
        load may go on, or be left as it is, when its connection leads elsewhere by now.
    :raises OtherClusterError: naming the first attempt, and both clusters.
    """
    for row in rows:
        if (closed_too or row.closed_at is None) and is_of_other_cluster(session, row):
            load = row.load
            if row.closed_at is not None:
                go_on = f"To write the load to {session.cluster_id} too, reload it, or give it a load_key of its own"
            else:
                go_on = _end_it_there(session, row)
            raise OtherClusterError(
                f"attempt {row.number} of load {load} was written to Kafka cluster {row.cluster_id}, the connection "
                f"leads to Kafka cluster {session.cluster_id}",
                remedy=f"Nothing was changed. Use the Kafka connection that leads to {row.cluster_id} (a command's is "
                f"chosen by {CHOSEN_BY}). {go_on}",
                load=str(load),
                attempt=row.number,
                written_to=row.cluster_id,
                leads_to=session.cluster_id,
            )


def is_of_other_cluster(session: Session, row: AttemptRow) -> bool:
    """Whether an attempt was written to another cluster.

    Where that is not known it passes for this one: attempts that no application was submitted for, and brokers
    that tell no cluster id.
    """
    return row.cluster_id is not None and session.cluster_id not in (None, row.cluster_id)


def _end_it_there(session: Session, row: AttemptRow) -> str:
    return (
        f"To load into {session.cluster_id} from now on, first end what is open there: `airflow-kafka-eos cleanup "
        f"{row.load.in_command} --kafka-conn-id …`, with a connection to {row.cluster_id}. If that cluster is gone for "
        f"good: `airflow-kafka-eos ledger forget-cluster {row.cluster_id}`"
    )


def hidden_by_acls(session: Session) -> AccessError | None:
    """Why a listing of the session's namespace may be short, to be raised or shown; None when it is whole.

    With rights on single load names only, it is whole as far as the ledger's own names go.

    :raises AccessError: the login itself is refused.
    """
    ledger, namespace = session.ledger, session.namespace
    return why_short(session.coordinator, namespace, ledger.ledger_id, lambda: ledger.names(namespace))


def others_hidden(session: Session) -> AccessError | None:
    """Why a listing of everybody's transactions may be short; None where it is proven that it is whole.

    :raises BrokerUnavailableError: a broker does not answer.
    """
    return why_some_hidden(session.partitions.wire)
