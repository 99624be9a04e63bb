"""One run of the campaign, as plain values: what is loaded, where to, and what goes wrong meanwhile. No I/O."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Kind(str, Enum):
    """What goes wrong."""

    # --- processes of ours
    SIGKILL = "sigkill"
    #: a stop in good order: ``finally`` and ``with`` come to their turn (see :mod:`.striking`)
    SIGTERM = "sigterm"
    #: SIGSTOP, and SIGCONT after ``seconds``
    PAUSE = "pause"
    #: the process's own clock is ``seconds`` ahead of (or behind) the machine's
    CLOCK_JUMP = "clock_jump"
    # --- the ledger's database
    LEDGER_LOCKED = "ledger_locked"
    LEDGER_FULL = "ledger_full"
    LEDGER_DOWN = "ledger_down"
    LEDGER_HANGS = "ledger_hangs"
    #: PostgreSQL dies by SIGKILL, or is stopped as by ``pg_ctl stop -m fast``, and is started again after ``seconds``
    LEDGER_KILL = "ledger_kill"
    LEDGER_RESTART = "ledger_restart"
    # --- brokers
    BROKER_KILL = "broker_kill"
    BROKER_PAUSE = "broker_pause"
    BROKER_RESTART = "broker_restart"
    # --- connections to brokers
    NET_CUT = "net_cut"
    NET_DELAY = "net_delay"
    #: requests arrive, their answers do not
    NET_ONE_WAY = "net_one_way"
    END_TXN_TWICE = "end_txn_twice"
    END_TXN_ANSWER_LOST = "end_txn_answer_lost"
    # --- time
    TIMEOUT_BEFORE_DECISION = "timeout_before_decision"
    TIMEOUT_AFTER_DECISION = "timeout_after_decision"
    # --- what users and the scheduler do
    RETRY = "retry"
    CLEAR = "clear"
    SECOND_RUN = "second_run"
    CLEANUP_BESIDE = "cleanup_beside"
    # --- what administrators do
    #: the load's topics get two more partitions
    PARTITIONS_GROW = "partitions_grow"
    #: the load's first topic is deleted, and created under the same name
    TOPIC_RECREATED = "topic_recreated"
    #: the ledger is put back to what it was ``seconds`` ago
    LEDGER_RESTORED = "ledger_restored"
    #: ``transaction.version`` is raised from 1 to 2, as behind an upgrade of the cluster
    FEATURE_UPGRADED = "feature_upgraded"


class Role(str, Enum):
    """What a process of ours does: one of Airflow's tasks, the Spark driver, or a Spark task."""

    BEGIN = "begin"
    PREPARE = "prepare"
    DRIVER = "driver"
    TASK = "task"
    DECIDE = "decide"
    COMMIT = "commit"
    CLEANUP = "cleanup"
    LOADED = "loaded"
    #: the sweep that a maintenance DAG does; never a target of faults
    MAINTENANCE = "maintenance"


OPERATORS = (Role.BEGIN, Role.PREPARE, Role.DECIDE, Role.COMMIT, Role.CLEANUP, Role.LOADED)
WRITERS = (Role.DRIVER, Role.TASK)
PROCESS_KINDS = (Kind.SIGKILL, Kind.SIGTERM, Kind.PAUSE, Kind.CLOCK_JUMP, Kind.LEDGER_FULL)
#: of the connections to PostgreSQL, and of PostgreSQL itself: such a run has a server of its own
DATABASE_NET_KINDS = (Kind.LEDGER_DOWN, Kind.LEDGER_HANGS)
DATABASE_KINDS = (Kind.LEDGER_KILL, Kind.LEDGER_RESTART)
BROKER_KINDS = (Kind.BROKER_KILL, Kind.BROKER_PAUSE, Kind.BROKER_RESTART)
OUTAGE_KINDS = (Kind.NET_CUT, Kind.NET_DELAY, Kind.NET_ONE_WAY)
END_TXN_KINDS = (Kind.END_TXN_TWICE, Kind.END_TXN_ANSWER_LOST)
NET_KINDS = (*OUTAGE_KINDS, *END_TXN_KINDS)
TIMEOUT_KINDS = (Kind.TIMEOUT_BEFORE_DECISION, Kind.TIMEOUT_AFTER_DECISION)
ADMIN_KINDS = (Kind.PARTITIONS_GROW, Kind.TOPIC_RECREATED, Kind.LEDGER_RESTORED, Kind.FEATURE_UPGRADED)
#: behind these a load may be nobody's to finish
LOSING_KINDS = (Kind.TOPIC_RECREATED, Kind.LEDGER_RESTORED)
#: targets of :data:`BROKER_KINDS`
BROKERS = ("leader", "coordinator", "any", "all")
#: targets of :data:`NET_KINDS`: whose connections
LEDGER_SIDE, WRITER_SIDE = "ledger side", "writers"


#: the first is the default
ENGINES = ("spark-submit", "arrow", "connect")
#: hold times: with the first nothing times out by itself; the second can be waited for
LONG_HOLD_MS, SHORT_HOLD_MS = 600_000, 8_000


