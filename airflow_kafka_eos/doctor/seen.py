"""What was asked for, and what was seen. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_kafka_eos.doctor.finding import Unknown
from airflow_kafka_eos.kafka.inspecting import Clock, IdSeen, TopicSeen, Versions
from airflow_kafka_eos.ledger.waiting import NOTHING, Waiting
from airflow_kafka_eos.load import TransactionScope, TwoPhaseCommit
from airflow_kafka_eos.protocol.ids import Caps

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
