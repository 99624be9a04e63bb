"""Transactional ids: built here, parsed here, nowhere else.

Incrementing (FLIP-511), an attempt's own, never used again:

    <namespace>.<ledger id>.<load name>.<load key>.<attempt>-<spark partition>-<task attempt id>    scope task
    <namespace>.<ledger id>.<load name>.<load key>.<attempt>-load                                   scope load
    <namespace>.<ledger id>.<load name>.<load key>.<attempt>-probe                                  never written with

A repair's number stands in the attempt's place: with ``-load`` for a copy of the log, else as in scope task.

Pooled, of a slot that the ledger leases to one attempt after another:

    <namespace>.<ledger id>.<load name>.p<slot>-<spark partition>-<n>                               scope task
    <namespace>.<ledger id>.<load name>.p<slot>-load                                                scope load
    <namespace>.<ledger id>.<load name>.p<slot>-probe                                               never written with

Namespace, load name and key are percent-encoded, so that the separators stay unambiguous and ids of two loads
can never collide; by the number of its parts an id is of one kind or the other. The ledger id is random per ledger:
another deployment with the same names never parses as ours (rule: only-our-ids). The task attempt id is Spark's
``TaskContext.taskAttemptId()``, unique within one application even when a stage is retried (rule: id-per-task-attempt),
and an attempt is one application (rule: one-application-per-attempt); ``n`` is the first number that nobody has used
since the lease. The others belong to the attempt as a whole and to no Spark partition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from airflow_kafka_eos.errors import InvalidNameError
from airflow_kafka_eos.load import LoadIdentity

#: ``kafka_transaction_state.transactional_id`` is varchar(255) in KIP-939's recipe; Kafka itself allows more.
MAX_LENGTH = 255
#: So many ids may brokers keep of a load name, and of a namespace, unless an author says otherwise (docs/adr/0013).
MAX_IDS_OF_NAME, MAX_IDS_OF_NAMESPACE = 10_000, 100_000
LEDGER_ID_PATTERN = re.compile(r"[0-9a-f]{10}", re.ASCII)
_END = re.compile(
    r"([1-9][0-9]{0,8})-(?:(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,18})|(load|probe))", re.ASCII
)
_MAX_END = 9 + 10 + 19 + 2
_POOLED_END = re.compile(
    r"p(0|[1-9][0-9]{0,8})-(?:(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,8})|(load|probe))", re.ASCII
)


class IdRole(str, Enum):
    """What a transactional id is for."""

    #: the transaction of one Spark task attempt
    TASK = "task"
    #: the one transaction of an attempt in scope ``load``
    LOAD = "load"
    #: asks a broker what it grants; nothing is ever written with it
    PROBE = "probe"


def _encode(text: str) -> str:
    # quote() leaves A-Z a-z 0-9 _ . - ~ alone; the separator '.' and '~' (not in everyone's ACL habits) must go too
    return quote(text, safe="").replace(".", "%2E").replace("~", "%7E")


def _decode(text: str) -> str | None:
    try:
        plain = unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        return None
    return plain if _encode(plain) == text else None  # canonical form only: one id, one meaning


@dataclass(frozen=True)
class TransactionalId:
    """The transactional id of one Spark task attempt, or of one attempt of one load as a whole.

    :param spark_partition: with role ``task`` only, as is ``task_attempt_id``.
    """

    load: LoadIdentity
    ledger_id: str
    attempt: int
    spark_partition: int | None = None
    task_attempt_id: int | None = None
    role: IdRole = IdRole.TASK

    def __post_init__(self) -> None:
        # "None" in the text of a role that wants numbers does not fit either
        numbered = self.role is IdRole.TASK or (self.spark_partition, self.task_attempt_id) == (None, None)
        fits = numbered and _END.fullmatch(self._end) is not None
        if LEDGER_ID_PATTERN.fullmatch(self.ledger_id) is None or not fits:
            raise InvalidNameError(
                f"ledger id {self.ledger_id!r} or numbers {self._end!r} do not fit a transactional id",
                remedy="Pass the ledger's own id, an attempt number from 1 on, and Spark's own numbers",
                load=str(self.load),
                attempt=self.attempt,
            )

    @property
    def namespace(self) -> str:
        return self.load.namespace

    @property
    def _end(self) -> str:
        if self.role is IdRole.TASK:
            return f"{self.attempt}-{self.spark_partition}-{self.task_attempt_id}"
        return f"{self.attempt}-{self.role.value}"

    def __str__(self) -> str:
        return f"{prefix(self.load, self.ledger_id)}{self._end}"

    @classmethod
    def parse(cls, text: str) -> TransactionalId | None:
        """Read an id back, or None when it is not one of ours: another application's id is no error.

        Rule: only-our-ids.
        """
        parts = text.split(".")
        if len(parts) != 5:
            return None
        names = [_decode(part) for part in (parts[0], parts[2], parts[3])]
        end = _END.fullmatch(parts[4])
        if end is None or LEDGER_ID_PATTERN.fullmatch(parts[1]) is None:
            return None
        try:
            load = LoadIdentity(*(name or "" for name in names))
        except InvalidNameError:
            return None
        attempt, partition, task_attempt, role = end.groups()
        if role is not None:
            return cls(load, parts[1], int(attempt), role=IdRole(role))
        return cls(load, parts[1], int(attempt), int(partition), int(task_attempt))


@dataclass(frozen=True)
class PooledId:
    """A transactional id of a slot of a load name. Which attempt it is of, the ledger's lease says.

    :param spark_partition: with role ``task`` only, as is ``number``: how many ids of that Spark partition were in
        use before it.
    """

    namespace: str
    ledger_id: str
    load_name: str
    slot: int
    spark_partition: int | None = None
    number: int | None = None
    role: IdRole = IdRole.TASK

    def __post_init__(self) -> None:
        LoadIdentity(self.namespace, self.load_name, "any")  # the same names are refused
        numbered = self.role is IdRole.TASK or (self.spark_partition, self.number) == (None, None)
        fits = numbered and _POOLED_END.fullmatch(self._end) is not None
        if LEDGER_ID_PATTERN.fullmatch(self.ledger_id) is None or not fits:
            raise InvalidNameError(
                f"ledger id {self.ledger_id!r} or numbers {self._end!r} do not fit a pooled transactional id",
                remedy="Pass the ledger's own id, a slot that it leased, and Spark's own partition number",
            )

    @property
    def _end(self) -> str:
        if self.role is IdRole.TASK:
            return f"p{self.slot}-{self.spark_partition}-{self.number}"
        return f"p{self.slot}-{self.role.value}"

    def __str__(self) -> str:
        return f"{name_prefix(self.namespace, self.ledger_id, self.load_name)}{self._end}"

    @classmethod
    def parse(cls, text: str) -> PooledId | None:
        """Read an id back, or None when it is not a pooled one of ours."""
        parts = text.split(".")
        if len(parts) != 4:
            return None
        namespace, name = _decode(parts[0]), _decode(parts[2])
        end = _POOLED_END.fullmatch(parts[3])
        if end is None or LEDGER_ID_PATTERN.fullmatch(parts[1]) is None:
            return None
        slot, partition, number, role = end.groups()
        try:
            if role is not None:
                return cls(namespace or "", parts[1], name or "", int(slot), role=IdRole(role))
            return cls(namespace or "", parts[1], name or "", int(slot), int(partition), int(number))
        except InvalidNameError:
            return None


AnyId = TransactionalId | PooledId


def parse(text: str) -> AnyId | None:
    """Read an id of either kind back, or None when it is not one of ours (rule: only-our-ids)."""
    return TransactionalId.parse(text) or PooledId.parse(text)


@dataclass(frozen=True)
class AttemptRef:
    """An attempt of a load in a ledger: all that Spark needs to know of where it belongs.

    Or some repairs of the load that one application prepares together (rule: repair-replaces-lost-row): they are
    attempts of their own, with numbers that no attempt of the load has.

    :param attempt: its number; of repairs, the lowest.
    :param slot: the one that the ledger has leased to it; None: it has ids of its own (incrementing).
    :param repairs: (Spark partition, repair number) of what is prepared again, and nothing else is written; empty: it
        is an attempt, and writes all of them.
    """

    load: LoadIdentity
    ledger_id: str
    attempt: int
    slot: int | None = None
    repairs: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.repairs:
            return
        numbers = [number for _, number in self.repairs]
        if (
            self.slot is not None
            or self.attempt != min(numbers)
            or len(set(numbers)) != len(numbers)
            or len({partition for partition, _ in self.repairs}) != len(numbers)
        ):
            raise InvalidNameError(
                f"repairs {self.repairs} do not fit number {self.attempt} and slot {self.slot}",
                remedy="Pass each Spark partition and each repair once, the lowest repair as the number, and no slot",
                load=str(self.load),
                attempt=self.attempt,
            )

    def __str__(self) -> str:
        if self.repairs:
            return f"{self.load} repair {', '.join(str(number) for _, number in sorted(self.repairs))}"
        return f"{self.load} attempt {self.attempt}"

    @property
    def ids(self) -> dict[str, Any]:
        """What an error of it tells beside its message: ``KafkaEosError(…, **ref.ids)``."""
        return {"load": str(self.load), "attempt": self.attempt}

    def writes(self, spark_partition: int) -> bool:
        """Whether the rows of a Spark partition are written; in repairs, only what is prepared again is."""
        return not self.repairs or spark_partition in dict(self.repairs)

    def task_id(self, spark_partition: int, number: int) -> AnyId:
        """The id of a Spark task attempt.

        :param number: with a slot, the first that is not in use since the lease; without, Spark's ``taskAttemptId()``.
        """
        if self.repairs:
            # of a partition that is none of the repairs' there is no id
            repair = dict(self.repairs).get(spark_partition, 0)
            return TransactionalId(self.load, self.ledger_id, repair, spark_partition, number)
        if self.slot is None:
            return TransactionalId(self.load, self.ledger_id, self.attempt, spark_partition, number)
        return PooledId(
            self.load.namespace, self.ledger_id, self.load.name, self.slot, spark_partition, number
        )

    def common_id(self, role: IdRole) -> AnyId:
        """The id of the attempt as a whole, of role ``load`` or ``probe``."""
        if self.slot is None:
            return TransactionalId(self.load, self.ledger_id, self.attempt, role=role)
        return PooledId(self.load.namespace, self.ledger_id, self.load.name, self.slot, role=role)

    def owns(self, found: AnyId | None) -> bool:
        """Whether an id is one of this attempt, or of the slot that it has."""
        if isinstance(found, PooledId):
            ours = (self.load.namespace, self.ledger_id, self.load.name, self.slot)
            return (found.namespace, found.ledger_id, found.load_name, found.slot) == ours
        if found is None or self.slot is not None or (found.load, found.ledger_id) != (self.load, self.ledger_id):
            return False
        if self.repairs:
            return (found.spark_partition, found.attempt) in self.repairs
        return found.attempt == self.attempt

    @property
    def id_prefix(self) -> str:
        """What all of its ids start with; others may too: :meth:`owns` tells."""
        if self.slot is None:
            return prefix(self.load, self.ledger_id)
        return slot_prefix(self.load.namespace, self.ledger_id, self.load.name, self.slot)


def prefix(load: LoadIdentity, ledger_id: str) -> str:
    """What every incrementing transactional id of a load starts with."""
    return f"{name_prefix(load.namespace, ledger_id, load.name)}{_encode(load.key)}."


def slot_prefix(namespace: str, ledger_id: str, load_name: str, slot: int | None = None) -> str:
    """What every pooled id of a slot starts with, or of all slots; so may ids of a load whose key starts so: parse."""
    return f"{name_prefix(namespace, ledger_id, load_name)}p" + ("" if slot is None else f"{slot}-")


def name_prefix(namespace: str, ledger_id: str, load_name: str) -> str:
    """What every transactional id of a load name starts with, of either kind."""
    return f"{namespace_prefix(namespace, ledger_id)}{_encode(load_name)}."


def prefix_of_all_ledgers(namespace: str) -> str:
    """Prefix of the namespace's ids, whatever ledger has handed them out."""
    return f"{_encode(namespace)}."


def namespace_prefix(namespace: str, ledger_id: str) -> str:
    """What every transactional id of a namespace of a ledger starts with."""
    return f"{_encode(namespace)}.{ledger_id}."


def check_length(load: LoadIdentity, ledger_id: str) -> None:
    """Refuse a load whose ids would not fit, before anything is written.

    Counted is the longer kind, incrementing, so that a load may change from one to the other.

    :raises InvalidNameError: naming how many characters are too many.
    """
    longest = len(prefix(load, ledger_id)) + _MAX_END
    if longest > MAX_LENGTH:
        raise InvalidNameError(
            f"the transactional ids of this load could be {longest} characters long, {MAX_LENGTH} is the most "
            "(characters other than A-Z a-z 0-9 _ - count three or more)",
            remedy=f"Shorten namespace, load name or load_key by {longest - MAX_LENGTH} characters",
            load=str(load),
        )


def counted(ids: Sequence[str]) -> str:
    """``3 (the-first, …)``, for people: a load may have thousands."""
    return f"{len(ids)} ({ids[0]}{', …' if len(ids) > 1 else ''})"
