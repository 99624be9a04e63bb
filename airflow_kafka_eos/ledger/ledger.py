"""The ledger: which attempts a load has, and what was decided about them, before Kafka is told.

Rule: decide-before-kafka.

Every method is one database transaction. All are compare-and-sets on the locked load's row, so that calling
again after a lost answer is safe; :class:`~airflow_kafka_eos.errors.LedgerUnavailableError` says nothing about
whether it happened.

A ledger's database, from opening it to closing it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import Connection

from airflow_kafka_eos import naming
from airflow_kafka_eos.errors import ConfigurationError, LedgerUnavailableError, OtherLedgerError
from airflow_kafka_eos.ledger import admin, attempts, decisions, leases, queries, repairs, slots
from airflow_kafka_eos.ledger import decisions as failures
from airflow_kafka_eos.ledger import decisions as outcomes
from airflow_kafka_eos.ledger import queries as waiting
from airflow_kafka_eos.ledger.database import Database
from airflow_kafka_eos.ledger.location import default_url, redacted
from airflow_kafka_eos.ledger.revision import current, is_current, read_checked
from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow, RepairRow, SlotRow, TransactionRow
from airflow_kafka_eos.load import LoadIdentity, TransactionNaming
from airflow_kafka_eos.manifest import AttemptRef, Manifest, PartitionWrites, sha256
from airflow_kafka_eos.transaction import Outcome, PreparedTransaction, PreparedTxnState

T = TypeVar("T")


def _other(shown: str, why: str) -> OtherLedgerError:
    return OtherLedgerError(f"the ledger {shown} is not the one that has this load: {why}")


class OpenLedger:
    """What every operation of the ledger needs: its database, and its id."""

    def __init__(self, database: Database, ledger_id: str) -> None:
        self._database = database
        self._ledger_id = ledger_id

    @classmethod
    def open(cls, url: str, *, upgrade: bool | None = None) -> Self:
        """Open the ledger at an SQLAlchemy URL (SQLite file, PostgreSQL, MySQL).

        :param upgrade: create or upgrade it. None: the embedded SQLite default only.
        :raises LedgerUnavailableError: unreachable, or not upgraded yet.
        :raises ConfigurationError: a bad URL, a missing driver, or a ledger of a newer version.
        """
        database = Database(url)
        if (url == default_url() if upgrade is None else upgrade) and not is_current(database):
            from airflow_kafka_eos.ledger import migrate  # Alembic; nearly always the ledger is up to date

            migrate.upgrade(url)
        return cls(database, read_checked(database, queries.ledger_id))

    @classmethod
    def open_existing(cls, url: str, ledger_id: str | None = None) -> Self:
        """Open a ledger that others work with, from a process that may have another Airflow home than theirs.

        None is ever made here, nor upgraded: an empty one would answer that there is nothing to do.

        :param ledger_id: which one it has to be; None: that is not known.
        :raises OtherLedgerError: there is none, or it is another one.
        :raises LedgerUnavailableError: unreachable, or not upgraded yet.
        :raises ConfigurationError: a bad URL, a missing driver, or a ledger of a newer version.
        """
        try:
            opened = cls.open(url, upgrade=False)
        except LedgerUnavailableError:
            if current(url) is None:
                raise _other(redacted(url), "there is none") from None
            raise
        if ledger_id is not None and opened.ledger_id != ledger_id:
            opened.close()
            raise _other(redacted(url), f"its id is {opened.ledger_id}, not {ledger_id}")
        return opened

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._database.shown!r}, {self._ledger_id})"

    @property
    def where(self) -> str:
        """Its URL, without a password."""
        return self._database.shown

    @property
    def ledger_id(self) -> str:
        """10 random hex characters, part of every transactional id (rule: only-our-ids)."""
        return self._ledger_id

    def _write(self, work: Callable[[Connection], T]) -> T:
        return self._database.write(work)

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._database.read(work)


class Ledger(OpenLedger):
    """An open ledger. Make one by :meth:`open`; threads may share it, processes should open their own."""

    def new_id(self, *, decided_by: str) -> str:
        """Take another ledger id, for a ledger restored from a backup; aborts what is undecided. Returns the old one.

        Other processes must open the ledger anew.

        :raises ConfigurationError: a decided load is not finished.
        """
        old, self._ledger_id = self._write(lambda c: admin.new_id(c, decided_by))
        return old

    def forget_cluster(self, cluster_id: str) -> int:
        """Forget which cluster its attempts that are not closed were written to, for one that is gone for good.

        :returns: how many attempts; from here on they are looked for where the connection leads.
        """
        return self._write(lambda c: admin.forget_cluster(c, cluster_id))

    # --- attempts

    def begin(
        self, load: LoadIdentity, *, owner: str, data_interval: tuple[str, str] | None = None
    ) -> AttemptRow:
        """The attempt to go on with; a new one when there is none (rules: one-decision-per-load, one-key-loads-once).

        A commit-decided attempt, a prepared one, and one that was not submitted yet are returned as they are.
        Otherwise every undecided attempt is aborted and a new one opened, in one transaction.

        :param owner: who asks, for people: dag, run, task and try.
        :param data_interval: ISO times with a time zone; recorded once.
        :raises InvalidNameError: the load's transactional ids would be too long.
        :raises ConfigurationError: the load was begun for another data interval, and is not committed.
        """
        naming.check_length(load, self._ledger_id)
        return self._write(lambda c: attempts.begin(c, load, owner, data_interval))

    def submit(
        self,
        load: LoadIdentity,
        *,
        owner: str,
        naming: TransactionNaming = TransactionNaming.INCREMENTING,
        deadline_ms: int | None = None,
        cluster_id: str | None = None,
        arguments_sha256: str | None = None,
    ) -> AttemptRow:
        """The attempt that the caller's application may prepare: no two callers get the same.

        Rule: one-application-per-attempt.

        A commit-decided attempt is returned instead; look at ``verdict`` first. Where the answer to COMMIT was
        lost, the attempt that nobody was told of is aborted and the next one opened.

        :param naming: ``pooling``: the attempt leases a slot of ids with it.
        :param deadline_ms: milliseconds since the epoch; past them none of its writers begins a transaction
            (rule: writers-have-a-deadline).
        :param cluster_id: of the Kafka cluster that its application writes to; None: not known.
        :param arguments_sha256: of what its job is asked for; None: that does not follow from the run.
        :raises ConfigurationError: pooling without a deadline: nobody could tell how long its ids may not be used.
        :raises InDoubtError: a slot of the load's name is in doubt.
        """
        if naming is TransactionNaming.POOLING and deadline_ms is None:
            raise ConfigurationError(
                "pooled transactional ids need a deadline for their writers",
                remedy="Pass deadline_ms, the one that the writers get",
                load=str(load),
            )
        until = None if deadline_ms is None else slots.text_of(datetime.fromtimestamp(deadline_ms / 1000, UTC))
        return self._write(
            lambda c: attempts.submit(c, load, owner, naming, until, cluster_id, arguments_sha256)
        )

    def mark_prepared(self, manifest: Manifest, *, writers_left: bool = True) -> AttemptRow:
        """Record that all of the attempt's transactions are prepared; the same answer for the same manifest again.

        From here on cleanup finds them by name (rule: listing-only-adds), and only this manifest can be decided.

        :param writers_left: False only when it is known for sure that each task ran once: then a slot of the attempt
            is free as soon as its end is verified, else it is quarantined (rule: verified-end-before-reuse).
        :raises UndecidableError: aborted, superseded, never submitted, prepared with another manifest, or one of
            the transactional ids belongs to another attempt.
        """
        self._check_ours(manifest.attempt)
        digest = sha256(manifest)
        return self._write(lambda c: attempts.mark_prepared(c, manifest, digest, writers_left))

    def record_swept(self, load: LoadIdentity, number: int) -> AttemptRow:
        """Close an attempt of which nothing is open any more: an aborted one, or that of a load that was given up.

        Does nothing to one that is decided to be committed and not given up.

        :raises ConfigurationError: it is undecided, so it cannot have been swept (rule: decide-before-kafka).
        """
        return self._write(lambda c: attempts.record_swept(c, load, number))

    # --- decisions

    def decide_commit(
        self,
        manifest: Manifest,
        *,
        decided_by: str,
        not_after: float | None = None,
        dual_write: Callable[[Connection], None] | None = None,
    ) -> AttemptRow:
        """Decide to commit the attempt: the point of no return. The same answer when it is decided so before.

        :param manifest: the very one that was marked prepared; one that was swapped since then is never decided.
        :param not_after: epoch seconds; past them, with the load's row locked, nothing is decided.
        :param dual_write: runs in the same database transaction, last, and once for a decision that stands (it may run
            again after a rollback). What it raises undoes the decision and is passed on; only lost connections
            and locks are tried again.
        :raises UndecidableError: aborted, superseded, not prepared, prepared with another manifest, or another
            attempt is decided.
        :raises NotFinishedError: the lock came after ``not_after``; decide anew.
        """
        self._check_ours(manifest.attempt)
        ref, digest = manifest.attempt, sha256(manifest)
        return self._write(lambda c: decisions.decide_commit(c, ref, digest, decided_by, not_after, dual_write))

    def decide_abort(self, ref: AttemptRef, *, decided_by: str, reason: str) -> bool:
        """Decide to abort the attempt. True: aborted, now or before. False: decided to be committed."""
        self._check_ours(ref)
        return self._write(lambda c: decisions.decide_abort(c, ref, decided_by, reason))

    def make_undecidable(
        self, load: LoadIdentity, *, up_to: int, decided_by: str, reason: str
    ) -> list[AttemptRow]:
        """Abort every undecided attempt numbered ``up_to`` or less, none beyond.

        Rules: decide-before-kafka, up-to-its-own-attempt.

        Returns all attempts up to there as they are then; none for a load that the ledger does not know.
        """
        return self._write(lambda c: decisions.make_undecidable(c, load, up_to, decided_by, reason))

    def note_failure(
        self, load: LoadIdentity, *, by: str, reason: str, number: int | None = None, sweeping: bool = False
    ) -> bool:
        """Note why a step has failed, in the load's ``reason``, until the load goes on. Decides nothing.

        With the abort of its newest attempt it becomes part of that decision's reason.

        :param by: who has failed: whoever answers for the newest attempt; a failure of others says nothing of it.
        :param number: the attempt that it failed with; None: whichever is the newest.
        :param sweeping: it was to end what an aborted attempt has open.
        :returns: False, and nothing is noted, where the load has gone on without it.
        """
        return self._write(lambda c: failures.note_failure(c, load, by, reason, number, sweeping))

    # --- outcomes

    def record_outcome(
        self, load: LoadIdentity, number: int, transactional_id: str, outcome: Outcome
    ) -> Outcome:
        """Record what the log showed of one transaction; returns what is recorded then. What the markers said is final.

        :raises UndecidableError: the attempt is not decided to be committed.
        """
        return self.record_outcomes(load, number, {transactional_id: outcome})[transactional_id]

    def record_outcomes(
        self, load: LoadIdentity, number: int, by_id: Mapping[str, Outcome]
    ) -> dict[str, Outcome]:
        """Like :meth:`record_outcome`, for many transactions at once."""
        return self._write(lambda c: outcomes.record_outcomes(c, load, number, by_id))

    def record_committed(self, load: LoadIdentity, number: int) -> AttemptRow:
        """The load is COMMITTED and its attempt closed. Empties its part of ``kafka_transaction_state``.

        :raises NotFinishedError: a transaction's outcome is open or not recorded (rule: committed-is-verified).
        :raises InDoubtError: a transaction is aborted or in doubt.
        :raises UndecidableError: the attempt is not decided to be committed.
        """
        return self._write(lambda c: outcomes.record_committed(c, load, number))

    def record_in_doubt(self, load: LoadIdentity, number: int, reason: str) -> bool:
        """The load is IN_DOUBT: a person decides. False: it is COMMITTED by now, and stays so.

        Rule: doubt-stops-for-a-person.

        :raises UndecidableError: the attempt is not decided to be committed, or the load is GIVEN_UP.
        """
        return self._write(lambda c: outcomes.record_in_doubt(c, load, number, reason))

    def record_repairing(self, load: LoadIdentity, number: int, reason: str, *, newer: bool = False) -> bool:
        """The load is REPAIRING: transactions of it are lost, none is in doubt. False: it is COMMITTED, and stays so.

        IN_DOUBT stays with its reason, until :meth:`open_repair` takes the load back from the person who is asked.

        :param newer: take the reason also when it is REPAIRING already.
        :raises UndecidableError: the attempt is not decided to be committed, or the load is GIVEN_UP.
        """
        return self._write(lambda c: outcomes.record_repairing(c, load, number, reason, newer))

    def record_given_up(self, load: LoadIdentity, *, by: str, reason: str) -> None:
        """A person leaves a decided, unfinished load as it is: GIVEN_UP. Empties its part of
        ``kafka_transaction_state``, and makes its repairs undecidable. Does nothing the second time.

        :raises UndecidableError: it is not decided to be committed, or it is COMMITTED.
        """
        self._write(lambda c: outcomes.record_given_up(c, load, by, reason))

    # --- repairs (rule: repair-replaces-lost-row)

    def open_repair(
        self, load: LoadIdentity, number: int, lost_transactional_id: str, *, opened_by: str
    ) -> RepairRow | None:
        """Open an attempt to replace a lost transaction of the decided attempt; the load is REPAIRING then.

        None: it is not lost, or another repair has replaced it. Before anything is written (rule: decide-before-kafka).

        :raises UndecidableError: the load is not decided to be committed, or is GIVEN_UP.
        """
        return self._write(
            lambda c: repairs.open_repair(c, load, number, lost_transactional_id, self._ledger_id, opened_by)
        )

    def adopt(
        self,
        load: LoadIdentity,
        repair: int,
        transaction: PreparedTransaction,
        writes: Sequence[PartitionWrites],
    ) -> RepairRow:
        """Replace the lost row, and decide the repair, in one transaction (rule: repair-replaces-lost-row).

        Returns the repair: ADOPTED, or UNDECIDABLE when another one was first or cleanup took it for a dead one.

        :raises ConfigurationError: the transaction is not the repair's own, or has other records than the lost one.
        """
        return self._write(lambda c: repairs.adopt(c, load, repair, transaction, writes))

    def abandon_repair(self, load: LoadIdentity, repair: int, *, reason: str) -> RepairRow:
        """Make a repair undecidable; as it is then, for one that was adopted stays so."""
        return self._write(lambda c: repairs.abandon(c, load, repair, reason))

    def abandon_repairs(self, load: LoadIdentity, *, reason: str) -> None:
        """Make every repair of a load undecidable that is not adopted, before what it has open is ended.

        Rule: decide-before-kafka.
        """
        self._write(lambda c: repairs.abandon_all(c, load, reason))

    def close_repairs(self, load: LoadIdentity, numbers: Collection[int]) -> None:
        """Note that nothing of these undecidable repairs is open."""
        self._write(lambda c: repairs.close(c, load, numbers))

    def repairs(self, load: LoadIdentity) -> list[RepairRow]:
        """Oldest first."""
        return self._read(lambda c: repairs.repair_rows(c, load))

    # --- looking

    def attempt(self, load: LoadIdentity, number: int) -> AttemptRow | None:
        return self._read(lambda c: queries.attempt_row(c, load, number))

    def attempts(self, load: LoadIdentity) -> list[AttemptRow]:
        """Oldest first."""
        return self._read(lambda c: queries.attempt_rows(c, load))

    def load(self, load: LoadIdentity) -> LoadRow | None:
        return self._read(lambda c: queries.load_row(c, load))

    def loads(self, namespace: str | None = None, name: str | None = None) -> list[LoadRow]:
        """Oldest first."""
        return self._read(lambda c: queries.load_rows(c, namespace, name))

    def overview(
        self, namespace: str | None = None, name: str | None = None
    ) -> list[tuple[LoadRow, AttemptRow | None]]:
        """Each load with its newest attempt, oldest first; one question for all of them."""
        return self._read(lambda c: queries.overview(c, namespace, name))

    def unfinished(self, namespace: str) -> list[AttemptRow]:
        """Attempts that are neither verified committed nor verified swept, by load and number."""
        return self._read(lambda c: queries.unfinished(c, namespace))

    def with_same_arguments(self, load: LoadIdentity, arguments_sha256: str) -> list[AttemptRow]:
        """Committed attempts of that name, of any key, whose job was asked for the same; oldest first."""
        return self._read(lambda c: queries.with_same_arguments(c, load, arguments_sha256))

    def topics(self, namespace: str) -> set[str]:
        """Those that prepared attempts have written to."""
        return self._read(lambda c: queries.topics(c, namespace))

    def waiting(self, namespace: str) -> waiting.Waiting:
        """Decisions that are not verified, and prepared two-phase transactions that are not decided."""
        return self._read(lambda c: waiting.waiting(c, namespace))

    def holders(self, states: Iterable[PreparedTxnState]) -> list[tuple[AttemptRow, TransactionRow]]:
        """The prepared transactions of these producer ids and epochs, each with its attempt; in no order."""
        wanted = list(states)
        return self._read(lambda c: queries.holders(c, wanted))

    def transactions(self, load: LoadIdentity, number: int) -> list[TransactionRow]:
        """Of an attempt that was prepared, by Spark partition; none for any other.

        Undecided and aborted attempts have them too: look at the attempt's ``verdict``, or ask
        :meth:`is_decided_commit`, before ending one.
        """
        return self._read(lambda c: queries.transaction_rows(c, load, number))

    def is_decided_commit(self, transaction: PreparedTransaction) -> bool:
        """Whether that very identity, id and PreparedTxnState, is decided to be committed (rule: recorded-identity)."""
        return self._read(lambda c: queries.is_decided_commit(c, transaction))

    # --- turns

    def take_turn(self, what: Collection[str], *, by: str, turn: timedelta) -> str | None:
        """Take the turn with all of these things, for so long, or go on holding it; whoever asks again has it longer.

        :param what: names of what only one at a time may make.
        :returns: None: they are ``by``'s. Else who has one of them; ask again.
        """
        return self._write(lambda c: leases.take(c, what, by, turn))

    # --- slots of pooled ids

    def slots(self, namespace: str | None = None, name: str | None = None) -> list[SlotRow]:
        """By namespace, load name and number."""
        return self._read(lambda c: slots.slot_rows(c, namespace, name))

    def slot(self, namespace: str, name: str, number: int) -> SlotRow | None:
        return self._read(lambda c: slots.slot_row(c, namespace, name, number))

    def slot_ids(self, namespace: str, name: str, number: int) -> list[str]:
        """Transactional ids that the manifests of the slot's last attempts have named, sorted."""
        return self._read(lambda c: slots.slot_ids(c, namespace, name, number))

    def decided_states(self, shown: Collection[PreparedTransaction]) -> dict[str, set[PreparedTxnState]]:
        """By id, the identities decided to be committed that a coordinator may show so."""
        return self._read(lambda c: slots.decided_states(c, shown))

    def submitted_times(self, namespace: str) -> dict[tuple[str, str, int], str]:
        """(load name, key, attempt) -> when its application was submitted."""
        return self._read(lambda c: slots.submitted_times(c, namespace))

    def note_slot_checked(self, row: AttemptRow) -> None:
        """The slot that an attempt has leased shows nothing that the ledger does not know."""
        if row.slot is not None:
            load, slot = row.load, row.slot
            self._write(lambda c: slots.note_checked(c, load.namespace, load.name, slot, row.number))

    def put_slot_in_doubt(self, namespace: str, name: str, number: int, reason: str) -> None:
        """No slot of that load name is leased any more until :meth:`settle_slot`."""
        self._write(lambda c: slots.put_in_doubt(c, namespace, name, number, reason))

    def settle_slot(self, namespace: str, name: str, number: int) -> bool:
        """A person has found out what it was: the slot is never used again. False when it was not in doubt."""
        return self._write(lambda c: slots.settle(c, namespace, name, number))

    def clock(self) -> datetime:
        """Now, by the ledger's own clock."""
        return self._read(slots.clock)

    def _check_ours(self, ref: AttemptRef) -> None:
        if ref.ledger_id != self._ledger_id:
            raise ConfigurationError(
                f"the attempt belongs to ledger {ref.ledger_id}, this one is {self._ledger_id}",
                remedy="Let all tasks of a load use one ledger connection",
                load=str(ref.load),
                attempt=ref.attempt,
            )
