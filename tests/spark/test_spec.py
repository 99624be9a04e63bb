"""What travels on spark-submit's command line and as Spark options: read back exactly, checked, without secrets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import LoadIdentity, TransactionScope
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.formats.settings import ValueFormat
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec

#: three such names fit a transactional id
_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=5)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
_TOPIC = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)
_LOAD = st.builds(LoadIdentity, _TEXT, _TEXT, _TEXT)
_REF = st.builds(AttemptRef, _LOAD, st.just("0123456789"), st.integers(1, 10**8))
_REPAIRS = st.dictionaries(st.integers(0, 10**8), st.integers(1, 10**8), min_size=1, max_size=4).filter(
    lambda numbers: len(set(numbers.values())) == len(numbers)
)
#: a decided attempt's lost Spark partitions
_AGAIN = st.builds(
    lambda load, numbers: AttemptRef(load, "0123456789", min(numbers.values()), None, tuple(numbers.items())),
    _LOAD,
    _REPAIRS,
)
_OPTIONS = st.builds(
    WriteOptions,
    _REF,
    st.just("/manifests"),
    st.lists(_TOPIC, min_size=1, max_size=3, unique=True).map(tuple),
    st.integers(1, 2**31 - 2),
    st.integers(1, 2**52),
    scope=st.sampled_from(["task", "load"]),
    two_phase_commit=st.sampled_from(["auto", "required", "off"]),
    writer=st.sampled_from(["auto", "arrow", "confluent"]),
)
GIVEN = {
    "topic": "orders",
    "load.name": "orders",
    "load.key": "k",
    "load.attempt": "1",
    "ledger.id": "0123456789",
    "manifest.dir": "/m",
    "transaction.timeout.ms": "1000",
    "deadline.ms": "1",
    "kafka.bootstrap.servers": "127.0.0.1:1",
}


_OPTIONS_AGAIN = st.builds(replace, _OPTIONS, attempt=_AGAIN, scope=st.just("task"))
_SPEC = st.builds(
    ApplicationSpec,
    _OPTIONS | _OPTIONS_AGAIN,
    job=st.just("orders.py:load"),
    job_args=st.dictionaries(st.text(), _JSON, max_size=3),
)


@given(_SPEC)
def test_a_specification_reads_back_as_it_was(spec: ApplicationSpec) -> None:
    assert ApplicationSpec.from_json(spec.to_json()) == spec


@given(
    st.builds(
        replace,
        _OPTIONS | _OPTIONS_AGAIN,
        claim=st.none() | st.just("me"),
        tasks=st.none() | st.integers(1, 99),
        kafka=st.sampled_from([(), (("acks", "all"), ("bootstrap.servers", "127.0.0.1:1"))]),
    )
)
def test_the_data_source_reads_what_the_application_says(options: WriteOptions) -> None:
    assert WriteOptions.parse(options.to_texts()) == options
    assert options.default_topic == (options.topics[0] if len(options.topics) == 1 else None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sql": "select 1"}, "job and sql"),
        ({"job": None}, "job and sql"),
        ({"job": " "}, "job is ' '"),
        ({"job_args": []}, "job_args"),
        ({"unknown": 1}, "unknown"),
        ({"schema_version": 1}, "schema_version"),
        ({"options": {}}, "load.name"),
        ({"options": None}, "malformed"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], named: str) -> None:
    ref = AttemptRef(LoadIdentity("a", "b", "c"), "0123456789", 1)
    spec = ApplicationSpec(WriteOptions(ref, "/m", ("t",), 1, 1), job="j.py")
    with pytest.raises(ConfigurationError, match=named):
        ApplicationSpec.from_json(json.dumps(json.loads(spec.to_json()) | change))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"topics": ()}, "topics"),
        ({"topics": ("a,b",)}, "topics"),
        ({"deadline_ms": 0}, "deadline.ms"),
        ({"transaction_timeout_ms": "5"}, "transaction.timeout.ms"),
        ({"transaction_timeout_ms": True}, "transaction.timeout.ms"),
        ({"manifest_dir": ""}, "manifest.dir"),
        ({"scope": "loads"}, "Did you mean load"),
        ({"two_phase_commit": "requierd"}, "Did you mean required"),
        ({"two_phase_commit": True}, "two.phase.commit of kafka_eos is True"),
        ({"writer": "arow"}, "Did you mean arrow"),
        ({"transaction_timeout_ms": 2**31 - 1}, "transaction.timeout.ms of kafka_eos is 2147483647"),
    ],
)
def test_a_wrong_option_is_named(change: dict[str, Any], named: str) -> None:
    options = WriteOptions(AttemptRef(LoadIdentity("a", "b", "c"), "0123456789", 1), "/m", ("t",), 1, 1)
    with pytest.raises(ConfigurationError, match=named):
        replace(options, **change)


def test_an_unknown_value_format_is_refused_with_the_near_match() -> None:
    ref = AttemptRef(LoadIdentity("a", "b", "c"), "0123456789", 1)
    text = ApplicationSpec(
        WriteOptions(ref, "/m", ("t",), 1, 1), job="j.py", value_format=ValueFormat("json")
    ).to_json()
    assert ApplicationSpec.from_json(text).value_format == ValueFormat("json")
    with pytest.raises(ConfigurationError, match="Did you mean json"):
        ApplicationSpec.from_json(text.replace('"name": "json"', '"name": "jsn"'))


def test_job_arguments_that_are_not_json_are_refused() -> None:
    ref = AttemptRef(LoadIdentity("a", "b", "c"), "0123456789", 1)
    with pytest.raises(ConfigurationError, match="job_args"):
        ApplicationSpec(WriteOptions(ref, "/m", ("t",), 1, 1), job="j.py", job_args={"x": object()}).to_json()


@pytest.mark.parametrize(
    "key",
    [
        "kafka.sasl.password",
        "kafka.sasl.username",
        "kafka.ssl.key.password",
        "kafka.sasl.oauthbearer.client.secret",
        "kafka.ssl.key.pem",
        "kafka.sasl.jaas.config",
        "kafka.ssl.keystore.password",
        "KAFKA.SASL.PASSWORD",
    ],
)
def test_a_secret_option_is_refused_and_not_shown(key: str) -> None:
    # options show in Spark's UI and event log
    with pytest.raises(ConfigurationError, match="AIRFLOW_KAFKA_EOS_KAFKA") as caught:
        WriteOptions.parse(GIVEN | {key: "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", [k for k in GIVEN if k != "kafka.bootstrap.servers"])
def test_a_missing_option_is_named(key: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        WriteOptions.parse({k: v for k, v in GIVEN.items() if k != key})


def test_an_unknown_option_is_named_with_the_nearest_one() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"transaction\.timeout of kafka_eos is unknown.*Did you mean transaction\.timeout\.ms",
    ):
        WriteOptions.parse(GIVEN | {"transaction.timeout": "1"})


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("transaction.scope", "loads", "Did you mean load"),
        ("transaction.scope", "job", "it can be task, load"),
        ("transaction.two.phase.commit", "Required", "Did you mean required"),
        ("transaction.two.phase.commit", "true", "it can be auto, required, off"),
        ("writer", "arow", "Did you mean arrow"),
        ("transaction.timeout.ms", "2147483647", "less than 2147483647"),
        ("transaction.two.phase", "off", r"Did you mean transaction\.two\.phase\.commit"),
    ],
)
def test_a_word_that_is_none_is_named_with_the_nearest_one(key: str, value: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{key}.*{says}"):
        WriteOptions.parse(GIVEN | {key: value})


@pytest.mark.parametrize(
    "key", ["load.attempt", "transaction.timeout.ms", "deadline.ms", "transaction.tasks"]
)
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "x", "²"])
def test_a_number_that_is_none_is_named(key: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        WriteOptions.parse(GIVEN | {key: value})


def test_settings_come_from_the_environment_and_options_win() -> None:
    options = WriteOptions.parse(GIVEN)
    secret = '{"bootstrap.servers": "127.0.0.1:2", "sasl.password": "hunter2"}'
    settings = options.settings({SETTINGS_VARIABLE: secret})
    assert settings.for_librdkafka() == {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "hunter2"}
    assert "hunter2" not in repr(options) + repr(settings)


def test_no_settings_at_all_says_where_to_put_them() -> None:
    options = WriteOptions.parse({k: v for k, v in GIVEN.items() if not k.startswith("kafka.")})
    with pytest.raises(ConfigurationError, match="AIRFLOW_KAFKA_EOS_KAFKA is not set"):
        options.settings({})


@pytest.mark.parametrize(
    "text", ["3", "3=", "=5", "3=5,", ",3=5", "3=5;4=6", "3=5 ,4=6", "-3=5", "3=5,3=6", "3=5,4=5"]
)
def test_repairs_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        WriteOptions.parse(GIVEN | {"load.attempt": "5", "load.repairs": text})


def test_repairs_are_numbered_by_the_lowest_and_have_no_slot_and_no_shared_transaction() -> None:
    for change in ({"load.attempt": "4"}, {"load.slot": "0"}):
        with pytest.raises(ConfigurationError, match="do not fit"):
            WriteOptions.parse(GIVEN | {"load.attempt": "5", "load.repairs": "3=5,4=6"} | change)
    ref = WriteOptions.parse(GIVEN | {"load.attempt": "5", "load.repairs": "3=6,4=5"}).attempt
    with pytest.raises(ConfigurationError, match=r"transaction\.scope of kafka_eos is 'load', and it has repairs"):
        WriteOptions(ref, "/m", ("t",), 1, 1, scope=TransactionScope.LOAD)
