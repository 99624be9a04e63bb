"""What doctor was asked about, what it has seen, and what it finds. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from airflow_kafka_eos.errors import AccessError, KafkaEosError
from airflow_kafka_eos.kafka.admin.inspect import Clock, IdSeen, TopicSeen, Versions
from airflow_kafka_eos.ledger.queries import NOTHING, Waiting
from airflow_kafka_eos.load import TransactionScope, TwoPhaseCommit
from airflow_kafka_eos.protocol.guards.id_caps import Caps


class Severity(str, Enum):
    """How bad it is."""

    OK = "ok"
    #: it works, and something may be lost or refused that need not be
    WARNING = "warning"
    #: loads fail, or more is lost than this package promises
    ERROR = "error"
    UNKNOWN = "could-not-check"


@dataclass(frozen=True)
class Finding:
    """One check of one subject.

    :param id: the check's name; programs may rely on it.
    :param subject: what was looked at, such as ``topic orders``.
    :param seen: the figures.
    :param means: what follows for loads.
    :param remedy: what mends it, each command a line of its own; empty where nothing is to be mended.
    """

    id: str
    severity: Severity
    subject: str
    seen: str
    means: str
    remedy: str = ""

    @classmethod
    def not_seen(cls, id: str, subject: str, why: Unknown) -> Finding:
        """For a check that had nothing to judge."""
        return cls(id, Severity.UNKNOWN, subject, why.reason, "This could not be checked", why.remedy)


@dataclass(frozen=True)
class Unknown:
    """Why something was not seen, and what lets it be seen next time.

    :param is_refused: an ACL is missing, which is an answer where the ACL was the question.
    """

    reason: str
    remedy: str = ""
    is_refused: bool = False

    @classmethod
    def because(cls, error: KafkaEosError) -> Unknown:
        return cls(error.message, error.remedy, isinstance(error, AccessError))


@dataclass(frozen=True)
class Judgement:
    """A check's outcomes, so that a bad one and a good one of the same check look alike."""

    id: str
    subject: str
    seen: str

    def ok(self, means: str) -> Finding:
        return Finding(self.id, Severity.OK, self.subject, self.seen, means)

    def warning(self, means: str, remedy: str) -> Finding:
        return Finding(self.id, Severity.WARNING, self.subject, self.seen, means, remedy)

    def error(self, means: str, remedy: str) -> Finding:
        return Finding(self.id, Severity.ERROR, self.subject, self.seen, means, remedy)


#: Kafka's own topic of transactions.
TRANSACTION_LOG = "__transaction_state"


@dataclass(frozen=True)
class Asked:
    """The loads that cluster and ledger are to be good for.

    :param load_name: whose transactional ids are tried; None for those of the whole namespace.
    :param caps: how many transactional ids there may be on the brokers.
    :param spark_conf: Spark settings by name; None when Spark is not asked about.
    :param executor: Airflow's; None when it is not known.
    :param ledger_flags: what tells a command of ours which ledger is meant, as text for a shell.
    :param cluster_flags: the same for the cluster.
    """

    namespace: str
    topics: tuple[str, ...]
    hold_time_ms: int
    two_phase_commit: TwoPhaseCommit = TwoPhaseCommit.AUTO
    scope: TransactionScope = TransactionScope.TASK
    load_name: str | None = None
    caps: Caps = field(default_factory=Caps)
    spark_conf: Mapping[str, str] | None = None
    executor: str | None = None
    ledger_flags: str = ""
    cluster_flags: str = ""


@dataclass(frozen=True)
class BrokerSeen:
    """One broker, as the cluster names it. ``address`` is what clients are told to use."""

    node_id: int
    address: str
    versions: Versions | Unknown
    config: Mapping[str, str] | Unknown


@dataclass(frozen=True)
class LayoutSeen:
    """A topic's layout (None: there is no such topic) and settings."""

    topic: TopicSeen | Unknown | None
    config: Mapping[str, str] | Unknown


@dataclass(frozen=True)
class TwoPhaseSeen:
    """Whether Enable2Pc is granted; ``why`` not, and what to do about it.

    :param is_refused: an ACL seems to be missing.
    """

    is_granted: bool
    why: str = ""
    remedy: str = ""
    is_refused: bool = False


@dataclass(frozen=True)
class ClusterSeen:
    """A cluster. ``may_describe`` and ``may_write`` are None where ids of ours may be described and written with.

    :param cluster_rights: what the principal may do with the cluster.
    :param ids: all ids of the namespace, of any ledger.
    :param message_bytes: the largest batch that the Kafka settings ask for.
    :param retention: of the topics of loads that are decided and not verified.
    """

    bootstrap_servers: str
    login: bool
    brokers: tuple[BrokerSeen, ...]
    transaction_log: LayoutSeen
    topics: Mapping[str, LayoutSeen]
    may_describe: Unknown | None
    may_write: Unknown | None
    two_phase: TwoPhaseSeen | Unknown
    ids: tuple[IdSeen, ...] | Unknown
    clock: Clock | Unknown
    cluster_rights: frozenset[str] | Unknown = frozenset()
    message_bytes: int = 1_000_000
    retention: Mapping[str, Mapping[str, str] | Unknown] = field(default_factory=dict)

    @property
    def grants_two_phase(self) -> bool:
        return not isinstance(self.two_phase, Unknown) and self.two_phase.is_granted


@dataclass(frozen=True)
class LedgerSeen:
    """A ledger. ``url`` is redacted.

    :param is_embedded: the SQLite file that is made, and upgraded, by itself.
    :param revision: None where there are no tables yet.
    :param clock: None where the database has no clock of its own.
    :param waiting: what waits in the namespace that was asked about.
    """

    url: str
    revision: str | Unknown | None
    head: str
    ledger_id: str | Unknown
    is_embedded: bool = False
    clock: Clock | Unknown | None = field(default=None)
    waiting: Waiting | Unknown = NOTHING
