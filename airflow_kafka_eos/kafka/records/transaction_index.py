"""What one Fetch by ``read_committed`` tells of a transaction, and what it does not (docs/adr/0028). No I/O.

A leader keeps, beside each segment, the list of the transactions that were aborted in it. A Fetch at a transaction's
last offset, as a ``read_committed`` reader sends it, is answered from that list in milliseconds, whatever lies between
there and the end marker: with the last stable offset, and with the aborted transactions that overlap what is sent.
Readers go by the same answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from airflow_kafka_eos.kafka.records.scan import LogScan, Sought, is_compacted, is_of
from airflow_kafka_eos.kafka.records.stored import batches
from airflow_kafka_eos.transaction import Marker

#: The topic settings that :func:`may_be_believed` reads.
SETTINGS = ("cleanup.policy", "remote.storage.enable")
#: A feature that clusters of Apache's brokers finalise, and others do not (KIP-778).
_APACHE = "metadata.version"


def may_be_believed(config: Mapping[str, str], features: Mapping[str, int]) -> bool:
    """Whether a topic's list of aborted transactions may be read at all.

    Not where compaction takes an entry with its records, nor where segments lie in tiered storage (KAFKA-17801), nor
    where brokers are not seen to be Apache's: no request asks for that, so it takes two of their signs. What a login
    may not see counts as no.

    :param config: of the topic, see :data:`SETTINGS`; what is missing may be anything.
    :param features: that the cluster has finalised, by name.
    """
    is_apache = _APACHE in features and "remote.storage.enable" in config
    return is_apache and config["remote.storage.enable"] == "false" and _is_only_deleted(config)


def _is_only_deleted(config: Mapping[str, str]) -> bool:
    return "cleanup.policy" in config and not is_compacted(config)


class Told(str, Enum):
    """What one answer says of one transaction in one partition."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    #: readers are not past its last record: it is open, or another one is, or the answer's leader is not so far yet
    UNDECIDED = "undecided"
    #: the log does not have its last record any more
    UNREADABLE = "unreadable"
    #: nothing: the log has to be gone through
    UNKNOWN = "unknown"


class Answer(NamedTuple):
    """A partition's part of the answer to a Fetch by ``read_committed``.

    :param aborted: producer id and first offset of each aborted transaction that overlaps ``records``; None: the answer
        has no such list, which is not the same as an empty one.
    :param is_out_of_range: the log does not have the offset that was asked for.
    """

    records: bytes | bytearray | memoryview
    last_stable_offset: int
    aborted: tuple[tuple[int, int], ...] | None
    error_code: int = 0
    is_out_of_range: bool = False


def judge(answer: Answer, sought: Sought) -> Told:
    """What an answer says of a transaction.

    It counts only with a batch of the transaction at its last offset: then the list that came with it is about it. An
    entry's own first offset may be later than the recorded one, where the records before were deleted and the replica
    was built anew since; it is never behind the last one.
    """
    last = sought.last_offset
    if answer.is_out_of_range:
        return Told.UNREADABLE
    if answer.error_code:
        return Told.UNKNOWN
    if answer.last_stable_offset <= last:
        return Told.UNDECIDED
    if answer.aborted is None or not _has_own_batch(answer, sought):
        return Told.UNKNOWN
    if any(of == sought.producer_id and first <= last for of, first in answer.aborted):
        return Told.ABORTED
    return Told.COMMITTED


def _has_own_batch(answer: Answer, sought: Sought) -> bool:
    for batch in batches(answer.records):
        if batch.base_offset <= sought.last_offset <= batch.last_offset:
            return batch.producer_id == sought.producer_id and is_of(batch, sought)
    return False


class IndexScan:
    """One partition's answers, for many transactions: asked at each one's last offset, unless an earlier one had it.

    Where an answer shows the log up to a transaction's end marker, what the log says counts (:attr:`shown`), and the
    list is not needed.
    """

    def __init__(self, sought: Iterable[Sought]) -> None:
        self._left = deque(sorted(dict.fromkeys(sought), key=lambda s: s.last_offset))
        self.told: dict[Sought, Told] = {}
        self.shown: dict[Sought, Marker] = {}

    @property
    def is_done(self) -> bool:
        return not self._left

    @property
    def left(self) -> int:
        """How many are still to be asked for."""
        return len(self._left)

    @property
    def progress(self) -> tuple[int, int]:
        return len(self._left), 0

    @property
    def next_offset(self) -> int:
        return self._left[0].last_offset if self._left else 0

    def see(self, answer: Answer) -> None:
        """The answer to a Fetch at :attr:`next_offset`."""
        asked = self._left.popleft()
        covered = [asked]
        if answer.error_code or answer.is_out_of_range:
            self.told[asked] = judge(answer, asked)
            return
        end = max((b.last_offset for b in batches(answer.records)), default=-1)
        stable = answer.last_stable_offset
        while self._left and (self._left[0].last_offset <= end or self._left[0].last_offset >= stable):
            covered.append(self._left.popleft())
        self.told.update({one: judge(answer, one) for one in covered})
        log = LogScan(covered)
        log.feed(answer.records)
        self.shown.update(log.found)

    def unreadable(self) -> None:
        """The topic is gone, or another one."""
        self.told.update(dict.fromkeys(self._left, Told.UNREADABLE))
        self._left.clear()
