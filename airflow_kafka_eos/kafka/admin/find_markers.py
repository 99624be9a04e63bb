"""What partitions' logs say of the end of transactions (rule: log-is-the-evidence).

Two ways. A log can be gone through, from a transaction's last record to its end marker; that costs what others have
written there. Where a leader's list of aborted transactions may be believed, one Fetch at the last record tells
(:mod:`airflow_kafka_eos.kafka.records.transaction_index`), and what lies behind the end offsets that are known is gone
through as far as it is short. What the one leaves open, or contradicts, the other decides.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka import errors
from kafka.protocol.consumer.fetch import FetchRequest

from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.records.scan import LogScan, Sought, StillThere, TailScan
from airflow_kafka_eos.kafka.records.transaction_index import Answer, IndexScan, Told
from airflow_kafka_eos.transaction import Marker, TopicPartition

#: Bytes of one partition in one Fetch; a single batch that is larger comes whole all the same (KIP-74).
PARTITION_BYTES = 1 << 20
FETCH_BYTES = 8 << 20
#: The same of a Fetch that asks the list of aborted transactions, for each of them: small ones come many at a time, and
#: with their markers if these are near.
INDEX_BYTES = 32 << 10
#: How far the log is read behind the known end offset of a partition where the list has told already.
TAIL_BYTES = 128 << 10
#: Seconds for which an unknown topic (id) may still be a broker whose metadata lags behind.
METADATA_LAG_S = 5.0
OFFSET_OUT_OF_RANGE: int = errors.OffsetOutOfRangeError.errno
TOPIC_ID_VERSION = 13  # Fetch by topic id (KIP-516), Kafka 3.1
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_TOLD = {Told.COMMITTED: Marker.COMMIT, Told.ABORTED: Marker.ABORT}


@dataclass
class _Search:
    """One partition, and what is sought there."""

    tp: TopicPartition
    topic_id: str
    scan: LogScan | StillThere | TailScan
    bytes: int = PARTITION_BYTES
    end: int | None = None  # the high watermark when we began: a busy partition must not keep us for ever
    isolation = _READ_UNCOMMITTED

    def out_of_range(self) -> None:
        self.scan.out_of_range()

    def read(self, answer: Any) -> None:
        if self.end is None:
            self.end = answer.high_watermark
        self.scan.feed(answer.records or b"")
        if not self.scan.is_done and self.scan.next_offset >= self.end:
            self.scan.end(self.end)


@dataclass
class _Asked:
    """One partition, whose list of aborted transactions is asked."""

    tp: TopicPartition
    topic_id: str
    scan: IndexScan
    isolation = _READ_COMMITTED

    @property
    def bytes(self) -> int:
        return min(PARTITION_BYTES, INDEX_BYTES * self.scan.left)

    def out_of_range(self) -> None:
        self.scan.see(Answer(b"", -1, None, is_out_of_range=True))

    def read(self, answer: Any) -> None:
        aborted = answer.aborted_transactions
        listed = None if aborted is None else tuple((a.producer_id, a.first_offset) for a in aborted)
        self.scan.see(Answer(answer.records or b"", answer.last_stable_offset, listed, answer.error_code))


_Searches = list[_Search] | list[_Asked]
_Grouped = Mapping[int, _Searches]


def text_of(topic_id: uuid.UUID) -> str:
    """A topic id as Kafka's own tools write it (22 characters of URL-safe base64)."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def uuid_of(topic_id: str) -> uuid.UUID:
    """The reverse of :func:`text_of`."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "=="))


class Evidence(NamedTuple):
    """What was found of what was sought. With an ``error``, something is missing: the last reason why.

    :param by_index: those of which only a list of aborted transactions has told: their markers were not seen.
    """

    markers: dict[TopicPartition, dict[Sought, Marker]]
    error: KafkaEosError | None
    by_index: frozenset[tuple[TopicPartition, Sought]] = frozenset()


@dataclass
class Progress:
    """What is known of partitions before they are read, and what reading adds for the next look; of one process.

    :param behind: an offset that a transaction's marker stands at or behind, with nothing of the transaction between
        its last record and there; see :class:`~airflow_kafka_eos.kafka.records.scan.TailScan`.
    :param own: those whose last batch was seen to be their own.
    :param waited: those that had no marker when they were looked for.
    :param counted: records that a leader had counted of a transaction when it was looked at last, modulo 2**31.
    :param is_looked_at: leaders were asked for that before the transactions were ended.
    :param repeats: somebody looks again, soon, if there is no marker yet.
    """

    behind: dict[tuple[TopicPartition, Sought], int] = field(default_factory=dict)
    own: set[tuple[TopicPartition, Sought]] = field(default_factory=set)
    waited: set[tuple[TopicPartition, Sought]] = field(default_factory=set)
    counted: dict[tuple[TopicPartition, Sought], int] = field(default_factory=dict)
    is_looked_at: bool = False
    repeats: bool = True


def find_markers(
    wire: Wire,
    sought: Mapping[TopicPartition, Iterable[Sought]],
    topic_ids: Mapping[str, str],
    indexed: Collection[str] = (),
    progress: Progress | None = None,
) -> Evidence:
    """See :meth:`airflow_kafka_eos.kafka.admin.partitions.Partitions.markers_of`."""
    every = {tp: list(of) for tp, of in sought.items()}
    asked = {tp: of for tp, of in every.items() if of and tp.topic in indexed}
    known = progress or Progress(repeats=False)
    told = _ByIndex(wire, topic_ids, known)
    told.ask(asked)
    rest = {tp: told.rest[tp] if tp in asked else of for tp, of in every.items()}
    markers, last, ends = _go_through(wire, rest, topic_ids)
    for tp, of in told.markers.items():
        markers.setdefault(tp, {}).update(of)
    for tp in asked:
        for one in rest[tp]:
            if markers[tp].get(one) is Marker.MISSING and ends[tp] > one.last_offset:
                # its own batch was there, and nothing of it up to the end
                known.behind[tp, one] = ends[tp]
                known.own.add((tp, one))
    return Evidence(markers, told.error or last, frozenset(told.by_index))


class _ByIndex:
    """Partitions whose lists of aborted transactions may be believed: asked side by side, one to a Fetch.

    One to a Fetch, for of several with little room only the first gets its batch, and the others an answer without a
    list.
    """

    def __init__(self, wire: Wire, topic_ids: Mapping[str, str], known: Progress) -> None:
        self._wire = wire
        self._topic_ids = topic_ids
        self._known = known
        self.markers: dict[TopicPartition, dict[Sought, Marker]] = {}
        self.by_index: set[tuple[TopicPartition, Sought]] = set()
        #: what the log has to be gone through for
        self.rest: dict[TopicPartition, list[Sought]] = {}
        self.error: KafkaEosError | None = None

    def ask(self, every: Mapping[TopicPartition, list[Sought]]) -> None:
        self.markers = {tp: {} for tp in every}
        self.rest = {tp: [] for tp in every}
        asked = {tp: IndexScan(of) for tp, of in every.items()}
        self._read([_Asked(tp, self._topic_ids[tp.topic], scan) for tp, scan in asked.items()])
        tails = self._tails(asked)
        doubtful: dict[TopicPartition, dict[Sought, tuple[Marker, int]]] = defaultdict(dict)
        for tp, scan in asked.items():
            for one, told in scan.told.items():
                if one in scan.shown:
                    self.markers[tp][one] = scan.shown[one]
                elif told in _TOLD:
                    self._settle(tp, one, _TOLD[told], tails.get(tp))
                else:
                    marker = self._behind(tp, one, tails.get(tp)) if told is Told.UNDECIDED else None
                    if marker is None:
                        self.rest[tp].append(one)
                    elif marker is Marker.MISSING and not self._wants_own(tp, one):
                        self.markers[tp][one] = marker
                    else:
                        doubtful[tp][one] = (marker, one.last_offset)
        self._confirm(doubtful)

    def _tails(self, asked: Mapping[TopicPartition, IndexScan]) -> dict[TopicPartition, TailScan]:
        """What stands behind the end offsets that are known."""
        tails = {}
        for tp, scan in asked.items():
            left = {one: told for one, told in scan.told.items() if one not in scan.shown}
            behind = {
                one: max(self._known.behind[tp, one], one.last_offset + 1)
                for one, told in left.items()
                if (told in _TOLD or told is Told.UNDECIDED) and (tp, one) in self._known.behind
            }
            waits = any(left[one] is Told.UNDECIDED for one in behind)
            if behind:
                tails[tp] = TailScan(behind, most_bytes=None if waits else TAIL_BYTES)
        searches = [_Search(tp, self._topic_ids[tp.topic], tail) for tp, tail in tails.items()]
        for s in searches:
            s.bytes = PARTITION_BYTES if tails[s.tp].is_endless else TAIL_BYTES
        self._read(searches, again=True)
        return tails

    def _settle(self, tp: TopicPartition, one: Sought, marker: Marker, tail: TailScan | None) -> None:
        """By the list; where the marker was read too, both must say the same."""
        read = None if tail is None else tail.found.get(one)
        if read not in (None, marker):
            self.rest[tp].append(one)
            return
        self.markers[tp][one] = marker
        if read is None:
            self.by_index.add((tp, one))

    def _behind(self, tp: TopicPartition, one: Sought, tail: TailScan | None) -> Marker | None:
        """What the log shows behind the known end offset of what readers are not past; None: nothing that counts."""
        if tail is None:
            return None
        if one in tail.at_end:
            self._known.behind[tp, one] = tail.next_offset
            return Marker.MISSING
        found = tail.found.get(one)
        return None if found is Marker.UNREADABLE else found

    def _wants_own(self, tp: TopicPartition, one: Sought) -> bool:
        """Whether to look for the own batch of what has no marker yet: once, and not while it may be about to come."""
        key = (tp, one)
        is_late = not self._known.repeats or key in self._known.waited
        self._known.waited.add(key)
        return is_late and key not in self._known.own

    def _confirm(self, doubtful: Mapping[TopicPartition, Mapping[Sought, tuple[Marker, int]]]) -> None:
        """What was read behind a later offset counts with the transaction's own batch at its last one."""
        scans = {tp: StillThere(of) for tp, of in doubtful.items()}
        searches = [_Search(tp, self._topic_ids[tp.topic], scan, bytes=1) for tp, scan in scans.items()]
        self._read(searches, again=True)
        for tp, scan in scans.items():
            for one, (marker, _) in doubtful[tp].items():
                if scan.found.get(one) is marker:
                    self.markers[tp][one] = marker
                    self._known.own.add((tp, one))
                elif one in scan.found:
                    self.rest[tp].append(one)

    def _read(self, searches: _Searches, *, again: bool = False) -> None:
        """
        :param again: of the topics that were read just now. What is not found then is looked for in the whole log.
        """
        self.error = _read_all(self._wire, searches, _fetch_each, again=again) or self.error


