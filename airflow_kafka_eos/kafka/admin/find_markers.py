"""Fetch the end markers behind the last records of a transaction (rule: log-is-the-evidence)."""

from __future__ import annotations

import base64
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka import errors
from kafka.protocol.consumer.fetch import FetchRequest

from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.records.scan import LogScan, Sought, StillThere
from airflow_kafka_eos.transaction import Marker, TopicPartition

#: Bytes of one partition in one Fetch; a single batch that is larger comes whole all the same (KIP-74).
PARTITION_BYTES = 1 << 20
FETCH_BYTES = 8 << 20
#: Seconds for which an unknown topic (id) may still be a broker whose metadata lags behind.
METADATA_LAG_S = 5.0
OFFSET_OUT_OF_RANGE: int = errors.OffsetOutOfRangeError.errno
TOPIC_ID_VERSION = 13  # Fetch by topic id (KIP-516), Kafka 3.1


@dataclass
class _Search:
    """One partition, and what is sought there."""

    tp: TopicPartition
    topic_id: str
    scan: LogScan | StillThere
    end: int | None = None  # the high watermark when we began: a busy partition must not keep us for ever


def text_of(topic_id: uuid.UUID) -> str:
    """A topic id as Kafka's own tools write it (22 characters of URL-safe base64)."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def uuid_of(topic_id: str) -> uuid.UUID:
    """The reverse of :func:`text_of`."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "=="))


class Evidence(NamedTuple):
    """What was found of what was sought. With an ``error``, something is missing: the last reason why."""

    markers: dict[TopicPartition, dict[Sought, Marker]]
    error: KafkaEosError | None


def find_markers(
    wire: Wire, sought: Mapping[TopicPartition, Iterable[Sought]], topic_ids: Mapping[str, str]
) -> Evidence:
    """See :meth:`airflow_kafka_eos.kafka.admin.partitions.Partitions.markers_of`."""
    every = {tp: list(of) for tp, of in sought.items()}
    markers: dict[TopicPartition, dict[Sought, Marker]] = {tp: {} for tp, of in every.items() if of}
    last: KafkaEosError | None = None

    def read(scans: Mapping[TopicPartition, LogScan | StillThere]) -> None:
        nonlocal last
        searches = [_Search(tp, topic_ids[tp.topic], scan) for tp, scan in scans.items()]
        last = _read_all(wire, searches) or last
        for tp, scan in scans.items():
            markers[tp].update(scan.found)

    def scan_for(those: Mapping[TopicPartition, list[Sought]], *, whole: bool) -> None:
        scans = {tp: LogScan(of, whole=whole) for tp, of in those.items() if of}
        read(scans)
        read({tp: StillThere(scan.unsure) for tp, scan in scans.items() if scan.unsure})

    scan_for(every, whole=False)
    # where the batch with the last record is gone, an earlier one may be left; few topics are compacted
    parts = {tp: [s for s, found in of.items() if _may_be_left(s, found)] for tp, of in markers.items()}
    for tp, of in parts.items():
        for one in of:
            del markers[tp][one]  # nothing is said of it if it cannot be read now
    scan_for(parts, whole=True)
    return Evidence(markers, last)


def _may_be_left(sought: Sought, found: Marker) -> bool:
    first = sought.first_offset
    return found.is_compacted and first is not None and first < sought.last_offset


def _read_all(wire: Wire, searches: list[_Search]) -> KafkaEosError | None:
    """Read until all scans are done; else why they are not."""
    if not searches:
        return None
    believe_gone_at = time.monotonic() + min(METADATA_LAG_S, wire.timeout_s / 2)

    def attempt() -> None:
        gone = _recreated_or_deleted(wire, _left(searches))
        while not gone and (left := _left(searches)):
            before = [s.scan.progress for s in left]
            grouped, missing = _by_leader(wire, left)
            failed: Exception | None = missing
            for node_id, mine in grouped.items():
                try:
                    gone |= _fetch(wire, node_id, mine)
                except (retry.Retry, KafkaEosError) as e:
                    failed = e  # a leader that is down keeps nobody from asking the others
            if failed is not None:
                raise failed
            if before == [s.scan.progress for s in left] and not gone:
                raise retry.Retry("the leaders sent no records")  # throttled, or a replica that catches up
            # one answer has room for FETCH_BYTES only: whoever is first in the request gets on
            searches.sort(key=lambda s: s.scan.next_offset)
        if not gone:
            return
        if time.monotonic() >= believe_gone_at:
            for s in searches:
                if s.tp.topic in gone:
                    s.scan.unreadable()
        if _left(searches):
            raise retry.Retry(f"topic id unknown for {', '.join(sorted(gone))}")

    names = [str(s.tp) for s in searches]
    what = f"reading the end markers in {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
    try:
        wire.until_settled(attempt, what=what)
    except KafkaEosError as e:
        return e
    return None


