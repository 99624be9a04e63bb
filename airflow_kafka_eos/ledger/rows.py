"""What the ledger answers. Times are UTC ISO texts; None where it has not happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, TypeVar

from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionScope, Verdict
from airflow_kafka_eos.manifest import Manifest, PartitionWrites
from airflow_kafka_eos.micro_batch import is_driver
from airflow_kafka_eos.transaction import Outcome, PreparedTransaction, TopicPartition

T = TypeVar("T")


def read_row(kind: type[T], row: Any, **given: Any) -> T:
    """A row of the database as one of the classes below: what is not given is the column of the field's name."""
    names = (f.name for f in fields(kind) if f.name not in given and f.metadata.get("column", True))  # type: ignore[arg-type]
    return kind(**given, **{name: getattr(row, name) for name in names})


#: How the reason of an abort begins that the author's checks have asked for.
REFUSED = "check: "
#: The reason of a commit while its dual write is under way: one that was committed with it has not got to its end.
UNFINISHED = "its dual write has not got to its end: of the author's rows only a part may be there"


@dataclass(frozen=True)
class AttemptRow:
    """An attempt with its decision.

    ``owner`` and ``submitted_by`` are for people (dag, run, task, try; a batch of a streaming query is submitted by its
    driver). ``reason`` is the decision's. ``closed_at``: verified committed, or verified swept; or its load was given
    up, and nothing of it is open. What the manifest says (``records``, ``bytes``, ``scope``, ``two_phase_commit``,
    ``writer``, ``digest_algorithm``) and its own ``manifest_sha256`` (of :func:`~airflow_kafka_eos.manifest.dump`) are
    known once prepared. ``slot``: of pooled ids; it stays noted when given back. ``writers_until``: past it none of its
    writers begins a transaction. ``writers_left``: whether one may live on behind its manifest. ``cluster_id``: of the
    Kafka cluster that it was submitted to. ``arguments_sha256``: of what its job was asked for; None where that does
    not follow from the run. ``pruned_at``: the ledger has forgotten its transactions. ``has_fence``: whether its
    writers look at a fence in Kafka before they begin; None: of before there were any. ``left_slot``: right behind its
    submission the load and number of the attempt that has used its slot last, where that left no writer.
    """

    load: LoadIdentity
    number: int
    owner: str
    opened_at: str
    submitted_at: str | None = None
    submitted_by: str | None = None
    prepared_at: str | None = None
    verdict: Verdict | None = None
    decided_at: str | None = None
    closed_at: str | None = None
    reason: str = ""
    records: int | None = None
    bytes: int | None = None
    decided_by: str | None = None
    manifest_sha256: str | None = None
    scope: TransactionScope | None = None
    two_phase_commit: bool | None = None
    writer: str | None = None
    digest_algorithm: str | None = None
    slot: int | None = None
    writers_until: str | None = None
    writers_left: bool | None = None
    cluster_id: str | None = None
    arguments_sha256: str | None = None
    pruned_at: str | None = None
    has_fence: bool | None = None
    left_slot: tuple[LoadIdentity, int] | None = field(default=None, compare=False, metadata={"column": False})

    @property
    def is_undecided(self) -> bool:
        """True while it may still be committed."""
        return self.verdict is None

    @property
    def is_submitted(self) -> bool:
        """True once an application was told to prepare it (rule: one-application-per-attempt)."""
        return self.submitted_at is not None

    @property
    def responsible(self) -> str:
        """Who answers for it: whoever submitted its application, else whoever opened it.

        Of a streaming query's batch, where a run of Airflow's has started the driver, that run.
        """
        if self.submitted_by is None or is_driver(self.submitted_by):
            return self.owner
        return self.submitted_by

    @property
    def is_prepared(self) -> bool:
        """True once its manifest was accepted."""
        return self.prepared_at is not None

    @property
    def is_refused(self) -> bool:
        """True once the author's checks have refused it."""
        return self.verdict is Verdict.ABORT and self.reason.startswith(REFUSED)

    @property
    def is_unfinished(self) -> bool:
        """True once the author's SQL has committed the decision on its own, and with it a part of its rows."""
        return self.verdict is Verdict.COMMIT and self.reason == UNFINISHED

    @property
    def how(self) -> str:
        """How it was written, for people; empty while that is not known."""
        if self.scope is None:
            return ""
        until = "two-phase commit" if self.two_phase_commit else "with a timeout"
        return f"scope {self.scope.value}, {until}, writer {self.writer}"


