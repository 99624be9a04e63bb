"""Offsets as positions of a cursor: where a range of topics begins and ends, and whether it is still there.

A position is ``{"offsets": {topic: {partition: offset}}, "topic_ids": {topic: id}}``. Its ``offsets`` are what Spark's
Kafka source takes for ``startingOffsets`` and ``endingOffsets``. Nothing is left out silently: records that are deleted
before they were read, a topic that was made anew and a log that has become shorter are errors, and a person says what
follows (rule: range-has-an-order).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError, TopicError
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.transaction import TopicPartition

_SET = (
    "Nothing is read. Look what is missing; then say where to go on: `airflow-kafka-eos cursors show` and `cursors "
    "set`, with all partitions of the topic"
)
Position = dict[str, dict[str, Any]]


def bounds(
    partitions: Partitions, topics: Collection[str], since: Mapping[str, Any] | None
) -> tuple[Position, Position]:
    """Where the range begins, and where it ends now: the last stable offsets, beyond which no transaction has ended.

    A partition that ``since`` does not name begins with its first record: it was added since. A topic that ``since``
    does not name, with its oldest ones.

    :param since: None: none is named.
    :raises TopicError: what lies between is gone, or is another topic's by now.
    :raises ConfigurationError: ``since`` is no such position, or names a topic that is not read any more.
    """
    was = _offsets(since) if since is not None else {}
    if gone := sorted(was.keys() - set(topics)):
        raise ConfigurationError(
            f"the cursor is at offsets of topic {gone[0]}, and the source does not read it",
            remedy="Add it to the topics; or set the cursor without it: `airflow-kafka-eos cursors set`",
        )
    before = _ids(partitions, topics, since)
    # the end first: what is deleted meanwhile is noticed
    every = [TopicPartition(topic, n) for topic, (_, count) in sorted(before.items()) for n in range(count)]
    ends, begins = partitions.last_stable_offsets(every), partitions.log_start_offsets(every)
    if _ids(partitions, topics, since) != before:
        raise TopicError(
            f"topics {', '.join(sorted(topics))} were changed while they were looked at", remedy="Clear prepare"
        )
    first: dict[str, dict[str, int]] = {topic: {} for topic in sorted(topics)}
    last: dict[str, dict[str, int]] = {topic: {} for topic in sorted(topics)}
    for tp in every:
        known = was.get(tp.topic)
        at = None if known is None else known.get(str(tp.partition), 0)
        if known is not None and str(tp.partition) not in known and begins[tp] > 0:
            raise TopicError(
                f"the position does not name {tp}, so its range begins at offset 0, and its oldest record is at "
                f"{begins[tp]}: the partition was left out, or was added since, and records were deleted before they "
                "were read",
                remedy=f"Nothing is read. Name each partition of topic {tp.topic} where its range begins, in "
                "first_since or by `airflow-kafka-eos cursors show` and `cursors set`",
            )
        if at is not None:
            _check(tp, at, begins[tp], ends[tp])
        begin = begins[tp] if at is None else at
        first[tp.topic][str(tp.partition)] = begin
        # what was deleted since its end was asked for is in no range
        last[tp.topic][str(tp.partition)] = max(begin, ends[tp])
    for topic, offsets in was.items():
        if more := sorted(offsets.keys() - first[topic].keys()):
            raise TopicError(f"topic {topic} has no partition {more[0]} any more", remedy=_SET)
    ids = {topic: topic_id for topic, (topic_id, _) in sorted(before.items())}
    return {"offsets": first, "topic_ids": ids}, {"offsets": last, "topic_ids": ids}


def check(partitions: Partitions, since: Mapping[str, Any], until: Mapping[str, Any]) -> None:
    """Whether a range is still there as a whole.

    :raises TopicError: it is not.
    :raises ConfigurationError: an end is no such position.
    """
    first, last = _offsets(since), _offsets(until)
    _ids(partitions, last.keys(), until)
    every = [TopicPartition(topic, int(n)) for topic, offsets in last.items() for n in offsets]
    begins, ends = partitions.log_start_offsets(every), partitions.last_stable_offsets(every)
    for tp in every:
        end = last[tp.topic][str(tp.partition)]
        begin = first.get(tp.topic, {}).get(str(tp.partition))
        if begin is None:
            raise ConfigurationError(
                f"the range says where {tp} ends, and not where it begins",
                remedy="Name both ends of each partition, 0 for all that there is from the first record on",
            )
        if begin < end:
            _check(tp, begin, begins[tp], ends[tp], end)


def _check(tp: TopicPartition, begin: int, oldest: int, newest: int, end: int | None = None) -> None:
    if begin < oldest:
        raise TopicError(
            f"the range of {tp} begins at offset {begin}, and its oldest record is at {oldest}: records were deleted "
            "before they were read",
            remedy=_SET,
        )
    if newest < (begin if end is None else end):
        raise TopicError(
            f"the range of {tp} reaches offset {begin if end is None else end}, and its log ends at {newest}: it has "
            "lost records, or is another one",
            remedy=_SET,
        )


def _ids(partitions: Partitions, topics: Collection[str], at: Mapping[str, Any] | None) -> dict[str, tuple[str, int]]:
    """Id and number of partitions of each topic."""
    infos = partitions.topic_info(topics, to_read=True)
    found = {name: (info.topic_id, info.partitions) for name, info in infos.items()}
    for topic, known in (at or {}).get("topic_ids", {}).items():
        if topic in found and found[topic][0] != known:
            raise TopicError(
                f"topic {topic} has the id {found[topic][0]}, and the cursor was at offsets of {known}: it was deleted "
                "and made anew",
                remedy=_SET,
            )
    return found


def _offsets(at: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    try:
        found = {str(t): {str(int(n)): int(o) for n, o in of.items()} for t, of in at["offsets"].items()}
        fits = {*at} <= {"offsets", "topic_ids"} and all(o >= 0 for of in found.values() for o in of.values())
    except (AttributeError, KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ConfigurationError(
            f"{at!r:.200} is no position of Kafka topics",
            remedy='Write {"offsets": {"topic": {"0": 12}}}; with "topic_ids" a topic that is made anew is noticed',
        )
    return found
