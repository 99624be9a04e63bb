"""What strikes from outside, one function per kind: each waits until the fault has had its effect, and ends it."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from airflow_kafka_eos import naming
from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.retry import Retry
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import TransactionNaming
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.faults.ledger_server import LedgerServer
from tests.faults.plan import Plan
from tests.faults.proxy import FaultProxy
from tests.faults.scenario import (
    BROKER_KINDS,
    DATABASE_KINDS,
    DATABASE_NET_KINDS,
    OUTAGE_KINDS,
    TIMEOUT_KINDS,
    Fault,
    Keeps,
    Kind,
)
from tests.faults.striking import asleep_file, held_file, outlasting_s, struck, take
from tests.faults.timeline import Timeline
from tests.transaction_version import finalize

#: segments are rolled all the while, so that cleaner and retention have something to come for
_ROLLED = {"segment.ms": "300", "segment.bytes": "1048576"}
TOPIC_CONFIGS: Mapping[Keeps, Mapping[str, str]] = {
    Keeps.ALL: {},
    Keeps.NEWEST: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", **_ROLLED},
    Keeps.HOUR: {"retention.ms": "3600000", **_ROLLED},
}
STATE_TOPIC = "__transaction_state"
SLOW_S = 0.08
POLL_S = 0.01
_LIST_S = 0.3
_ASK_S = 20.0


@dataclass
class Targets:
    """What there is to hit.

    :param proxies: in front of the brokers, of the side that the run's fault is about.
    :param user: starts what a user does; gets the fault.
    """

    plan: Plan
    kafka: LocalKafka
    user: Callable[[Fault], None]
    proxies: Sequence[FaultProxy] = ()
    database: FaultProxy | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    #: topics that have another number of partitions by now
    changed: dict[str, int] = field(default_factory=dict)
    #: topics that were deleted, and when, monotonic seconds
    recreated: dict[str, float] = field(default_factory=dict)
    restored: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Strike:
    """One fault whose moment has come.

    :param ledger_id: of the run's ledger.
    """

    targets: Targets
    number: int
    fault: Fault
    timeline: Timeline
    ledger_id: str

    @property
    def is_done(self) -> bool:
        return struck(self.targets.plan.folder, self.number)

    def took(self) -> None:
        """It has had its effect: only now it counts."""
        take(self.targets.plan.folder, self.number, self.fault, self.timeline)

    def until(self, happens: Callable[[], bool]) -> bool:
        """Wait for it; False: the run has ended without."""
        while not happens():
            if self.targets.ended.wait(POLL_S):
                return happens()
        return True


def brokers(strike: Strike) -> None:
    kafka, fault = strike.targets.kafka, strike.fault
    nodes = nodes_of(strike)
    strike.timeline.log(fault.kind.value, nodes=nodes)
    one = None if len(nodes) == len(kafka.node_ids) else nodes[0]
    if fault.kind is Kind.BROKER_PAUSE:
        kafka.pause(one)
        strike.took()
        time.sleep(fault.seconds)
        kafka.resume(one)
        kafka.wait_ready()
        return
    if fault.kind is Kind.BROKER_KILL:
        kafka.kill(one)
        strike.took()
        time.sleep(fault.seconds)
    kafka.restart(one)
    strike.took()


def nodes_of(strike: Strike) -> list[int]:
    """Whom a broker's fault is about."""
    targets, fault = strike.targets, strike.fault
    every, seed = targets.kafka.node_ids, targets.plan.scenario.seed
    if fault.target == "all" or len(every) == 1:
        return every
    chosen: int | None = None
    if fault.target == "coordinator":
        chosen = _coordinator(strike)
    if fault.target in ("leader", "coordinator") and chosen is None:
        topic = STATE_TOPIC if fault.target == "coordinator" else targets.plan.topics[fault.load][0]
        admin = AdminClient({"bootstrap.servers": targets.kafka.bootstrap_servers, "log_level": 0})
        leaders = [p.leader for p in admin.list_topics(topic, _ASK_S).topics[topic].partitions.values()]
        leaders = [leader for leader in leaders if leader in every]
        chosen = leaders[seed % len(leaders)] if leaders else None
    return [random.Random(seed).choice(every) if chosen is None else chosen]


def _coordinator(strike: Strike) -> int | None:
    """Who coordinates a transaction of the load that is open now; None: there is none."""
    with contextlib.suppress(KafkaEosError, Retry), _wire(strike) as wire:
        for name in _asking(strike, wire).list_open(_prefix(strike)):
            node = wire.coordinators([name])[name]
            strike.timeline.log("its coordinator", transactional_id=name, node=node)
            return node
    return None


def _wire(strike: Strike) -> Wire:
    settings = {"bootstrap.servers": strike.targets.kafka.bootstrap_servers}
    return Wire(KafkaSettings.from_mapping(settings), timeout_s=_ASK_S)


def _asking(strike: Strike, wire: Wire) -> Coordinator:
    return Coordinator(wire, namespace=strike.targets.plan.namespace, ledger_id=strike.ledger_id)


def _prefix(strike: Strike) -> str:
    """Of the load's transactional ids; pooled ones tell no load, there it is that of all of the run's."""
    plan = strike.targets.plan
    identity = plan.identity(strike.fault.load)
    if plan.scenario.naming == TransactionNaming.POOLING.value:
        return naming.slot_prefix(identity.namespace, strike.ledger_id, identity.name)
    return naming.prefix(identity, strike.ledger_id)