@dataclass(frozen=True)
class LoadRow:
    """A load. ``newest_attempt`` is its number, 0 for none.

    ``reason`` says why it is in doubt, is repaired, or was given up; of others what went wrong last, until they go on.
    """

    load: LoadIdentity
    state: LoadState
    newest_attempt: int
    reason: str
    data_interval: tuple[str, str] | None
    created_at: str
    updated_at: str


def reason_of_load(row: LoadRow, newest: AttemptRow | None) -> str:
    """Why a load stands where it stands: its own reason, and why its newest attempt was aborted."""
    return "; ".join(text for text in (row.reason, "" if newest is None else newest.reason) if text)


#: A slot that is quarantined until then is retired: its ids are never used again.
RETIRED = "9999-12-31T23:59:59.999999+00:00"


@dataclass(frozen=True)
class SlotRow:
    """A slot of pooled transactional ids, and the attempt that holds it, or held it last.

    ``checked_at``: when its ids were looked at; before that, what is open under them is not its holder's. ``doubt``:
    what the broker knows of it and the ledger does not.
    """

    namespace: str
    load_name: str
    number: int
    holder: LoadIdentity
    attempt: int
    created_at: str
    leased_at: str
    checked_at: str | None
    released_at: str | None
    quarantined_until: str | None
    doubt: str | None

    @property
    def is_leased(self) -> bool:
        """True until the end of all that its attempt has prepared is verified."""
        return self.released_at is None

    @property
    def is_retired(self) -> bool:
        """True once a person has settled a doubt about it, or given up its Kafka cluster: nobody leases it again, and
        nothing of it is looked at."""
        return self.quarantined_until == RETIRED


@dataclass(frozen=True)
class TransactionRow:
    """A transaction of a prepared attempt, whatever was decided about it: the attempt's verdict says that.

    ``topic_ids`` maps topic to topic id. No Spark partition: all of them wrote it (scope ``load``). No outcome: nobody
    has looked at the log yet.
    """

    transaction: PreparedTransaction
    spark_partition: int | None
    writes: tuple[PartitionWrites, ...]
    topic_ids: Mapping[str, str]
    outcome: Outcome | None

    @property
    def records(self) -> int:
        return sum(w.records for w in self.writes)

    @property
    def first_offsets(self) -> dict[TopicPartition, int]:
        """Of its first record in each partition."""
        return {w.topic_partition: w.first_offset for w in self.writes}

    @property
    def last_offsets(self) -> dict[TopicPartition, int]:
        """Of its last record in each partition."""
        return {w.topic_partition: w.last_offset for w in self.writes}


def transactions_of(manifest: Manifest) -> list[TransactionRow]:
    """As they are once the attempt is prepared, and nobody has looked at the log."""
    return [
        TransactionRow(
            prepared.transaction,
            prepared.spark_partition,
            prepared.writes,
            {topic: manifest.topics[topic].topic_id for topic in sorted({w.topic for w in prepared.writes})},
            outcome=None,
        )
        for prepared in manifest.prepared
    ]


@dataclass(frozen=True)
class Summary:
    """What the transactions of an attempt have written together, without those that a repair has replaced.

    :param transactions: how many.
    :param repaired: how many a repair has replaced.
    :param topics: by topic ``records``, ``bytes`` (before compression) and ``offsets``: by partition, as a text, the
        first and the last one.
    :param topic_ids: topic -> the id that it had then; none of an attempt that was pruned.
    """

    transactions: int = 0
    repaired: int = 0
    topics: Mapping[str, Any] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def last_offsets(self) -> dict[TopicPartition, int]:
        """Of the last record in each partition."""
        return {
            TopicPartition(topic, int(partition)): last
            for topic, of in self.topics.items()
            for partition, (_, last) in of["offsets"].items()
        }