class Keeps(str, Enum):
    """What the run's topics keep."""

    #: all of it, as long as the run takes
    ALL = "all"
    #: ``cleanup.policy=compact``, with a cleaner that comes all the while
    NEWEST = "newest"
    #: an hour, with rounds of retention that come all the while; the records' own times are younger
    HOUR = "hour"


class Wish(str, Enum):
    """What the people behind a load want of it."""

    #: cleared until it is committed
    LOAD = "load"
    #: its author's check refuses it: nothing of it may ever be seen
    REFUSE = "refuse"
    #: run once, and never cleared: committed, or nothing
    ABANDON = "abandon"


@dataclass(frozen=True)
class Moment:
    """When a fault strikes: at a named step (see :mod:`.places`), or so long after an event of its load.

    :param event: ``run`` (the run's begin), or the begin of the first process of a role.
    """

    step: str | None = None
    event: str = "run"
    delay_ms: int = 0


@dataclass(frozen=True)
class Fault:
    """
    :param target: a role, or what the kind's group says.
    :param load: the number of the load that it is about.
    :param seconds: of a pause, a delay, or of a clock's jump; of an outage, from its first effect on.
    """

    kind: Kind
    target: str
    moment: Moment = Moment()
    load: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class LoadPlan:
    """
    :param size: bytes of a value, at least.
    :param keys: how many different ones; several records share one.
    :param behind: it begins when all others have ended, under the same name: pooled ids are used again.
    :param rich: its records have times and headers, and some neither key nor value.
    :param topics: to how many topics it writes.
    """

    records: int
    size: int
    keys: int
    fate: Wish = Wish.LOAD
    behind: bool = False
    rich: bool = False
    topics: int = 1


@dataclass(frozen=True)
class Scenario:
    """
    :param kafka: version, ``3.9`` to ``4.4``; behind it may stand the cluster's ``transaction.version``, as ``4.4/1``.
    :param writer: ``arrow`` or ``confluent``.
    :param scope: ``task`` or ``load``.
    :param naming: ``pooling`` or ``incrementing``.
    :param ledger: ``sqlite`` or ``postgresql``.
    :param tasks: Spark tasks of the first attempt, and of all later ones.
    :param shares_topic: all loads write to one topic; else to one each.
    :param speculates: one task of each attempt runs twice at once (scope ``task``).
    :param hold_ms: the timeout of the first attempt's transactions, where there is one; that of later ones is long.
    :param retries: of each of Airflow's tasks, behind its first try.
    :param keeps: what its topics keep.
    :param engine: of :data:`ENGINES`, what prepares in a run that goes through Airflow.
    """

    seed: int
    kafka: str
    brokers: int
    writer: str
    scope: str
    two_phase: bool
    naming: str
    ledger: str
    partitions: int
    tasks: tuple[int, int]
    shares_topic: bool
    speculates: bool
    hold_ms: int
    retries: int
    loads: tuple[LoadPlan, ...]
    keeps: Keeps = Keeps.ALL
    faults: tuple[Fault, ...] = field(default=())
    engine: str = ENGINES[0]

    @property
    def records(self) -> int:
        """Of all loads, those that may never be seen included."""
        return sum(load.records for load in self.loads)

    @property
    def cluster(self) -> tuple[str, int]:
        """What kind of cluster it needs: version and number of brokers."""
        return self.kafka, self.brokers

    @property
    def is_alone(self) -> bool:
        """Whether its cluster must be its own: it takes brokers down, or changes all of them."""
        return any(fault.kind in (*BROKER_KINDS, Kind.FEATURE_UPGRADED) for fault in self.faults)

    @property
    def recreates_topics(self) -> bool:
        """Whether other applications must write elsewhere: what they have in its topics is gone, too."""
        return any(fault.kind is Kind.TOPIC_RECREATED for fault in self.faults)

    @property
    def takes_database_down(self) -> bool:
        """Whether its PostgreSQL must be its own."""
        return any(fault.kind in DATABASE_KINDS for fault in self.faults)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        found: dict[str, Any] = json.loads(text)
        found["tasks"] = tuple(found["tasks"])
        found["loads"] = tuple(LoadPlan(**load | {"fate": Wish(load["fate"])}) for load in found["loads"])
        found["keeps"] = Keeps(found.get("keeps", Keeps.ALL))
        found["faults"] = tuple(
            Fault(**fault | {"kind": Kind(fault["kind"]), "moment": Moment(**fault["moment"])})
            for fault in found["faults"]
        )
        return cls(**found)


def dimensions(scenario: Scenario) -> dict[str, str]:
    """What the campaign counts by: name and value."""
    return {
        "Kafka": scenario.kafka,
        "brokers": str(scenario.brokers),
        "writer": scenario.writer,
        "scope": scenario.scope,
        "two-phase commit": "on" if scenario.two_phase else "off",
        "naming": scenario.naming,
        "ledger": scenario.ledger,
        "partitions": str(scenario.partitions),
        "tasks": str(scenario.tasks[0]),
        "tasks change": str(scenario.tasks[0] != scenario.tasks[1]).lower(),
        "loads": str(len(scenario.loads)),
        "topics of a load": str(max(load.topics for load in scenario.loads)),
        "times, headers, nulls": str(any(load.rich for load in scenario.loads)).lower(),
        "topics keep": scenario.keeps.value,
        "faults": str(len(scenario.faults)),
    }
