"""The topics that are loaded into. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_kafka_eos.doctor.commands import Commands
from airflow_kafka_eos.doctor.finding import Finding, Judgement, Unknown
from airflow_kafka_eos.doctor.replication import check_all
from airflow_kafka_eos.doctor.seen import Asked, ClusterSeen, LayoutSeen
from airflow_kafka_eos.kafka.compaction import COMPACTION, WANTED_MS, warning

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
)


def check(seen: ClusterSeen, asked: Asked, commands: Commands) -> Iterator[Finding]:
    """Each topic that was asked about."""
    for name in asked.topics:
        yield from _topic(name, seen.topics[name], seen, asked, commands)


def _topic(name: str, found: LayoutSeen, seen: ClusterSeen, asked: Asked, commands: Commands) -> Iterator[Finding]:
    subject = f"topic {name}"
    if isinstance(found.topic, Unknown) and found.topic.is_refused:
        remedy = commands.acl(("WRITE", "READ"), "topic", name)
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
    yield from check_all("topic", found.topic, min_isr, [b.node_id for b in seen.brokers], commands)
    if isinstance(config, Unknown):
        for of_it in ("unclean-election", "retention", "retention-bytes", "compaction", "message-size"):
            yield Finding.not_seen(f"topic-{of_it}", subject, config)
    else:
        yield _election(name, config, commands)
        yield _retention(name, config, asked, commands)
        yield _retention_bytes(name, config, commands)
        yield _compaction(name, config, commands)
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
            yield found.error(means, commands.acl(operation, "topic", name))


def _election(name: str, config: Mapping[str, str], commands: Commands) -> Finding:
    value = config.get("unclean.leader.election.enable", "false")
    found = Judgement("topic-unclean-election", f"topic {name}", f"unclean.leader.election.enable={value}")
    if value == "true":
        return found.error(
            "A replica that lacks records may become leader: a committed load loses records without a word",
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
        return found.error("What waits for its decision is deleted as if it were old: decide refuses it", remedy)
    return found.ok("Records are kept until they are decided")


def _retention_bytes(name: str, config: Mapping[str, str], commands: Commands) -> Finding:
    size = int(config.get("retention.bytes", "-1"))
    found = Judgement("topic-retention-bytes", f"topic {name}", f"retention.bytes={size}")
    if "delete" in config.get("cleanup.policy", "delete").split(",") and size >= 0:
        return found.warning(
            "A load that puts more than that into one partition deletes its own first records; decide refuses it",
            commands.topic_config(name, "retention.bytes=-1"),
        )
    return found.ok("A load may be of any size")


def _compaction(name: str, config: Mapping[str, str], commands: Commands) -> Finding:
    seen = ", ".join(f"{key}={config[key]}" for key in COMPACTION if key in config)
    found = Judgement("topic-compaction", f"topic {name}", seen)
    if text := warning(name, config):
        return found.warning(text, commands.topic_config(name, f"min.compaction.lag.ms={WANTED_MS}"))
    return found.ok("What became of a transaction can be told from the log for a day at least")


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
