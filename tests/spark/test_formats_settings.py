"""``value_format``, the registry's settings, and which columns make a value: decided without Spark's engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import types as t

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.formats.avro import avro_schema
from airflow_kafka_eos.spark.formats.json_schema import json_schema
from airflow_kafka_eos.spark.formats.kinds import record
from airflow_kafka_eos.spark.formats.settings import FORMATS, REGISTRY_VARIABLE, RegistrySettings, ValueFormat
from airflow_kafka_eos.spark.formats.shaping import kind_of, text_column

INT, TEXT = t.IntegerType(), t.StringType()


def struct(**fields: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_travels_as_json(name: str) -> None:
    made = ValueFormat.of({"format": name, "registration": "latest"})
    assert ValueFormat.of(json.loads(json.dumps(made.to_mapping()))) == made
    assert ValueFormat.of(made) is made and ValueFormat.of(name).name == name


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("avro", "value_format is 'avro', known are raw, .* Did you mean confluent-avro"),
        ("JSON", "Did you mean json"),
        ("xml", "value_format is 'xml'"),
        (7, "value_format is 7"),
        ({"format": "json", "registraton": "latest"}, "is 'registraton'.*Did you mean registration"),
        ({"format": "json", "registration": "newest"}, "registration of value_format is 'newest'"),
        ({"format": "json", "subject_strategy": "topic"}, "Did you mean topic-name"),
        ({"format": "json", "record_name": "a.2b"}, "record_name of value_format is 'a.2b'"),
        ({"format": "json", "record_name": None}, "record_name of value_format is None"),
    ],
)
def test_an_unknown_name_or_value_is_refused_with_the_near_match(value: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        ValueFormat.of(value)


def test_registry_settings_travel_whole_and_never_show_a_secret() -> None:
    given = {
        "url": "https://who:in-the-url@registry.example:8081/path/,http://other:1",
        "ssl.key.password": "of-the-key",
        "bearer.auth.token": "the-token",
        "proxy": "http://who:of-the-proxy@proxy:3128",
        "timeout": "2.5",
        "max.retries": 1,
    }
    made = RegistrySettings.from_mapping(given)
    assert RegistrySettings.from_json(made.to_json()) == made
    assert RegistrySettings.from_environment({REGISTRY_VARIABLE: made.to_json()}) == made
    assert RegistrySettings.from_environment({}) is None
    # the client's HTTP library logs its URLs
    wanted = {"url": "https://registry.example:8081/path,http://other:1", "basic.auth.user.info": "who:in-the-url"}
    assert made.for_client() == given | wanted | {"timeout": 2.5, "max.retries": 1}
    assert made.address == "https://registry.example:8081/path,http://other:1"
    for text in (repr(made), str(made), f"{made!r}"):
        assert "registry.example" in text
        assert not any(secret in text for secret in ("in-the-url", "of-the-key", "the-token", "of-the-proxy"))
    said = made.scrub("in-the-url of-the-key the-token of-the-proxy other")
    assert said == "*** *** *** *** other"
    decoded = RegistrySettings.from_mapping({"url": "http://u:p%3Aw@a, http://u:p%3Aw@b"})
    assert decoded.for_client()["basic.auth.user.info"] == "u:p:w" and decoded.address == "http://a,http://b"
    basic = RegistrySettings.from_mapping({"url": "http://r", "basic.auth.user.info": "user:pä:ss"})
    assert basic.scrub("no pä:ss and no p%C3%A4%3Ass, user") == "no *** and no ***, user"


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ({"host": "r", "port": 8081}, {"url": "http://r:8081"}),
        ({"host": "r", "schema": "https", "login": "u", "password": "p"}, {"url": "https://r", "user": "u:p"}),
        ({"host": "https://r/api", "port": 8443}, {"url": "https://r:8443/api"}),
        ({"host": "http://r:1/api", "port": 2}, {"url": "http://r:1/api"}),
        ({"host": None, "extra": {"url": "http://x", "timeout": 3}}, {"url": "http://x", "timeout": 3}),
    ],
)
def test_an_airflow_connection_of_type_http_will_do(parts: dict[str, Any], wanted: dict[str, Any]) -> None:
    made = RegistrySettings.from_connection(**parts).for_client()
    assert made["url"] == wanted["url"]
    assert made.get("basic.auth.user.info") == wanted.get("user")
    assert made["timeout"] == wanted.get("timeout", 10)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "has no url"),
        ({"url": "r:8081"}, "is not http://host:port"),
        ({"url": "mock://x"}, "is not http://host:port"),
        ({"url": "http://u:topsecret@:99999999"}, "is not http://host:port"),
        ({"url": "http://u:topsecret@a,http://v:topsecret@b"}, "several logins"),
        ({"url": "http://u:topsecret@a", "basic.auth.user.info": "u:topsecret"}, "several logins"),
        ({"url": "http://r", "basic.auth.userinfo": "topsecret"}, "Did you mean basic.auth.user.info"),
        ({"url": "http://r", "ssl.key.password": {"x": "topsecret"}}, "ssl.key.password of .* is a dict"),
        ({"url": "http://r", "timeout": 0}, "timeout of the schema registry is 0"),
        ({"url": "http://r", "max.retries": "many"}, "max.retries of the schema registry is 'many'"),
    ],
)
def test_wrong_registry_settings_are_named_without_secrets(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        RegistrySettings.from_mapping(given)
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"'])
def test_settings_that_are_no_json_object_are_refused_unseen(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not a JSON object"):
        RegistrySettings.from_json(text)


def parts(columns: t.StructType) -> tuple[list[str], str | None]:
    found = record(kind_of(columns), "json")
    return [field.name for field in found.kind.fields], found.whole


def test_the_columns_that_are_left_make_the_value() -> None:
    kind = struct(key=TEXT, a=INT, headers=TEXT, topic=TEXT, partition=INT, timestamp=t.TimestampType(), b=t.DateType())
    assert parts(kind) == (["a", "b"], None)
    assert parts(struct(key=TEXT, value=struct(x=INT, y=TEXT))) == (["x", "y"], "value")
    assert parts(struct(value=struct(x=INT), other=INT)) == (["value", "other"], None)
    assert text_column(struct(key=TEXT, amount=t.DecimalType(4, 2))) == "amount"


@pytest.mark.parametrize("value_format", ["string", "json", "confluent-avro"])
def test_no_column_left_is_said_with_the_columns_there_are(value_format: str) -> None:
    with pytest.raises(ConfigurationError, match=r"no column left to make a value of \(.*columns: key, topic;"):
        if value_format == "string":
            text_column(struct(key=TEXT, topic=TEXT))
        else:
            record(kind_of(struct(key=TEXT, topic=TEXT)), value_format)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (struct(a=INT, b=t.DayTimeIntervalType()), "column 'b' has type interval .*, which value_format 'json'"),
        (struct(a=struct(x=t.ArrayType(t.MapType(TEXT, t.NullType())))), r"column 'a.x\[\]{}' has type void"),
        (struct(a=t.MapType(INT, TEXT)), "column 'a' has type map<int,string>"),
        (struct(a=t.VariantType()), "column 'a' has type variant"),
        (struct(a=struct()), "column 'a' has type struct<>"),
        (struct(a=INT, A=TEXT), "two fields 'a' and 'A'"),
        (struct(value=struct(x=struct(b=INT, B=INT))), "two fields 'x.b' and 'x.B'"),
    ],
)
def test_a_type_that_the_format_cannot_carry_is_named(columns: t.StructType, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        record(kind_of(columns), "json")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (struct(a=INT, b=INT), "takes one column, and there are 2: a, b"),
        (struct(a=t.BinaryType()), "column 'a' has type binary, which value_format 'string' cannot carry"),
        (struct(a=struct(x=INT)), "column 'a' has type struct<x:int>"),
    ],
)
def test_string_takes_one_column_that_has_a_text(columns: t.StructType, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        text_column(columns)


def test_the_schemas_take_a_new_nullable_column_and_name_nested_records_once() -> None:
    kind = t.StructType([
        t.StructField("a", t.LongType(), False),
        t.StructField("b_c", t.StructType([t.StructField("d", t.IntegerType())])),
        t.StructField("b", t.StructType([t.StructField("c", t.StructType([t.StructField("d", t.IntegerType())]))])),
    ])  # fmt: skip
    text = avro_schema(kind_of(kind), "org.Order")
    assert text == avro_schema(kind_of(kind), "org.Order")
    fields = {field["name"]: field for field in json.loads(text)["fields"]}
    assert fields["a"] == {"name": "a", "type": "long"}
    assert (fields["b_c"]["type"][0], fields["b_c"]["default"]) == ("null", None)
    assert fields["b_c"]["type"][1]["name"] == "org.Order.b_c"
    assert fields["b"]["type"][1]["fields"][0]["type"][1]["name"] == "org.Order.b.c"
    described = json.loads(json_schema(kind_of(kind), "org.Order"))
    assert (described["title"], described["required"], described["additionalProperties"]) == ("org.Order", ["a"], False)


@pytest.mark.parametrize("name", ["2a", "a-b", "a.b", "ü", ""])
def test_a_name_that_avro_does_not_allow_is_refused(name: str) -> None:
    kind = t.StructType([t.StructField("x", t.StructType([t.StructField(name, t.LongType())]))])
    with pytest.raises(ConfigurationError, match="has a name that Avro does not allow"):
        avro_schema(kind_of(kind), "V")
