"""Brokers: their settings, the log of their transactions, and how far clocks differ. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_kafka_eos.doctor.commands import Commands
from airflow_kafka_eos.doctor.finding import (
    TRANSACTION_LOG,
    Asked,
    BrokerSeen,
    ClusterSeen,
    Finding,
    Judgement,
    LedgerSeen,
    Unknown,
)
from airflow_kafka_eos.doctor.topics import check_replicas
from airflow_kafka_eos.doctor.transactional_ids import all_of
from airflow_kafka_eos.kafka.admin.capabilities import Lack, lacking, needed, remedy_for
from airflow_kafka_eos.kafka.admin.inspect import Clock
from airflow_kafka_eos.kafka.admin.preflight import ENABLE, MAX_TIMEOUT
from airflow_kafka_eos.load import TwoPhaseCommit

ID_EXPIRATION = "transactional.id.expiration.ms"
LOG_MIN_ISR = "transaction.state.log.min.isr"
#: The broker settings that the checks read.
SETTINGS = (MAX_TIMEOUT, ID_EXPIRATION, LOG_MIN_ISR)
TRANSACTION_VERSION = "transaction.version"
_DAY_MS = 86_400_000
#: seconds that a clock may be off
_NOTICED_S, _TOO_MUCH_S = 2.0, 30.0


def check_brokers(seen: ClusterSeen, asked: Asked, commands: Commands) -> Iterator[Finding]:
    """All that is about brokers, and the log of their transactions."""
    for broker in seen.brokers:
        yield from of_broker(broker)
    yield _transaction_version(seen, commands)
    yield _two_phase(seen, asked, commands)
    yield _max_timeout(seen, asked, commands)
    yield _id_expiration(seen, asked, commands)
    yield from _transaction_log(seen, commands)


def of_broker(broker: BrokerSeen) -> Iterator[Finding]:
    """Whether it answers, and has the requests that are sent to it."""
    subject = f"broker {broker.node_id}"
    if isinstance(broker.versions, Unknown):
        found = Judgement("broker-reachable", subject, f"{broker.address}: {broker.versions.reason}")
        yield found.error(
            "The cluster gives this address to its clients, and it does not answer from here. Loads fail whose "
            "transactions this broker coordinates, or whose partitions it leads",
            f"Start the broker, allow connections to {broker.address}, or correct advertised.listeners in its "
            "server.properties; try from Spark's hosts too",
        )
        return
    yield Judgement("broker-reachable", subject, broker.address).ok("It answers from here")
    lacks = lacking(broker.versions.requests)
    yield _needed(subject, needed(lacks))
    yield _optional(subject, [one for one in lacks if not one.capability.is_needed])


def _needed(subject: str, lacks: Sequence[Lack]) -> Finding:
    found = Judgement("broker-requests", subject, "; ".join(map(str, lacks)) or "has every request that loads need")
    if lacks:
        return found.error("No exactly-once load works with it: begin and prepare refuse it", remedy_for(lacks))
    return found.ok("As it must be")


def _optional(subject: str, lacks: Sequence[Lack]) -> Finding:
    """What loads can do without; all but the end markers is told with what it is about, or only costs time."""
    found = Judgement("broker-requests-optional", subject, "; ".join(map(str, lacks)) or "has every request")
    means = "; ".join(f"without {one.capability} {one.capability.without}" for one in lacks)
    lost = [one for one in lacks if one.capability.warns]
    if lost:
        return found.warning(
            f"Loads work; {means}",
            f"Let clients have {', '.join(one.capability.name for one in lost)} on this listener, or keep a listener "
            "that offers it: `airflow-kafka-eos loads recover` and `transactions hanging --abort` need it there",
        )
    return found.ok(f"Loads work; {means}" if lacks else "As it must be")


def _transaction_version(seen: ClusterSeen, commands: Commands) -> Finding:
    known = [b.versions for b in seen.brokers if not isinstance(b.versions, Unknown)]
    if not known:
        return Finding.not_seen(TRANSACTION_VERSION.replace(".", "-"), "cluster", Unknown("no broker answers"))
    level = max(v.finalized.get(TRANSACTION_VERSION, 0) for v in known)
    found = Judgement("transaction-version", "cluster", f"{TRANSACTION_VERSION}={level}")
    if level >= 2:
        return found.ok("The epoch rises with each end: what a zombie sends afterwards is refused (KIP-890)")
    remedy = commands.feature(f"{TRANSACTION_VERSION}=2")
    if min(v.supported.get(TRANSACTION_VERSION, 0) for v in known) < 2:
        remedy = f"Upgrade every broker to Kafka 4.0 or newer; then\n{remedy}"
    return found.warning(
        "A zombie may begin another transaction with the epoch of one that has ended. It holds readers back until "
        "cleanup finds it",
        remedy,
    )


def _two_phase(seen: ClusterSeen, asked: Asked, commands: Commands) -> Finding:
    id, wanted = "two-phase-commit", asked.two_phase_commit
    if wanted is TwoPhaseCommit.OFF:
        return Judgement(id, "cluster", "two_phase_commit=off").ok("It is not asked for")
    if isinstance(seen.two_phase, Unknown):
        return Finding.not_seen(id, "cluster", seen.two_phase)
    found = Judgement(id, "cluster", seen.two_phase.why or "granted")
    remedy = seen.two_phase.remedy
    if seen.two_phase.is_refused:
        wanted_rights, ids = ("TWO_PHASE_COMMIT", "WRITE"), all_of(asked.namespace)
        allow = commands.allow(wanted_rights, "transactional-id", ids, prefixed=True)
        enabled = f"If that does not help, set {ENABLE}=true on every broker"
        # where no policy can allow it there is nothing to try: with auto, loads live with a timeout
        remedy = f"{allow}; use two_phase_commit=auto" if commands.by_iam else f"{allow}\n{enabled}"
    if seen.two_phase.is_granted:
        return found.ok("What is prepared has no timeout: the broker never ends it by itself (KIP-939)")
    if wanted is TwoPhaseCommit.REQUIRED:
        return found.error("Loads with two_phase_commit=required fail in prepare", remedy)
    return found.warning("A load must be decided within its hold time, or the broker aborts it", remedy)


def _max_timeout(seen: ClusterSeen, asked: Asked, commands: Commands) -> Finding:
    id = "transaction-max-timeout"
    limit = _lowest(seen, MAX_TIMEOUT)
    if isinstance(limit, Unknown):
        return Finding.not_seen(id, "brokers", limit)
    found = Judgement(id, "brokers", f"{MAX_TIMEOUT}={limit}, hold time {asked.hold_time_ms} ms")
    if seen.grants_two_phase and asked.two_phase_commit is not TwoPhaseCommit.OFF:
        return found.ok("With two-phase commit there is no timeout")
    if asked.hold_time_ms > limit:
        remedy = commands.server_properties(f"{MAX_TIMEOUT}={asked.hold_time_ms}")
        means = "prepare fails: brokers do not let a transaction stay open for the hold time"
        return found.error(means, f"{remedy}; or lower hold_time")
    return found.ok("A load may wait for its decision for the hold time")


def _id_expiration(seen: ClusterSeen, asked: Asked, commands: Commands) -> Finding:
    id = "transactional-id-expiration"
    limit = id_expiration(seen)
    if isinstance(limit, Unknown):
        return Finding.not_seen(id, "brokers", limit)
    found = Judgement(id, "brokers", f"{ID_EXPIRATION}={limit}")
    remedy = commands.server_properties(f"{ID_EXPIRATION}=604800000")
    if limit <= asked.hold_time_ms:
        return found.error("Coordinators forget a transaction before its load must be decided", remedy)
    if limit < _DAY_MS:
        return found.warning(
            "Coordinators forget an ended transaction within a day. A commit that is finished later is judged by the "
            "partitions' logs alone, and a ledger restored from a backup is only noticed for that long",
            remedy,
        )
    return found.ok("A decided load can be finished long after")


def _transaction_log(seen: ClusterSeen, commands: Commands) -> Iterator[Finding]:
    log = seen.transaction_log
    subject = f"topic {TRANSACTION_LOG}"
    if log.topic is None or isinstance(log.topic, Unknown):
        why = log.topic or Unknown("there is none yet: it is made with the first transaction")
        yield Finding.not_seen("transaction-log-replication", subject, why)
        return
    min_isr: int | Unknown = _lowest(seen, LOG_MIN_ISR)
    if not isinstance(log.config, Unknown) and "min.insync.replicas" in log.config:
        min_isr = int(log.config["min.insync.replicas"])
    yield from check_replicas("transaction-log", log.topic, min_isr, [b.node_id for b in seen.brokers], commands)


def id_expiration(seen: ClusterSeen) -> int | Unknown:
    """Milliseconds, the brokers' shortest."""
    return _lowest(seen, ID_EXPIRATION)


