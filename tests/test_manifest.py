"""The manifest: decide believes it only when whole, of this attempt, and consistent in itself.

Rule: decide-what-is-confirmed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos import manifest as m
from airflow_kafka_eos.errors import ManifestError
from airflow_kafka_eos.load import LoadIdentity, TransactionScope
from airflow_kafka_eos.naming import IdRole, TransactionalId
from airflow_kafka_eos.transaction import TWO_PHASE_TIMEOUT_MS, PreparedTransaction, PreparedTxnState
from tests.values import ledger_ids, loads, states

REF = m.AttemptRef(LoadIdentity("airflow", "orders", "2013-01-01"), "0123456789", 3)


@st.composite
def manifests(draw: st.DrawFn) -> m.Manifest:
    """Manifests as prepare writes them: some Spark partitions empty, the others with a transaction each, or a share."""
    ref = m.AttemptRef(draw(loads), draw(ledger_ids), draw(st.integers(1, 999_999_999)))
    infos = st.builds(m.TopicInfo, st.text(), st.integers(1, 99))
    topics = draw(st.dictionaries(st.text(min_size=1, max_size=9), infos, min_size=1))
    scope = draw(st.sampled_from(TransactionScope))
    of_all = TransactionalId(ref.load, ref.ledger_id, ref.attempt, role=IdRole.LOAD)
    shared = PreparedTransaction(str(of_all), draw(states))
    owned: set[tuple[str, int]] = set()
    entries = []
    for spark_partition in range(draw(st.integers(0, 4))):
        transaction, writes = None, []
        if draw(st.booleans()):
            for topic in draw(st.sets(st.sampled_from(sorted(topics)), min_size=1)):
                partition = draw(st.integers(0, topics[topic].partitions - 1))
                if scope is TransactionScope.LOAD and (topic, partition) in owned:
                    continue
                owned.add((topic, partition))
                records, first = draw(st.integers(1, 10**9)), draw(st.integers(0, 10**15))
                writes.append(
                    m.PartitionWrites(
                        topic=topic,
                        partition=partition,
                        records=records,
                        bytes=draw(st.integers(0, 10**15)),
                        first_offset=first,
                        last_offset=first + records - 1 + draw(st.integers(0, 10**6)),
                        digest=f"{draw(st.integers(0, 2**128 - 1)):032x}",
                        oldest_timestamp_ms=draw(st.integers(0, 2**62)),
                    )
                )
        if writes and scope is TransactionScope.LOAD:
            transaction = shared
        elif writes:
            tid = TransactionalId(ref.load, ref.ledger_id, ref.attempt, spark_partition, draw(st.integers(0, 10**18)))
            transaction = PreparedTransaction(str(tid), draw(states))
        entries.append(m.ManifestEntry(spark_partition, transaction, tuple(writes)))
    two_phase = draw(st.booleans())
    timeout_ms = TWO_PHASE_TIMEOUT_MS if two_phase else draw(st.integers(1, TWO_PHASE_TIMEOUT_MS - 1))
    return m.Manifest(
        ref, draw(st.text()), draw(st.text()), scope, two_phase, timeout_ms, draw(st.text()), topics, tuple(entries)
    )


def _writes(topic: str, partition: int, records: int, first: int, digest: int) -> m.PartitionWrites:
    last = first + records - 1
    return m.PartitionWrites(topic, partition, records, records * 10, first, last, f"{digest:032x}", 1_700_000_000_000)


def _example() -> m.Manifest:
    def entry(spark_partition: int, *writes: m.PartitionWrites) -> m.ManifestEntry:
        tid = TransactionalId(REF.load, REF.ledger_id, REF.attempt, spark_partition, 40 + spark_partition)
        state = PreparedTxnState(1000 + spark_partition, 0)
        return m.ManifestEntry(spark_partition, PreparedTransaction(str(tid), state), writes)

    return m.Manifest(
        attempt=REF,
        created_at="2013-01-02T00:00:00+00:00",
        writer="confluent-kafka",
        scope=TransactionScope.TASK,
        two_phase_commit=False,
        transaction_timeout_ms=60_000,
        digest_algorithm="sum of something",
        topics={"orders": m.TopicInfo("AAAAAAAAAAAAAAAAAAAAAQ", 2), "audit": m.TopicInfo("AAAAAAAAAAAAAAAAAAAAAg", 1)},
        entries=(
            entry(0, _writes("orders", 0, 5, 0, 7), _writes("audit", 0, 1, 9, 2**128 - 1)),
            m.ManifestEntry(1, None, ()),
            entry(2, _writes("orders", 0, 2, 5, 11)),
        ),
    )


def _shared() -> m.Manifest:
    """The example's records, written in scope load."""
    name = str(TransactionalId(REF.load, REF.ledger_id, REF.attempt, role=IdRole.LOAD))
    transaction = PreparedTransaction(name, PreparedTxnState(1000, 0))
    return replace(
        _example(),
        scope=TransactionScope.LOAD,
        entries=(
            m.ManifestEntry(0, transaction, (_writes("orders", 0, 5, 0, 7), _writes("audit", 0, 1, 9, 2**128 - 1))),
            m.ManifestEntry(1, None, ()),
            m.ManifestEntry(2, transaction, (_writes("orders", 1, 2, 5, 11),)),
        ),
    )


