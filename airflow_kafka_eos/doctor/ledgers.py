"""The ledger: is it there, up to date, and one for all? No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_kafka_eos.doctor.commands import of_ours
from airflow_kafka_eos.doctor.finding import Finding, Judgement, Unknown
from airflow_kafka_eos.doctor.seen import Asked, LedgerSeen

_ONE_HOST = frozenset({"LocalExecutor", "SequentialExecutor"})


def check(seen: LedgerSeen, asked: Asked) -> Iterator[Finding]:
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
        return found.ok("It is made with the first load")
    means = f"Every step of every load fails: {seen.ledger_id.reason}"
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
        return found.ok("Tasks run on one host, which has the file")
    return found.error(
        "Tasks may run on several hosts, each with a file of its own: a load that is committed in one would be loaded "
        "again from the other",
        "Make an Airflow connection to a PostgreSQL, set ledger_conn_id to it, and make its tables by "
        "`airflow-kafka-eos ledger upgrade --conn-id …` with its name",
    )
