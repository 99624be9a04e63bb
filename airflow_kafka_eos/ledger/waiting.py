"""What waits: decisions that nobody has verified yet, and prepared two-phase transactions that nobody has decided.

Functions take a connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from airflow_kafka_eos.evidence import DONE
from airflow_kafka_eos.ledger.queries import load_row, transaction_rows, unfinished
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict


@dataclass(frozen=True)
class Unverified:
    """A load that is decided to be committed, and neither COMMITTED nor given up.

    :param oldest_ms: topic -> the oldest record timestamp (ms) of transactions whose commit was not seen. What
        retention takes of them can neither be verified nor repaired.
    """

    load: LoadIdentity
    state: LoadState
    decided_ms: int
    oldest_ms: Mapping[str, int]

    def age_ms(self, now_ms: int) -> int:
        """Since the decision."""
        return max(0, now_ms - self.decided_ms)

    def retention_left_ms(self, topics: Mapping[str, Mapping[str, str]], now_ms: int) -> int | None:
        """Until retention may take the first of its records; negative when it may have. None: no topic has a limit.

        ``retention.bytes`` is left out: it goes by what others write.

        :param topics: topic -> ``retention.ms``, ``cleanup.policy`` and ``message.timestamp.type``; what is missing
            counts as no limit.
        """
        left = []
        for topic, oldest_ms in self.oldest_ms.items():
            config = topics.get(topic, {})
            retention_ms = int(config.get("retention.ms", "-1"))
            if retention_ms < 0 or "delete" not in config.get("cleanup.policy", "delete").split(","):
                continue
            appended = config.get("message.timestamp.type") == "LogAppendTime"
            left.append((self.decided_ms if appended else oldest_ms) + retention_ms - now_ms)
        return min(left, default=None)


@dataclass(frozen=True)
class UndecidedTwoPhase:
    """An attempt that is prepared in two-phase commit, and undecided: no broker ever ends its transactions."""

    load: LoadIdentity
    attempt: int
    prepared_ms: int

    def age_ms(self, now_ms: int) -> int:
        """Since it was prepared."""
        return max(0, now_ms - self.prepared_ms)


@dataclass(frozen=True)
class Waiting:
    """All that waits in a namespace, the oldest first."""

    unverified: tuple[Unverified, ...] = ()
    undecided: tuple[UndecidedTwoPhase, ...] = ()

    @property
    def topics(self) -> frozenset[str]:
        """Those whose retention matters to unverified loads."""
        return frozenset(topic for one in self.unverified for topic in one.oldest_ms)


NOTHING = Waiting()


def waiting(connection: Connection, namespace: str) -> Waiting:
    """Look at a namespace's unfinished attempts."""
    unverified, undecided = [], []
    for row in unfinished(connection, namespace):
        if row.verdict is Verdict.COMMIT and row.decided_at is not None:
            known = load_row(connection, row.load)
            if known is not None and known.state is not LoadState.GIVEN_UP:
                oldest = _oldest(connection, row.load, row.number)
                unverified.append(Unverified(row.load, known.state, _ms(row.decided_at), oldest))
        elif row.is_undecided and row.two_phase_commit and row.prepared_at is not None:
            undecided.append(UndecidedTwoPhase(row.load, row.number, _ms(row.prepared_at)))
    return Waiting(
        tuple(sorted(unverified, key=lambda one: one.decided_ms)),
        tuple(sorted(undecided, key=lambda one: one.prepared_ms)),
    )


def _oldest(connection: Connection, load: LoadIdentity, number: int) -> dict[str, int]:
    oldest: dict[str, int] = {}
    for row in transaction_rows(connection, load, number):
        for w in row.writes if row.outcome not in DONE else ():
            oldest[w.topic] = min(w.oldest_timestamp_ms, oldest.get(w.topic, w.oldest_timestamp_ms))
    return oldest


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)