@given(manifests())
def test_a_manifest_survives_its_own_text(manifest: m.Manifest) -> None:
    text = m.dump(manifest)
    assert m.load(text, manifest.attempt) == manifest
    assert m.dump(m.load(text, manifest.attempt)) == text


def test_the_sums_are_those_of_the_entries() -> None:
    example = _example()
    assert example.records == 8
    assert example.bytes == 80
    assert [str(t.state) for t in example.transactions] == ["1000:0", "1002:0"]
    assert example.digest == f"{17:032x}"  # 7 + 11 + (2**128 - 1), modulo 2**128


@given(st.lists(st.integers(0, 2**128 - 1)), st.randoms())
def test_digests_add_up_in_any_order(digests: list[int], random: Any) -> None:
    texts = [f"{d:032x}" for d in digests]
    total = m.combine_digests(texts)
    random.shuffle(texts)
    assert m.combine_digests(texts) == total
    assert len(total) == 32
    assert m.combine_digests([m.combine_digests(texts[:3]), m.combine_digests(texts[3:])]) == total


def test_a_load_of_no_records_is_a_manifest_too() -> None:
    example = _example()
    for scope in TransactionScope:
        empty = replace(example, scope=scope, topics={}, entries=())
        assert m.load(m.dump(empty), REF).records == 0
        assert m.load(m.dump(empty), REF).prepared == ()


@given(manifests())
def test_each_transaction_is_named_once_with_all_of_its_writes(manifest: m.Manifest) -> None:
    assert len({p.transaction for p in manifest.prepared}) == len(manifest.prepared)
    assert {w for p in manifest.prepared for w in p.writes} == {w for e in manifest.entries for w in e.writes}
    full = [e for e in manifest.entries if e.transaction is not None]
    if manifest.scope is TransactionScope.LOAD:
        assert len(manifest.prepared) == (1 if full else 0)
        assert all(p.spark_partition is None for p in manifest.prepared)
    else:
        assert [(p.transaction, p.spark_partition, p.writes) for p in manifest.prepared] == [
            (e.transaction, e.spark_partition, e.writes) for e in full
        ]


def test_one_transaction_of_many_spark_partitions() -> None:
    shared = _shared()
    assert m.load(m.dump(shared), REF) == shared
    (prepared,) = shared.prepared
    assert (prepared.spark_partition, prepared.records, prepared.bytes) == (None, 8, 80)
    assert [str(w.topic_partition) for w in prepared.writes] == ["orders-0", "audit-0", "orders-1"]
    assert shared.how == "1 transaction (scope load, timeout 60 s, writer confluent-kafka)"


