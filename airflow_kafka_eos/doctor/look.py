"""Asks brokers, ledger and clocks, and changes nothing.

One transactional id is initialised, and never written with: ``<namespace>.<ledger id>.doctor.probe.1-probe``, for only
InitProducerId can tell whether two-phase commit is granted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from airflow_kafka_eos.doctor import brokers, topics
from airflow_kafka_eos.doctor.commands import Commands
from airflow_kafka_eos.doctor.finding import (
    TRANSACTION_LOG,
    Asked,
    BrokerSeen,
    ClusterSeen,
    LayoutSeen,
    LedgerSeen,
    TwoPhaseSeen,
    Unknown,
)
from airflow_kafka_eos.doctor.topics import refused_configs
from airflow_kafka_eos.doctor.transactional_ids import all_of
from airflow_kafka_eos.errors import AccessError, KafkaEosError
from airflow_kafka_eos.kafka.admin import preflight
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.inspect import (
    Clock,
    check_may_end,
    cluster_rights,
    controller_clock,
    ids_listed,
    topic_seen,
    versions_of,
)
from airflow_kafka_eos.kafka.admin.list_permissions import never_used
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.admin.preflight import RETENTION
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.ledger import queries
from airflow_kafka_eos.ledger.database import Database, now_s
from airflow_kafka_eos.ledger.location import default_url, redacted
from airflow_kafka_eos.ledger.migrate import current, read_checked
from airflow_kafka_eos.ledger.queries import NOTHING, waiting
from airflow_kafka_eos.ledger.tables import REVISION
from airflow_kafka_eos.load import DEFAULT_NAMESPACE, LoadIdentity, TwoPhaseCommit
from airflow_kafka_eos.naming import IdRole, TransactionalId

P = ParamSpec("P")
T = TypeVar("T")
Now = Callable[[], float]

#: In the place of the ledger's id where there is none: such an id is looked for, never initialised.
_NO_LEDGER = "0000000000"
_LOAD = "doctor"


def look_at_ledger(url: str, now: Now = time.time, namespace: str = DEFAULT_NAMESPACE) -> LedgerSeen:
    """The ledger as it is; it is neither made nor upgraded.

    :param namespace: whose loads are looked at.
    :param now: this machine's clock, seconds since the epoch.
    """
    revision = _look(current, url)
    return LedgerSeen(
        redacted(url),
        revision,
        REVISION,
        revision if isinstance(revision, Unknown) else _look(_read, url, queries.ledger_id),
        is_embedded=url == default_url(),
        clock=None if isinstance(revision, Unknown) else _look(_ledger_clock, url, now),
        waiting=NOTHING if revision is None else _look(_read, url, lambda c: waiting(c, namespace)),
    )


def _read(url: str, question: Callable[[Any], T]) -> T:
    database = Database(url)
    try:
        return read_checked(database, question)
    finally:
        database.close()


def _ledger_clock(url: str, now: Now) -> Clock | None:
    asked = now()
    there = now_s(url)
    answered = now()
    return None if there is None else Clock(there - (asked + answered) / 2, (answered - asked) / 2)


def look_at_cluster(
    settings: KafkaSettings,
    asked: Asked,
    commands: Commands,
    ledger_id: str | Unknown,
    *,
    timeout_s: float,
    now: Now = time.time,
    waited_for: Iterable[str] = (),
) -> ClusterSeen:
    """The cluster as it is.

    :param waited_for: topics of loads that are decided and not verified: their retention is looked at.
    :param timeout_s: seconds for one question, its repetitions included.
    :raises BrokerUnavailableError: not one broker answers.
    :raises AccessError: the login is refused.
    """
    with Wire(settings, timeout_s=timeout_s) as wire:
        partitions = Partitions(wire)
        every = _brokers(wire, partitions, commands)
        if all(isinstance(broker.versions, Unknown) for broker in every):
            return _nobody(settings, asked, commands, every)
        load = LoadIdentity(asked.namespace, asked.load_name or _LOAD, "probe")
        unused = never_used(load, _NO_LEDGER if isinstance(ledger_id, Unknown) else ledger_id)
        return ClusterSeen(
            settings.bootstrap_servers,
            commands.login,
            every,
            _layout(wire, partitions, commands, TRANSACTION_LOG, ("min.insync.replicas",)),
            {name: _layout(wire, partitions, commands, name, topics.SETTINGS) for name in asked.topics},
            may_describe=_failure(_coordinator(wire, load, ledger_id).describe, [unused]),
            may_write=_failure(check_may_end, wire, unused),
            two_phase=_granted(
                _look(_two_phase, wire, partitions, asked, load, ledger_id),
                commands.allow("WRITE", "transactional-id", all_of(asked.namespace), prefixed=True),
            ),
            ids=_look(lambda: tuple(ids_listed(wire, all_of(asked.namespace)))),
            clock=_granted(_look(controller_clock, wire, now), commands.allow("DESCRIBE", "cluster")),
            cluster_rights=_look(cluster_rights, wire),
            message_bytes=int(settings.texts.get("message.max.bytes", 1_000_000)),
            retention={name: _look(_retention, partitions, name) for name in waited_for},
        )


def _nobody(
    settings: KafkaSettings, asked: Asked, commands: Commands, every: tuple[BrokerSeen, ...]
) -> ClusterSeen:
    """No broker answers under the address that the cluster names: every other question would wait in vain."""
    why = Unknown("no broker answers")
    nothing = LayoutSeen(why, why)
    topics_seen = dict.fromkeys(asked.topics, nothing)
    where = settings.bootstrap_servers
    return ClusterSeen(where, commands.login, every, nothing, topics_seen, why, why, why, why, why, why)


def _brokers(wire: Wire, partitions: Partitions, commands: Commands) -> tuple[BrokerSeen, ...]:
    addresses = wire.addresses()
    versions = {node_id: _look(versions_of, wire, node_id) for node_id in addresses}
    answering = any(not isinstance(v, Unknown) for v in versions.values())
    configs = _look(partitions.broker_configs, brokers.SETTINGS) if answering else Unknown("no broker answers")
    refused = refused_configs(commands, "cluster")
    return tuple(
        BrokerSeen(
            node_id,
            address,
            versions[node_id],
            configs if isinstance(configs, Unknown) else configs.get(node_id) or refused,
        )
        for node_id, address in sorted(addresses.items())
    )


def _layout(
    wire: Wire, partitions: Partitions, commands: Commands, name: str, keys: tuple[str, ...]
) -> LayoutSeen:
    allow = commands.allow("DESCRIBE", "topic", name)
    topic = _granted(_look(topic_seen, wire, name), allow)
    if topic is None or isinstance(topic, Unknown):
        return LayoutSeen(topic, Unknown("the topic is not seen"))
    if "DESCRIBE_CONFIGS" not in topic.rights:
        return LayoutSeen(topic, refused_configs(commands, "topic", name))
    return LayoutSeen(topic, _look(lambda: partitions.topic_config([name], keys)[name]))


def _retention(partitions: Partitions, topic: str) -> Mapping[str, str] | Unknown:
    if topic_seen(partitions.wire, topic) is None:
        return Unknown("there is no such topic any more")
    return partitions.topic_config([topic], RETENTION)[topic]


def _coordinator(wire: Wire, load: LoadIdentity, ledger_id: str | Unknown) -> Coordinator:
    known = _NO_LEDGER if isinstance(ledger_id, Unknown) else ledger_id
    return Coordinator(wire, namespace=load.namespace, ledger_id=known)


def _two_phase(
    wire: Wire, partitions: Partitions, asked: Asked, load: LoadIdentity, ledger_id: str | Unknown
) -> TwoPhaseSeen | Unknown:
    if asked.two_phase_commit is TwoPhaseCommit.OFF:
        return Unknown("it is not asked for")
    if isinstance(ledger_id, Unknown):
        return Unknown(f"without a ledger no id is ours to try it with: {ledger_id.reason}", ledger_id.remedy)
    probe = TransactionalId(load, ledger_id, 1, role=IdRole.PROBE)
    refused = preflight.refusal(_coordinator(wire, load, ledger_id), partitions, probe)
    if refused is None:
        return TwoPhaseSeen(True)
    return TwoPhaseSeen(False, refused.message, refused.remedy, isinstance(refused, AccessError))


def _look(question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Unknown:
    try:
        return question(*args, **kwargs)
    except KafkaEosError as e:
        return Unknown.because(e)


def _granted(found: T | Unknown, command: str) -> T | Unknown:
    """What was seen; where an ACL is missing, with the command that grants it."""
    return replace(found, remedy=command) if isinstance(found, Unknown) and found.is_refused else found


def _failure(question: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Unknown | None:
    found = _look(question, *args, **kwargs)
    return found if isinstance(found, Unknown) else None
