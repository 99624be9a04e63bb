"""What takes part, with which settings; and that a try does not overwrite the results of a whole run."""

from __future__ import annotations

import pytest

from bench.cases import (
    CASES,
    CONTESTANTS,
    TARGETS,
    Case,
    Contestant,
    Knobs,
    kafka_settings,
    takes_part,
    writes_steadily,
)

SMALL = Case("small", "none")
ZSTD = Case("large", "zstd")


def named(key: str) -> Contestant:
    return next(c for c in CONTESTANTS if c.key == key)


def test_keys_are_unique_and_targets_name_contestants() -> None:
    keys = [c.key for c in CONTESTANTS]
    assert len(set(keys)) == len(keys)
    assert {key for target in TARGETS for key in (target.one, *target.others)} <= set(keys)
    assert {name for target in TARGETS for name in target.aims} == {case.name for case in CASES}
    assert len(CASES) == 4


def test_the_same_batches_and_level_for_all_each_by_its_own_names() -> None:
    rdkafka = kafka_settings(named("foreach"), ZSTD, "b")
    java = kafka_settings(named("java"), ZSTD, "b")
    assert rdkafka["batch.size"] == java["batch.size"] == str(512 * 1024)
    assert rdkafka["compression.level"] == java["compression.zstd.level"] == "3"
    assert rdkafka["partitioner"] == "murmur2_random"  # Java's own for keyed records
    assert "compression.level" not in kafka_settings(named("foreach"), SMALL, "b")


def test_defaults_are_the_clients_own() -> None:
    for key in ("java@default", "flink-pooling@default", "produce-batch@default", "arrow-task@default"):
        settings = kafka_settings(named(key), ZSTD, "b")
        assert not {"batch.size", "linger.ms", "compression.level", "compression.zstd.level"} & set(settings), key
        assert settings["compression.type"] == "zstd"


def test_spark_s_own_sink_has_the_java_clients_names_and_no_transaction() -> None:
    settings = kafka_settings(named("spark-sink"), ZSTD, "b")
    assert settings == {
        "bootstrap.servers": "b", "compression.type": "zstd", "compression.zstd.level": "3",
        "batch.size": str(512 * 1024), "linger.ms": "200",
    }  # fmt: skip
    assert [c.key for c in CONTESTANTS if not c.transactional] == ["spark-sink", "spark-sink@default"]
    assert "at least once" in named("spark-sink").title


def test_without_keys_are_those_who_write_values_alone() -> None:
    assert [c.key for c in CONTESTANTS if not c.keyed] == ["arrow-task-keyless", "arrow-load-keyless"]


def test_slow_ones_take_part_in_fewer_rounds() -> None:
    knobs = Knobs(rounds=3, slow_rounds=2)
    assert [takes_part(named("foreach"), SMALL, r, knobs) for r in (1, 2, 3)] == [True, True, False]
    assert [takes_part(named("java"), SMALL, r, knobs) for r in (1, 2, 3)] == [True, True, True]
    assert not takes_part(named("foreach@default"), ZSTD, 1, knobs)
    assert not takes_part(named("floor"), ZSTD, 1, knobs)


def test_steadily_writes_everybody_but_the_slow_ones_and_at_their_defaults_ours_alone() -> None:
    left_out = [c.key for c in CONTESTANTS if not writes_steadily(c)]
    slow = ["confluent", "foreach", "foreach@default"]
    assert left_out == [
        *slow, "produce-batch@default", "spark-sink@default", "flink-incrementing@default", "flink-pooling@default",
        "java@default",
    ]  # fmt: skip


def test_knobs_are_read_from_the_environment() -> None:
    knobs = Knobs.of({"ROUNDS": "1", "RECORDS": "400000", "ONLY": "arrow, flink", "COLD": "0", "EXTRAS": ""})
    assert (knobs.rounds, knobs.slow_rounds, knobs.records, knobs.cold, knobs.extras) == (1, 1, 400_000, False, True)
    assert knobs.warm_up_records == 400_000
    assert knobs.records_of("large") == 100_000
    assert [c.key for c in CONTESTANTS if knobs.wants(c)] == [
        c.key for c in CONTESTANTS if "arrow" in c.key or "flink" in c.key
    ]
    cluster = Knobs.of({"PARTITIONS": "16", "BROKERS": "3", "PARQUET": "zstd", "STEADY": "0"})
    assert (cluster.partitions, cluster.brokers, cluster.parquet, cluster.steady) == (16, 3, "zstd", 0)
    assert (Knobs().partitions, Knobs().brokers, Knobs().parquet, Knobs().steady) == (4, 1, "plain", 6)


@pytest.mark.parametrize(("name", "value"), [("ROUNDS", "many"), ("BROKERS", "2"), ("PARQUET", "gzip")])
def test_a_knob_that_cannot_be_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=value):
        Knobs.of({name: value})


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({}, "bench"),
        ({"ROUNDS": "5"}, "bench"),
        ({"ROUNDS": "1"}, ".bench"),
        ({"RECORDS": "1000"}, ".bench"),
        ({"ONLY": "java"}, ".bench"),
        ({"CASES": "small-none"}, ".bench"),
        ({"COLD": "0"}, ".bench"),
        ({"EXTRAS": "0"}, ".bench"),
        ({"PARTITIONS": "16"}, ".bench"),
        ({"BROKERS": "3"}, ".bench"),
        ({"PARQUET": "zstd"}, ".bench"),
        ({"STEADY": "2"}, ".bench"),
        ({"STEADY": "20"}, "bench"),
        ({"ONLY": "java", "OUT": "mine"}, "mine"),
    ],
)
def test_only_a_whole_run_replaces_the_results(environment: dict[str, str], folder: str) -> None:
    assert Knobs.of(environment).folder == folder