def test_the_schema_of_version_3_is_pinned() -> None:
    # Spark and Airflow may have different versions of this package: a new shape needs a new number
    document = json.loads(m.dump(_example()))
    assert document["schema_version"] == 3
    assert sorted(document) == sorted(
        ["schema_version", "attempt", "created_at", "writer", "scope", "two_phase_commit", "transaction_timeout_ms",
         "digest_algorithm", "ran_again", "topics", "entries"]
    )  # fmt: skip
    assert (document["scope"], document["two_phase_commit"]) == ("task", False)
    assert document["attempt"] == {
        "ledger_id": "0123456789", "namespace": "airflow", "name": "orders", "key": "2013-01-01", "number": 3,
        "slot": None,
    }  # fmt: skip
    assert document["entries"][2] == {
        "spark_partition": 2,
        "transaction": {
            "transactional_id": "airflow.0123456789.orders.2013-01-01.3-2-42",
            "prepared_transaction_state": "1002:0",
        },
        "writes": [
            {
                "topic": "orders", "partition": 0, "records": 2, "bytes": 20, "first_offset": 5, "last_offset": 6,
                "digest": f"{11:032x}", "oldest_timestamp_ms": 1_700_000_000_000,
            }
        ],
    }  # fmt: skip


def test_a_manifest_torn_at_any_place_is_refused() -> None:
    text = m.dump(_example())
    for cut in range(len(text)):
        with pytest.raises(ManifestError) as refused:
            m.load(text[:cut], REF)
        assert (refused.value.load, refused.value.attempt) == (str(REF.load), REF.attempt)
        assert refused.value.remedy


@pytest.mark.parametrize(
    "other",
    [
        m.AttemptRef(REF.load, REF.ledger_id, 2),
        m.AttemptRef(REF.load, REF.ledger_id, 4),
        m.AttemptRef(REF.load, "9999999999", 3),
        m.AttemptRef(LoadIdentity("airflow", "orders", "2013-01-02"), REF.ledger_id, 3),
        m.AttemptRef(LoadIdentity("airflow", "other", "2013-01-01"), REF.ledger_id, 3),
        m.AttemptRef(LoadIdentity("other", "orders", "2013-01-01"), REF.ledger_id, 3),
    ],
    ids=str,
)
def test_another_attempt_s_manifest_is_refused(other: m.AttemptRef) -> None:
    with pytest.raises(ManifestError, match="not of this attempt") as refused:
        m.load(m.dump(_example()), other)
    assert refused.value.attempt == other.attempt


def test_what_spark_gave_up_is_not_decided() -> None:
    # the tombstone stands where no manifest can follow
    text = m.dump_given_up(REF, "the driver ran abort()")
    with pytest.raises(ManifestError, match=r"gave this attempt up: the driver ran abort\(\)"):
        m.load(text, REF)
    with pytest.raises(ManifestError, match="not of this attempt"):
        m.load(text, m.AttemptRef(REF.load, REF.ledger_id, 4))
    whole = json.loads(m.dump(_example())) | {"given_up": "late"}
    with pytest.raises(ManifestError, match="gave this attempt up: late"):
        m.load(json.dumps(whole), REF)


Edit = Callable[[dict[str, Any]], Any]


def _set(*path: Any) -> Edit:
    """Set the value at a path of keys and indexes: the last argument."""

    def edit(document: dict[str, Any]) -> None:
        at: Any = document
        for step in path[:-2]:
            at = at[step]
        at[path[-2]] = path[-1]

    return edit


def _writes_of(document: dict[str, Any]) -> Any:
    return document["entries"][0]["writes"]