def _go_through(
    wire: Wire, every: Mapping[TopicPartition, list[Sought]], topic_ids: Mapping[str, str]
) -> tuple[dict[TopicPartition, dict[Sought, Marker]], KafkaEosError | None, dict[TopicPartition, int]]:
    """The log of each partition, from the first of the last records on; and where it ended."""
    markers: dict[TopicPartition, dict[Sought, Marker]] = {tp: {} for tp, of in every.items() if of}
    last: KafkaEosError | None = None
    ends: dict[TopicPartition, int] = {}

    def read(scans: Mapping[TopicPartition, LogScan | StillThere]) -> None:
        nonlocal last
        searches = [_Search(tp, topic_ids[tp.topic], scan) for tp, scan in scans.items()]
        last = _read_all(wire, searches, _fetch_by_leader) or last
        ends.update({s.tp: s.end or 0 for s in searches})
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
    return markers, last, ends


def _may_be_left(sought: Sought, found: Marker) -> bool:
    first = sought.first_offset
    return found.is_compacted and first is not None and first < sought.last_offset


_Round = Callable[[Wire, _Grouped], tuple[set[str], Exception | None]]


def _read_all(wire: Wire, searches: _Searches, fetch: _Round, *, again: bool = False) -> KafkaEosError | None:
    """Read until all scans are done; else why they are not.

    Who leads is asked first, and not only where nobody is known: a leader of before that is a follower now answers too,
    and may lack what is sought.

    :param fetch: asks once for each; what it returns are topics that are not known by their ids, and a last failure.
    :param again: that was asked just now, and nothing is concluded from what is not found.
    """
    if not searches:
        return None
    believe_gone_at = time.monotonic() + min(METADATA_LAG_S, wire.timeout_s / 2)

    def attempt() -> None:
        nonlocal again
        gone = set() if again else _recreated_or_deleted(wire, _left(searches))
        again = False
        while not gone and (left := _left(searches)):
            before = [s.scan.progress for s in left]
            grouped, missing = _by_leader(wire, left)
            unknown, failed = fetch(wire, grouped)
            gone |= unknown
            failed = failed or missing
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