def summary_of(rows: Iterable[TransactionRow]) -> Summary:
    """Of all transactions of an attempt."""
    every = list(rows)
    standing = [row for row in every if row.outcome is not Outcome.SUPERSEDED]
    topics: dict[str, Any] = {}
    ids: dict[str, str] = {}
    for row in standing:
        ids |= row.topic_ids  # all of an attempt agree: decide and repairs see to that
        for w in row.writes:
            found = topics.setdefault(w.topic, {"records": 0, "bytes": 0, "offsets": {}})
            found["records"] += w.records
            found["bytes"] += w.bytes
            first, last = found["offsets"].get(str(w.partition), (w.first_offset, w.last_offset))
            found["offsets"][str(w.partition)] = [min(first, w.first_offset), max(last, w.last_offset)]
    return Summary(len(standing), len(every) - len(standing), dict(sorted(topics.items())), ids)


class RepairState(str, Enum):
    """OPEN may become either of the others, once, by compare-and-set."""

    OPEN = "open"
    #: its transaction has entered the decision in the lost one's place
    ADOPTED = "adopted"
    #: it never will: what it has open may be ended (rule: decide-before-kafka)
    UNDECIDABLE = "undecidable"


@dataclass(frozen=True)
class RepairRow:
    """An attempt to replace one lost transaction of a decided attempt (rule: repair-replaces-lost-row).

    :param attempt: the decided attempt's number. ``number`` is the repair's own.
    :param transactional_id: that of a copy, until another one is adopted: Spark's task attempts that prepare it again
        have ids of their own with its number.
    :param reason: why it is undecidable.
    :param closed_at: undecidable, and nothing of it was open.
    """

    load: LoadIdentity
    attempt: int
    number: int
    lost_transactional_id: str
    transactional_id: str
    state: RepairState
    opened_at: str
    opened_by: str
    ended_at: str | None = None
    reason: str = ""
    closed_at: str | None = None


@dataclass(frozen=True)
class CursorRow:
    """Where the next range of a load name begins.

    :param position: None: where the source begins.
    :param moves: counts whatever changes what a range rests on: a decision, its being verified or given up, a new id of
        the ledger, and what a person sets.
    :param holder: the load that took a range last; None: nobody has since a person has set it.
    :param holder_state: that load's.
    :param data_interval_start: of the load that moved it last, where that load has one.
    :param doubt: why a person has to set it first; None where nothing is wrong.
    :param said_at: when a person has said last that own loads read over what was named until then.
    """

    namespace: str
    load_name: str
    position: Any
    moves: int
    holder: LoadIdentity | None
    holder_state: LoadState | None
    data_interval_start: str | None
    doubt: str | None
    created_at: str
    moved_at: str | None
    said_at: str | None
    moved_by: str | None
    reason: str

    @property
    def is_held(self) -> bool:
        """Whether a load that has a range of it may still be decided, or is decided and not verified."""
        state = self.holder_state
        return state is not None and (not state.is_ended and state is not LoadState.ABORTING)


@dataclass(frozen=True)
class RangeRow:
    """What an attempt reads.

    :param since: None: from where the source begins.
    :param until: None: not chosen yet.
    :param moves: the cursor's count when it was taken; None: somebody has named the range, and no cursor moves.
    """

    load: LoadIdentity
    attempt: int
    since: Any
    until: Any
    moves: int | None
    taken_at: str

    @property
    def is_named(self) -> bool:
        return self.moves is None


@dataclass(frozen=True)
class StreamRow:
    """A streaming query's name, and what it is bound to.

    :param query_id: Spark's; None: a person has set the name free, the next run binds it.
    :param decided: the last batch of that query that is decided to be committed; -1: none is. None: the ledger was put
        back, or a slot was in doubt, and a person has to say.
    :param decided_at: when that was; None too where a run of the query has yet to ask for it.
    :param newest_run: how many runs were bound; the last of them alone begins batches.
    """

    namespace: str
    name: str
    query_id: str | None
    checkpoint: str
    decided: int | None
    decided_at: str | None
    newest_run: int
    bound_at: str
    updated_at: str
