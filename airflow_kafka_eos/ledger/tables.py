"""The ledger's tables: a new one is made of these, one of before is brought up to them by revisions (``migrations``).

All are prefixed, because a dual write shares its database with the application's own tables. Only
``kafka_transaction_state`` has the name and columns of KIP-939's recipe.

Times are UTC ISO texts with microseconds (fixed width, so that they sort), because the three databases do not
agree on time zones. Texts compare byte by byte everywhere, MySQL included; those for people (owners, reasons) are made
fit for every database by :func:`for_people` and :func:`for_reason`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

VERSION_TABLE = "kafka_eos_alembic_version"
#: what the newest of the revisions is called
REVISION = "0012"
#: three names of 215 characters in one unique index: 2580 bytes on MySQL, which allows 3072. Longer names
#: cannot occur: naming.check_length leaves less than that to all three.
NAME_LENGTH = 215
PEOPLE_LENGTH = 500
REASON_LENGTH = 4000
_COLLATION = "utf8mb4_bin"


def _varchar(length: int) -> TypeEngine[str]:
    return (
        String(length)
        .with_variant(mysql.VARCHAR(length, collation=_COLLATION), "mysql", "mariadb")
        # by the server's own order of letters, an index could not answer what begins with a text
        .with_variant(String(length, collation="C"), "postgresql")
    )


def _text() -> TypeEngine[str]:
    # MySQL's TEXT ends at 64 KB; the writes of a load into a thousand partitions are longer
    return Text().with_variant(mysql.LONGTEXT(collation=_COLLATION), "mysql", "mariadb")


_ID = BigInteger().with_variant(
    Integer, "sqlite"
)  # SQLite numbers rows by itself for INTEGER PRIMARY KEY only
_NAME = _varchar(NAME_LENGTH)
_TIME = _varchar(32)
_WORD = _varchar(20)
_PEOPLE = _varchar(PEOPLE_LENGTH)
_TXN = _varchar(255)
metadata = MetaData()
ledger = Table(
    "kafka_eos_ledger",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("ledger_id", _varchar(10), nullable=False),
    Column("created_at", _TIME, nullable=False),
    # when it got another id last, or a forgotten load back: it was restored, and cursors that it does not have may
    # have been there
    Column("id_changed_at", _TIME),
    CheckConstraint("id = 1", name="ck_kafka_eos_ledger_one_row"),
)
loads = Table(
    "kafka_eos_loads",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("namespace", _NAME, nullable=False),
    Column("name", _NAME, nullable=False),
    Column("load_key", _NAME, nullable=False),
    Column("state", _WORD, nullable=False),
    Column("data_interval_start", _TIME),
    Column("data_interval_end", _TIME),
    Column("newest_attempt", Integer, nullable=False),
    Column("reason", _text(), nullable=False),
    Column("created_at", _TIME, nullable=False),
    Column("updated_at", _TIME, nullable=False),
    UniqueConstraint("namespace", "name", "load_key", name="uq_kafka_eos_loads_identity"),
    # those that are not through are few, however many there are; and the page has what changed last
    Index("ix_kafka_eos_loads_state", "state"),
    Index("ix_kafka_eos_loads_updated", "updated_at"),
)
attempts = Table(
    "kafka_eos_attempts",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("load_id", _ID, ForeignKey(loads.c.id, name="fk_kafka_eos_attempts_load"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("owner", _PEOPLE, nullable=False),
    Column("opened_at", _TIME, nullable=False),
    Column("submitted_at", _TIME),
    Column("submitted_by", _PEOPLE),
    Column("prepared_at", _TIME),
    Column("records", BigInteger),
    Column("bytes", BigInteger),
    Column("manifest_sha256", _varchar(64)),
    Column("closed_at", _TIME),
    # what the manifest says of how it was written; known once prepared
    Column("scope", _WORD),
    Column("two_phase_commit", Boolean),
    Column("writer", _PEOPLE),
    Column("digest_algorithm", _PEOPLE),
    # the slot stays noted when it is given back; writers_until: past it, none of its writers begins a
    # transaction (rule: writers-have-a-deadline); writers_left: whether some may live on behind the manifest, known
    # once prepared
    Column("slot", Integer),
    Column("writers_until", _TIME),
    Column("writers_left", Boolean),
    # of the Kafka cluster that it was submitted to
    Column("cluster_id", _varchar(255)),
    # of what its job was asked for, where that follows from the run
    Column("arguments_sha256", _varchar(64)),
    # its transactions are forgotten since then
    Column("pruned_at", _TIME),
    # whether its writers look at a fence in Kafka before they begin (rule: writers-have-a-deadline)
    Column("has_fence", Boolean),
    UniqueConstraint("load_id", "number", name="uq_kafka_eos_attempts_number"),
    # what nobody has closed; what a run has (owners begin with it); who asked for the same
    Index("ix_kafka_eos_attempts_closed", "pruned_at", "closed_at"),
    Index("ix_kafka_eos_attempts_owner", "owner"),
    Index("ix_kafka_eos_attempts_submitted_by", "submitted_by"),
    Index("ix_kafka_eos_attempts_arguments", "arguments_sha256"),
)
#: One decision per attempt (primary key), one commit per load (unique ``committed_load_id``, NULL for an
#: abort; no partial index, which MySQL does not have). Rule: one-decision-per-load.
decisions = Table(
    "kafka_eos_decisions",
    metadata,
    Column(
        "attempt_id",
        _ID,
        ForeignKey(attempts.c.id, name="fk_kafka_eos_decisions_attempt"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("load_id", _ID, ForeignKey(loads.c.id, name="fk_kafka_eos_decisions_load"), nullable=False),
    Column("verdict", _WORD, nullable=False),
    Column("decided_at", _TIME, nullable=False),
    Column("decided_by", _PEOPLE, nullable=False),
    Column("reason", _text(), nullable=False),
    Column("committed_load_id", _ID),
    # topic -> partition -> the end of its log, right before its leader showed what is decided as open; of commits
    Column("end_offsets", _text()),
    UniqueConstraint("committed_load_id", name="uq_kafka_eos_decisions_one_commit"),
    CheckConstraint(
        "(verdict = 'abort' AND committed_load_id IS NULL) OR (verdict = 'commit' AND "
        "committed_load_id IS NOT NULL AND committed_load_id = load_id)",
        name="ck_kafka_eos_decisions_verdict",
    ),
)
#: Slots of pooled transactional ids (FLIP-511), by load name. ``attempt_id`` holds it until ``released_at``, and still
#: answers for whatever its zombies open until the next one takes it. No lease before ``quarantined_until``, and none
#: while one of the name is in ``doubt``.
slots = Table(
    "kafka_eos_slots",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("namespace", _NAME, nullable=False),
    Column("load_name", _NAME, nullable=False),
    Column("number", Integer, nullable=False),
    Column("attempt_id", _ID, ForeignKey(attempts.c.id, name="fk_kafka_eos_slots_attempt"), nullable=False),
    Column("created_at", _TIME, nullable=False),
    Column("leased_at", _TIME, nullable=False),
    # since the lease; before it, what is open there is none of the holder's
    Column("checked_at", _TIME),
    Column("released_at", _TIME),
    Column("quarantined_until", _TIME),
    Column("doubt", _text()),
    UniqueConstraint("namespace", "load_name", "number", name="uq_kafka_eos_slots_number"),
    UniqueConstraint("attempt_id", name="uq_kafka_eos_slots_attempt"),
)
#: Of every attempt that was prepared, so that cleanup can describe them by name (rule: listing-only-adds). That one
#: stands here says nothing of its being decided: ``decisions`` does.
transactions = Table(
    "kafka_eos_transactions",
    metadata,
    Column("transactional_id", _TXN),
    Column(
        "attempt_id", _ID, ForeignKey(attempts.c.id, name="fk_kafka_eos_transactions_attempt"), nullable=False
    ),
    Column("prepared_transaction_state", _varchar(255)),
    # -1: of all Spark partitions together (scope load)
    Column("spark_partition", Integer, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("writes", _text(), nullable=False),
    Column("topic_ids", _text(), nullable=False),
    Column("outcome", _WORD),
    Column("outcome_at", _TIME),
    # a pooled id comes again, with another state
    PrimaryKeyConstraint(
        "transactional_id", "prepared_transaction_state", name="pk_kafka_eos_transactions"
    ),
    Index("ix_kafka_eos_transactions_attempt", "attempt_id"),
    # partitions' leaders know a transaction by its producer alone
    Index("ix_kafka_eos_transactions_state", "prepared_transaction_state"),
)
#: What is left of the transactions of a committed attempt that was pruned: what ``loaded`` and asset events tell.
summaries = Table(
    "kafka_eos_summaries",
    metadata,
    Column(
        "attempt_id",
        _ID,
        ForeignKey(attempts.c.id, name="fk_kafka_eos_summaries_attempt"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("transactions", Integer, nullable=False),
    Column("repaired", Integer, nullable=False),
    Column("topics", _text(), nullable=False),
)
#: Topics that prepared attempts of a namespace have written to. Noted once, for the transactions are many.
topics = Table(
    "kafka_eos_topics",
    metadata,
    Column("namespace", _NAME),
    Column("topic", _TXN),
    PrimaryKeyConstraint("namespace", "topic", name="pk_kafka_eos_topics"),
)
#: Repairs of transactions that were lost after the decision (rule: repair-replaces-lost-row). Each is an attempt of its
#: own with one transaction, opened before anything is written. Adopted, its transaction stands among those of the
#: decided attempt, and the lost one's outcome is ``superseded``.
repairs = Table(
    "kafka_eos_repairs",
    metadata,
    Column("id", _ID, primary_key=True),
    # the decided attempt
    Column("attempt_id", _ID, ForeignKey(attempts.c.id, name="fk_kafka_eos_repairs_attempt"), nullable=False),
    # counts on behind the load's attempts: no id of one is ever another's
    Column("number", Integer, nullable=False),
    Column("lost_transactional_id", _TXN, nullable=False),
    Column("transactional_id", _TXN, nullable=False),
    Column("state", _WORD, nullable=False),
    Column("opened_at", _TIME, nullable=False),
    Column("opened_by", _PEOPLE, nullable=False),
    Column("ended_at", _TIME),
    Column("reason", _text(), nullable=False),
    Column("closed_at", _TIME),
    UniqueConstraint("attempt_id", "number", name="uq_kafka_eos_repairs_number"),
)
#: KIP-939's mapping. It holds exactly the transactions that are decided to be committed and whose commit is
#: not verified yet: rows come with the decision and go with ``record_committed``, each in that database transaction.
#: (The KIP overwrites a row by the id's next transaction. Most of our ids have no next one: the table would only grow,
#: and "complete what stands here" would no longer be the whole recovery. A slot is given back with the row's going.)
kafka_transaction_state = Table(
    "kafka_transaction_state",
    metadata,
    Column("transactional_id", _TXN, primary_key=True),
    Column("prepared_transaction_state", _varchar(255), nullable=False),
)
#: Leases of what only one task at a time may make in Airflow (docs/adr/0022). A row stays, and is taken again.
leases = Table(
    "kafka_eos_turns",
    metadata,
    # a digest: what it names may be longer than an index takes
    Column("what_sha256", _varchar(64), primary_key=True),
    Column("taken_by", _PEOPLE, nullable=False),
    Column("taken_at", _TIME, nullable=False),
)
#: Streaming queries whose micro-batches are loads. A name is bound to one query id, and to the checkpoint that has it,
#: until a person sets it free; ``decided``: the last batch of that query that is decided to be committed, -1 for none,
#: null where only a person can say.
streams = Table(
    "kafka_eos_streams",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("namespace", _NAME, nullable=False),
    Column("name", _NAME, nullable=False),
    Column("query_id", _varchar(64)),
    Column("checkpoint", _text(), nullable=False),
    Column("decided", BigInteger),
    Column("newest_run", Integer, nullable=False),
    Column("bound_at", _TIME, nullable=False),
    Column("updated_at", _TIME, nullable=False),
    UniqueConstraint("namespace", "name", name="uq_kafka_eos_streams_name"),
)
#: Queries that a name was set free of, and what ``decided`` was then, null included: it may be bound to one of them
#: again.
stream_queries = Table(
    "kafka_eos_stream_queries",
    metadata,
    Column(
        "stream_id", _ID, ForeignKey(streams.c.id, name="fk_kafka_eos_stream_queries_stream"), autoincrement=False
    ),
    Column("query_id", _varchar(64)),
    Column("decided", BigInteger),
    PrimaryKeyConstraint("stream_id", "query_id", name="pk_kafka_eos_stream_queries"),
)
#: Runs of a query, in the order in which they were bound. ``identity`` is of the driver.
stream_runs = Table(
    "kafka_eos_stream_runs",
    metadata,
    Column(
        "stream_id", _ID, ForeignKey(streams.c.id, name="fk_kafka_eos_stream_runs_stream"), autoincrement=False
    ),
    Column("number", Integer, autoincrement=False),
    Column("identity", _TXN, nullable=False),
    Column("bound_at", _TIME, nullable=False),
    PrimaryKeyConstraint("stream_id", "number", name="pk_kafka_eos_stream_runs"),
    UniqueConstraint("stream_id", "identity", name="uq_kafka_eos_stream_runs_identity"),
)
#: With which offsets of its sources a batch was decided (rule: same-range). Empty: a person has said that the topics
#: have it, and no run has asked for it since.
stream_batches = Table(
    "kafka_eos_stream_batches",
    metadata,
    Column(
        "stream_id", _ID, ForeignKey(streams.c.id, name="fk_kafka_eos_stream_batches_stream"), autoincrement=False
    ),
    Column("query_id", _varchar(64)),
    Column("number", BigInteger, autoincrement=False),
    Column("offsets_sha256", _varchar(64), nullable=False),
    Column("decided_at", _TIME, nullable=False),
    PrimaryKeyConstraint("stream_id", "query_id", "number", name="pk_kafka_eos_stream_batches"),
)
#: Where the next range of a load name begins (docs/adr/0036). ``moves`` counts whatever changes what a range rests on;
#: ``load_id`` is of the load that took a range last: no other one takes one before that is through.
cursors = Table(
    "kafka_eos_cursors",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("namespace", _NAME, nullable=False),
    Column("load_name", _NAME, nullable=False),
    # JSON; null: where the source begins
    Column("position", _text(), nullable=False),
    Column("moves", Integer, nullable=False),
    Column("load_id", _ID, ForeignKey(loads.c.id, name="fk_kafka_eos_cursors_load")),
    # of the load that moved it last
    Column("data_interval_start", _TIME),
    Column("doubt", _text()),
    Column("created_at", _TIME, nullable=False),
    Column("moved_at", _TIME),
    # when a person has said last that own loads read over what was named until then
    Column("said_at", _TIME),
    Column("moved_by", _PEOPLE),
    Column("reason", _text(), nullable=False),
    UniqueConstraint("namespace", "load_name", name="uq_kafka_eos_cursors_name"),
)
#: What an attempt reads (rule: range-is-pinned). ``until_position`` is known once it is chosen; ``moves`` is the
#: cursor's count when the range was taken, NULL where somebody has named it.
ranges = Table(
    "kafka_eos_ranges",
    metadata,
    Column(
        "attempt_id",
        _ID,
        ForeignKey(attempts.c.id, name="fk_kafka_eos_ranges_attempt"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("since_position", _text(), nullable=False),
    Column("until_position", _text()),
    Column("moves", Integer),
    Column("taken_at", _TIME, nullable=False),
)


def for_people(text: str, longest: int = PEOPLE_LENGTH) -> str:
    """Replace what PostgreSQL or UTF-8 refuse, cut what is too long: a note must never stop a decision."""
    clean = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"


def for_reason(text: str) -> str:
    """Like :func:`for_people`, with more room."""
    return for_people(text, REASON_LENGTH)
