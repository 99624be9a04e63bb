"""Transactional ids: built here, parsed here, nowhere else.

    <namespace>.<ledger id>.<load name>.<load key>.<attempt>-<spark partition>-<task attempt id>    scope task
    <namespace>.<ledger id>.<load name>.<load key>.<attempt>-load                                   scope load
    <namespace>.<ledger id>.<load name>.<load key>.<attempt>-probe                                  never written with

Namespace, load name and key are percent-encoded, so that the separators stay unambiguous and ids of two loads
can never collide. The ledger id is random per ledger: another deployment with the same names never parses as
ours (rule 6). The task attempt id is Spark's ``TaskContext.taskAttemptId()``, unique within one application
even when a stage is retried (rule 5), and an attempt is one application (rule 3). The other two belong to the attempt
as a whole and to no Spark partition.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote, unquote_to_bytes

from airflow_kafka_eos.errors import InvalidNameError
from airflow_kafka_eos.load import LoadIdentity

#: ``kafka_transaction_state.transactional_id`` is varchar(255) in KIP-939's recipe; Kafka itself allows more.
MAX_LENGTH = 255
LEDGER_ID_PATTERN = re.compile(r"[0-9a-f]{10}", re.ASCII)
_END = re.compile(
    r"([1-9][0-9]{0,8})-(?:(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,18})|(load|probe))", re.ASCII
)
_MAX_END = 9 + 10 + 19 + 2


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
    def _end(self) -> str:
        if self.role is IdRole.TASK:
            return f"{self.attempt}-{self.spark_partition}-{self.task_attempt_id}"
        return f"{self.attempt}-{self.role.value}"

    def __str__(self) -> str:
        return f"{prefix(self.load, self.ledger_id)}{self._end}"

    @classmethod
    def parse(cls, text: str) -> TransactionalId | None:
        """Read an id back, or None when it is not one of ours: another application's id is no error (rule 6)."""
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


def prefix(load: LoadIdentity, ledger_id: str) -> str:
    """What every transactional id of a load starts with."""
    return f"{namespace_prefix(load.namespace, ledger_id)}{_encode(load.name)}.{_encode(load.key)}."


def namespace_prefix(namespace: str, ledger_id: str) -> str:
    """What every transactional id of a namespace of a ledger starts with."""
    return f"{_encode(namespace)}.{ledger_id}."


def check_length(load: LoadIdentity, ledger_id: str) -> None:
    """Refuse a load whose ids would not fit, before anything is written.

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