FIRST = ("entries", 0, "writes", 0)
TXN = ("entries", 0, "transaction")
INCONSISTENT: list[tuple[str, str, Edit]] = [
    ("missing Spark partition in the middle", "one entry per Spark partition", lambda d: d["entries"].pop(1)),
    ("missing Spark partition 0", "one entry per Spark partition", lambda d: d["entries"].pop(0)),
    ("double Spark partition", "one entry per Spark partition", lambda d: d["entries"].append(d["entries"][2])),
    ("Spark partitions out of order", "one entry per Spark partition", lambda d: d["entries"].reverse()),
    ("records without a transaction", "records but no transaction", _set(*TXN, None)),
    ("a transaction without records", "no records", _set("entries", 0, "writes", [])),
    ("an empty state", "no PreparedTxnState", _set(*TXN, "prepared_transaction_state", "")),
    ("no state at all", "malformed", _set(*TXN, "prepared_transaction_state", None)),
    ("a state that is none", "malformed", _set(*TXN, "prepared_transaction_state", "01:0")),
    ("a foreign id", "not leased to this attempt", _set(*TXN, "transactional_id", "my-app-0")),
    ("no id", "malformed", _set(*TXN, "transactional_id", None)),
    ("a topic that was not looked at", "impossible figures", _set(*FIRST, "topic", "elsewhere")),
    ("a partition that the topic lacks", "impossible figures", _set(*FIRST, "partition", 2)),
    ("a negative partition", "impossible figures", _set(*FIRST, "partition", -1)),
    ("a partition twice", "lists a partition twice", lambda d: _writes_of(d).append(_writes_of(d)[0])),
    ("no records in a partition", "impossible figures", _set(*FIRST, "records", 0)),
    ("more records than offsets", "impossible figures", _set(*FIRST, "records", 6)),
    ("negative bytes", "impossible figures", _set(*FIRST, "bytes", -1)),
    ("a negative offset", "impossible figures", _set(*FIRST, "first_offset", -1)),
    ("a negative time", "impossible figures", _set(*FIRST, "oldest_timestamp_ms", -1)),
    ("a short digest", "impossible figures", _set(*FIRST, "digest", "7")),
    ("a digest that is no number", "impossible figures", _set(*FIRST, "digest", "x" * 32)),
    ("a digest that is no text", "malformed", _set(*FIRST, "digest", 7)),
    ("a number as text", "malformed", _set(*FIRST, "records", "5")),
    ("a number with a fraction", "malformed", _set(*FIRST, "records", 4.5)),
    ("a boolean for a number", "malformed", _set("entries", 2, "writes", 0, "records", True)),
    ("an attempt number as text", "malformed", _set("attempt", "number", "3")),
    ("an unknown field", "malformed", _set("surprise", 1)),
    ("an unknown field in a write", "malformed", _set(*FIRST, "surprise", 1)),
    ("an unknown field in an entry", "malformed", _set("entries", 1, "surprise", 1)),
    ("no topics", "malformed", _set("topics", None)),
    ("a topic without partitions", "malformed", _set("topics", "orders", "partitions", "many")),
    ("an invalid load name", "malformed", _set("attempt", "name", "")),
    ("an unknown scope", "malformed", _set("scope", "job")),
    ("the other scope", "not one of scope load", _set("scope", "load")),
    ("two phases with a timeout", "contradict", _set("two_phase_commit", True)),
    ("one phase without a timeout", "contradict", _set("transaction_timeout_ms", TWO_PHASE_TIMEOUT_MS)),
    ("two phases as a number", "malformed", _set("two_phase_commit", 0)),
]  # fmt: skip
INCONSISTENT_IN_SCOPE_LOAD: list[tuple[str, str, Edit]] = [
    ("a Kafka partition with two owners", "Spark partitions 0 and 2 have both written orders-0",
     _set("entries", 2, "writes", 0, "partition", 0)),
    ("a second identity", "one transaction, the manifest names",
     _set("entries", 2, "transaction", "prepared_transaction_state", "1000:1")),
    ("a task's own id", "not one of scope load",
     _set("entries", 2, "transaction", "transactional_id", "airflow.0123456789.orders.2013-01-01.3-2-42")),
    ("the probing id", "not one of scope load",
     _set("entries", 2, "transaction", "transactional_id", "airflow.0123456789.orders.2013-01-01.3-probe")),
    ("another attempt's id", "not leased",
     _set("entries", 2, "transaction", "transactional_id", "airflow.0123456789.orders.2013-01-01.2-load")),
    ("the other scope", "not one of scope task", _set("scope", "task")),
    ("records without a transaction", "records but no transaction", _set("entries", 2, "transaction", None)),
]  # fmt: skip


