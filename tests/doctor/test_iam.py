"""What doctor says of a right that a login by Amazon MSK's IAM lacks: an action of its policy, never an ACL."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_kafka_eos.doctor.brokers import check_brokers
from airflow_kafka_eos.doctor.commands import Commands, in_remedy
from airflow_kafka_eos.doctor.finding import ClusterSeen, LayoutSeen, TwoPhaseSeen, Unknown
from airflow_kafka_eos.doctor.iam import ACTIONS
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from tests.doctor.patients import asked

DOCS = Path(__file__).parents[2] / "docs" / "acls.md"
MSK = {
    "bootstrap.servers": "b-1.orders.abc.c2.kafka.eu-west-1.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "oauth_cb": "msk",
    "sasl.oauthbearer.config": "region=eu-west-1",
}


def documented() -> dict[tuple[str, str], tuple[str, ...]]:
    """The rows of docs/acls.md, by operation and resource."""
    section = DOCS.read_text().split("## On Amazon MSK")[1].split("\n## ")[0]
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for line in section.splitlines():
        row = re.match(r"\| (\w+)(?: on (TransactionalId|Topic|Cluster).*?)? \| (.*?) \|", line)
        if row is None or row[1] not in {operation for operation, _ in ACTIONS}:
            continue
        resource = "transactional-id" if row[2] in ("TransactionalId", None) else row[2].lower()
        found.setdefault((row[1], resource), tuple(re.findall(r"`(\w+)`", row[3].split(";")[0])))
    found.pop(("TWO_PHASE_COMMIT", "transactional-id"))
    return found


def test_the_documents_and_doctor_name_the_same_actions() -> None:
    table = documented()
    assert len(table) == len(ACTIONS) - 1  # but for what IAM has no action for
    assert {key: ACTIONS[key] for key in table} == table
    assert ACTIONS["TWO_PHASE_COMMIT", "transactional-id"] == ()


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (
            (("WRITE", "READ"), "topic", "orders", False),
            "In the IAM policy of this login allow kafka-cluster:WriteData, kafka-cluster:DescribeTopic, "
            "kafka-cluster:ReadData on topic/CLUSTER/CLUSTER-UUID/orders",
        ),
        (
            ("WRITE", "transactional-id", "airflow.", True),
            "In the IAM policy of this login allow kafka-cluster:AlterTransactionalId, "
            "kafka-cluster:DescribeTransactionalId on transactional-id/CLUSTER/CLUSTER-UUID/airflow.*",
        ),
        (
            ("DESCRIBE", "cluster", "", False),
            "In the IAM policy of this login allow kafka-cluster:DescribeCluster on cluster/CLUSTER/CLUSTER-UUID",
        ),
        ((("TWO_PHASE_COMMIT",), "transactional-id", "airflow.", True), "MSK has nothing for TWO_PHASE_COMMIT"),
    ],
    ids=["topic", "ids", "cluster", "two-phase"],
)
def test_a_login_by_iam_is_told_actions(missing: tuple[str | tuple[str, ...], str, str, bool], said: str) -> None:
    commands = Commands.of(KafkaSettings.from_mapping(MSK))
    operations, resource, name, prefixed = missing
    remedy = commands.allow(operations, resource, name, prefixed=prefixed)
    assert remedy == said
    assert not in_remedy(remedy)


def test_another_login_by_tokens_is_told_acls() -> None:
    oidc = {k: v for k, v in MSK.items() if k not in ("oauth_cb", "sasl.oauthbearer.config")}
    commands = Commands.of(KafkaSettings.from_mapping(oidc | {"bootstrap.servers": "127.0.0.1:1"}))
    assert commands.allow("READ", "topic", "orders").startswith("kafka-acls.sh ")


def test_what_no_policy_can_allow_ends_in_what_to_use_instead() -> None:
    nothing, why = LayoutSeen(None, Unknown("")), Unknown("not asked")
    refused = TwoPhaseSeen(False, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", is_refused=True)
    seen = ClusterSeen("b-1:9098", True, (), nothing, {}, None, None, refused, why, why)
    commands = Commands.of(KafkaSettings.from_mapping(MSK))
    (found,) = (f for f in check_brokers(seen, asked(), commands) if f.id == "two-phase-commit")
    assert found.remedy.startswith("MSK has nothing for TWO_PHASE_COMMIT; ")
    assert found.remedy.endswith("; use two_phase_commit=auto")
