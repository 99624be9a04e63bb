"""A slot that was just leased is looked at before one of its ids is used: the broker must know no more than the ledger.

Rule: look-at-the-slot.

When it was given back, the end of every transaction under it was verified. So whatever is open now, and whatever was
committed that the ledger has not decided, was done by somebody whom the ledger does not know: a zombie that has
outlived the quarantine, another hand, or this ledger itself before it was restored from a backup. To use the ids, or to
end what is open, could lose a load; so nothing is touched.

The same where an id no longer shows the commit that the ledger saw last under it, and no writer was left to begin
anything: what was committed there since may be hidden by what was aborted behind it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from airflow_kafka_eos.errors import InDoubtError, NotFinishedError, OtherClusterError, UndecidableError
from airflow_kafka_eos.kafka.admin.list_permissions import describe_listed
from airflow_kafka_eos.ledger.rows import AttemptRow, SlotRow
from airflow_kafka_eos.ledger.slots import in_doubt_remedy, last_request
from airflow_kafka_eos.naming import PooledId, counted, slot_prefix
from airflow_kafka_eos.protocol.guards.coordinator_watch import CoordinatorWatch
from airflow_kafka_eos.protocol.guards.ownership import CHOSEN_BY, is_of_other_cluster
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import (
    MAX_PRODUCER_EPOCH,
    CoordinatorState,
    Outcome,
    PreparedTransaction,
    PreparedTxnState,
    TransactionDescription,
)

log = logging.getLogger(__name__)

#: A coordinator notes that a transaction is complete a moment after its last marker, which is all that the ledger
#: waited for.
ENDING = frozenset({CoordinatorState.PREPARE_COMMIT, CoordinatorState.PREPARE_ABORT})
_ENDING_S = 30.0


def check_slot(session: Session, row: AttemptRow, *, poll_s: float = 0.02) -> dict[str, TransactionDescription]:
    """Describe every id of the slot that an attempt has leased; nothing happens without a slot.

    :returns: those that a coordinator knows, each at rest.
    :raises InDoubtError: the broker knows of something that the ledger does not. The slot is put in doubt, and with it
        the load's name: nothing is written until a person has looked.
    :raises UndecidableError: the slot was given back meanwhile, for the attempt is over: another one may have it.
    :raises NotFinishedError: the brokers do not finish what was ended long since.
    """
    if row.slot is None:
        return {}
    described = _settled(session, row, row.slot, poll_s)
    decided = decided_of(session, described.values())
    found = unaccounted(described.values(), decided) + gone(_committed_before(session, row), described)
    if not found:
        if not session.ledger.note_slot_checked(row):
            raise _given_back(session, row)
        return described
    # asked behind the Describe: what the slot's next holder has there is in no doubt
    if not _is_held(session, row, row.slot):
        raise _given_back(session, row)
    reason = "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")
    session.ledger.put_slot_in_doubt(row.load.namespace, row.load.name, row.slot, reason)
    raise InDoubtError(
        f"the broker shows under slot {row.slot} what the ledger does not know: {reason}",
        remedy="Nothing was touched. "
        f"{in_doubt_remedy(row.load.namespace, row.load.name, row.slot)}; then clear prepare",
        load=str(row.load),
        attempt=row.number,
        transactional_id=found[0].partition(" ")[0],
    )


def _is_held(session: Session, row: AttemptRow, number: int) -> bool:
    """Whether the slot is still that of the attempt: once given back, it never is again."""
    slot = session.ledger.slot(row.load.namespace, row.load.name, number)
    return slot is not None and slot.is_leased and (slot.holder, slot.attempt) == (row.load, row.number)


def _given_back(session: Session, row: AttemptRow) -> UndecidableError:
    """Final: a retry would be refused as well, or stop the attempt that has superseded this one."""
    now, by = session.ledger.attempt(row.load, row.number), ""
    if now is not None and now.verdict is not None:
        by = f": it was aborted by {now.decided_by} at {now.decided_at}: {now.reason}"
    return UndecidableError(
        f"slot {row.slot} was given back before the attempt had looked at its ids{by}",
        remedy="Nothing was written. If another run loads the same key, let it go on. Else clear begin, or prepare "
        "together with its setup: begin opens a new attempt",
        load=str(row.load),
        attempt=row.number,
    )


def check_nothing_open(session: Session, slot: SlotRow) -> None:
    """Refuse to call a slot looked at while something is open under its ids: nothing ends it behind that.

    Asked are all ids that coordinators list for it, and those that its last attempts have reported, also under the id
    that the ledger had before.

    :raises InDoubtError: something is open.
    :raises OtherClusterError: its holder was written to another cluster.
    :raises AccessError: ACLs may have left one out of the listing.
    :raises NotFinishedError: a coordinator is moving or away, and may have left one out of the listing.
    """
    namespace, name, number = slot.holder.namespace, slot.holder.name, slot.number
    holder = session.ledger.attempt(slot.holder, slot.attempt)
    # closed ones too: what is open under the slot is not its holder's
    if holder is not None and is_of_other_cluster(session, holder):
        raise OtherClusterError(
            f"slot {number} of load name {name!r} was written to Kafka cluster {holder.cluster_id}, the connection "
            f"leads to Kafka cluster {session.cluster_id}",
            remedy=f"Nothing was changed. Name the Kafka connection that leads to {holder.cluster_id} (a command's is "
            f"chosen by {CHOSEN_BY}). If that cluster is gone for good: `airflow-kafka-eos ledger forget-cluster "
            f"{holder.cluster_id}`",
            load=str(slot.holder),
            attempt=slot.attempt,
            written_to=holder.cluster_id,
            leads_to=session.cluster_id,
        )
    watch = CoordinatorWatch(session)
    listed = session.coordinator.list_open(slot_prefix(namespace, session.ledger.ledger_id, name, number))
    moved = watch.has_moved()
    ids = {
        i for i in (*listed, *session.ledger.slot_ids(namespace, name, number))
        if (found := PooledId.parse(i)) is not None and found.slot == number
    }  # fmt: skip
    described = describe_listed(session.coordinator, slot.holder, session.ledger.ledger_id, ids, pooled=True)
    still = sorted(i for i, d in described.items() if d.is_open)
    if still:
        raise InDoubtError(
            f"{counted(still)} of slot {number} of load name {name!r} are open, and hold readers back",
            remedy=f"The slot stays in doubt. {in_doubt_remedy(namespace, name, number)}",
            transactional_id=still[0],
        )
    if moved:
        raise NotFinishedError(
            "a transaction coordinator is moving or away: it is not known whether something is open under the slot",
            remedy="Check that all replicas of __transaction_state are up, then run it again",
        )


def unaccounted(
    described: Iterable[TransactionDescription], decided: Mapping[str, Collection[PreparedTxnState]]
) -> list[str]:
    """What a slot that was given back must not show, one text each. No I/O.

    :param decided: by id, the identities that were decided to be committed.
    """
    found = []
    for d in sorted(described, key=lambda d: d.transactional_id):
        if not d.coordinator_state.is_at_rest:
            found.append(f"{d.transactional_id} has a transaction open as {d.state} ({d.coordinator_state.value})")
        elif is_unknown_commit(d, decided):
            found.append(f"{d.transactional_id} was committed as {d.state}, which the ledger has not decided")
    return found


def gone(
    committed: Iterable[PreparedTransaction], described: Mapping[str, TransactionDescription]
) -> list[str]:
    """Of what the attempt before has committed, what its ids do not show any more, one text each. No I/O.

    An id that its coordinator has forgotten (``transactional.id.expiration.ms``) says nothing.

    :param described: what coordinators show, by id.
    """
    found = []
    for t in sorted(committed, key=lambda t: t.transactional_id):
        d = described.get(t.transactional_id)
        if d is None or d.coordinator_state is CoordinatorState.DEAD:
            continue
        if not (d.coordinator_state.is_committed and may_show(t.state, d.state)):
            found.append(
                f"{t.transactional_id} was committed as {t.state}, and has been used since: it shows {d.state} "
                f"({d.coordinator_state.value})"
            )
    return found


def _committed_before(session: Session, row: AttemptRow) -> list[PreparedTransaction]:
    if row.left_slot is None:
        return []
    load, number = row.left_slot
    return [
        one.transaction for one in session.ledger.transactions(load, number) if one.outcome is Outcome.COMMITTED
    ]


def is_unknown_commit(
    described: TransactionDescription, decided: Mapping[str, Collection[PreparedTxnState]]
) -> bool:
    """Whether a transaction was committed, or is about to be, that the ledger has not decided. No I/O."""
    return described.coordinator_state.is_committed and not any(
        may_show(known, described.state) for known in decided.get(described.transactional_id, ())
    )


def decided_of(
    session: Session, described: Iterable[TransactionDescription]
) -> dict[str, set[PreparedTxnState]]:
    """By id, the identities decided to be committed that may be shown as these are.

    Where an end leaves the epoch as it is (before transaction version 2), one that is shown an epoch later is another
    holder's commit, which the ledger has forgotten. A cluster whose version was lowered shows such of its own
    (docs/brokers.md): then a person has to look.
    """
    shown = {d.transactional_id: d.state for d in described if d.coordinator_state.is_committed}
    found = session.ledger.decided_states([PreparedTransaction(name, state) for name, state in shown.items()])
    exactly = {name: states & {shown[name]} for name, states in found.items()}
    if all(exactly.values()) or session.partitions.wire.ends_raise_epochs():
        return found
    return exactly


def may_show(committed: PreparedTxnState, shown: PreparedTxnState) -> bool:
    """Whether a coordinator may show one state for what was committed as another.

    With transaction version 2 the end adds one to the epoch, and takes a new producer id where epochs are used up
    (KIP-890). Equality and one step are all that is compared (rule: recorded-identity).
    """
    if committed.producer_epoch >= MAX_PRODUCER_EPOCH - 1 and shown.producer_epoch == 0:
        return True
    return shown.producer_id == committed.producer_id and (
        shown.producer_epoch - committed.producer_epoch in (0, 1)
    )


def may_have_begun(slot: SlotRow, holder: AttemptRow | None, found: TransactionDescription) -> bool:
    """Whether the last holder of a slot can have begun a transaction under it.

    It can until the last request of its writers has come (rule: verified-end-before-reuse), by the broker's clock
    against the ledger's. A later one is of a zombie beyond its quarantine, or of a holder that this ledger has
    forgotten: it was restored. No I/O.

    :param holder: the slot's.
    """
    if slot.is_leased:
        until = None if holder is None or holder.writers_until is None else last_request(holder.writers_until)
        return until is None or found.start_time_ms <= until.timestamp() * 1000
    if slot.quarantined_until is None:
        return False  # its end was verified, and no writer of its was left
    return found.start_time_ms <= datetime.fromisoformat(slot.quarantined_until).timestamp() * 1000


def _settled(session: Session, row: AttemptRow, slot: int, poll_s: float) -> dict[str, TransactionDescription]:
    namespace, name = row.load.namespace, row.load.name
    listed = session.coordinator.list_known(slot_prefix(namespace, session.ledger.ledger_id, name, slot))
    # by name too, for a coordinator that is just moving hides its ids from a listing (rule: listing-only-adds)
    named = session.ledger.slot_ids(namespace, name, slot)
    # not those of before `ledger new-id`
    ids = {
        i
        for i in (*listed, *named)
        if (found := PooledId.parse(i)) is not None
        and found.slot == slot
        and found.ledger_id == session.ledger.ledger_id
    }
    give_up = time.monotonic() + _ENDING_S
    while True:
        described = session.coordinator.describe(ids) if ids else {}
        ending = sorted(i for i, d in described.items() if d.coordinator_state in ENDING)
        if not ending:
            return described
        if time.monotonic() > give_up:
            raise NotFinishedError(
                f"{len(ending)} transactions of slot {slot} have been ending for {_ENDING_S:g} s",
                remedy="Check that all replicas of __transaction_state and of the topics are up, then try again",
                load=str(row.load),
                attempt=row.number,
                transactional_id=ending[0],
            )
        time.sleep(poll_s)
