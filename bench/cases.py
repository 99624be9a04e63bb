"""What is measured: sizes, codecs, contestants, and the environment's knobs. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

LEVEL = 3
BATCH_BYTES = 512 * 1024
TIMEOUT_MS = 600_000
#: Long enough that batches fill, for row-wise writers too; a flush, and so a commit, does not wait for it.
LINGER_MS = "200"

SAME, DEFAULTS = "512 KiB", "default"
#: The Parquet files that Spark reads; see :mod:`bench.data`.
PLAIN, ZSTD = "plain", "zstd"


@dataclass(frozen=True)
class Case:
    """One set of records with one codec."""

    size: str
    codec: str

    @property
    def name(self) -> str:
        return f"{self.size}-{self.codec}"


CASES = tuple(Case(size, codec) for size in ("small", "large") for codec in ("none", "zstd"))


@dataclass(frozen=True)
class Contestant:
    """Somebody who writes.

    :param host: ``spark``, ``arrow``, ``flink`` or ``java``: in which process.
    :param batches: ``512 KiB`` with zstd at level 3, the same for all; or its own defaults for both.
    :param given: what its process is told beside topic, id and Kafka's settings.
    :param slow: it takes part in few rounds only (knob SLOW_ROUNDS).
    :param cases: names of those it takes part in; None: all.
    """

    name: str
    host: str
    title: str
    batches: str = SAME
    given: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False
    cases: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        return self.name if self.batches == SAME else f"{self.name}@default"

    @property
    def is_ours(self) -> bool:
        return self.given.get("writer") == "kafka_eos"

    @property
    def writes(self) -> bool:
        return self.name != "floor"

    @property
    def java_client(self) -> bool:
        """Whether its producer is Java's, not librdkafka or ours, which has librdkafka's names."""
        return self.host in ("flink", "java") or self.given.get("writer") == "spark-sink"

    @property
    def transactional(self) -> bool:
        return self.given.get("writer") != "spark-sink"

    @property
    def keyed(self) -> bool:
        """Whether it writes keys; else values alone."""
        return "key" in self.given.get("columns", "key,value").split(",")


def _ours(writer: str, scope: str) -> dict[str, str]:
    return {"writer": "kafka_eos", "option.writer": writer, "option.transaction.scope": scope}


_KEYLESS = {"columns": "value"}


_ARROW = "ours, arrow writer, scope task"
_LOAD = "ours, arrow writer, scope load"
_FOREACH = "foreachPartition, confluent-kafka row by row"
_BATCH = "mapInArrow, confluent-kafka produce_batch"
_SINK = "Spark's own Kafka sink, at least once"
_SLOW_DEFAULTS = ("small-none",)

CONTESTANTS = (
    Contestant("floor", "spark", "Spark → Python Arrow transfer alone", given={"writer": "floor"}),
    Contestant("arrow-task", "spark", _ARROW, given=_ours("arrow", "task")),
    Contestant("arrow-task", "spark", _ARROW, DEFAULTS, _ours("arrow", "task")),
    Contestant("arrow-load", "spark", _LOAD, given=_ours("arrow", "load")),
    Contestant("arrow-task-keyless", "spark", f"{_ARROW}, no keys", given=_ours("arrow", "task") | _KEYLESS),
    Contestant("arrow-load-keyless", "spark", f"{_LOAD}, no keys", given=_ours("arrow", "load") | _KEYLESS),
    Contestant("confluent", "spark", "ours, confluent writer", given=_ours("confluent", "task"), slow=True),
    Contestant("foreach", "spark", _FOREACH, given={"writer": "foreach"}, slow=True),
    Contestant("foreach", "spark", _FOREACH, DEFAULTS, {"writer": "foreach"}, slow=True, cases=_SLOW_DEFAULTS),
    Contestant("produce-batch", "spark", _BATCH, given={"writer": "produce-batch"}),
    Contestant("produce-batch", "spark", _BATCH, DEFAULTS, {"writer": "produce-batch"}),
    Contestant("spark-sink", "spark", _SINK, given={"writer": "spark-sink"}),
    Contestant("spark-sink", "spark", _SINK, DEFAULTS, {"writer": "spark-sink"}),
    *(
        Contestant(f"flink-{naming}", "flink", f"Flink KafkaSink, {naming} names", batches, {"naming": naming.upper()})
        for naming in ("incrementing", "pooling")
        for batches in (SAME, DEFAULTS)
    ),
    *(Contestant("java", "java", "Java producer, two threads, from memory", batches) for batches in (SAME, DEFAULTS)),
)  # fmt: skip



@dataclass(frozen=True)
class Target:
    """How many times as fast one should be as the fastest of some others.

    :param aims: at least, by the name of the case; the ratio is shown in the other cases, too.
    """

    title: str
    one: str
    others: tuple[str, ...]
    aims: Mapping[str, float]


def _aims(**by_size: float) -> dict[str, float]:
    return {case.name: by_size[case.size] for case in CASES if case.size in by_size}


#: What the issues ask for.
TARGETS = (
    Target("arrow writer / foreachPartition", "arrow-task", ("foreach", "foreach@default"), {"small-none": 9.0}),
    Target(
        "arrow writer / produce_batch", "arrow-task", ("produce-batch", "produce-batch@default"), {"small-none": 3.0}
    ),
    Target(
        "arrow writer / Spark's own sink, at least once", "arrow-task", ("spark-sink", "spark-sink@default"),
        _aims(small=2.0),
    ),
    Target(
        "arrow writer / Flink at its faster batch size", "arrow-task",
        ("flink-incrementing", "flink-pooling", "flink-incrementing@default", "flink-pooling@default"),
        _aims(small=1.2, large=1.0),
    ),
    Target("arrow writer / Java producer at 512 KiB", "arrow-task", ("java",), {"small-none": 1.0}),
    Target("scope load / scope task", "arrow-load", ("arrow-task",), _aims(small=0.6, large=0.6)),
    Target(
        "scope load / scope task, no keys", "arrow-load-keyless", ("arrow-task-keyless",), _aims(small=0.9, large=0.9)
    ),
)  # fmt: skip


def kafka_settings(contestant: Contestant, case: Case, bootstrap_servers: str) -> dict[str, str]:
    """The client's own settings, by the names that Java's client or librdkafka have for them.

    acks=all and idempotence are what all of them have anyway, and a transaction those who are exactly once; keys are
    placed by murmur2.
    """
    settings = {"bootstrap.servers": bootstrap_servers, "compression.type": case.codec}
    java = contestant.java_client
    if contestant.transactional:
        settings["transaction.timeout.ms"] = str(TIMEOUT_MS)
    if not java:
        settings["partitioner"] = "murmur2_random"
    if contestant.batches == SAME:
        settings |= {"batch.size": str(BATCH_BYTES), "linger.ms": LINGER_MS}
        if case.codec != "none":
            settings["compression.zstd.level" if java else "compression.level"] = str(LEVEL)
        if not java:
            settings["batch.num.messages"] = "1000000"  # by bytes alone
    if contestant.is_ours:
        del settings["transaction.timeout.ms"]  # an option of its own there
    return settings


@dataclass(frozen=True)
class Knobs:
    """How much of it: environment variables, see docs/benchmarks.md."""

    rounds: int = 3
    slow_rounds: int = 2
    records: int = 4_000_000
    warm_up_records: int = 1_000_000
    tasks: int = 2
    partitions: int = 4
    brokers: int = 1
    parquet: str = PLAIN
    steady: int = 6
    only: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    cold: bool = True
    extras: bool = True
    transactions: int = 1000
    out: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Knobs:
        """Read ``ROUNDS``, ``RECORDS``, ``ONLY`` and so on.

        :raises ValueError: a number is none, or there is no such choice.
        """
        default = cls()

        def number(name: str, otherwise: int) -> int:
            return int(environment.get(name) or otherwise)

        def words(name: str) -> tuple[str, ...]:
            return tuple(w.strip() for w in environment.get(name, "").split(",") if w.strip())

        def one_of(name: str, otherwise: str, choices: tuple[str, ...]) -> str:
            given = environment.get(name) or otherwise
            if given not in choices:
                raise ValueError(f"{name}={given}: use one of {', '.join(choices)}")
            return given

        rounds = number("ROUNDS", default.rounds)
        records = number("RECORDS", default.records)
        return cls(
            rounds=rounds,
            slow_rounds=min(rounds, number("SLOW_ROUNDS", default.slow_rounds)),
            records=records,
            warm_up_records=min(records, number("WARM_UP", default.warm_up_records)),
            tasks=number("TASKS", default.tasks),
            partitions=number("PARTITIONS", default.partitions),
            brokers=int(one_of("BROKERS", str(default.brokers), ("1", "3"))),
            parquet=one_of("PARQUET", default.parquet, (PLAIN, ZSTD)),
            steady=number("STEADY", default.steady),
            only=words("ONLY"),
            cases=words("CASES"),
            cold=environment.get("COLD", "1") != "0",
            extras=environment.get("EXTRAS", "1") != "0",
            transactions=number("TRANSACTIONS", default.transactions),
            out=environment.get("OUT") or default.out,
        )

    @property
    def folder(self) -> str:
        """Where the results go: beside the code only when nothing was left out, so that a try replaces no figures."""
        if self.out:
            return self.out
        more = {name: max(getattr(self, name), getattr(Knobs, name)) for name in ("rounds", "steady")}
        return "bench" if self == replace(Knobs(), **more) else ".bench"

    def wants(self, contestant: Contestant) -> bool:
        """``ONLY`` names contestants by any part of their key."""
        return not self.only or any(word in contestant.key for word in self.only)

    def chosen_cases(self) -> list[Case]:
        return [case for case in CASES if not self.cases or case.name in self.cases]

    def records_of(self, size: str) -> int:
        """A quarter as many large records as small ones."""
        return self.records if size == "small" else self.records // 4


def takes_part(contestant: Contestant, case: Case, round_: int, knobs: Knobs) -> bool:
    """Whether a contestant runs in this round (from 1) of this case."""
    if not knobs.wants(contestant) or (contestant.cases is not None and case.name not in contestant.cases):
        return False
    if contestant.name == "floor" and case.codec != "none":
        return False  # nothing is compressed there
    if contestant.slow and contestant.batches == DEFAULTS:
        return round_ == 1
    return round_ <= (knobs.slow_rounds if contestant.slow else knobs.rounds)


def writes_steadily(contestant: Contestant) -> bool:
    """Whether it makes many writes one after the other: all but the row-wise ones, at their own defaults ours only."""
    return not contestant.slow and (contestant.batches == SAME or contestant.is_ours)
