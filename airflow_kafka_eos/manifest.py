"""The manifest: what prepare hands to decide. A versioned JSON document; this module does no I/O.

One entry per Spark partition (an empty one has no transaction), with what was written where. In scope ``load`` all
of them share one transaction: :attr:`Manifest.prepared` has each transaction once, whatever the scope. ``decide``
believes the manifest only as far as the broker confirms it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_kafka_eos import naming
from airflow_kafka_eos.errors import ConfigurationError, ManifestError
from airflow_kafka_eos.load import LoadIdentity, TransactionScope
from airflow_kafka_eos.naming import AttemptRef as AttemptRef
from airflow_kafka_eos.naming import IdRole
from airflow_kafka_eos.transaction import (
    TWO_PHASE_TIMEOUT_MS,
    PreparedTransaction,
    PreparedTxnState,
    TopicPartition,
)

SCHEMA_VERSION = 3
DIGEST_MODULUS = 2**128
_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True)
class PartitionWrites:
    """What one transaction wrote to one Kafka partition.

    ``bytes`` counts keys, values and headers before compression. ``digest`` is a hash of the records, as 32 hex digits;
    how it is made, the manifest says (``digest_algorithm``). Offsets are those of the first and the last record.
    ``oldest_timestamp_ms`` is the earliest of the records' own times: retention goes by it.
    """

    topic: str
    partition: int
    records: int
    bytes: int
    first_offset: int
    last_offset: int
    digest: str
    oldest_timestamp_ms: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True)
class ManifestEntry:
    """What one Spark partition's accepted task attempt did. No transaction: the partition was empty."""

    spark_partition: int
    transaction: PreparedTransaction | None
    writes: tuple[PartitionWrites, ...]

    @property
    def records(self) -> int:
        return sum(w.records for w in self.writes)


@dataclass(frozen=True)
class TransactionWrites:
    """One transaction and all that was written in it. No Spark partition: all of them wrote it (scope ``load``)."""

    transaction: PreparedTransaction
    spark_partition: int | None
    writes: tuple[PartitionWrites, ...]

    @property
    def records(self) -> int:
        return sum(w.records for w in self.writes)

    @property
    def bytes(self) -> int:
        return sum(w.bytes for w in self.writes)


@dataclass(frozen=True)
class TopicInfo:
    """A topic as prepare saw it. Writers notice when it is widened, decide when it is recreated."""

    topic_id: str
    partitions: int


@dataclass(frozen=True)
class Manifest:
    """All that one attempt has prepared.

    ``ran_again``: an accepted task attempt was not its task's first, or nobody looked: another one of that task may
    live on. ``transaction_timeout_ms`` is what the coordinator shows: with ``two_phase_commit`` the broker never ends a
    transaction by itself, and shows 2147483647. ``digest_algorithm`` names the hash behind the digests.
    """

    attempt: AttemptRef
    created_at: str
    writer: str
    scope: TransactionScope
    two_phase_commit: bool
    transaction_timeout_ms: int
    digest_algorithm: str
    topics: Mapping[str, TopicInfo]
    entries: tuple[ManifestEntry, ...]
    ran_again: bool = True

    @property
    def prepared(self) -> tuple[TransactionWrites, ...]:
        """Each transaction once, in the order of its first Spark partition, with the writes of all of them."""
        found: dict[PreparedTransaction, list[ManifestEntry]] = {}
        for entry in self.entries:
            if entry.transaction is not None:
                found.setdefault(entry.transaction, []).append(entry)
        return tuple(
            TransactionWrites(
                transaction,
                None if self.scope is TransactionScope.LOAD else entries[0].spark_partition,
                tuple(w for e in entries for w in e.writes),
            )
            for transaction, entries in found.items()
        )

    @property
    def transactions(self) -> tuple[PreparedTransaction, ...]:
        """Each transaction once."""
        return tuple(p.transaction for p in self.prepared)

    @property
    def how(self) -> str:
        """How it was written, for people."""
        count = len(self.transactions)
        until = (
            "two-phase commit" if self.two_phase_commit else f"timeout {self.transaction_timeout_ms / 1000:g} s"
        )
        return (
            f"{count} transaction{'' if count == 1 else 's'} (scope {self.scope.value}, {until}, "
            f"writer {self.writer})"
        )

    @property
    def records(self) -> int:
        return sum(e.records for e in self.entries)

    @property
    def bytes(self) -> int:
        return sum(w.bytes for e in self.entries for w in e.writes)

    @property
    def digest(self) -> str:
        """The digest of all records of the attempt, whatever partition they went to."""
        return combine_digests(w.digest for e in self.entries for w in e.writes)


