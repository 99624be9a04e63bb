"""Copies of a topic: how many, how many must acknowledge, how many do at this moment. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_kafka_eos.doctor.commands import Commands
from airflow_kafka_eos.doctor.finding import Finding, Judgement, Unknown
from airflow_kafka_eos.kafka.inspecting import TopicSeen

_SAFE = 3


def check_copies(prefix: str, topic: TopicSeen, brokers: Sequence[int], commands: Commands) -> Finding:
    """Replicas of each partition.

    :param prefix: of the finding's id, such as ``topic``.
    :param brokers: node ids.
    """
    count = _copies(topic)
    found = Judgement(f"{prefix}-replication", f"topic {topic.name}", f"replicas: {count}, brokers: {len(brokers)}")
    if count >= _SAFE:
        return found.ok("A broker may be lost without losing a record")
    if len(brokers) < _SAFE:
        remedy = f"Run {_SAFE} brokers or more; doctor then prints the command that makes {_SAFE} replicas"
    else:
        remedy = commands.replicas(topic, _SAFE, brokers)
    if count == 1 and len(brokers) > 1:
        return found.error("Losing one broker loses committed records, or what was decided about them", remedy)
    return found.warning("Too few copies: a broker that is lost takes records, or all progress, with it", remedy)


def check_acknowledged(
    prefix: str, topic: TopicSeen, min_isr: int | Unknown, commands: Commands
) -> Finding:
    """How many replicas must have a record before it counts (``min.insync.replicas``)."""
    id, subject = f"{prefix}-min-insync", f"topic {topic.name}"
    if isinstance(min_isr, Unknown):
        return Finding.not_seen(id, subject, min_isr)
    count = _copies(topic)
    found = Judgement(id, subject, f"min.insync.replicas={min_isr}, replicas: {count}")
    good = commands.topic_config(topic.name, f"min.insync.replicas={max(1, count - 1)}")
    if min_isr > count:
        return found.error("There are fewer replicas than must acknowledge: nothing can be written", good)
    if min_isr == count > 1:
        return found.warning("One broker that is down, or restarted, stops every load", good)
    if min_isr == 1 and count > 1:
        remedy = commands.topic_config(topic.name, "min.insync.replicas=2")
        return found.warning("A record counts as written when one broker has it: losing that one loses it", remedy)
    if min_isr == 1:
        return found.ok("As many as there are; see the replication")
    return found.ok("A record counts as written when several brokers have it")


def check_in_sync(prefix: str, topic: TopicSeen, min_isr: int | Unknown) -> Finding:
    """What of it is there at this moment."""
    needed = 1 if isinstance(min_isr, Unknown) else min_isr
    stopped = [p for p in topic.partitions if p.leader < 0 or len(p.in_sync) < min(needed, len(p.replicas))]
    behind = [p for p in topic.partitions if len(p.in_sync) < len(p.replicas)]
    away = sorted({node for p in topic.partitions for node in set(p.replicas) - set(p.in_sync)})
    brokers = f"brokers {', '.join(map(str, away))} lack records" if away else "all replicas are in sync"
    found = Judgement(f"{prefix}-in-sync", f"topic {topic.name}", f"partitions: {len(topic.partitions)}; {brokers}")
    remedy = f"Look at the logs of broker {', '.join(map(str, away)) or 'and controller'}: is it up, and its disk full?"
    if stopped:
        numbers = ", ".join(str(p.partition) for p in stopped[:10])
        return found.error(f"Partitions {numbers} cannot be written: no leader, or too few in-sync replicas", remedy)
    if behind:
        return found.warning("It works, with fewer copies than it should have", remedy)
    return found.ok("Every replica has every record")


def check_all(
    prefix: str, topic: TopicSeen, min_isr: int | Unknown, brokers: Sequence[int], commands: Commands
) -> Iterator[Finding]:
    yield check_copies(prefix, topic, brokers, commands)
    yield check_acknowledged(prefix, topic, min_isr, commands)
    yield check_in_sync(prefix, topic, min_isr)


def _copies(topic: TopicSeen) -> int:
    return min((len(p.replicas) for p in topic.partitions), default=0)
