"""What the doctor says on a broker that forbids: each ACL that it wants, taken away, is named (docs/acls.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_kafka_eos.doctor.examine import Examination
from airflow_kafka_eos.doctor.finding import Finding, Severity
from tests.acls import Right, allow_exactly
from tests.doctor.patients import NAMESPACE, asked, examined, new_ledger, of
from tests.secured import SCRAM_PASSWORD, Secured

pytestmark = pytest.mark.broker

PRINCIPAL = "User:loader"
IDS, TOPIC, LOG = f"{NAMESPACE}.*", "orders", "__transaction_state"
WRITE_IDS = Right("WRITE", "TransactionalId", IDS)
WRITE_TOPIC, READ_TOPIC = Right("WRITE", "Topic", TOPIC), Right("READ", "Topic", TOPIC)
TWO_PHASE = Right("TWO_PHASE_COMMIT", "TransactionalId", IDS)
SEE_TOPIC = Right("DESCRIBE_CONFIGS", "Topic", TOPIC)
SEE_LOG = Right("DESCRIBE", "Topic", LOG)
SEE_BROKERS = Right("DESCRIBE_CONFIGS", "Cluster", "kafka-cluster")
SEE_CLUSTER = Right("DESCRIBE", "Cluster", "kafka-cluster")
ALTER = Right("ALTER", "Cluster", "kafka-cluster")
ALL = {WRITE_IDS, WRITE_TOPIC, READ_TOPIC, TWO_PHASE, SEE_TOPIC, SEE_LOG, SEE_BROKERS, SEE_CLUSTER, ALTER}


@dataclass(frozen=True)
class Case:
    """``taken`` is missing: these checks say so, in what they saw or in their remedy."""

    taken: frozenset[Right]
    severity: Severity
    ids: tuple[str, ...]
    says: str


def without(*taken: Right) -> frozenset[Right]:
    return frozenset(taken)


ERROR, UNKNOWN, WARNING = Severity.ERROR, Severity.UNKNOWN, Severity.WARNING
SETTINGS = (
    "min-insync", "unclean-election", "retention", "retention-bytes", "compaction", "transaction-index", "message-size",
)  # fmt: skip
_CONFIGS = "--operation DescribeConfigs"
CASES = {
    "ids": Case(
        without(WRITE_IDS, TWO_PHASE),
        ERROR,
        ("acl-transactional-id-describe", "acl-transactional-id-write"),
        f"--operation Write --transactional-id {NAMESPACE}. --resource-pattern-type prefixed",
    ),
    "two phases": Case(without(TWO_PHASE), WARNING, ("two-phase-commit",), "TWO_PHASE_COMMIT"),
    "write": Case(without(WRITE_TOPIC), ERROR, ("acl-topic-write",), f"--operation Write --topic {TOPIC}"),
    "read": Case(without(READ_TOPIC), ERROR, ("acl-topic-read",), f"--operation Read --topic {TOPIC}"),
    "topic": Case(
        without(WRITE_TOPIC, READ_TOPIC, SEE_TOPIC),
        ERROR,
        ("topic-exists",),
        f"--operation Write --operation Read --topic {TOPIC}",
    ),
    "topic settings": Case(
        without(SEE_TOPIC),
        UNKNOWN,
        tuple(f"topic-{of_it}" for of_it in SETTINGS),
        f"{_CONFIGS} --topic {TOPIC}",
    ),
    "log": Case(without(SEE_LOG), UNKNOWN, ("transaction-log-replication",), f"DESCRIBE on Topic {LOG}"),
    "broker settings": Case(
        without(SEE_BROKERS),
        UNKNOWN,
        ("transaction-max-timeout", "transactional-id-expiration"),
        f"{_CONFIGS} --cluster",
    ),
    "alter": Case(without(ALTER), WARNING, ("acl-cluster-alter",), "--operation Alter --cluster"),
    # ALTER includes DESCRIBE
    "cluster": Case(without(SEE_CLUSTER, ALTER), UNKNOWN, ("clock-brokers",), "DESCRIBE on Cluster"),
}


@pytest.fixture(scope="module")
def ledger_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return new_ledger(tmp_path_factory.mktemp("ledger"))


@pytest.fixture
def grants(secured: Secured) -> Iterator[Secured]:
    yield secured
    allow_exactly(secured.plain, PRINCIPAL, ())


def ask(secured: Secured, ledger_url: str, rights: set[Right]) -> Examination:
    allow_exactly(secured.plain, PRINCIPAL, rights)
    found = examined(secured.loader(), ledger_url, asked(TOPIC))
    assert SCRAM_PASSWORD not in str(found)
    return found


def bad(found: Examination) -> dict[str, Finding]:
    return {f.id: f for f in found.findings if f.severity in (ERROR, UNKNOWN)}


def test_with_all_of_them_everything_is_checked(grants: Secured, ledger_url: str) -> None:
    found = ask(grants, ledger_url, ALL)
    assert bad(found) == {}
    assert of(found, "two-phase-commit").severity is Severity.OK
    assert of(found, "acl-cluster-alter").severity is Severity.OK


@pytest.mark.parametrize("name", CASES)
def test_each_that_is_missing_is_named(name: str, grants: Secured, ledger_url: str) -> None:
    case = CASES[name]
    found = ask(grants, ledger_url, ALL - case.taken)
    for id in case.ids:
        one = of(found, id)
        assert one.severity is case.severity, one
        assert case.says in one.seen + one.remedy, one
    # it is not so that everything is called bad as soon as something is
    assert set(bad(found)) <= {*case.ids, "two-phase-commit", "transaction-log-min-insync"}, bad(found)


def test_each_was_taken_away() -> None:
    assert frozenset[Right]().union(*(case.taken for case in CASES.values())) == ALL


def test_no_login_is_one_error(secured: Secured, ledger_url: str, tmp_path: Path) -> None:
    refused = secured.login(sasl_password=f"{SCRAM_PASSWORD}-wrong")
    found = examined(refused, ledger_url, asked(TOPIC))
    one = of(found, "cluster-reachable")
    assert one.severity is ERROR and "refused the login" in one.seen
    assert found.reached_anything  # the ledger
    assert SCRAM_PASSWORD not in str(found)
