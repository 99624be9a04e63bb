"""The ledger: which attempts a load has, and what was decided about them, before Kafka is told.

Rule: decide-before-kafka.

Every method is one database transaction. All that write are compare-and-sets on the locked load's row, so that calling
again after a lost answer is safe; :class:`~airflow_kafka_eos.errors.LedgerUnavailableError` says nothing about
whether it happened. What a method does is written where its work is: attempts, decisions, repairs, slots, queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection

from airflow_kafka_eos import naming
from airflow_kafka_eos.errors import ConfigurationError, LedgerUnavailableError, OtherLedgerError
from airflow_kafka_eos.ledger import admin, begun, decisions, leases, pruning, queries
from airflow_kafka_eos.ledger import attempts as attempts_
from airflow_kafka_eos.ledger import cursors as cursors_
from airflow_kafka_eos.ledger import named_ranges as named_ranges_
from airflow_kafka_eos.ledger import ranges as ranges_
from airflow_kafka_eos.ledger import repairs as repairs_
from airflow_kafka_eos.ledger import slots as slots_
from airflow_kafka_eos.ledger import streams as streams_
from airflow_kafka_eos.ledger.database import Database
from airflow_kafka_eos.ledger.location import default_url, parse, redacted
from airflow_kafka_eos.ledger.migrate import current, is_current, read_checked
from airflow_kafka_eos.ledger.rows import AttemptRow, RepairRow
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.manifest import AttemptRef, Manifest, sha256
from airflow_kafka_eos.transaction import TopicPartition

P = ParamSpec("P")
T = TypeVar("T")


def _writes(work: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Ledger, P], T]:
    """The method that does this work in a write transaction, which may be run more than once."""

    @wraps(work)
    def method(self: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.database.write(lambda c: work(c, *args, **kwargs))

    return method


def _writes_as_opened(work: Callable[Concatenate[Connection, str, P], T]) -> Callable[Concatenate[Ledger, P], T]:
    """The same, of work that is told which id the ledger was opened with."""

    @wraps(work)
    def method(self: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.database.write(lambda c: work(c, self.ledger_id, *args, **kwargs))

    return method


def _reads(work: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Ledger, P], T]:
    """The method that does this work in a read transaction."""

    @wraps(work)
    def method(self: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.database.read(lambda c: work(c, *args, **kwargs))

    return method


class Ledger:
    """An open ledger. Make one by :meth:`open`; threads may share it, processes should open their own.

    :ivar ledger_id: 10 random hex characters, part of every transactional id (rule: only-our-ids).
    """

    def __init__(self, database: Database, ledger_id: str) -> None:
        self.database = database
        self.ledger_id = ledger_id

    @classmethod
    def open(cls, url: str, *, upgrade: bool | None = None, keeps_connections: bool = False) -> Self:
        """Open the ledger at an SQLAlchemy URL (SQLite file, PostgreSQL, MySQL).

        :param upgrade: create or upgrade it. None: the embedded SQLite default only.
        :param keeps_connections: see :class:`.database.Database`.
        :raises LedgerUnavailableError: unreachable, or not upgraded yet.
        :raises ConfigurationError: a bad URL, a missing driver, or a ledger of a newer version.
        """
        database = Database(url, keeps_connections=keeps_connections)
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
        :raises LedgerUnavailableError, ConfigurationError: see :meth:`open`.
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
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.where!r}, {self.ledger_id})"

    @property
    def is_embedded(self) -> bool:
        """Whether it is the file in Airflow's home that makes itself."""
        return self.database.url == parse(default_url())

    @property
    def where(self) -> str:
        """Its URL, without a password."""
        return self.database.shown

    def new_id(self, *, decided_by: str) -> str:
        """See :func:`.admin.new_id`. Returns the old one; other processes must open the ledger anew."""
        old, self.ledger_id = self.database.write(lambda c: admin.new_id(c, decided_by))
        return old

    def begin(
        self, load: LoadIdentity, *, owner: str, data_interval: tuple[str, str] | None = None
    ) -> AttemptRow:
        """See :func:`.attempts.begin`.

        :raises InvalidNameError: the load's transactional ids would be too long.
        """
        naming.check_length(load, self.ledger_id)
        return self.database.write(lambda c: attempts_.begin(c, load, owner, data_interval))

    def mark_prepared(self, manifest: Manifest, *, writers_left: bool = True) -> AttemptRow:
        """See :func:`.attempts.mark_prepared`."""
        self._check_own(manifest.attempt)
        digest = sha256(manifest)
        return self.database.write(lambda c: attempts_.mark_prepared(c, manifest, digest, writers_left))

    def decide_commit(
        self,
        manifest: Manifest,
        *,
        decided_by: str,
        not_after: float | None = None,
        dual_write: Callable[[Connection], None] | None = None,
        end_offsets: Mapping[TopicPartition, int] | None = None,
        beside: Callable[[Connection], None] | None = None,
        check_stop: Callable[[], object] = lambda: None,
    ) -> AttemptRow:
        """See :func:`.decisions.decide_commit`."""
        self._check_own(manifest.attempt)
        ref, digest = manifest.attempt, sha256(manifest)
        return self.database.write(
            lambda c: decisions.decide_commit(
                c, ref, digest, decided_by, not_after, dual_write, end_offsets, beside=beside, check_stop=check_stop
            )
        )

    def decide_abort(self, ref: AttemptRef, *, decided_by: str, reason: str) -> bool:
        """Decide to abort the attempt. True: aborted, now or before. False: decided to be committed."""
        self._check_own(ref)
        return self.database.write(lambda c: decisions.decide_abort(c, ref, decided_by, reason))

    def open_repair(self, load: LoadIdentity, number: int, lost: str, *, opened_by: str) -> RepairRow | None:
        """See :func:`.repairs.open_repair`."""
        return self.database.write(
            lambda c: repairs_.open_repair(c, load, number, lost, self.ledger_id, opened_by)
        )

    def prune(self, older_than: timedelta, *, namespace: str | None = None) -> Iterator[pruning.Pruned]:
        """Prune all that :func:`.pruning.prune` may, in as many database transactions as it takes; each as it is done.

        :param older_than: since attempts were closed.
        """
        before, behind = _ago(older_than), None
        while True:
            done = self.database.write(partial(pruning.prune, before=before, namespace=namespace, behind=behind))
            if done.behind is None:
                return
            yield done
            behind = done.behind

    def prunable(self, older_than: timedelta, *, namespace: str | None = None) -> pruning.Prunable:
        """See :func:`.pruning.prunable`."""
        before = _ago(older_than)
        return self.database.read(lambda c: pruning.prunable(c, before, namespace))

    def state(self, load: LoadIdentity) -> LoadState | None:
        """None: the ledger does not know the load."""
        row = self.load(load)
        return None if row is None else row.state

    def _check_own(self, ref: AttemptRef) -> None:
        if ref.ledger_id != self.ledger_id:
            raise ConfigurationError(
                f"the attempt belongs to ledger {ref.ledger_id}, this one is {self.ledger_id}",
                remedy="Let all tasks of a load use one ledger connection",
                load=str(ref.load),
                attempt=ref.attempt,
            )

    forget_cluster = _writes(admin.forget_cluster)
    set_committed = _writes(admin.set_committed)
    reinstate = _writes(admin.reinstate)
    submit = _writes(attempts_.submit)
    record_swept = _writes(attempts_.record_swept)
    set_finished = _writes(decisions.set_finished)
    make_undecidable = _writes(decisions.make_undecidable)
    note_failure = _writes(decisions.note_failure)
    record_outcomes = _writes(decisions.record_outcomes)
    record_and_close = _writes(decisions.record_and_close)
    record_committed = _writes(decisions.record_committed)
    record_in_doubt = _writes(decisions.record_in_doubt)
    record_repairing = _writes(decisions.record_repairing)
    record_given_up = _writes(decisions.record_given_up)
    adopt = _writes(repairs_.adopt)
    abandon_repair = _writes(repairs_.abandon)
    abandon_repairs = _writes(repairs_.abandon_all)
    close_repairs = _writes(repairs_.close)
    note_slot_checked = _writes(slots_.note_checked)
    put_slot_in_doubt = _writes(slots_.put_in_doubt)
    settle_slot = _writes(streams_.settle_slot)
    acquire_lease = _writes(leases.acquire)
    release_lease = _writes(leases.release)
    take_range = _writes(ranges_.take)
    pin_range = _writes(ranges_.pin)
    set_cursor = _writes(cursors_.set_position)
    bind_stream = _writes_as_opened(streams_.bind)
    pass_over_batch = _writes_as_opened(streams_.pass_over)
    begin_batch = _writes_as_opened(streams_.begin_batch)
    set_stream = _writes(streams_.set_stream)

    #: that it has now: :attr:`ledger_id` is the one that it was opened with
    id_now = _reads(queries.ledger_id)
    load = _reads(queries.load_row)
    loads = _reads(queries.load_rows)
    check_no_batch = _reads(admin.check_no_batch)
    committing_numbers = _reads(admin.committing_numbers)
    elsewhere = _reads(admin.elsewhere)
    names = _reads(queries.names)
    is_new_to = _reads(queries.is_new_to)
    keys = _reads(queries.keys)
    overview = _reads(queries.overview)
    overview_of = _reads(queries.overview_of)
    owned = _reads(queries.owned)
    begun_by = _reads(begun.begun_by)
    first_begun = _reads(begun.first_begun)
    ids_of = _reads(queries.ids_of)
    attempt = _reads(queries.attempt_row)
    attempts = _reads(queries.attempt_rows)
    details = _reads(queries.details)
    unfinished = _reads(queries.unfinished)
    waiting = _reads(queries.waiting)
    with_same_arguments = _reads(queries.with_same_arguments)
    same_arguments = _reads(queries.same_arguments)
    topics = _reads(queries.topics)
    transactions = _reads(queries.transaction_rows)
    summary = _reads(queries.summary)
    end_offsets = _reads(queries.end_offsets)
    prepared_as = _reads(queries.prepared_as)
    is_decided_commit = _reads(queries.is_decided_commit)
    decided_among = _reads(queries.decided_among)
    repairs = _reads(repairs_.repair_rows)
    slots = _reads(slots_.slot_rows)
    slot = _reads(slots_.slot_row)
    slot_ids = _reads(slots_.slot_ids)
    has_pruned = _reads(slots_.has_pruned)
    decided_states = _reads(slots_.decided_states)
    submitted_times = _reads(slots_.submitted_times)
    clock = _reads(slots_.clock)
    check_cursor = _reads(cursors_.check)
    check_named_range = _reads(named_ranges_.check_named)
    named_ahead = _reads(named_ranges_.named_ahead)
    cursor = _reads(cursors_.cursor_row)
    cursors = _reads(cursors_.cursor_rows)
    range = _reads(cursors_.range_row)
    ranges = _reads(cursors_.ranges_of)
    why_not_advance = _reads(cursors_.why_not_advance)
    decided_keys = _reads(cursors_.decided_keys)
    stream = _reads(streams_.stream_row)
    streams = _reads(streams_.stream_rows)


def _ago(time: timedelta) -> str:
    return slots_.text_of(datetime.now(UTC) - time)


def _other(shown: str, why: str) -> OtherLedgerError:
    return OtherLedgerError(f"the ledger {shown} is not the one that has this load: {why}")
