"""The ledger: does it answer, is it up to date and one for all hosts, and what in it has waited for long? No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_kafka_eos.doctor.brokers import id_expiration
from airflow_kafka_eos.doctor.commands import of_ours
from airflow_kafka_eos.doctor.finding import Asked, ClusterSeen, Finding, Judgement, LedgerSeen, Unknown
from airflow_kafka_eos.ledger.queries import UndecidedTwoPhase, Unverified, Waiting
from airflow_kafka_eos.load import LoadIdentity

_ONE_HOST = frozenset({"LocalExecutor", "SequentialExecutor"})
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


def check_ledger(seen: LedgerSeen, asked: Asked) -> Iterator[Finding]:
    """All that is about the ledger alone."""
    subject = f"ledger {seen.url}"
    if isinstance(seen.revision, Unknown):
        found = Judgement("ledger-reachable", subject, seen.revision.reason)
        yield found.error("No load can be begun, decided or finished", seen.revision.remedy)
    else:
        seen_now = "it answers" if seen.revision else "there is none yet"
        yield Judgement("ledger-reachable", subject, seen_now).ok("As it must be")
        yield _migrations(seen, asked, subject)
    yield _of_all_hosts(seen, asked, subject)


def _migrations(seen: LedgerSeen, asked: Asked, subject: str) -> Finding:
    found = Judgement("ledger-migrations", subject, f"revision {seen.revision or 'none'}, wanted {seen.head}")
    if not isinstance(seen.ledger_id, Unknown):
        return found.ok("Its tables are those of this version")
    if seen.is_embedded and seen.revision is None:
        return found.ok("The first load creates it")
    means = f"Every step of every load fails: {seen.ledger_id.reason}"
    if seen.revision is None:
        means += ". If loads have run already, create none: they use another ledger, or its database has to be restored"
    is_newer = isinstance(seen.revision, str) and seen.revision > seen.head
    remedy = seen.ledger_id.remedy if is_newer else of_ours("ledger upgrade", flags=asked.ledger_flags)
    return found.error(means, remedy)


def _of_all_hosts(seen: LedgerSeen, asked: Asked, subject: str) -> Finding:
    executor = asked.executor
    found = Judgement("ledger-shared", subject, f"executor {executor or 'not known'}")
    if not seen.url.startswith("sqlite"):
        return found.ok("A database server: all hosts share it")
    if executor is None:
        why = Unknown("Airflow's executor is not known", "Run doctor where Airflow is configured")
        return Finding.not_seen("ledger-shared", subject, why)
    names = {part.strip().rpartition(".")[2].rpartition(":")[2] for part in executor.split(",")}
    if names <= _ONE_HOST:
        return found.ok(
            "Tasks run on the scheduler's host, which has the file. A second scheduler elsewhere, or one that moves to "
            "another host, needs a ledger in a database"
        )
    return found.error(
        "Tasks may run on several hosts, each with a file of its own. A load that is committed in one file would be "
        "loaded again by another",
        "Create an Airflow connection to a PostgreSQL, set ledger_conn_id to it, and create its tables by "
        "`airflow-kafka-eos ledger upgrade --conn-id …` with its name",
    )


def check_waiting(
    waiting: Waiting | Unknown, cluster: ClusterSeen | None, asked: Asked, now_ms: int
) -> Iterator[Finding]:
    """Of the whole namespace.

    :param cluster: None where Kafka was not asked: then loads are judged by their age alone.
    """
    subject = f"namespace {asked.namespace}"
    if isinstance(waiting, Unknown):
        for id in ("decided-not-verified", "two-phase-undecided"):
            yield Finding.not_seen(id, subject, waiting)
        return
    yield _unverified(waiting.unverified, cluster, asked, subject, now_ms)
    yield _undecided(waiting.undecided, asked, subject, now_ms)


def _unverified(
    loads: tuple[Unverified, ...], cluster: ClusterSeen | None, asked: Asked, subject: str, now_ms: int
) -> Finding:
    id = "decided-not-verified"
    if not loads:
        return Judgement(id, subject, "no load is decided and not verified").ok("As it must be")
    topics = {} if cluster is None else cluster.retention
    expiration = None if cluster is None else id_expiration(cluster)
    oldest = loads[0]
    age_ms = oldest.age_ms(now_ms)
    seen = f"loads: {len(loads)}; {oldest.load} was decided {_hours(age_ms)} ago"
    known = {topic: config for topic, config in topics.items() if not isinstance(config, Unknown)}
    left = [(ms, one) for one in loads if (ms := one.retention_left_ms(known, now_ms)) is not None]
    if left:
        left_ms, first = min(left, key=lambda pair: pair[0])
        found = Judgement(id, subject, f"{seen}; retention may take records of {first.load} {_when(left_ms)}")
        if left_ms <= 0:
            return found.error(
                "Where retention has deleted the end markers, nothing can be verified, and the load becomes IN_DOUBT. "
                "Lost records that it has deleted must be prepared again. Raise retention.ms of its topics at once: "
                "it helps where nothing is deleted yet",
                f"{_recover(first, asked)}\nWhere it says that records are gone, clear prepare in Airflow",
            )
        if left_ms < first.age_ms(now_ms):
            return found.warning(
                "More than half of the time has passed in which it can be verified and repaired",
                _recover(first, asked),
            )
    else:
        found = Judgement(id, subject, seen)
    remedy = _recover(oldest, asked)
    if isinstance(expiration, int) and age_ms > expiration / 2:
        return found.warning(
            "Its coordinators forget ended transactions soon. Then only the partitions' logs show what became of them, "
            "and a ledger restored from a backup is not noticed any more",
            remedy,
        )
    if age_ms > _DAY_MS:
        return found.warning("commit does not finish: readers lack the load, or a part of it", remedy)
    return found.ok("commit has time to finish it")


def _undecided(attempts: tuple[UndecidedTwoPhase, ...], asked: Asked, subject: str, now_ms: int) -> Finding:
    id = "two-phase-undecided"
    if not attempts:
        seen = "nothing prepared with two-phase commit waits for its decision"
        return Judgement(id, subject, seen).ok("As it must be")
    oldest = attempts[0]
    text = f"attempts: {len(attempts)}; attempt {oldest.attempt} of {oldest.load} is prepared since "
    found = Judgement(id, subject, f"{text}{_hours(oldest.age_ms(now_ms))}, and undecided")
    if oldest.age_ms(now_ms) <= asked.hold_time_ms:
        return found.ok("It may still be decided")
    return found.warning(
        "No broker ends it: it holds back read_committed readers of its partitions until somebody ends it",
        f"Run decide (clear it in Airflow); or abort it:\n{_on_load('cleanup', oldest.load, asked)}",
    )


def _recover(one: Unverified, asked: Asked) -> str:
    return _on_load("loads recover", one.load, asked)


def _on_load(command: str, load: LoadIdentity, asked: Asked) -> str:
    flags = " ".join(filter(None, (asked.cluster_flags, asked.ledger_flags)))
    return of_ours(command, load.name, load.key, "--namespace", load.namespace, flags=flags)


def _when(left_ms: int) -> str:
    return f"in {_hours(left_ms)}" if left_ms > 0 else f"since {_hours(-left_ms)}"


def _hours(ms: int) -> str:
    return f"{ms / _HOUR_MS:.1f} h"