@pytest.mark.parametrize(("says", "edit"), [c[1:] for c in INCONSISTENT], ids=[c[0] for c in INCONSISTENT])
def test_a_manifest_at_odds_with_itself_is_refused(says: str, edit: Edit) -> None:
    document = json.loads(m.dump(_example()))
    edit(document)
    with pytest.raises(ManifestError, match=says):
        m.load(json.dumps(document), REF)


@pytest.mark.parametrize(
    ("says", "edit"), [c[1:] for c in INCONSISTENT_IN_SCOPE_LOAD], ids=[c[0] for c in INCONSISTENT_IN_SCOPE_LOAD]
)
def test_a_shared_transaction_at_odds_with_itself_is_refused(says: str, edit: Edit) -> None:
    document = json.loads(m.dump(_shared()))
    edit(document)
    with pytest.raises(ManifestError, match=says):
        m.load(json.dumps(document), REF)


def _fields(at: Any) -> list[tuple[dict[str, Any], str]]:
    if isinstance(at, list):
        return [found for item in at for found in _fields(item)]
    if not isinstance(at, dict):
        return []
    return [(at, key) for key in at] + [found for item in at.values() for found in _fields(item)]


def test_a_manifest_without_any_one_of_its_fields_is_refused() -> None:
    document = json.loads(m.dump(_example()))
    for part, key in _fields(document):
        value = part.pop(key)
        with pytest.raises(ManifestError):
            m.load(json.dumps(document), REF)
        part[key] = value
    m.load(json.dumps(document), REF)


@pytest.mark.parametrize("version", [0, 1, 2, 4, "3", None, [3]])
def test_an_unknown_schema_version_is_refused_and_named(version: object) -> None:
    document = json.loads(m.dump(_example())) | {"schema_version": version}
    with pytest.raises(ManifestError, match="schema_version") as refused:
        m.load(json.dumps(document), REF)
    assert "Install the same version" in refused.value.remedy


@pytest.mark.parametrize("text", ["", " ", "null", "1", "[]", '"schema_version"', "{}", "\x00", "[" * 10_000])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(ManifestError, match="not a whole JSON document"):
        m.load(text, REF)


def _leased(change: str) -> str:
    load, other = REF.load, LoadIdentity("airflow", "orders", "2013-01-02")
    ids = {
        "another load": TransactionalId(other, REF.ledger_id, 3, 0, 40),
        "another ledger": TransactionalId(load, "9999999999", 3, 0, 40),
        "another attempt": TransactionalId(load, REF.ledger_id, 2, 0, 40),
        "another Spark partition": TransactionalId(load, REF.ledger_id, 3, 1, 40),
    }
    return str(ids[change])


@pytest.mark.parametrize("change", ["another load", "another ledger", "another attempt", "another Spark partition"])
def test_an_id_that_was_not_leased_here_is_refused(change: str) -> None:
    document = json.loads(m.dump(_example()))
    document["entries"][0]["transaction"]["transactional_id"] = _leased(change)
    with pytest.raises(ManifestError, match=r"not leased to this attempt|stands at Spark partition 0"):
        m.load(json.dumps(document), REF)


@given(manifests(), st.data())
def test_any_value_swapped_for_another_is_refused_or_read_as_written(manifest: m.Manifest, data: st.DataObject) -> None:
    # no exception of another kind escapes, whatever a broken or foreign writer left there
    document = json.loads(m.dump(manifest))
    junk = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.just([]), st.just({}), st.floats())
    at: Any = document
    while True:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if isinstance(at[key], dict | list) and at[key] and data.draw(st.booleans()):
            at = at[key]
        else:
            at[key] = data.draw(junk)
            break
    expected = copy.deepcopy(document)
    try:
        read = m.load(json.dumps(document), manifest.attempt)
    except ManifestError:
        return
    assert json.loads(m.dump(read)) == expected
