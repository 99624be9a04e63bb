"""This machine's clock beside others'. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_kafka_eos.doctor.finding import Finding, Judgement, Unknown
from airflow_kafka_eos.doctor.seen import ClusterSeen, LedgerSeen
from airflow_kafka_eos.kafka.inspecting import Clock

_NOTICED_S = 2.0
_TOO_MUCH_S = 30.0


def check(seen: ClusterSeen | None, ledger: LedgerSeen) -> Iterator[Finding]:
    """The active controller's clock, and the ledger's database's."""
    if seen is not None:
        yield _clock("clock-brokers", "the active controller", seen.clock)
    if ledger.clock is not None:
        yield _clock("clock-ledger", "the ledger's database", ledger.clock)


def _clock(id: str, whose: str, clock: Clock | Unknown) -> Finding:
    if isinstance(clock, Unknown):
        return Finding.not_seen(id, whose, clock)
    seen = f"{clock.off_by:+.1f} s beside this machine's, give or take {clock.uncertainty:.1f} s"
    found = Judgement(id, whose, seen)
    surely_off = max(0.0, abs(clock.off_by) - clock.uncertainty)
    remedy = "Let every machine keep its time by NTP: `chronyc tracking` or `timedatectl timesync-status` says how far"
    if surely_off > _TOO_MUCH_S:
        means = "Deadlines of writers, margins of decide and retention of records are judged wrongly"
        return found.error(means, remedy)
    if surely_off > _NOTICED_S:
        return found.warning("That much is taken off, or added to, the margins of decide and writers", remedy)
    return found.ok("They agree")
