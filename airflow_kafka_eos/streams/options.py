"""The options of ``df.writeStream.format("kafka_eos")``, read and checked. No I/O.

Most are those of ``df.write`` (:mod:`airflow_kafka_eos.spark.options`): ``topic``, ``topics``, ``kafka.<key>``,
``load.namespace``, ``transaction.two.phase.commit``, ``writer``. Of a load and its attempt nothing is given: both come
out of the checkpoint and the ledger. And:

| option | meaning |
| --- | --- |
| ``queryName`` | set by ``.queryName(…)``: the load's name |
| ``checkpointLocation`` | the folder of the query, always as an option: Spark tells a sink of no other |
| ``transaction.timeout.ms`` | the hold time: from a batch's first record to its decision; default 900000 |
| ``batch.timeout.ms`` | from a batch's begin to its last task's first record; no less than the hold time, its default |
| ``transaction.naming`` | ``pooling`` (default) or ``incrementing`` |
| ``commit.timeout.ms`` | for so long a commit is waited for, then the query fails; default 120000 |
| ``stream.replay`` | ``check`` (default): a decided batch that comes again must have as many rows; or ``trust`` |
| ``stream.opened.by`` | set by Airflow's operator: its run, as owners of attempts name it |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import (
    DEFAULT_NAMESPACE,
    Choice,
    TransactionNaming,
    TransactionScope,
    TwoPhaseCommit,
    WriterName,
)
from airflow_kafka_eos.micro_batch import MicroBatch
from airflow_kafka_eos.naming import AttemptRef
from airflow_kafka_eos.spark.options import KNOWN, WriteOptions, check_known

OPENED_BY = "stream.opened.by"
_OWN = (
    "queryName", "checkpointLocation", "transaction.naming", "transaction.timeout.ms", "commit.timeout.ms",
    "batch.timeout.ms", "stream.replay", OPENED_BY,
)  # fmt: skip
_OF_AN_ATTEMPT = (
    "load.name", "load.key", "load.attempt", "load.slot", "load.repairs", "load.claim", "ledger.id", "manifest.dir",
    "deadline.ms",
)  # fmt: skip
_KNOWN = tuple(dict.fromkeys((*_OWN, *(key for key in KNOWN if key not in _OF_AN_ATTEMPT))))
_MARGIN_S = 60.0


class Replay(Choice):
    """What a decided batch is compared with, when Spark asks for it again."""

    #: it must have as many rows as were committed
    CHECK = "check"
    #: with nothing
    TRUST = "trust"


@dataclass(frozen=True)
class StreamOptions:
    """One query: what, where to, under which name. Has no secret.

    :param given: the options of ``df.write`` among them.
    """

    namespace: str
    name: str
    checkpoint: str
    given: tuple[tuple[str, str], ...]
    timeout_ms: int
    batch_timeout_ms: int
    commit_timeout_ms: int
    naming: TransactionNaming
    replay: Replay
    opened_by: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Read Spark's options.

        :raises ConfigurationError: an option is missing, unknown, misshapen, or a secret.
        """
        every = {key.lower(): value for key, value in options.items()}
        for key in _OF_AN_ATTEMPT:
            if key in every:
                raise _wrong(key, "is of one load", "Leave it out: each batch of a query is a load of its own")
        check_known(every, _KNOWN)
        own = {key: every.pop(key.lower()) for key in _OWN if key.lower() in every}
        if not own.get("queryName"):
            raise _wrong("queryName", "is missing", "Name the query: .queryName('orders') before .start()")
        if not own.get("checkpointLocation"):
            raise _wrong(
                "checkpointLocation",
                "is missing",
                "Set it as an option of the query: a sink sees no setting of the session's",
            )
        timeout_ms = _milliseconds(own, "transaction.timeout.ms", 900_000)
        batch_timeout_ms = _milliseconds(own, "batch.timeout.ms", timeout_ms)
        if batch_timeout_ms < timeout_ms:  # maintenance goes by that
            raise _wrong(
                "batch.timeout.ms",
                f"is {batch_timeout_ms}, less than transaction.timeout.ms, {timeout_ms}",
                "Leave it out, or raise it: it is how long a batch may compute until its last task begins to write",
            )
        found = cls(
            every.get("load.namespace") or DEFAULT_NAMESPACE,
            own["queryName"],
            own["checkpointLocation"],
            tuple(sorted(every.items())),
            timeout_ms,
            batch_timeout_ms,
            _milliseconds(own, "commit.timeout.ms", 120_000),
            TransactionNaming.read("the option transaction.naming", own.get("transaction.naming", "pooling")),
            Replay.read("the option stream.replay", own.get("stream.replay", "check")),
            own.get(OPENED_BY, ""),
        )
        # by the longest of its keys: a name that only the first ten batches have room for ends the query for good
        last = MicroBatch(found.namespace, found.name, "00000000-0000-0000-0000-000000000000", 2**63 - 1, "")
        written = found.write(AttemptRef(last.load, "0" * 10, 1), 1)
        if written.scope is not TransactionScope.TASK:
            raise _wrong("transaction.scope", "is 'load'", "Leave it out: a query's batches are written in scope task")
        if written.writer is WriterName.CONFLUENT and written.two_phase_commit is TwoPhaseCommit.REQUIRED:
            raise _wrong(
                "writer",
                "is 'confluent', which has no way to transaction.two.phase.commit 'required'",
                "Leave one of them at its default",
            )
        return found

    def write(self, ref: AttemptRef, deadline_ms: int) -> WriteOptions:
        """The options of one batch's write."""
        load = ref.load
        return WriteOptions.parse(
            dict(self.given)
            | {
                "load.namespace": load.namespace,
                "load.name": load.name,
                "load.key": load.key,
                "load.attempt": str(ref.attempt),
                "ledger.id": ref.ledger_id,
                # what was prepared goes straight into the ledger
                "manifest.dir": "none",
                "transaction.timeout.ms": str(self.timeout_ms),
                "deadline.ms": str(deadline_ms),
            }
            | ({} if ref.slot is None else {"load.slot": str(ref.slot)})
        )

    @property
    def margin_s(self) -> float:
        """Seconds of the hold time that must be left when a batch is decided."""
        return min(_MARGIN_S, self.timeout_ms / 4000)


def _milliseconds(given: Mapping[str, str], key: str, default: int) -> int:
    text = given.get(key) or str(default)
    if not (text.isascii() and text.isdigit() and int(text)):
        raise _wrong(key, f"is {text!r}", "Set it to a whole number from 1 on")
    return int(text)


def _wrong(key: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"the option {key} of kafka_eos {problem}", remedy=remedy)