def _lowest(seen: ClusterSeen, key: str) -> int | Unknown:
    values = [int(b.config[key]) for b in seen.brokers if not isinstance(b.config, Unknown) and key in b.config]
    if values:
        return min(values)
    unknown = [b.config for b in seen.brokers if isinstance(b.config, Unknown)]
    return unknown[0] if unknown else Unknown(f"no broker shows {key}")


def check_clocks(seen: ClusterSeen | None, ledger: LedgerSeen) -> Iterator[Finding]:
    """The active controller's clock, and the ledger's database's."""
    if seen is not None:
        yield _clock("clock-brokers", "the active controller", seen.clock)
    if ledger.clock is not None:
        yield _clock("clock-ledger", "the ledger's database", ledger.clock)


def _clock(id: str, whose: str, clock: Clock | Unknown) -> Finding:
    if isinstance(clock, Unknown):
        return Finding.not_seen(id, whose, clock)
    seen = f"{clock.off_by:+.1f} s beside this machine's, give or take {clock.uncertainty:.1f} s"
    found = Judgement(id, whose, seen)
    surely_off = max(0.0, abs(clock.off_by) - clock.uncertainty)
    remedy = "Let every machine keep its time by NTP: `chronyc tracking` or `timedatectl timesync-status` says how far"
    if surely_off > _TOO_MUCH_S:
        means = "Deadlines of writers, the margin of decide and retention are judged wrongly"
        return found.error(means, remedy)
    if surely_off > _NOTICED_S:
        return found.warning("The margins of decide and of writers are wrong by that much", remedy)
    return found.ok("It agrees with this machine's")
