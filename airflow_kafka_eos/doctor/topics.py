"""Topics: what each is set to, how many copies of it there are, and what this login may do with it. No I/O.

The log of transactions is a topic, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from airflow_kafka_eos.doctor.commands import Commands
from airflow_kafka_eos.doctor.finding import Asked, ClusterSeen, Finding, Judgement, LayoutSeen, Unknown
from airflow_kafka_eos.kafka.admin.inspect import TopicSeen
from airflow_kafka_eos.kafka.records.scan import COMPACTION, WANTED_MS, warning
from airflow_kafka_eos.kafka.records.transaction_index import SETTINGS as INDEX_SETTINGS
from airflow_kafka_eos.kafka.records.transaction_index import may_be_believed

_SAFE = 3
#: The topic settings that the checks read.
SETTINGS = (
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "remote.storage.enable",
)


def check_topics(seen: ClusterSeen, asked: Asked, commands: Commands) -> Iterator[Finding]:
    """Each topic that was asked about."""
    for name in asked.topics:
        yield from _topic(name, seen.topics[name], seen, asked, commands)


def _topic(name: str, found: LayoutSeen, seen: ClusterSeen, asked: Asked, commands: Commands) -> Iterator[Finding]:
    subject = f"topic {name}"
    if isinstance(found.topic, Unknown) and found.topic.is_refused:
        remedy = commands.allow(("WRITE", "READ"), "topic", name)
        yield Judgement("topic-exists", subject, found.topic.reason).error("No load can write to it", remedy)
        return
    if isinstance(found.topic, Unknown):
        yield Finding.not_seen("topic-exists", subject, found.topic)
        return
    if found.topic is None:
        missing = Judgement("topic-exists", subject, "there is no such topic")
        yield missing.error("Loads into it fail in prepare", commands.create_topic(name, len(seen.brokers)))
        return
    yield Judgement("topic-exists", subject, f"{len(found.topic.partitions)} partitions").ok("It is there")
    yield from _rights(name, found.topic.rights, commands)
    config = found.config
    min_isr = config if isinstance(config, Unknown) else int(config["min.insync.replicas"])
    yield from check_replicas("topic", found.topic, min_isr, [b.node_id for b in seen.brokers], commands)
    if isinstance(config, Unknown):
        unseen = ("unclean-election", "retention", "retention-bytes", "compaction", "transaction-index", "message-size")
        for of_it in unseen:
            yield Finding.not_seen(f"topic-{of_it}", subject, config)
    else:
        yield _election(name, config, commands)
        yield _retention(name, config, asked, commands)
        yield _retention_bytes(name, config, commands)
        yield _compaction(name, config, commands)
        yield _transaction_index(name, config, seen)
        yield _message_size(name, config, seen, commands)


def _rights(name: str, rights: frozenset[str], commands: Commands) -> Iterator[Finding]:
    for operation, needed_for in (
        ("WRITE", "prepare cannot write"),
        ("READ", "decide cannot count what was written, commit cannot see its markers"),
    ):
        allowed = ", ".join(sorted(rights)) or "nothing"
        found = Judgement(f"acl-topic-{operation.lower()}", f"topic {name}", f"allowed: {allowed}")
        if operation in rights:
            yield found.ok(f"{operation} is granted")
        else:
            means = f"Without {operation} on Topic {name}, {needed_for}"
            yield found.error(means, commands.allow(operation, "topic", name))


def _election(name: str, config: Mapping[str, str], commands: Commands) -> Finding:
    value = config.get("unclean.leader.election.enable", "false")
    found = Judgement("topic-unclean-election", f"topic {name}", f"unclean.leader.election.enable={value}")
    if value == "true":
        return found.error(
            "A replica that lacks records may become leader: a committed load loses records without any message",
            commands.topic_config(name, "unclean.leader.election.enable=false"),
        )
    return found.ok("Only a replica that has every record becomes leader")


def _retention(name: str, config: Mapping[str, str], asked: Asked, commands: Commands) -> Finding:
    milliseconds = int(config.get("retention.ms", "-1"))
    policy = config.get("cleanup.policy", "delete")
    seen = f"cleanup.policy={policy}, retention.ms={milliseconds}, hold time {asked.hold_time_ms} ms"
    found = Judgement("topic-retention", f"topic {name}", seen)
    if "delete" in policy.split(",") and 0 <= milliseconds <= asked.hold_time_ms:
        remedy = commands.topic_config(name, f"retention.ms={max(7 * 86_400_000, 2 * asked.hold_time_ms)}")
        return found.error("Records are deleted while their load waits to be decided: decide refuses it", remedy)
    return found.ok("Records are kept until they are decided")


def _retention_bytes(name: str, config: Mapping[str, str], commands: Commands) -> Finding:
    size = int(config.get("retention.bytes", "-1"))
    found = Judgement("topic-retention-bytes", f"topic {name}", f"retention.bytes={size}")
    if "delete" in config.get("cleanup.policy", "delete").split(",") and size >= 0:
        return found.warning(
            "A load that writes more than that into one partition deletes its own first records; decide refuses it",
            commands.topic_config(name, "retention.bytes=-1"),
        )
    return found.ok("A load may have any size")


def _compaction(name: str, config: Mapping[str, str], commands: Commands) -> Finding:
    seen = ", ".join(f"{key}={config[key]}" for key in COMPACTION if key in config)
    found = Judgement("topic-compaction", f"topic {name}", seen)
    if text := warning(name, config):
        return found.warning(text, commands.topic_config(name, f"min.compaction.lag.ms={WANTED_MS}"))
    return found.ok("The log shows for at least a day what became of a transaction")


def _transaction_index(name: str, config: Mapping[str, str], seen: ClusterSeen) -> Finding:
    answering = (b.versions for b in seen.brokers if not isinstance(b.versions, Unknown))
    features = next((versions.finalized for versions in answering), {})
    shown = ", ".join(f"{key}={config[key]}" for key in INDEX_SETTINGS if key in config)
    found = Judgement("topic-transaction-index", f"topic {name}", shown)
    if may_be_believed(config, features):
        return found.ok("commit sees a load's end in milliseconds, whatever its size")
    return found.ok("commit goes through the log from a load's records to its end markers: seconds for each gigabyte")


def _message_size(name: str, config: Mapping[str, str], seen: ClusterSeen, commands: Commands) -> Finding:
    limit = int(config.get("max.message.bytes", seen.message_bytes))
    text = f"max.message.bytes={limit}, the connection's message.max.bytes={seen.message_bytes}"
    found = Judgement("topic-message-size", f"topic {name}", text)
    if limit < seen.message_bytes:
        return found.warning(
            "writer=confluent may make batches that the broker refuses; writer=arrow cuts them smaller, and refuses "
            "a record that is larger by itself",
            commands.topic_config(name, f"max.message.bytes={seen.message_bytes}"),
        )
    return found.ok("Batches fit")


def check_replicas(
    prefix: str, topic: TopicSeen, min_isr: int | Unknown, brokers: Sequence[int], commands: Commands
) -> Iterator[Finding]:
    """How many copies of a topic there are, how many must acknowledge, and how many do at this moment.

    :param prefix: of the findings' ids, such as ``topic``.
    :param min_isr: the topic's ``min.insync.replicas``.
    :param brokers: node ids.
    """
    yield _replication(prefix, topic, brokers, commands)
    yield _min_insync(prefix, topic, min_isr, commands)
    yield _in_sync(prefix, topic, min_isr)


def _replication(prefix: str, topic: TopicSeen, brokers: Sequence[int], commands: Commands) -> Finding:
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
    return found.warning("Too few copies: losing a broker loses records, or stops all loads", remedy)


def _min_insync(prefix: str, topic: TopicSeen, min_isr: int | Unknown, commands: Commands) -> Finding:
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
        return found.ok("There is one replica; see the replication")
    return found.ok("A record counts as written when several brokers have it")


def _in_sync(prefix: str, topic: TopicSeen, min_isr: int | Unknown) -> Finding:
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


def _copies(topic: TopicSeen) -> int:
    return min((len(p.replicas) for p in topic.partitions), default=0)


def refused_configs(commands: Commands, resource: str, name: str = "") -> Unknown:
    """Brokers answer a question for settings that one may not see with nothing."""
    shown = f"{resource.capitalize()} {name}".strip()
    return Unknown(
        f"DESCRIBE_CONFIGS on {shown} is missing", commands.allow("DESCRIBE_CONFIGS", resource, name), is_refused=True
    )
