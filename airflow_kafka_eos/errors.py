"""The errors of this package, one small tree.

    KafkaEosError
    ├── TerminalError                trying again cannot help: a person or another attempt must act
    │   ├── ConfigurationError       a setting, a column or an argument is wrong
    │   │   ├── InvalidNameError     a name cannot become part of a transactional id
    │   │   ├── BrokerTooOldError    a broker lacks a request that exactly-once needs, whoever made it
    │   │   ├── TopicError           a topic or partition is missing or does not fit
    │   │   ├── SchemaRefusedError       the registry refuses the values' schema, or the columns do not fit it
    │   │   ├── OtherClusterError    the attempt was written to another Kafka cluster than the connection leads to
    │   │   ├── OtherCheckpointError     a query's checkpoint is not the one that the ledger has bound to its name
    │   │   ├── OtherLedgerError     this process opens another ledger than the one that the load is noted in
    │   │   └── ToolMissingError     a program on the machine is missing or too old
    │   ├── AccessError              the broker refuses the credentials or the operation
    │   ├── RecordError              a record cannot be written (too large, wrong type, unknown partition)
    │   ├── ManifestError            the manifest is missing, of another attempt, torn or of an unknown version
    │   ├── UndecidableError         the attempt can no longer be committed (superseded, aborted, too late)
    │   │   └── SupersededError      the attempt was superseded or aborted while it was written
    │   ├── CheckFailedError         the author's check refused the load
    │   ├── DualWriteError           the author's SQL beside the decision failed: nothing is decided
    │   ├── ProducerFencedError      the writer's own transaction was ended or taken over
    │   ├── TooLargeToCopyError      lost after the decision, and to copy it takes longer than the brokers allow
    │   ├── SandboxError             the sandbox's own broker could not be set up, or died
    │   └── InDoubtError             what happened cannot be told or mended by program (rule: doubt-stops-for-a-person)
    │       └── RecordsGoneError     lost after the decision, and gone from the log: prepare must write them again
    └── TransientError               the same call may succeed later; nothing was lost by failing now
        ├── BrokerUnavailableError   no broker, no coordinator, no leader answered
        ├── RegistryUnavailableError no schema registry answered
        ├── LedgerUnavailableError   the ledger's database is locked or gone
        │   └── LedgerNotReadyError  there is no ledger in it, or one that is not upgraded yet
        ├── SparkUnavailableError    no Spark Connect server answered, or it has lost the session
        ├── StorageUnavailableError  the object store with the manifests did not answer
        ├── StreamError              the stream of rows that prepare reads (engine="arrow") ended in an error
        ├── SourceUnavailableError   what says where a cursor's range ends did not answer
        ├── StoppedError             a task was told to stop: while it wrote or waited, or before it decided
        └── NotFinishedError         the deadline passed while waiting for markers, readers, a sweep or an application

Every error says what to do next, and carries the ids it knows as attributes, so that a log line at night
names the load, the attempt and the transactional id.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = [
    "AccessError",
    "BrokerTooOldError",
    "BrokerUnavailableError",
    "CheckFailedError",
    "ConfigurationError",
    "DualWriteError",
    "InDoubtError",
    "InvalidNameError",
    "KafkaEosError",
    "LedgerNotReadyError",
    "LedgerUnavailableError",
    "ManifestError",
    "NotFinishedError",
    "OtherCheckpointError",
    "OtherClusterError",
    "OtherLedgerError",
    "ProducerFencedError",
    "RecordError",
    "RecordsGoneError",
    "RegistryUnavailableError",
    "SandboxError",
    "SchemaRefusedError",
    "SourceUnavailableError",
    "SparkUnavailableError",
    "StoppedError",
    "StorageUnavailableError",
    "StreamError",
    "SupersededError",
    "TerminalError",
    "TooLargeToCopyError",
    "ToolMissingError",
    "TopicError",
    "TransientError",
    "UndecidableError",
]


_ONE_LEDGER = (
    "Let workers, triggerer and api-server use one ledger: set ledger_conn_id, best in [kafka_eos] on all of them, to "
    "a database that they share; or, on one host, give all of them the same AIRFLOW_HOME"
)


class KafkaEosError(Exception):
    """Base of all errors of this package.

    :param message: what happened, naming the field and the value where there is one.
    :param remedy: what to do next.
    :param load: the load's identity, as ``str(LoadIdentity)``.
    :param attempt: the attempt's number within its load.
    :param transactional_id: the transaction it is about.
    """

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        load: str | None = None,
        attempt: int | None = None,
        transactional_id: str | None = None,
    ) -> None:
        # one positional argument, the rest are attributes: so errors cross process borders (Spark's Python workers,
        # Airflow's triggerer) by Exception's own pickling
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.load = load
        self.attempt = attempt
        self.transactional_id = transactional_id

    def __str__(self) -> str:
        ids = ", ".join(
            f"{name} {value}"
            for name, value in (
                ("load", self.load),
                ("attempt", self.attempt),
                ("transactional id", self.transactional_id),
            )
            if value is not None
        )
        text = _sentence(self.message)
        if self.remedy:
            text += f" {_sentence(self.remedy)}"
        return f"{text} [{ids}]" if ids else text


class TerminalError(KafkaEosError):
    """Trying again cannot help. Airflow adapters raise it as a failure without retries."""


class TransientError(KafkaEosError):
    """The same call may succeed later."""


class ConfigurationError(TerminalError):
    """A setting, a column or an argument is wrong."""


class InvalidNameError(ConfigurationError):
    """A name cannot become part of a transactional id."""


class TopicError(ConfigurationError):
    """A topic or partition is missing, or does not fit the load."""


class SchemaRefusedError(ConfigurationError):
    """The schema registry refuses the values' schema, has none where one must be, or the columns do not fit it."""


