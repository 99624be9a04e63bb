"""Are the topics still what they were when they were planned for? No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_kafka_eos.errors import TopicError
from airflow_kafka_eos.kafka.writer import TopicLimits
from airflow_kafka_eos.manifest import TopicInfo


def refuse_changed(
    planned: Mapping[str, TopicLimits], now: Mapping[str, TopicInfo], transactional_id: str
) -> None:
    """A topic that got partitions or was made anew while it was written is not what the rows were placed for.

    With more partitions the keys' other records go elsewhere from now on: the order per key would be lost. What was
    written to a topic that is gone is gone with it.

    :param now: as the brokers show them.
    :raises TopicError: naming the topic and what has changed.
    """
    for name, limits in planned.items():
        found = now[name]
        if limits.topic_id is not None and limits.topic_id != found.topic_id:
            raise TopicError(
                f"topic {name!r} was deleted and created again while it was written",
                remedy="Clear prepare to write to the new one",
                transactional_id=transactional_id,
            )
        if limits.partitions != found.partitions:
            raise TopicError(
                f"topic {name!r} has {found.partitions} partitions, it had {limits.partitions} when prepare began: "
                "keys would be found in two places",
                remedy="Clear prepare to write with the new number of partitions",
                transactional_id=transactional_id,
            )
