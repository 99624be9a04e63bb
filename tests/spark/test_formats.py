"""``value_format`` on a real Spark, a real broker and a real registry: what Confluent's own deserializers read back."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from airflow_kafka_eos.errors import ConfigurationError, SchemaRefusedError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.formats.settings import RegistrySettings
from airflow_kafka_eos.spark.formats.shaping import shape
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from tests.spark.formats_registry import running_registry
from tests.spark.writing import failure, visible, write

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PLACE = t.StructType([
    t.StructField("name", t.StringType(), False),
    t.StructField("height", t.DecimalType(6, 2)),
    t.StructField("seen", t.ArrayType(t.TimestampType())),
])  # fmt: skip
KIND = t.StructType([
    t.StructField("key", t.StringType()),
    t.StructField("id", t.LongType(), False),
    t.StructField("small", t.ShortType()),
    t.StructField("ok", t.BooleanType()),
    t.StructField("ratio", t.DoubleType()),
    t.StructField("half", t.FloatType()),
    t.StructField("text", t.StringType()),
    t.StructField("blob", t.BinaryType()),
    t.StructField("day", t.DateType()),
    t.StructField("at", t.TimestampType()),
    t.StructField("local", t.TimestampNTZType()),
    t.StructField("price", t.DecimalType(12, 2)),
    t.StructField("huge", t.DecimalType(38, 10)),
    t.StructField("place", PLACE),
    t.StructField("tags", t.ArrayType(t.StringType())),
    t.StructField("counts", t.MapType(t.StringType(), t.IntegerType())),
    t.StructField("places", t.ArrayType(PLACE, False)),
])  # fmt: skip
AT = dt.datetime(2013, 7, 1, 12, 30, 15, 123456, dt.UTC)
LOCAL = dt.datetime(1969, 12, 31, 23, 59, 59, 999999)
HERE = {"name": "Zürich ☃ 😀", "height": Decimal("-408.10"), "seen": [AT, None]}
THERE = {"name": "", "height": None, "seen": None}
FULL = ("k1", 2**62, -7, True, -0.1, 1.5, 'quote " \\ \n ☃ 😀', b"\0\xff", dt.date(1582, 10, 15), AT, LOCAL,
        Decimal("-0.01"), Decimal("12345678901234567890.0123456789"), HERE, ["", None, "ü"], {"a": 1, "": None},
        [HERE, THERE])  # fmt: skip
EMPTY = ("k2", 0, *[None] * 15)
BARE: tuple[object, ...] = (
    "k3", -1, 0, False, 0.0, -0.0, "", b"", dt.date(9999, 12, 31), AT, LOCAL, Decimal("0.00"), Decimal(0), THERE,
    [], {}, [])  # fmt: skip

#: writes, and reads back: topic -> key -> value
Arrived = Callable[..., dict[str, dict[bytes, bytes]]]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_registry(tmp_path_factory.mktemp("registry")) as url:
        yield url


@pytest.fixture
def known(registry: str) -> RegistrySettings:
    return RegistrySettings.from_mapping({"url": registry})


@pytest.fixture
def client(registry: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry, "timeout": 10})


@pytest.fixture
def frame(spark: SparkSession) -> Iterator[DataFrame]:
    # a session far from UTC, so that one that leaks into values shows
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark.createDataFrame([FULL, EMPTY, BARE], KIND)
    spark.conf.unset("spark.sql.session.timeZone")


@pytest.fixture
def arrived(
    kafka: LocalKafka, settings: KafkaSettings, ref: AttemptRef, options: Callable[..., dict[str, str]],
    tmp_path: Path,
) -> Arrived:
    """Write a frame through the data source, commit it, and read all of a topic: key -> value."""

    def run(
        shaped: DataFrame, topics: Sequence[str], default: str | None = None
    ) -> dict[str, dict[bytes, bytes]]:
        write(shaped, options(topics=",".join(topics), **({"topic": default} if default else {})))
        manifest = ManifestStore(str(tmp_path)).read(ref)
        with Wire(settings) as wire:
            coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
            for transaction in manifest.transactions:
                coordinator.end(transaction, Verdict.COMMIT)
        count = {name: 0 for name in topics}
        for entry in manifest.entries:
            for one in entry.writes:
                count[one.topic] += one.records
        return {name: dict(visible(kafka, name, 1, count[name])) for name in topics}

    return run


def dicts(*rows: Sequence[Any]) -> dict[bytes, dict[str, Any]]:
    return {row[0].encode(): dict(zip(KIND.names[1:], row[1:], strict=True)) for row in rows}


def decoded(
    deserializer: Callable[[bytes | None, SerializationContext], Any], values: Mapping[bytes, bytes | None], topic: str
) -> dict[bytes, Any]:
    context = SerializationContext(topic, MessageField.VALUE)
    return {key: deserializer(value, context) for key, value in values.items()}


def test_confluent_avro_reads_back_exactly(
    frame: DataFrame, known: RegistrySettings, client: SchemaRegistryClient, topic: Callable[..., str],
    arrived: Arrived,
) -> None:
    name = topic(1)
    shaped = shape(frame, "confluent-avro", topics=[name], default_topic=name, registry=known)
    assert shaped.columns == ["key", "value"]
    values = arrived(shaped, [name])[name]
    subject = client.get_latest_version(f"{name}-value")
    assert {value[:5] for value in values.values()} == {b"\0" + (subject.schema_id or 0).to_bytes(4, "big")}
    found = decoded(AvroDeserializer(client), values, name)
    assert found == dicts(FULL, EMPTY, BARE)
    assert found[b"k3"]["half"].hex() == "-0x0.0p+0"


def in_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [in_json(inner) for inner in value]
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S.%f}" + ("Z" if value.tzinfo else "")
    return value.isoformat() if isinstance(value, dt.date) else value


@pytest.mark.parametrize("value_format", ["json", "confluent-json"])
def test_json_reads_back_exactly_with_every_field_and_in_utc(
    frame: DataFrame, known: RegistrySettings, client: SchemaRegistryClient, topic: Callable[..., str],
    arrived: Arrived, value_format: str,
) -> None:
    name = topic(1)
    values = arrived(shape(frame, value_format, topics=[name], default_topic=name, registry=known), [name])[name]
    wanted = {key: in_json(row) for key, row in dicts(FULL, EMPTY, BARE).items()}
    if value_format == "confluent-json":
        subject = client.get_latest_version(f"{name}-value")
        assert {value[:5] for value in values.values()} == {b"\0" + (subject.schema_id or 0).to_bytes(4, "big")}
        # the deserializer checks each value against the registered schema
        found = decoded(JSONDeserializer(None, schema_registry_client=client), values, name)
        assert found == wanted
        values = {key: value[5:] for key, value in values.items()}
    exact = {key: json.loads(value, parse_float=Decimal) for key, value in values.items()}
    assert [list(row) for row in exact.values()] == [KIND.names[1:]] * 3
    # a decimal is written with all its digits; json reads it as a float by default
    assert exact[b"k1"]["huge"] == FULL[12]
    assert {key: json.loads(value) for key, value in values.items()} == wanted


def test_a_struct_named_value_is_the_record_and_null_a_tombstone(
    spark: SparkSession, known: RegistrySettings, client: SchemaRegistryClient, topic: Callable[..., str],
    arrived: Arrived,
) -> None:
    name = topic(1)
    frame = spark.sql(
        "select k key, case k when 'gone' then null else named_struct('a', a, 'b', b) end value "
        "from values ('here', 1, 'x'), ('gone', 2, 'y'), ('nulls', null, null) v(k, a, b)"
    )
    both = {b"here": {"a": 1, "b": "x"}, b"gone": None, b"nulls": {"a": None, "b": None}}
    for value_format, deserializer in (
        ("confluent-avro", AvroDeserializer(client)),
        ("confluent-json", JSONDeserializer(None, schema_registry_client=client)),
    ):
        shaped = shape(
            frame, {"format": value_format, "subject_strategy": "record-name", "record_name": f"t.{value_format[10:]}"},
            topics=[name], default_topic=name, registry=known,
        )  # fmt: skip
        collected = {row.key.encode(): bytes(row.value) if row.value is not None else None for row in shaped.collect()}
        assert collected[b"gone"] is None
        assert decoded(deserializer, collected, name) == both
    assert {"t.avro", "t.json"} <= set(client.get_subjects())
    values = arrived(shape(frame, "json", topics=[name], default_topic=name), [name])[name]
    assert values == {b"here": b'{"a":1,"b":"x"}', b"gone": None, b"nulls": b'{"a":null,"b":null}'}


def test_string_sends_the_one_column_that_is_left(
    spark: SparkSession, topic: Callable[..., str], arrived: Arrived
) -> None:
    name = topic(1)
    frame = spark.sql("select k key, amount from values ('a', 1.50bd), ('b', null) v(k, amount)")
    shaped = shape(frame, "string", topics=[name], default_topic=name)
    assert arrived(shaped, [name])[name] == {b"a": b"1.50", b"b": None}


def test_raw_is_left_as_it_is(spark: SparkSession) -> None:
    frame = spark.sql("select 'k' key, cast('v' as binary) value")
    assert shape(frame, "raw", topics=["t"]) is frame


def registered(client: SchemaRegistryClient, value_format: str, *topics: str) -> dict[str, int]:
    """A schema of its own for each topic, of one field ``a``: topic -> id."""
    avro = '{"type":"record","name":"R%d","fields":[{"name":"a","type":["null","double"]}]}'
    as_json = '{"title":"R%d","type":"object","properties":{"a":{"type":["integer","null"]}}}'
    kind, text = ("AVRO", avro) if value_format == "confluent-avro" else ("JSON", as_json)
    return {
        name: client.register_schema(f"{name}-value", Schema(text % number, kind))
        for number, name in enumerate(topics)
    }


@pytest.mark.parametrize("value_format", ["confluent-avro", "confluent-json"])
def test_each_topic_has_the_id_of_its_own_subject(
    spark: SparkSession, known: RegistrySettings, client: SchemaRegistryClient, topic: Callable[..., str],
    arrived: Arrived, value_format: str,
) -> None:
    one, two, default = topics = [topic(1), topic(1), topic(1)]
    ids = registered(client, value_format, *topics)
    assert len(set(ids.values())) == 3
    frame = spark.sql(
        f"select cast(id as string) key, cast(id as int) a, decode(id % 3, 0, '{one}', 1, '{two}') topic "
        "from range(0, 60, 1, 2)"
    )
    made = {"format": value_format, "registration": "latest"}
    shaped = shape(frame, made, topics=[one, two], default_topic=default, registry=known)
    found = arrived(shaped, topics, default)
    json_reader = JSONDeserializer(None, schema_registry_client=client)
    reader = AvroDeserializer(client) if value_format == "confluent-avro" else json_reader
    for number, name in enumerate(topics):
        assert {value[:5] for value in found[name].values()} == {b"\0" + ids[name].to_bytes(4, "big")}
        assert decoded(reader, found[name], name) == {b"%d" % i: {"a": i} for i in range(number, 60, 3)}


@pytest.mark.parametrize("value_format", ["confluent-avro", "confluent-json"])
def test_a_row_of_a_foreign_topic_ends_the_write(
    spark: SparkSession, known: RegistrySettings, client: SchemaRegistryClient, topic: Callable[..., str],
    options: Callable[..., dict[str, str]], still_open: Callable[[], list[str]], value_format: str,
) -> None:
    one, two = topic(1), topic(1)
    registered(client, value_format, one, two)
    frame = spark.sql(f"select int(id) a, decode(id, 7, 'elsewhere', '{one}') topic from range(0, 9, 1, 1)")
    shaped = shape(frame, {"format": value_format, "registration": "latest"}, topics=[one, two], registry=known)
    said = failure(shaped, options(topics=f"{one},{two}"))
    assert said.startswith("RecordError: a row asks for topic 'elsewhere', which is not among the load's topics")
    assert still_open() == []


@pytest.mark.parametrize(
    "expression",
    ["double('NaN')", "float('-Infinity')", "array(1d, double('NaN'))", "map('x', double('Infinity'))",
     "array(named_struct('y', named_struct('z', array(float('NaN')))))"],
)  # fmt: skip
def test_json_has_no_nan_and_says_so(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]],
    still_open: Callable[[], list[str]], expression: str,
) -> None:
    name = topic(1)
    frame = spark.sql(f"select cast('a' as string) key, {expression} x")
    said = failure(shape(frame, "json", topics=[name], default_topic=name), options(topic=name))
    assert said.startswith("RecordError: a row has NaN or infinity in a float or double column")
    assert still_open() == []


def test_what_does_not_fit_the_latest_schema_is_refused_on_the_driver_or_ends_the_task(
    spark: SparkSession, known: RegistrySettings, client: SchemaRegistryClient, topic: Callable[..., str],
    options: Callable[..., dict[str, str]], still_open: Callable[[], list[str]],
) -> None:
    name = topic(1)
    text = '{"type":"record","name":"Latest","fields":[{"name":"a","type":"string"}]}'
    client.register_schema(f"{name}-value", Schema(text, "AVRO"))

    def shaped(query: str) -> DataFrame:
        return shape(
            spark.sql(query), {"format": "confluent-avro", "registration": "latest"},
            topics=[name], default_topic=name, registry=known,
        )  # fmt: skip

    with pytest.raises(SchemaRefusedError, match=rf"topic '{name}', schema id \d+: column 'a' has type int"):
        shaped("select 1 a")
    said = failure(shaped("select if(id = 3, null, 'secret') a from range(0, 5, 1, 1)"), options(topic=name))
    assert said.startswith("RecordError: a row has null in 'a', which the schema does not allow")
    assert "secret" not in said
    assert still_open() == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select 1 key, 2 a", "column 'key' has type int, allowed is binary or string"),
        ("select 1 a, 'x' headers", "column 'headers' has type string"),
        ("select 1 a, interval 1 day b", "column 'b' has type interval day"),
        ("select 1 `a b`", "column 'a b' has a name that Avro does not allow"),
    ],
)
def test_a_frame_that_cannot_be_written_registers_nothing(
    spark: SparkSession, known: RegistrySettings, client: SchemaRegistryClient, query: str, said: str
) -> None:
    before = client.get_subjects()
    with pytest.raises(ConfigurationError, match=said):
        shape(spark.sql(query), "confluent-avro", topics=["never"], default_topic="never", registry=known)
    with pytest.raises(ConfigurationError, match="has no topic column"):
        shape(spark.sql("select 1 a"), "confluent-avro", topics=["never", "nor"], registry=known)
    assert client.get_subjects() == before


def test_only_the_topics_that_rows_may_have_get_a_schema(
    spark: SparkSession, known: RegistrySettings, client: SchemaRegistryClient
) -> None:
    shape(spark.sql("select 1 a"), "confluent-json", topics=["other", "mine"], default_topic="mine", registry=known)
    assert "mine-value" in client.get_subjects() and "other-value" not in client.get_subjects()


@pytest.mark.parametrize("value_format", ["confluent-avro", "confluent-json"])
def test_a_format_with_a_registry_needs_its_settings(spark: SparkSession, value_format: str) -> None:
    with pytest.raises(ConfigurationError, match="needs a schema registry, and there are no settings for one"):
        shape(spark.sql("select 1 a"), value_format, topics=["t"], default_topic="t")


def test_the_names_of_columns_may_be_anything_in_json(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, 2)], ["a.b `c", "ünï"])
    (row,) = shape(frame, "json", topics=["t"], default_topic="t").collect()
    assert json.loads(row.value) == {"a.b `c": 1, "ünï": 2}


def test_the_record_timestamp_and_headers_stay_beside_the_value(spark: SparkSession) -> None:
    frame = spark.sql(
        "select 1 a, 'k' key, array(named_struct('key', 'h', 'value', cast('x' as binary))) headers, "
        "2 partition, 't' topic"
    )
    shaped = shape(frame, "json", topics=["t"])
    assert shaped.columns == ["key", "headers", "partition", "topic", "value"]
    (row,) = shaped.collect()
    assert row.value == '{"a":1}'
