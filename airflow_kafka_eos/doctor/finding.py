"""What the doctor says. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from airflow_kafka_eos.errors import AccessError, KafkaEosError


class Severity(str, Enum):
    """How bad it is."""

    OK = "ok"
    #: it works, and something may be lost or refused that need not be
    WARNING = "warning"
    #: loads fail, or more is lost than this package promises
    ERROR = "error"
    UNKNOWN = "could-not-check"


@dataclass(frozen=True)
class Finding:
    """One check of one subject.

    :param id: the check's name; programs may rely on it.
    :param subject: what was looked at, such as ``topic orders``.
    :param seen: the figures.
    :param means: what follows for loads.
    :param remedy: what mends it, each command a line of its own; empty where nothing is to be mended.
    """

    id: str
    severity: Severity
    subject: str
    seen: str
    means: str
    remedy: str = ""

    @classmethod
    def not_seen(cls, id: str, subject: str, why: Unknown) -> Finding:
        """For a check that had nothing to judge."""
        return cls(id, Severity.UNKNOWN, subject, why.reason, "This could not be checked", why.remedy)


@dataclass(frozen=True)
class Unknown:
    """Why something was not seen, and what lets it be seen next time.

    :param is_refused: an ACL is missing, which is an answer where the ACL was the question.
    """

    reason: str
    remedy: str = ""
    is_refused: bool = False

    @classmethod
    def because(cls, error: KafkaEosError) -> Unknown:
        return cls(error.message, error.remedy, isinstance(error, AccessError))


@dataclass(frozen=True)
class Judgement:
    """A check's outcomes, so that a bad one and a good one of the same check look alike."""

    id: str
    subject: str
    seen: str

    def ok(self, means: str) -> Finding:
        return Finding(self.id, Severity.OK, self.subject, self.seen, means)

    def warning(self, means: str, remedy: str) -> Finding:
        return Finding(self.id, Severity.WARNING, self.subject, self.seen, means, remedy)

    def error(self, means: str, remedy: str) -> Finding:
        return Finding(self.id, Severity.ERROR, self.subject, self.seen, means, remedy)