def _left(searches: _Searches) -> Any:
    return [s for s in searches if not s.scan.is_done]


def _recreated_or_deleted(wire: Wire, searches: _Searches) -> set[str]:
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


def _by_leader(wire: Wire, searches: _Searches) -> tuple[_Grouped, retry.Retry | None]:
    """Those that have a leader, and what to say of those that have none."""
    grouped: dict[int, Any] = defaultdict(list)
    missing = None
    try:
        leaders = wire.leaders(s.tp for s in searches)
    except retry.Retry as e:
        missing, leaders = e, wire.known_leaders(s.tp for s in searches)
    for s in searches:
        if s.tp in leaders:
            grouped[leaders[s.tp]].append(s)
    return grouped, missing


def _fetch_by_leader(wire: Wire, grouped: _Grouped) -> tuple[set[str], Exception | None]:
    """One Fetch from each leader, one after the other."""
    gone: set[str] = set()
    failed: Exception | None = None
    for node_id, mine in grouped.items():
        wanted = ((s.topic_id, s.tp.partition, s.scan.next_offset) for s in mine)
        try:
            answer = wire.send_to_broker(node_id, fetch_request(wanted, PARTITION_BYTES, FETCH_BYTES))
            gone |= _taken(wire, mine, answer)
        except (retry.Retry, KafkaEosError) as e:
            if not isinstance(e, retry.Retry):
                wire.forget_leaders(s.tp for s in mine)
            failed = e  # a leader that is down keeps nobody from asking the others
    return gone, failed


