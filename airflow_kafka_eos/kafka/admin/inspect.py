"""What a cluster is asked before anything is written, and by the doctor: all of it reads, nothing changes anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka import errors
from kafka.protocol.admin.cluster import DescribeClusterRequest, DescribeQuorumRequest
from kafka.protocol.metadata import MetadataRequest

from airflow_kafka_eos.kafka.admin.coordinator import everywhere
from airflow_kafka_eos.kafka.admin.end_transactions import BEFORE_EPOCH_BUMP, end_txn
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.connections import finalized
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import OPEN_STATES, PreparedTransaction, PreparedTxnState

#: KIP-430's numbers of operations, as AclOperation has them.
_OPERATIONS = {3: "READ", 4: "WRITE", 7: "ALTER", 8: "DESCRIBE", 9: "CLUSTER_ACTION", 10: "DESCRIBE_CONFIGS"}
_METADATA_LOG = "__cluster_metadata"
_TIMES_VERSION = 1  # of DescribeQuorum: KIP-836


@dataclass(frozen=True)
class Versions:
    """What one broker offers.

    :param requests: api key -> (lowest, highest version).
    :param finalized: feature -> the level that the cluster goes by (KIP-584).
    :param supported: feature -> the highest level that this broker could go by.
    """

    requests: Mapping[int, tuple[int, int]]
    finalized: Mapping[str, int]
    supported: Mapping[str, int]


class PartitionSeen(NamedTuple):
    """A partition as the metadata show it. ``leader`` is -1 where there is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True)
class TopicSeen:
    """A topic as the metadata show it, and what the principal may do with it.

    :param rights: as words; DESCRIBE is among them, or they are not shown: a broker that is not Apache's may show none.
    """

    name: str
    partitions: tuple[PartitionSeen, ...]
    rights: frozenset[str]


class IdSeen(NamedTuple):
    """A transactional id in a listing."""

    transactional_id: str
    is_open: bool


class Clock(NamedTuple):
    """Another machine's clock beside ours; seconds. ``off_by`` is positive where the other one is ahead."""

    off_by: float
    uncertainty: float


def versions_of(wire: Wire, node_id: int) -> Versions:
    """
    :raises BrokerUnavailableError: this broker does not answer.
    """
    answer = wire.ask_versions(node_id)
    return Versions(
        {int(k.api_key): (int(k.min_version), int(k.max_version)) for k in answer.api_keys},
        finalized(answer),
        {f.name: int(f.max_version) for f in answer.supported_features or []},
    )


def topic_seen(wire: Wire, name: str) -> TopicSeen | None:
    """A topic's layout; None when there is no such topic.

    :raises AccessError: DESCRIBE on it is missing.
    """
    return topics_seen(wire, [name])[name]


def topics_seen(wire: Wire, names: Iterable[str]) -> dict[str, TopicSeen | None]:
    """:func:`topic_seen` of several, by one request."""
    wanted = sorted(set(names))

    def attempt() -> dict[str, TopicSeen | None]:
        topic = MetadataRequest.MetadataRequestTopic
        request = MetadataRequest(
            topics=[topic(name=name) for name in wanted],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        return {found.name: _topic(found) for found in wire.send_to_any(request).topics} if wanted else {}

    return wire.until_settled(attempt, what=f"looking at topics {', '.join(wanted)}")


def _topic(found: Any) -> TopicSeen | None:
    if found.error_code == errors.UnknownTopicOrPartitionError.errno:
        return None
    retry.check(found.error_code, operation="DESCRIBE", resource=f"Topic {found.name}")
    return TopicSeen(found.name, tuple(_partition(p) for p in found.partitions), _rights(found.authorized_operations))


def _partition(row: Any) -> PartitionSeen:
    lists = (row.replica_nodes, row.isr_nodes, row.offline_replicas or ())
    return PartitionSeen(row.partition_index, row.leader_id, *(tuple(map(int, nodes)) for nodes in lists))


def cluster_rights(wire: Wire) -> frozenset[str]:
    """What the principal may do with the cluster; nothing is shown to one who has neither DESCRIBE nor ALTER on it."""
    answer = wire.send_to_any(DescribeClusterRequest(include_cluster_authorized_operations=True))
    retry.check(answer.error_code, operation="DESCRIBE", resource="Cluster kafka-cluster")
    return _rights(answer.authorized_operations)


def _rights(numbers: Iterable[int] | None) -> frozenset[str]:
    return frozenset(_OPERATIONS[int(n)] for n in numbers or () if int(n) in _OPERATIONS)


def check_may_end(wire: Wire, unused_id: str) -> None:
    """Ask for the end of a transaction that there never was: the right is looked at first, the id afterwards.

    :raises AccessError: WRITE on the id is missing.
    """
    never = PreparedTransaction(unused_id, PreparedTxnState(0, 0))

    def attempt() -> None:
        request = end_txn(never, Verdict.ABORT, BEFORE_EPOCH_BUMP)
        code = wire.send_to_coordinator(unused_id, request).error_code
        if code != errors.InvalidProducerIdMappingError.errno:
            wire.check_id(code, "WRITE", unused_id)

    wire.until_settled(attempt, what=f"asking for WRITE on {unused_id}")


def ids_listed(wire: Wire, prefix: str) -> list[IdSeen]:
    """All transactional ids with a prefix that the principal may describe, open or not, sorted."""

    def attempt() -> list[IdSeen]:
        return sorted({IdSeen(name, state in OPEN_STATES) for name, state in everywhere(wire, prefix)})

    return wire.until_settled(attempt, what=f"listing the ids of {prefix!r}")


def controller_clock(wire: Wire, now: Callable[[], float] = time.time) -> Clock:
    """The active controller's clock, which DescribeQuorum shows (KIP-836): no other is shown without a write.

    :param now: this machine's clock, seconds since the epoch.
    :raises AccessError: DESCRIBE on the cluster is missing.
    """

    def attempt() -> Clock:
        topic = DescribeQuorumRequest.TopicData
        request = DescribeQuorumRequest(
            topics=[topic(topic_name=_METADATA_LOG, partitions=[topic.PartitionData(partition_index=0)])],
            min_version=_TIMES_VERSION,
        )
        asked = now()
        answer = wire.send_to_any(request)
        answered = now()
        retry.check(answer.error_code, operation="DESCRIBE", resource="Cluster kafka-cluster")
        (partition,) = answer.topics[0].partitions
        retry.check(partition.error_code, operation="DESCRIBE", resource="Cluster kafka-cluster")
        times = [v.last_caught_up_timestamp for v in partition.current_voters if v.replica_id == partition.leader_id]
        if not times or times[0] <= 0:
            raise retry.Retry("the controllers have no leader")
        return Clock(times[0] / 1000 - (asked + answered) / 2, (answered - asked) / 2)

    return wire.until_settled(attempt, what="asking for the controller's clock")
