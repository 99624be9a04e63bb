"""That every transactional id may be described is proven by one of each kind, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.kafka.admin.list_permissions import Pattern, one_of_each, why_some_hidden
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.acls import Right, allow_exactly
from tests.secured import Secured

PRINCIPAL = "User:loader"
ACLS = Right("DESCRIBE", "Cluster", "kafka-cluster")
CONFIGS = Right("DESCRIBE_CONFIGS", "Cluster", "kafka-cluster")
EVERY_ID = Right("DESCRIBE", "TransactionalId", "*")

_names = st.text(st.sampled_from("ab~}|"), min_size=1, max_size=4)
_patterns = st.sets(st.builds(Pattern, _names, st.booleans()), max_size=8)


@given(_patterns, st.text(st.sampled_from("ab~}|z"), min_size=1, max_size=6))
def test_every_id_is_matched_as_one_of_these_is(patterns: set[Pattern], an_id: str) -> None:
    def matched(name: str) -> set[Pattern]:
        return {p for p in patterns if p.matches(name)}

    tried = one_of_each(patterns)
    assert all(tried)
    assert matched(an_id) in [matched(name) for name in tried]


def test_without_an_authorizer_nothing_is_hidden(kafka: LocalKafka) -> None:
    with Wire(kafka_settings(kafka), timeout_s=30) as wire:
        assert why_some_hidden(wire) is None


def test_of_a_login_whose_rights_are_policies_of_iam_nothing_is_proven() -> None:
    """It is said before a broker is asked: here is none."""
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": "msk"}
    servers = "b-1.loads.abc123.c2.kafka.eu-west-1.amazonaws.com:9098"
    with Wire(KafkaSettings.from_mapping({"bootstrap.servers": servers} | login), timeout_s=1) as wire:
        error = why_some_hidden(wire)
    assert error is not None and "IAM" in error.message and "Ask who runs the cluster" in error.remedy


def kafka_settings(kafka: LocalKafka) -> KafkaSettings:
    return KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def wire(secured: Secured) -> Iterator[Wire]:
    with Wire(secured.loader(), timeout_s=30) as opened:
        yield opened
    allow_exactly(secured.plain, PRINCIPAL, ())


def why(secured: Secured, wire: Wire, *rights: Right) -> AccessError | None:
    allow_exactly(secured.plain, PRINCIPAL, rights)
    return why_some_hidden(wire)


@pytest.mark.broker
def test_each_right_is_needed_and_named_and_all_of_them_are_enough(secured: Secured, wire: Wire) -> None:
    every = (ACLS, CONFIGS, EVERY_ID)
    assert why(secured, wire, *every) is None
    said = {CONFIGS: "DESCRIBE_CONFIGS on the Cluster", ACLS: "do not show their ACLs", EVERY_ID: "DESCRIBE is refused"}
    for taken, says in said.items():
        error = why(secured, wire, *(right for right in every if right is not taken))
        assert isinstance(error, AccessError) and says in error.message
        assert "DESCRIBE on TransactionalId *" in error.remedy


@pytest.mark.broker
def test_an_id_that_is_denied_is_found_though_all_others_are_seen(secured: Secured, wire: Wire) -> None:
    for name in ("pay-*", "pay"):
        error = why(secured, wire, ACLS, CONFIGS, EVERY_ID, Right("DESCRIBE", "TransactionalId", name, True))
        assert error is not None and "refused on TransactionalId pay" in error.message
    # what hides nothing is no reason
    writing = Right("WRITE", "TransactionalId", "pay-*", True)
    assert why(secured, wire, ACLS, CONFIGS, EVERY_ID, writing) is None


@pytest.mark.broker
def test_where_others_acls_hide_what_has_no_acl_for_everybody(tmp_path: Path) -> None:
    """allow.everyone.if.no.acl.found: an unused id may be described, and one that others have ACLs on may not."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "allow.everyone.if.no.acl.found": "true",
    }
    with LocalKafka(broker_settings=settings, data_dir=tmp_path) as plain, Wire(kafka_settings(plain)) as wire:
        assert why_some_hidden(wire) is None
        allow_exactly(plain, "User:payroll", [Right("WRITE", "TransactionalId", "pay-*")])
        error = why_some_hidden(wire)
        assert error is not None and "refused on TransactionalId pay-" in error.message