def _left(searches: Iterable[_Search]) -> list[_Search]:
    return [s for s in searches if not s.scan.is_done]


def _recreated_or_deleted(wire: Wire, searches: list[_Search]) -> set[str]:
    """Topics that are not there under the recorded id, as far as one broker knows."""
    wanted = {s.tp.topic: s.topic_id for s in searches}
    if not wanted:
        return set()
    gone = set()
    for t in wire.metadata(sorted(wanted)).topics:
        if t.error_code in retry.UNKNOWN_TOPIC or (t.error_code == 0 and text_of(t.topic_id) != wanted[t.name]):
            gone.add(t.name)
        else:
            retry.check(t.error_code, operation="DESCRIBE", resource=f"Topic {t.name}")
    return gone


def _by_leader(
    wire: Wire, searches: list[_Search]
) -> tuple[dict[int, list[_Search]], retry.Retry | None]:
    """Those that have a leader, and what to say of those that have none."""
    grouped: dict[int, list[_Search]] = defaultdict(list)
    missing = None
    try:
        leaders = wire.leaders(s.tp for s in searches)
    except retry.Retry as e:
        missing, leaders = e, wire.known_leaders(s.tp for s in searches)
    for s in searches:
        if s.tp in leaders:
            grouped[leaders[s.tp]].append(s)
    return grouped, missing


def _fetch(wire: Wire, node_id: int, searches: list[_Search]) -> set[str]:
    """One Fetch from one leader. Returns the topics that it does not know by their id."""
    try:
        wanted = ((s.topic_id, s.tp.partition, s.scan.next_offset) for s in searches)
        answer = wire.send_to_broker(node_id, fetch_request(wanted, PARTITION_BYTES, FETCH_BYTES))
    except Exception:
        wire.forget_leaders(s.tp for s in searches)
        raise
    retry.check(answer.error_code, operation="READ", resource="Cluster")
    by_key = {(s.topic_id, s.tp.partition): s for s in searches}
    gone = set()
    for topic in answer.responses:
        for p in topic.partitions:
            s = by_key[text_of(topic.topic_id), p.partition_index]
            if p.error_code in retry.UNKNOWN_TOPIC:
                wire.forget_leaders([s.tp])
                gone.add(s.tp.topic)
            elif p.error_code == OFFSET_OUT_OF_RANGE:
                s.scan.out_of_range()
            else:
                if p.error_code:
                    wire.forget_leaders([s.tp])
                retry.check(p.error_code, operation="READ", resource=f"Topic {s.tp.topic}")
                _read(s, p)
    return gone


def fetch_request(wanted: Iterable[tuple[str, int, int]], partition_bytes: int, most_bytes: int) -> FetchRequest:
    """A Fetch of all there is, what is aborted and open too.

    :param wanted: topic id, partition, and the offset from which on.
    """
    topic, partition = FetchRequest.FetchTopic, FetchRequest.FetchTopic.FetchPartition
    topics: dict[str, list[Any]] = defaultdict(list)
    for topic_id, number, offset in wanted:
        topics[topic_id].append(
            partition(partition=number, fetch_offset=offset, partition_max_bytes=partition_bytes)
        )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=most_bytes,
        isolation_level=0,  # read_uncommitted
        topics=[topic(topic_id=uuid_of(topic_id), partitions=mine) for topic_id, mine in topics.items()],
        min_version=TOPIC_ID_VERSION,
    )


def _read(s: _Search, answer: Any) -> None:
    if s.end is None:
        s.end = answer.high_watermark
    s.scan.feed(answer.records or b"")
    if not s.scan.is_done and s.scan.next_offset >= s.end:
        s.scan.end(s.end)
