"""What a broker lacks, by its ApiVersions answer: tables of kafka-python's, and made ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.admin.capabilities import (
    CAPABILITIES,
    ENDING,
    Capability,
    Step,
    lacking,
    needed,
    refusal,
    remedy_for,
)
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.kafka.open_transactions import settings_of

ROOT = Path(__file__).parents[2]
NEEDED = [c for c in CAPABILITIES if c.is_needed]
OPTIONAL = [c for c in CAPABILITIES if not c.is_needed]
#: all that is sent, and not more than that
ENOUGH = {c.key: (0, c.lowest) for c in reversed(CAPABILITIES)}
EVERYTHING = {c.key: (0, c.highest) for c in CAPABILITIES}


def names(offered: dict[int, tuple[int, int]]) -> list[str]:
    return [str(one.capability) for one in lacking(offered)]


def test_the_lowest_of_everything_that_is_needed_is_enough() -> None:
    assert refusal({"broker 1": {c.key: (c.lowest, c.lowest) for c in NEEDED}}) is None
    assert lacking(EVERYTHING) == ()


@pytest.mark.parametrize("one", NEEDED, ids=str)
def test_each_that_is_needed_is_refused_by_name_with_its_steps_and_a_remedy(one: Capability) -> None:
    missing = {key: versions for key, versions in EVERYTHING.items() if key != one.key}
    said = str(refusal({"broker 3": missing}))
    assert said.startswith(f"broker 3 lacks what exactly-once needs: {one.name} ({one.steps[0].value}")
    assert one.purpose in said and "is missing" in said
    assert f"from {one.since} on" in said and "bootstrap.servers" in said
    if one.lowest:
        older = str(refusal({"broker 3": EVERYTHING | {one.key: (0, one.lowest - 1)}}))
        assert f"goes up to v{one.lowest - 1}, v{one.lowest} is needed" in older
    newer = str(refusal({"broker 3": EVERYTHING | {one.key: (one.highest + 1, one.highest + 9)}}))
    assert f"begins with v{one.highest + 1}, v{one.highest} is the last" in newer


@pytest.mark.parametrize("one", OPTIONAL, ids=str)
def test_without_an_optional_one_no_load_is_refused(one: Capability) -> None:
    older = EVERYTHING | {one.key: (0, one.lowest - 1)} if one.lowest else EVERYTHING
    of_another_version = one.key in {c.key for c in NEEDED}
    offered = older if of_another_version else {k: v for k, v in EVERYTHING.items() if k != one.key}
    assert str(one) in names(offered)
    assert refusal({"broker 1": offered}) is None


def test_writing_end_markers_is_a_right_to_have_and_not_one_to_need() -> None:
    assert [c.name for c in CAPABILITIES if c.warns] == ["WriteTxnMarkers"]
    assert next(c for c in CAPABILITIES if c.warns).without


def test_what_older_kafka_lacks() -> None:
    assert [str(one.capability) for one in needed(lacking(BROKER_API_VERSIONS[2, 8]))] == [
        "FindCoordinator v4", "DescribeTransactions v0", "ListTransactions v1", "Fetch v13",
    ]  # fmt: skip
    assert [str(one.capability) for one in needed(lacking(BROKER_API_VERSIONS[3, 7]))] == ["ListTransactions v1"]
    for version in ((3, 8), (3, 9), (4, 0), (4, 1), (4, 3)):
        assert needed(lacking(BROKER_API_VERSIONS[version])) == ()
    assert "ListTransactions v2" in names(BROKER_API_VERSIONS[4, 0])
    assert "ListTransactions v2" not in names(BROKER_API_VERSIONS[4, 1])


def test_each_is_in_apache_kafka_since_when_it_says() -> None:
    """But for InitProducerId v6 (only with unstable versions), and DescribeQuorum v1 (of KRaft: KIP-836)."""
    for one in CAPABILITIES:
        since = tuple(map(int, one.since.split(".")))
        having = [v for v in BROKER_API_VERSIONS if str(one) not in names(BROKER_API_VERSIONS[v])]
        if one.name == "InitProducerId" and one.lowest == 6:
            assert having == []
        elif one.name == "DescribeQuorum":
            assert min(having)[:2] >= since
        else:
            assert min(having)[:2] == since, one


def test_brokers_that_lack_the_same_are_named_together() -> None:
    """As while a cluster is upgraded."""
    old, new = BROKER_API_VERSIONS[3, 7], BROKER_API_VERSIONS[3, 9]
    refused = refusal({"broker 1": new, "broker 2": old, "broker 3": old, "broker 4": {}})
    assert isinstance(refused, ConfigurationError)
    first, second, *_ = refused.message.split(". ")
    assert first.startswith("broker 2, broker 3 lack what") and "ListTransactions (" in first
    assert first.endswith("goes up to v0, v1 is needed")
    assert second.startswith("broker 4 lacks what") and second.count("is missing") == len(NEEDED)
    assert "from 3.8 on, and is tried from 3.9 on" in refused.remedy


def test_who_only_ends_asks_for_nothing_that_only_writing_needs() -> None:
    """A decided load is finished by brokers that do not take its like any more."""
    writing = [c for c in NEEDED if ENDING.isdisjoint(c.steps)]
    assert [c.name for c in writing] == ["InitProducerId", "AddPartitionsToTxn", "Produce"]
    offered = {key: v for key, v in EVERYTHING.items() if key not in {c.key for c in writing}}
    assert refusal({"broker 1": offered}, ENDING) is None
    assert refusal({"broker 1": offered}) is not None


def test_a_remedy_names_the_newest_kafka_that_is_needed() -> None:
    lacks = lacking({})
    assert "from 3.8 on" in remedy_for(needed(lacks))
    assert "from 2.8 on" in remedy_for([one for one in lacks if one.capability.name == "DescribeProducers"])


def test_a_broker_of_today_says_more_than_the_table(kafka: LocalKafka) -> None:
    with Wire(settings_of(kafka.bootstrap_servers)) as wire:
        assert lacking(wire.api_versions()) == ()


def test_every_request_that_is_sent_is_in_the_table() -> None:
    sent = set()
    for path in (ROOT / "airflow_kafka_eos").rglob("*.py"):
        if "sandbox" not in path.parts:
            sent |= set(re.findall(r"\b([A-Z][A-Za-z]+)Request\(", path.read_text()))
    assert "EndTxn" in sent and "ListOffsets" in sent
    # ApiVersions is how all the rest is known
    assert sent - {"ApiVersions"} == {c.name for c in CAPABILITIES}


def rows_of_the_page() -> list[list[str]]:
    page = (ROOT / "docs" / "brokers.md").read_text()
    section = page.partition("## Kafka-compatible services")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"]
    return [row for row in rows if re.fullmatch(r"`\w+` v\d+", row[0])]


def test_the_page_has_the_table() -> None:
    assert rows_of_the_page() == [
        [f"`{c.name}` v{c.lowest}", c.since, ", ".join(s.value for s in c.steps), c.purpose, c.without or "refused"]
        for c in CAPABILITIES
    ]


def test_each_step_needs_something() -> None:
    assert {step for c in CAPABILITIES for step in c.steps} == set(Step)