def timeout(strike: Strike) -> None:
    """The sleeper is at it by itself (:mod:`.striking`). It counts where an open transaction was ended without commit
    while it slept: by the broker, for who else ends one is a cleanup that has been told to."""
    folder = strike.targets.plan.folder
    if not strike.until(asleep_file(folder, strike.number).exists):
        return
    wakes = time.monotonic() + outlasting_s(strike.targets.plan)
    prefix = _prefix(strike)
    with _wire(strike) as wire:
        asking = _asking(strike, wire)
        before = set(asking.list_open(prefix))
        while before and time.monotonic() < wakes:
            time.sleep(_LIST_S)
            gone = before - set(asking.list_open(prefix))
            if gone and gone - set(asking.list_committed(prefix)):
                strike.timeline.log("timed out", transactional_ids=sorted(gone))
                strike.took()
                return


def locked(strike: Strike) -> None:
    """Held until somebody has come to write, and ``seconds`` longer."""
    folder, number = strike.targets.plan.folder, strike.number
    file = strike.targets.plan.ledger_url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        held_file(folder, number).touch()
        strike.timeline.log("holds the write lock")
        if strike.until(lambda: strike.is_done):
            time.sleep(strike.fault.seconds)
        held_file(folder, number).unlink()
        other.execute("ROLLBACK")


def database_away(strike: Strike) -> None:
    assert strike.targets.database is not None
    _outage(strike, [strike.targets.database])


def connections(strike: Strike) -> None:
    _outage(strike, strike.targets.proxies)


def _outage(strike: Strike, proxies: Sequence[FaultProxy]) -> None:
    """It lasts until it has touched a connection, and ``seconds`` longer."""
    strike.timeline.log(f"{strike.fault.kind.value} begins")
    for proxy in proxies:
        proxy.weather.touched.clear()
        _set(proxy, strike.fault.kind, float("inf"))
    try:
        if strike.until(lambda: any(proxy.weather.touched.is_set() for proxy in proxies)):
            strike.took()
            time.sleep(strike.fault.seconds)
    finally:
        for proxy in proxies:
            _set(proxy, strike.fault.kind, 0.0)


def _set(proxy: FaultProxy, kind: Kind, until: float) -> None:
    weather = proxy.weather
    if kind is Kind.NET_ONE_WAY:
        weather.one_way_until = until
    elif kind is Kind.NET_DELAY:
        weather.slow_until, weather.slow_s = until, SLOW_S
    elif kind is Kind.LEDGER_HANGS:
        weather.hangs_until = until
    else:
        weather.away_until = until
        if until:
            proxy.cut()


def database_server(strike: Strike) -> None:
    server = LedgerServer.of(strike.targets.plan.ledger_url)
    if strike.fault.kind is Kind.LEDGER_KILL:
        server.kill()
    else:
        server.stop()
    strike.took()
    time.sleep(strike.fault.seconds)
    server.start()


def partitions_grow(strike: Strike) -> None:
    plan, kafka = strike.targets.plan, strike.targets.kafka
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    count = plan.scenario.partitions + 2
    for done in admin.create_partitions([NewPartitions(t, count) for t in plan.topics[strike.fault.load]]).values():
        done.result(_ASK_S)
    strike.targets.changed.update(dict.fromkeys(plan.topics[strike.fault.load], count))
    strike.took()


def topic_recreated(strike: Strike) -> None:
    plan, kafka = strike.targets.plan, strike.targets.kafka
    topic = plan.topics[strike.fault.load][0]
    strike.targets.recreated[topic] = time.monotonic()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    admin.delete_topics([topic])[topic].result(_ASK_S)
    strike.timeline.log("a topic is deleted", topic=topic)
    config = dict(TOPIC_CONFIGS[plan.scenario.keeps])
    wanted = NewTopic(topic, plan.scenario.partitions, min(3, kafka.brokers), config=config)
    give_up = time.monotonic() + _ASK_S
    while True:
        try:
            admin.create_topics([wanted])[topic].result(_ASK_S)
            break
        except KafkaException as e:  # the one of that name is still going
            if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > give_up:
                raise
            time.sleep(POLL_S)
    strike.took()


def feature_upgraded(strike: Strike) -> None:
    finalize(strike.targets.kafka.bootstrap_servers, 2)
    strike.took()


def ledger_restored(strike: Strike) -> None:
    """Saved now, and put back when something has been written since, and ``seconds`` later: that is gone then."""
    file = strike.targets.plan.ledger_url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(":memory:")) as backup:
        with contextlib.closing(sqlite3.connect(file, timeout=30)) as live:
            live.backup(backup)
            strike.timeline.log("the ledger is saved")
            saved = list(backup.iterdump())
            if not strike.until(lambda: list(live.iterdump()) != saved):
                return
        strike.targets.ended.wait(strike.fault.seconds)
        with contextlib.closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as live:
            strike.targets.restored.set()
            backup.backup(live)
    strike.took()


def user(strike: Strike) -> None:
    strike.targets.user(strike.fault)
    strike.took()


STRIKES: Mapping[Kind, Callable[[Strike], None]] = {
    **dict.fromkeys(BROKER_KINDS, brokers),
    **dict.fromkeys(OUTAGE_KINDS, connections),
    **dict.fromkeys(DATABASE_NET_KINDS, database_away),
    **dict.fromkeys(DATABASE_KINDS, database_server),
    **dict.fromkeys(TIMEOUT_KINDS, timeout),
    Kind.LEDGER_LOCKED: locked,
    Kind.SECOND_RUN: user,
    Kind.CLEANUP_BESIDE: user,
    Kind.PARTITIONS_GROW: partitions_grow,
    Kind.TOPIC_RECREATED: topic_recreated,
    Kind.LEDGER_RESTORED: ledger_restored,
    Kind.FEATURE_UPGRADED: feature_upgraded,
}