class OtherClusterError(ConfigurationError):
    """The attempt was written to another Kafka cluster than the one that the connection leads to.

    :param written_to: the attempt's cluster id, as the ledger has it.
    :param leads_to: that of the cluster which the connection leads to.
    """

    def __init__(
        self, message: str, *, written_to: str | None = None, leads_to: str | None = None, **ids: Any
    ) -> None:
        super().__init__(message, **ids)
        self.written_to = written_to
        self.leads_to = leads_to


class OtherCheckpointError(ConfigurationError):
    """A streaming query's checkpoint is not the one that the ledger has bound to its name: older, a copy, another's."""


class OtherLedgerError(ConfigurationError):
    """This process opens another ledger than the one that has the load: another Airflow home, or connection.

    What it says of the load means nothing, not even that there is nothing to do.
    """

    def __init__(self, message: str, *, remedy: str = _ONE_LEDGER, **ids: Any) -> None:
        super().__init__(message, remedy=remedy, **ids)


class ToolMissingError(ConfigurationError):
    """A program on this machine (Java, Maven) is missing or too old."""


class AccessError(TerminalError):
    """The broker refuses the credentials, or an ACL is missing."""


class BrokerTooOldError(ConfigurationError):
    """A broker lacks a request that exactly-once needs, or has an older one. Whose broker it is plays no part."""


class RecordError(TerminalError):
    """A record cannot be written as it is."""


class ManifestError(TerminalError):
    """The manifest is missing, of another attempt, torn, or of an unknown schema version."""


class UndecidableError(TerminalError):
    """The attempt can no longer be committed: superseded, aborted, lost or out of time."""


class SupersededError(UndecidableError):
    """The attempt was aborted in the ledger while it was written, and its writer has noticed that and ended."""


class CheckFailedError(TerminalError):
    """The author's check refused what prepare wrote; the attempt is aborted."""


class DualWriteError(TerminalError):
    """The author's SQL that was to become true with the decision failed: nothing is decided."""


class ProducerFencedError(TerminalError):
    """A writer's transaction was ended or its transactional id initialised by someone else."""


class TooLargeToCopyError(TerminalError):
    """A transaction was lost after its decision, and to copy it takes longer than any transaction may stay open.

    Nothing is in doubt or missing: its load stays REPAIRING until the brokers allow more, or prepare writes it again.
    """


class SandboxError(TerminalError):
    """The broker that demo, tests and benchmarks start could not be set up, or ended by itself."""


class InDoubtError(TerminalError):
    """The log does not show one outcome (rule: doubt-stops-for-a-person). Nothing is touched; a person decides."""


class RecordsGoneError(InDoubtError):
    """Records of a decided load were lost, and are not in the log any more: only prepare can write them again.

    The load stays REPAIRING. In doubt is only whether the source is still the same.
    """


class BrokerUnavailableError(TransientError):
    """No broker, coordinator or leader answered before the deadline."""


class RegistryUnavailableError(TransientError):
    """The schema registry did not answer, or answered that it cannot at the moment."""


class LedgerUnavailableError(TransientError):
    """The ledger's database is locked or unreachable."""


class LedgerNotReadyError(LedgerUnavailableError):
    """There is no ledger where one was looked for, or it is not upgraded yet. Only a task may wait for that."""


class SparkUnavailableError(TransientError):
    """No Spark Connect server answers, or it was started again and has lost the session. Nothing becomes visible."""


class StorageUnavailableError(TransientError):
    """The object store with claims and manifests did not answer, or it is unknown whether it has written."""


class StreamError(TransientError):
    """The stream of rows that prepare reads in its own process ended in an error: nothing of it is visible."""


class SourceUnavailableError(TransientError):
    """What says where the range of a cursor ends did not answer; nothing was read."""


class StoppedError(TransientError):
    """A task was told to stop: while it wrote in its own process, and has ended what it had written; while it waited
    for an application elsewhere, which goes on; or before the decision, and nothing is decided.
    """


class NotFinishedError(TransientError):
    """A wait (for markers, readers, a quiet period) passed its deadline, or cannot look at what it waits for."""


def _sentence(text: str) -> str:
    ended = text.rstrip(". ")
    return ended if ended.endswith(("?", "!")) else f"{ended}."


def nearest(given: str, known: Iterable[str]) -> str | None:
    """What may have been meant by an unknown name: for remedies."""
    return next(iter(difflib.get_close_matches(given.lower(), list(known), n=1)), None)


#: The problem of a setting that guards the connection, and is refused for that.
NOT_FOLLOWED = "cannot be followed by kafka-python, which sends the coordinator requests"


def setting_error(key: str, problem: str, remedy: str) -> ConfigurationError:
    """The error for one of Kafka's settings. ``problem`` never shows a value that may be a secret."""
    return ConfigurationError(f"the Kafka setting {key} {problem}", remedy=remedy)
