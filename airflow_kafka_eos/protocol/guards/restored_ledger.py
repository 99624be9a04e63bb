"""A ledger that knows less than the broker was restored from a backup: nothing is guessed, nothing is ended.

Rule: unknown-commit-stops.

The ledger is always written before Kafka is told (rule: decide-before-kafka), so asked behind a listing it knows
everything that the listing shows. Under the ledger's own random id (rule: only-our-ids) nobody else writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TypeVar

from airflow_kafka_eos.errors import InDoubtError, NotFinishedError
from airflow_kafka_eos.kafka.admin.list_permissions import describe_listed
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import END_BY_HAND, GIVE_UP, LoadIdentity, Verdict
from airflow_kafka_eos.micro_batch import MicroBatch, batch_of
from airflow_kafka_eos.naming import PooledId, TransactionalId, name_prefix, prefix, slot_prefix
from airflow_kafka_eos.protocol.guards.coordinator_watch import COORDINATORS, CoordinatorWatch
from airflow_kafka_eos.protocol.guards.ownership import is_ours, number_of
from airflow_kafka_eos.protocol.guards.slots import decided_of, is_unknown_commit, may_show
from airflow_kafka_eos.protocol.session import Session

T = TypeVar("T")

_SHOWN = 5
#: Seconds that a coordinator may take to move, while brokers are restarted one by one, before nothing is done for now.
SETTLES_S = 5.0
_PAUSE_S = 0.2
_REMEDY_DECIDED = (
    "Nothing is written: what this ledger takes for lost may have been repaired since its backup. Restore a newer one. "
    f"Else {GIVE_UP}, and write what is missing by hand; then `airflow-kafka-eos ledger new-id`"
)
_REMEDY = (
    "Nothing is ended or written. If the ledger was restored from a backup, restore a newer one, or go through the "
    "steps of docs/howto-on-call.md, The ledger was restored, in their order: `airflow-kafka-eos ledger compare` shows "
    "what it has forgotten; `airflow-kafka-eos loads reinstate` takes back what can be of that; what is open then is "
    f"ended by hand, by {END_BY_HAND}; `airflow-kafka-eos ledger new-id`. Behind that, not before: `airflow-kafka-eos "
    "loads set-committed` for each other load that the topics have, `airflow-kafka-eos ids settle NAME SLOT` for each "
    "slot in doubt, `airflow-kafka-eos streams set` with --decided for the last batch of each streaming query that its "
    "topics have, and `airflow-kafka-eos cursors set` for each cursor"
)


def check_attempts_known(session: Session, load: LoadIdentity, listed: Iterable[str]) -> None:
    """Refuse to go on where ids of attempts were listed that the ledger has given to no application.

    One that was only opened has no writers (rule: one-application-per-attempt): that it was submitted is forgotten.

    :param listed: transactional ids, listed before this call.
    :raises InDoubtError: there are such ids.
    """
    numbered = {name: n for name in listed if (n := number_of(session, load, name)) is not None}
    if not numbered:
        return
    submitted = {row.number for row in session.ledger.attempts(load) if row.is_submitted}
    known = submitted | {r.number for r in session.ledger.repairs(load)}  # numbered behind the attempts
    unknown = sorted(name for name, number in numbered.items() if number not in known)
    if unknown:
        what = f"has given {len(submitted)} attempts to an application, and the broker shows transactions of others"
        raise _doubt(load, what, unknown)


def check_not_restored(session: Session, load: LoadIdentity, *, slots: bool = True, named: bool = False) -> None:
    """Refuse to go on with a load of which the broker knows more: an attempt, or a commit that nobody decided.

    Whoever opens an attempt, gives one up, ends what it has open, or decides it asks before: a ledger may lose its last
    commits while runs are at work (docs/specification/restored.py). Ids that the ledger knows by name are described as
    well, for a coordinator that is moving hides its own from a listing (rule: listing-only-adds).

    A commit is seen for as long as its coordinator remembers the id (``transactional.id.expiration.ms``, 7 days).

    :param slots: ask for commits under all slots of the load's name, too; else where an attempt of the load has one.
    :param named: nothing but attempts that :func:`is_named` are ended behind it: what a listing lacks does not matter.
    :raises InDoubtError: there is such a transaction.
    :raises NotFinishedError: a coordinator is moving or away, and may have left one out of the listing (rule:
        listing-only-adds). It is waited for a moment.
    """
    give_up = time.monotonic() + SETTLES_S
    while not _is_whole(session, load, slots) and not named:
        if time.monotonic() >= give_up:
            raise _moving(load, "brokers know more of the load than the ledger")
        time.sleep(_PAUSE_S)


def _is_whole(session: Session, load: LoadIdentity, slots: bool) -> bool:
    """Look once; False where the listings may lack something that matters."""
    watch = CoordinatorWatch(session)
    seen = session.coordinator.list_states(prefix(load, session.ledger.ledger_id))  # once, for open and committed ones
    check_attempts_known(session, load, [name for name, state in seen if not state.is_at_rest])
    if _is_decided(session, load):
        return True  # begin writes nothing of it; commit asks itself before it repairs: rolling forward cannot wait
    shown = {name for name, state in seen if state.is_committed and number_of(session, load, name) is not None}
    attempts = session.ledger.attempts(load)
    # what is closed was seen to be over; and at what is of before `ledger new-id` a person has looked
    unclosed = [row.number for row in attempts if row.closed_at is None]
    named = [t.transaction for number in unclosed for t in session.ledger.transactions(load, number)]
    named = [t for t in named if is_ours(session, t.transactional_id)]
    described = session.coordinator.describe({t.transactional_id for t in named}) if named else {}
    for t in named:
        found = described.get(t.transactional_id)
        if found is not None and found.coordinator_state.is_committed and may_show(t.state, found.state):
            shown.add(t.transactional_id)
    if shown and not _is_decided(session, load):  # asked behind: what was decided meanwhile is known
        raise _doubt(load, "knows no decision to commit, and the broker shows committed transactions", sorted(shown))
    if slots or any(row.slot is not None for row in attempts):
        check_commits_known(session, load, listed=_listed_under_slots(session, load))
    return not watch.has_moved()


def is_named(rows: Iterable[AttemptRow]) -> bool:
    """Whether the ledger knows by name all that can be decided of these attempts, under ids of their own. No I/O.

    Then each id's coordinator is asked, and none of it is hidden. An attempt that the ledger has forgotten, and a
    coordinator hides, has superseded these: to end them harms nothing.
    """
    return all(row.is_prepared and row.slot is None for row in rows if row.closed_at is None)


def check_may_abort(session: Session, load: LoadIdentity) -> None:
    """:func:`check_not_restored` for a person who aborts an attempt; of a decided load nothing is made undecidable."""
    rows = session.ledger.attempts(load)
    if not any(row.verdict is Verdict.COMMIT for row in rows):
        check_not_restored(session, load, slots=False, named=is_named(rows))


def check_batches_known(session: Session, batch: MicroBatch, *, patience_s: float) -> None:
    """Refuse to decide a batch where brokers show an attempt or a commit of its query that the ledger does not know.

    Rule: unknown-commit-stops.

    Asked behind what was prepared: a ledger that is put back while its query runs lacks what was decided since, and it
    may be this very batch.

    Of batches before this one nothing is asked: each was decided when it was the last one.

    :param patience_s: seconds to wait for a coordinator that is moving or away, and hides its ids from the listing.
    :raises InDoubtError: there is such a transaction.
    :raises NotFinishedError: a coordinator was moving or away all the time (rule: listing-only-adds).
    """
    load = batch.load
    own = name_prefix(load.namespace, session.ledger.ledger_id, load.name)
    by_load: dict[LoadIdentity, list[str]] = {}
    # once for all: this is asked for each batch
    listing = partial(session.coordinator.list_states, own)
    seen = _listed_by_all(session, load, listing, patience_s, "the batch was committed before")
    committed = {name for name, state in seen if state.is_committed}
    for name in {name for name, state in seen if state.is_committed or not state.is_at_rest}:
        found = TransactionalId.parse(name)
        of = None if found is None else batch_of(found.load)
        if found is not None and of is not None and of[0] == batch.query_id and of[1] >= batch.number:
            by_load.setdefault(found.load, []).append(name)
    for other, names in sorted(by_load.items(), key=lambda item: str(item[0])):
        check_attempts_known(session, other, names)
        shown = sorted(committed.intersection(names))
        if shown and not _is_decided(session, other):
            raise _doubt(other, "knows no decision to commit, and the broker shows committed transactions", shown)
    check_commits_known(session, load, listed=committed)


def check_repairs_known(session: Session, load: LoadIdentity) -> None:
    """Refuse to repair a decided load where the broker knows of a repair that the ledger does not.

    Rule: unknown-commit-stops.

    Restored to a point between decision and adoption, a ledger takes for lost what was repaired and committed since: a
    second repair would be a duplicate. What is decided, superseded and adopted rows included, stops nobody. Nothing is
    recorded; what else of the load is open is rolled forward all the same.

    What it cannot tell: once the coordinators have forgotten the repair's id (``transactional.id.expiration.ms``,
    7 days after its commit), a ledger that was restored to before it repairs again.

    :raises InDoubtError: there is such a repair, open or committed.
    :raises NotFinishedError: a coordinator was away or moved, and may have left it out of the listing
        (rule: listing-only-adds).
    :raises AccessError: ACLs may have left it out.
    """
    own = prefix(load, session.ledger.ledger_id)
    watch = CoordinatorWatch(session)
    listed = session.coordinator.list_committed(own)
    check_attempts_known(session, load, session.coordinator.list_open(own))
    if watch.has_moved():
        raise _moving(load, "what is lost was repaired before")
    described = describe_listed(session.coordinator, load, session.ledger.ledger_id, listed, pooled=False)
    decided = decided_of(session, described.values())
    unknown = sorted(name for name, d in described.items() if is_unknown_commit(d, decided))
    if unknown:
        what = "has not decided what the broker shows as committed of the load"
        raise _doubt(load, what, unknown, remedy=_REMEDY_DECIDED)


def check_commits_known(session: Session, load: LoadIdentity, *, listed: Collection[str] | None = None) -> None:
    """Refuse to go on where an id of any slot of the load's name shows a commit that the ledger has not decided.

    Pooled ids do not say whose commit it was: it may have been this very load's. Slots that the ledger knows are put in
    doubt; retired ones are not looked at. One listing, or the caller's, and what it shows described at once.

    What it cannot tell: an id that was initialised again, or whose next transaction is open or aborted, shows its
    commit no more, and one that its coordinator has forgotten (``transactional.id.expiration.ms``) shows nothing.

    :param listed: the ids of the name that show a commit, where they were listed just now, and it is the caller's to
        see that no coordinator moved meanwhile.
    :raises InDoubtError: there is such a commit.
    :raises NotFinishedError: a coordinator was away or moved, and may have left one out of the listing. It is waited
        for a moment.
    """
    if listed is None:
        listing = partial(_listed_under_slots, session, load)
        listed = _listed_by_all(
            session, load, listing, SETTLES_S, "brokers know more of the name's slots than the ledger"
        )
    pooled = {i: found.slot for i in listed if (found := PooledId.parse(i)) is not None}
    if not pooled:
        return
    namespace, name = load.namespace, load.name
    slots = session.ledger.slots(namespace, name)
    retired = {s.number for s in slots if s.is_retired}
    ids = {i: slot for i, slot in pooled.items() if slot not in retired}
    if not ids:
        return
    described = session.coordinator.describe(ids)
    decided = decided_of(session, described.values())
    unknown = sorted(i for i, d in described.items() if is_unknown_commit(d, decided))
    if not unknown:
        return
    doubt = _doubt(load, "has not decided what the broker shows as committed under slots of the load's name", unknown)
    in_doubt = sorted({ids[i] for i in unknown} & {s.number for s in slots})
    for number in in_doubt:
        session.ledger.put_slot_in_doubt(namespace, name, number, doubt.message)
    raise doubt


def _listed_by_all(
    session: Session, load: LoadIdentity, listing: Callable[[], T], patience_s: float, whether: str
) -> T:
    until = time.monotonic() + patience_s
    while True:
        watch = CoordinatorWatch(session)
        seen = listing()
        if not watch.has_moved():
            return seen
        if time.monotonic() >= until:
            raise _moving(load, whether)
        time.sleep(_PAUSE_S)


def _listed_under_slots(session: Session, load: LoadIdentity) -> list[str]:
    return session.coordinator.list_committed(slot_prefix(load.namespace, session.ledger.ledger_id, load.name))


def _is_decided(session: Session, load: LoadIdentity) -> bool:
    return any(row.verdict is Verdict.COMMIT for row in session.ledger.attempts(load))


def _moving(load: LoadIdentity, whether: str) -> NotFinishedError:
    return NotFinishedError(
        f"a transaction coordinator is moving or away, so it is not known whether {whether}",
        remedy=f"Nothing was done. {COORDINATORS}, then run it again",
        load=str(load),
    )


def _doubt(load: LoadIdentity, what: str, names: list[str], *, remedy: str = _REMEDY) -> InDoubtError:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return InDoubtError(
        f"the ledger {what}: {', '.join(names[:_SHOWN])}{more}",
        remedy=remedy,
        load=str(load),
        transactional_id=names[0],
    )