def combine_digests(digests: Any) -> str:
    """Add order-independent digests."""
    return f"{sum(int(d, 16) for d in digests) % DIGEST_MODULUS:032x}"


def dump(manifest: Manifest) -> str:
    """Write the document, keys sorted, so that equal manifests are equal texts."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "attempt": _attempt_document(manifest.attempt),
        "created_at": manifest.created_at,
        "writer": manifest.writer,
        "scope": manifest.scope.value,
        "two_phase_commit": manifest.two_phase_commit,
        "transaction_timeout_ms": manifest.transaction_timeout_ms,
        "digest_algorithm": manifest.digest_algorithm,
        "ran_again": manifest.ran_again,
        "topics": {name: asdict(info) for name, info in manifest.topics.items()},
        "entries": [entry_document(e) for e in manifest.entries],
    }
    return _text(document)


def entry_document(entry: ManifestEntry) -> dict[str, Any]:
    """An entry as it stands in the document; :func:`entry_of` reads it."""
    return {
        "spark_partition": entry.spark_partition,
        "transaction": None
        if entry.transaction is None
        else {
            "transactional_id": entry.transaction.transactional_id,
            "prepared_transaction_state": str(entry.transaction.state),
        },
        "writes": [vars(w) for w in entry.writes],
    }


def sha256(manifest: Manifest) -> str:
    """The document's SHA-256, 64 hex digits: equal manifests, and only they, have the same."""
    return hashlib.sha256(dump(manifest).encode()).hexdigest()


def dump_given_up(attempt: AttemptRef, reason: str) -> str:
    """What the driver's ``abort()`` leaves in the manifest's place, so that no manifest can follow.

    Rule: writer-ends-only-unreported.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "attempt": _attempt_document(attempt),
        "given_up": reason,
    }
    return _text(document)


def is_given_up(text: str) -> bool:
    """Whether that is what :func:`dump_given_up` writes; what is no JSON is not."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "given_up" in document


def _attempt_document(attempt: AttemptRef) -> dict[str, Any]:
    own: dict[str, Any] = {"ledger_id": attempt.ledger_id, "number": attempt.attempt, "slot": attempt.slot}
    if attempt.repairs:
        own["repairs"] = [list(pair) for pair in attempt.repairs]
    return own | asdict(attempt.load)


def _text(document: Any) -> str:
    # on one line: what indents is Python's own encoder, twenty times as slow, and a load has thousands of entries
    return json.dumps(document, sort_keys=True)


def load(text: str, expected: AttemptRef) -> Manifest:
    """Read a manifest and make sure that it is whole and this attempt's own.

    :raises ManifestError: unknown schema version, torn, of another attempt, given up by Spark, entries missing
        or doubled, or a transactional id that was not leased to this attempt.
    """

    def refuse(message: str, remedy: str = "Clear prepare: it opens a new attempt") -> ManifestError:
        return ManifestError(message, remedy=remedy, load=str(expected.load), attempt=expected.attempt)

    try:
        document = json.loads(text)
        version = document["schema_version"]
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise refuse(f"the manifest is not a whole JSON document with a schema_version ({e})") from e
    if version != SCHEMA_VERSION:
        raise refuse(
            f"the manifest has schema_version {version!r}, this version of airflow-kafka-eos reads {SCHEMA_VERSION}",
            "Install the same version of airflow-kafka-eos in Spark and in Airflow, then clear prepare",
        )
    try:
        found = _attempt(document["attempt"])
        if found != expected:
            raise refuse(f"the manifest is of {found} (ledger {found.ledger_id}), not of this attempt")
        if "given_up" in document:
            raise refuse(f"prepare gave this attempt up: {document['given_up']}")
        manifest = Manifest(
            attempt=found,
            created_at=str(document["created_at"]),
            writer=str(document["writer"]),
            scope=TransactionScope(document["scope"]),
            two_phase_commit=bool(document["two_phase_commit"]),
            transaction_timeout_ms=int(document["transaction_timeout_ms"]),
            digest_algorithm=str(document["digest_algorithm"]),
            topics={name: TopicInfo(**info) for name, info in document["topics"].items()},
            entries=tuple(entry_of(e) for e in document["entries"]),
            ran_again=bool(document["ran_again"]),
        )
        problem = _inconsistency(manifest)
    except (KeyError, TypeError, ValueError, AttributeError, ConfigurationError) as e:
        raise refuse(f"the manifest is torn or malformed ({type(e).__name__}: {e})") from e
    # what int() and str() bent into shape, and what nobody reads, shows when it is written again
    if not problem and _text(document) != dump(manifest):
        problem = "the manifest is malformed: it has fields that do not belong there, or values of another type"
    if problem:
        raise refuse(problem)
    return manifest