def _fetch_each(wire: Wire, grouped: _Grouped) -> tuple[set[str], Exception | None]:
    """One Fetch for each partition, all leaders at once, and several under way at each."""
    gone: set[str] = set()
    failed: Exception | None = None
    with closing(wire.pool()) as pool:
        waiting = 0
        for node_id, mine in grouped.items():
            for s in mine:
                wanted = [(s.topic_id, s.tp.partition, s.scan.next_offset)]
                request = fetch_request(wanted, s.bytes, FETCH_BYTES, isolation=s.isolation)
                pool.submit(node_id, request, s, timeout_s=wire.request_timeout_s)
                waiting += 1
        give_up = time.monotonic() + wire.timeout_s
        while waiting and (left := give_up - time.monotonic()) > 0:
            for reply in pool.wait(left):
                waiting -= 1
                try:
                    if reply.error is not None:
                        raise reply.error
                    gone |= _taken(wire, [reply.tag], reply.answer)
                except (retry.Retry, KafkaEosError) as e:
                    if not isinstance(e, retry.Retry):
                        wire.forget_leaders([reply.tag.tp])
                    failed = e
        if waiting:
            failed = failed or retry.Retry("no answer in time")
    return gone, failed


def _taken(wire: Wire, searches: _Searches, answer: Any) -> set[str]:
    """Read an answer. Returns the topics that the leader does not know by their id."""
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
                s.out_of_range()
            else:
                if p.error_code:
                    wire.forget_leaders([s.tp])
                retry.check(p.error_code, operation="READ", resource=f"Topic {s.tp.topic}")
                s.read(p)
    return gone


def fetch_request(
    wanted: Iterable[tuple[str, int, int]], partition_bytes: int, most_bytes: int, *, isolation: int = _READ_UNCOMMITTED
) -> FetchRequest:
    """A Fetch of all there is, what is aborted and open too; or as a ``read_committed`` reader sends it.

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
        isolation_level=isolation,
        topics=[topic(topic_id=uuid_of(topic_id), partitions=mine) for topic_id, mine in topics.items()],
        min_version=TOPIC_ID_VERSION,
    )

