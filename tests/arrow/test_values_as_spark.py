"""The same rows make the same values, byte for byte, by Spark and by the worker: each type, from one Parquet file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_kafka_eos.arrow.stream import Bounds, batches, pieces, reader_of
from airflow_kafka_eos.arrow.values import shape
from airflow_kafka_eos.spark.formats.settings import RegistrySettings, ValueFormat
from tests.spark.conftest import spark  # noqa: F401  # a fixture
from tests.spark.formats_registry import running_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ROWS = 400
#: The first Java whose Double.toString gives the shortest text (JDK-4511638).
SHORTEST_SINCE = 19
PLACE = pa.struct([("name", pa.string()), ("height", pa.decimal128(6, 2)), ("at", pa.timestamp("us", "UTC"))])
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("text", pa.string()),
        ("large", pa.large_string()),
        ("words", pa.dictionary(pa.int32(), pa.string())),
        ("blob", pa.binary()),
        ("ok", pa.bool_()),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("i64", pa.int64()),
        ("u8", pa.uint8()),
        ("u16", pa.uint16()),
        ("u32", pa.uint32()),
        ("price", pa.decimal128(9, 2)),
        ("wide", pa.decimal128(38, 18)),
        ("whole", pa.decimal128(18, 0)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("millis", pa.timestamp("ms", "Europe/Berlin")),
        ("local", pa.timestamp("us")),
        ("place", PLACE),
        ("tags", pa.list_(pa.string())),
        ("places", pa.list_(PLACE)),
        ("lists", pa.list_(pa.list_(pa.int32()))),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("by_name", pa.map_(pa.string(), PLACE)),
        ('na"me\\ \n', pa.int32()),
    ]
)
#: Of each kind that JSON has an own way for, and that UTF-16 has.
SPECIAL = [*map(chr, range(0x22)), '"', "\\", "/", "\x7f", "\x80", "ß", "\u2028", "\ufeff", "\uffff", "☃", "😀"]


def texts(dice: random.Random) -> str:
    return "".join(dice.choice([*SPECIAL, "abc", " "]) for _ in range(dice.randrange(6)))


def moments(dice: random.Random) -> datetime:
    edges = [datetime(1, 1, 1), datetime(1582, 10, 10), datetime(9999, 12, 31, 23, 59, 59, 999999)]
    if dice.random() < 0.2:
        return dice.choice(edges)
    return datetime(1900, 1, 1) + timedelta(microseconds=dice.randrange(200 * 365 * 86_400 * 10**6))


def decimals(dice: random.Random, precision: int, scale: int) -> Decimal:
    digits = dice.choice([0, 1, dice.randrange(10 ** dice.randrange(1, precision + 1))])
    return Decimal(f"{'-' if dice.random() < 0.4 else ''}{digits}E-{scale}")


def of(kind: pa.DataType, dice: random.Random, nulls: float = 0.2) -> Any:
    """A value of a type, null now and then."""
    if dice.random() < nulls:
        return None
    if pa.types.is_struct(kind):
        return {field.name: of(field.type, dice) for field in kind}
    if pa.types.is_map(kind):
        return list({texts(dice): of(kind.item_type, dice) for _ in range(dice.randrange(3))}.items())
    if pa.types.is_list(kind):
        return [of(kind.value_type, dice) for _ in range(dice.randrange(4))]
    if pa.types.is_integer(kind):
        low, high = (0, 2**kind.bit_width - 1) if str(kind)[0] == "u" else (-(2 ** (kind.bit_width - 1)), None)
        high = high if high is not None else -low - 1
        return dice.choice([low, high, 0, dice.randint(low, high)])
    if pa.types.is_decimal(kind):
        return decimals(dice, kind.precision, kind.scale)
    if pa.types.is_date(kind):
        return moments(dice).date()
    if pa.types.is_timestamp(kind):
        made = moments(dice)
        made = made if kind.unit == "us" else made.replace(microsecond=made.microsecond // 1000 * 1000)
        return made if kind.tz is None else made.replace(tzinfo=UTC)
    if pa.types.is_boolean(kind):
        return dice.random() < 0.5
    return dice.randbytes(dice.randrange(7)) if pa.types.is_binary(kind) else texts(dice)


def table() -> pa.Table:
    """Nothing is null in the first row, all that can be in the second."""
    dice = random.Random(20)
    rows = [{f.name: of(f.type, dice, {0: 0.0, 1: 1.0}.get(n, 0.2)) for f in SCHEMA} for n in range(ROWS)]
    import pyarrow.compute as pc

    fields = []
    for field in SCHEMA:
        if pa.types.is_dictionary(field.type):
            made = pa.array([row[field.name] for row in rows], field.type.value_type).dictionary_encode()
        elif pa.types.is_timestamp(field.type) and field.type.tz is not None:
            made = pa.array([row[field.name] for row in rows], pa.timestamp(field.type.unit, "UTC"))
            made = pc.cast(made, field.type)
        else:
            made = pa.array([row[field.name] for row in rows], field.type)
        fields.append(made)
    return pa.Table.from_arrays(fields, schema=SCHEMA)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistrySettings]:
    with running_registry(tmp_path_factory.mktemp("registry")) as url:
        yield RegistrySettings.from_mapping({"url": url})


def ours(path: Path, value_format: Any, **given: Any) -> list[bytes | None]:
    reader = reader_of(pq.read_table(path), "job")
    columns = shape(reader.schema, ValueFormat.of(value_format), **given)
    parts = pieces(batches(reader, "job", Bounds(1 << 28)), columns.take)
    return [value for part in parts for value in part.column("value").to_pylist()]


def theirs(spark: SparkSession, path: Path, value_format: Any, **given: Any) -> list[bytes | None]:  # noqa: F811
    from airflow_kafka_eos.spark.formats.shaping import shape as by_spark

    frame = by_spark(spark.read.parquet(str(path)).coalesce(1), value_format, **given)
    values = [row.value for row in frame.select("value").collect()]
    return [value.encode() if isinstance(value, str) else value if value is None else bytes(value) for value in values]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    # with the types of Arrow beside those of Parquet: a dictionary comes back as one
    pq.write_table(table(), path, store_schema=True)
    return path


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_json(spark: SparkSession, written: Path, zone: str) -> None:  # noqa: F811
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        wanted = theirs(spark, written, "json", topics=["t"], default_topic="t")
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    found = ours(written, "json", topics=["t"], default_topic="t")
    assert len(found) == ROWS
    for mine, other in zip(found, wanted, strict=True):
        assert mine == other


@pytest.mark.parametrize("value_format", ["confluent-json", "confluent-avro"])
def test_confluents_formats(
    spark: SparkSession, written: Path, registry: RegistrySettings, value_format: str, tmp_path: Path  # noqa: F811
) -> None:
    topic = f"{value_format}-one"
    if value_format == "confluent-avro":  # which has no such names
        kept = [name for name in SCHEMA.names if name.isidentifier()]
        pq.write_table(pq.read_table(written).select(kept), written, store_schema=True)
    given: dict[str, Any] = {"topics": [topic], "default_topic": topic, "registry": registry}
    assert ours(written, value_format, **given) == theirs(spark, written, value_format, **given)


@pytest.mark.parametrize("value_format", ["confluent-json", "confluent-avro"])
def test_each_topic_has_its_own_schema(
    spark: SparkSession, tmp_path: Path, registry: RegistrySettings, value_format: str  # noqa: F811
) -> None:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    path, names = tmp_path / "topics.parquet", [f"{value_format}-{n}" for n in "abc"]
    avro = '{"type":"record","name":"R%s","fields":[{"name":"a","type":["null","%s"]}]}'
    as_json = '{"title":"R%s","type":"object","properties":{"a":{"type":["%s","null"]}}}'
    client = SchemaRegistryClient({"url": registry.address})
    for number, (name, kind) in enumerate(zip(names, ("int", "long", "double"), strict=True)):
        text = avro % (number, kind) if value_format == "confluent-avro" else as_json % (number, "integer")
        client.register_schema(f"{name}-value", Schema(text, "AVRO" if value_format == "confluent-avro" else "JSON"))
    rows = [{"a": n if n % 4 else None, "topic": [*names[:2], None][n % 3]} for n in range(60)]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema([("a", pa.int32()), ("topic", pa.string())])), path)
    made = {"format": value_format, "registration": "latest"}
    given: dict[str, Any] = {"topics": names[:2], "default_topic": names[2], "registry": registry}
    found = ours(path, made, **given)
    assert found == theirs(spark, path, made, **given)
    assert len({value[:5] for value in found if value is not None}) == 3


@pytest.mark.parametrize("value_format", ["json", "confluent-json", "confluent-avro"])
def test_a_null_struct_named_value_is_a_tombstone(
    spark: SparkSession, tmp_path: Path, registry: RegistrySettings, value_format: str  # noqa: F811
) -> None:
    path = tmp_path / "whole.parquet"
    kind = pa.struct([("a", pa.int64()), ("b", PLACE)])
    rows = [{"a": 1, "b": {"name": "x"}}, None, {"a": None, "b": None}]
    pq.write_table(pa.table({"value": pa.array(rows, kind)}), path)
    given: dict[str, Any] = {"topics": ["whole"], "default_topic": "whole", "registry": registry}
    found = ours(path, value_format, **given)
    assert found == theirs(spark, path, value_format, **given)
    assert [value is None for value in found] == [False, True, False]


def bits(width: int, dice: np.random.Generator) -> np.ndarray:
    """Any finite numbers, and near what is written another way."""
    kind = np.dtype(f"f{width // 8}")
    any_bits = dice.integers(0, 2**width, 20_000, np.dtype(f"u{width // 8}")).view(kind)
    short = np.array([n * 10.0**e for n in range(-99, 100, 7) for e in range(-20, 25)]).astype(kind)
    small = dice.integers(1, 2000, 500).astype(f"u{width // 8}").view(kind)
    halves = (dice.integers(2**20, 2**24, 3000) + dice.choice([0, 0.25, 0.5, 0.75], 3000)).astype(kind)
    edges = np.array([0.0, -0.0, 1e-3, 1e7, 9999999.5, 123456.7], kind)
    near = np.concatenate([np.nextafter(edges, kind.type(np.inf)), np.nextafter(edges, kind.type(-np.inf))])
    made = np.concatenate([any_bits, short, small, halves, edges, near, dice.random(5000).astype(kind)])
    finite: np.ndarray = made[np.isfinite(made)]
    return finite


@pytest.mark.parametrize("width", [32, 64])
def test_floating_point_numbers(spark: SparkSession, tmp_path: Path, width: int) -> None:  # noqa: F811
    values = bits(width, np.random.default_rng(5))
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"x": values}), path)
    given: dict[str, Any] = {"topics": ["t"], "default_topic": "t"}
    found, wanted = ours(path, "json", **given), theirs(spark, path, "json", **given)
    different = [(mine, other) for mine, other in zip(found, wanted, strict=True) if mine != other]
    assert spark.sparkContext._jvm is not None
    java = spark.sparkContext._jvm.System.getProperty("java.specification.version")
    if int(java) >= SHORTEST_SINCE:
        assert different == []
    # an older one does not always find the shortest, or the nearest of the shortest
    assert len(different) < len(values) / 10
    for mine, other in different:
        as_number = np.float32 if width == 32 else np.float64
        assert mine is not None and other is not None
        assert as_number(mine[5:-1]) == as_number(other[5:-1]) and len(mine) <= len(other)


def test_a_day_has_the_same_text_far_away(spark: SparkSession, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "days.parquet"
    days = [date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 4), date(1582, 10, 15), date(1969, 12, 31), None]
    pq.write_table(pa.table({"day": days}), path)
    given: dict[str, Any] = {"topics": ["t"], "default_topic": "t"}
    assert ours(path, "json", **given) == theirs(spark, path, "json", **given)