def _attempt(part: Mapping[str, Any]) -> AttemptRef:
    identity = LoadIdentity(part["namespace"], part["name"], part["key"])
    slot = part["slot"]
    repairs = tuple((int(partition), int(number)) for partition, number in part.get("repairs", ()))
    return AttemptRef(identity, part["ledger_id"], int(part["number"]), None if slot is None else int(slot), repairs)


def entry_of(part: Mapping[str, Any]) -> ManifestEntry:
    """
    :raises KeyError, TypeError, ValueError, AttributeError, ConfigurationError: it is malformed.
    """
    txn = part["transaction"]
    transaction = None
    if txn is not None:
        state = PreparedTxnState.parse(txn["prepared_transaction_state"])
        transaction = PreparedTransaction(txn["transactional_id"], state)
    numbers = ("partition", "records", "bytes", "first_offset", "last_offset", "oldest_timestamp_ms")
    writes = tuple(PartitionWrites(**{**w, **{n: int(w[n]) for n in numbers}}) for w in part["writes"])
    return ManifestEntry(int(part["spark_partition"]), transaction, writes)


def _inconsistency(manifest: Manifest) -> str:
    """What is wrong between the manifest's own parts, or an empty text."""
    partitions = [e.spark_partition for e in manifest.entries]
    if partitions != list(range(len(partitions))):
        return f"the manifest must have one entry per Spark partition, 0 to n-1 in order; it has {partitions}"
    if manifest.two_phase_commit != (manifest.transaction_timeout_ms == TWO_PHASE_TIMEOUT_MS):
        return (
            f"two_phase_commit={manifest.two_phase_commit} and transaction_timeout_ms="
            f"{manifest.transaction_timeout_ms} contradict each other"
        )
    for entry in manifest.entries:
        problem = _entry_problem(manifest, entry)
        if problem:
            return problem
    return _shared_problem(manifest) if manifest.scope is TransactionScope.LOAD else ""


def _entry_problem(manifest: Manifest, entry: ManifestEntry) -> str:
    if entry.transaction is None:
        return f"Spark partition {entry.spark_partition} has records but no transaction" if entry.writes else ""
    text = entry.transaction.transactional_id
    parsed = naming.parse(text)
    if parsed is None or not manifest.attempt.owns(parsed):
        return f"transactional id {text!r} was not leased to this attempt"
    if parsed.role is not (IdRole.LOAD if manifest.scope is TransactionScope.LOAD else IdRole.TASK):
        return f"transactional id {text!r} is not one of scope {manifest.scope.value}"
    # and so no id of scope task stands there twice
    if parsed.role is IdRole.TASK and parsed.spark_partition != entry.spark_partition:
        return f"transactional id {text!r} stands at Spark partition {entry.spark_partition}"
    if entry.transaction.state.is_empty or not entry.writes:
        return f"transaction {text!r} has no PreparedTxnState or no records"
    keys = [w.topic_partition for w in entry.writes]
    if len(set(keys)) != len(keys):
        return f"transaction {text!r} lists a partition twice"
    for w in entry.writes:
        if not _possible(w, manifest.topics.get(w.topic)):
            return f"transaction {text!r} has impossible figures for {w.topic_partition}: {w}"
    return ""


def _shared_problem(manifest: Manifest) -> str:
    """Scope ``load``: one transaction, and of each Kafka partition one owner, for sequence numbers have one source."""
    if len(manifest.prepared) > 1:
        return f"scope load has one transaction, the manifest names {', '.join(map(str, manifest.transactions))}"
    owners: dict[TopicPartition, int] = {}
    for entry in manifest.entries:
        for w in entry.writes:
            owner = owners.setdefault(w.topic_partition, entry.spark_partition)
            if owner != entry.spark_partition:
                return f"Spark partitions {owner} and {entry.spark_partition} have both written {w.topic_partition}"
    return ""


def _possible(w: PartitionWrites, topic: TopicInfo | None) -> bool:
    if topic is None or not 0 <= w.partition < topic.partitions or _DIGEST.fullmatch(w.digest) is None:
        return False
    if w.oldest_timestamp_ms < 0:
        return False
    # there may be more offsets than records, never fewer: another transaction may write in between
    return w.records >= 1 and w.bytes >= 0 and 0 <= w.first_offset <= w.last_offset - w.records + 1
