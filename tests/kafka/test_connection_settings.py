"""One set of librdkafka-style settings for every client; secrets stay out of texts."""

from __future__ import annotations

import pickle
from typing import Any

import confluent_kafka
import pytest
from kafka.net.manager import KafkaConnectionManager

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings

SECRET = "t0p-secret"
FULL = {
    "bootstrap.servers": "b1:9092, b2:9093",
    "security.protocol": "sasl_ssl",
    "sasl.mechanisms": "SCRAM-SHA-512",
    "sasl.username": SECRET + "-user",
    "sasl.password": SECRET + "-password",
    "ssl.ca.location": "/ca.pem",
    "ssl.certificate.location": "/cert.pem",
    "ssl.key.location": "/key.pem",
    "ssl.key.password": SECRET + "-key",
    "ssl.endpoint.identification.algorithm": "https",
    "client.id": "loads",
    "socket.timeout.ms": 12_000,
    "linger.ms": 20,
    "compression.codec": "zstd",
    "group.id": "readers",
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "fetch.min.bytes": 1,
    "error_cb": "my.module.callback",
    "statistics.interval.ms": None,
}


def make(**changes: Any) -> KafkaSettings:
    values = {key.replace("__", "."): value for key, value in changes.items()}
    return KafkaSettings.from_mapping({"bootstrap.servers": "b1:9092"} | values)


def test_what_kafka_python_gets() -> None:
    assert KafkaSettings.from_mapping(FULL).for_kafka_python() == {
        "bootstrap_servers": ["b1:9092", "b2:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": SECRET + "-user",
        "sasl_plain_password": SECRET + "-password",
        "ssl_cafile": "/ca.pem",
        "ssl_certfile": "/cert.pem",
        "ssl_keyfile": "/key.pem",
        "ssl_password": SECRET + "-key",
        "ssl_check_hostname": True,
        "client_id": "loads",
        "request_timeout_ms": 12_000,
    }


def test_kafka_python_knows_every_argument() -> None:
    arguments = KafkaSettings.from_mapping(FULL | {"sasl.kerberos.service.name": "kafka", "ssl.crl.location": "/c"})
    unknown = set(arguments.for_kafka_python()) - set(KafkaConnectionManager.DEFAULT_CONFIG)
    assert not unknown


def test_librdkafka_takes_what_it_gets() -> None:
    values = KafkaSettings.from_mapping(FULL).for_librdkafka()
    for dropped in ("group.id", "auto.offset.reset", "isolation.level", "fetch.min.bytes", "error_cb"):
        assert dropped not in values
    assert (values["sasl.mechanism"], values["compression.type"], values["linger.ms"]) == (
        "SCRAM-SHA-512",
        "zstd",
        "20",
    )
    without_files = {k: v for k, v in values.items() if not k.startswith("ssl.")}
    confluent_kafka.Producer(without_files | {"security.protocol": "SASL_PLAINTEXT"})


def test_no_secret_in_repr_str_or_errors() -> None:
    settings = KafkaSettings.from_mapping(FULL | {"sasl.oauthbearer.config": SECRET, "some.new.token": SECRET})
    assert SECRET not in repr(settings) + str(settings) + f"{settings}" + repr([settings])
    assert "b1:9092" in repr(settings)
    for broken in (
        {"bootstrap.servers": "nowhere", "sasl.password": SECRET},
        {"bootstrap.servers": "b:1", "acks": "0", "sasl.password": SECRET},
        {"bootstrap.servers": "b:1", "sasl.password": [SECRET]},
    ):
        with pytest.raises(ConfigurationError) as caught:
            KafkaSettings.from_mapping(broken)
        assert SECRET not in repr(caught.value) + str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        KafkaSettings.from_json(f'["{SECRET}"')
    assert SECRET not in repr(caught.value) + str(caught.value) + repr(caught.value.__cause__)


def test_json_and_pickle_round_trip() -> None:
    settings = KafkaSettings.from_mapping(FULL)
    assert KafkaSettings.from_json(settings.to_json()) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(settings) == hash(KafkaSettings.from_mapping(FULL))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("transactional.id", "mine"),
        ("transaction.timeout.ms", 60_000),
        ("enable.idempotence", False),
        ("acks", "1"),
        ("request.required.acks", 0),
        ("retries", 0),
        ("max.in.flight", 6),
        ("security.protocol", "TLS"),
        ("client.id", {"a": 1}),
        ("retries", "many"),
    ],
)
def test_what_exactly_once_cannot_live_with_is_refused_by_name(key: str, value: Any) -> None:
    names = {"request.required.acks": "acks", "max.in.flight": "max.in.flight.requests.per.connection"}
    with pytest.raises(ConfigurationError, match=names.get(key, key)) as caught:
        KafkaSettings.from_mapping({"bootstrap.servers": "b1:9092", key: value})
    assert caught.value.remedy


def test_what_it_can_live_with_is_not() -> None:
    make(enable__idempotence=True, acks="all", retries=5, security__protocol="ssl")
    make(acks=-1, enable__idempotence="true")


@pytest.mark.parametrize("servers", [None, "", "b1", "b1:", ":9092", "b1:port", "b1:1,,b2:2"])
def test_bootstrap_servers_are_needed(servers: str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        KafkaSettings.from_mapping({"bootstrap.servers": servers})


@pytest.mark.parametrize(
    ("protocol", "key", "value"),
    [
        ("SSL", "ssl.keystore.location", "/keys.p12"),
        ("SSL", "ssl.ca.pem", "-----BEGIN"),
        ("SSL", "ssl.cipher.suites", "AES"),
        ("SSL", "enable.ssl.certificate.verification", False),
        ("SSL", "ssl.endpoint.identification.algorithm", "dns"),
        ("SASL_SSL", "sasl.oauthbearer.token.endpoint.url", "https://idp.example"),
        ("SASL_SSL", "sasl.kerberos.keytab", "/key.tab"),
        ("SASL_SSL", "sasl.mechanism", "AWS_MSK_IAM"),
        ("SASL_SSL", "sasl.mechanism", "GSSAPI"),  # the package gssapi is not installed here
        ("SASL_PLAINTEXT", "sasl.username", ""),
    ],
)
def test_what_guards_the_connection_is_never_dropped_silently(protocol: str, key: str, value: Any) -> None:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    mapping = {"bootstrap.servers": "b1:9092", "security.protocol": protocol} | login | {key: value}
    with pytest.raises(ConfigurationError, match=key):
        KafkaSettings.from_mapping(mapping).for_kafka_python()


@pytest.mark.parametrize("mechanism", ["AWS_MSK_IAM", "aws_msk_iam"])
def test_a_mechanism_that_only_java_has_is_no_librdkafkas_either(mechanism: str) -> None:
    """librdkafka would say so on an executor, and not what to do."""
    mapping = {"bootstrap.servers": "b1:9092", "security.protocol": "sasl_ssl", "sasl.mechanisms": mechanism}
    with pytest.raises(ConfigurationError, match=r"AWS_MSK_IAM, which only Java.*OAUTHBEARER with oauth_cb=msk"):
        KafkaSettings.from_mapping(mapping)
    KafkaSettings.from_mapping(mapping | {"security.protocol": "SSL"})


def test_settings_of_an_unused_layer_are_no_obstacle() -> None:
    settings = make(ssl__keystore__location="/keys.p12", sasl__oauthbearer__config="x")
    assert set(settings.for_kafka_python()) == {"bootstrap_servers", "security_protocol"}


def test_what_is_masked_in_texts_of_others_is_no_plain_word() -> None:
    """A user called ``loads`` must not take the word out of every error's remedy."""
    settings = KafkaSettings.from_mapping(
        {
            "bootstrap.servers": "broker-1:9092",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "loads",
            "sasl.password": "pw",
            "ssl.ca.location": "/etc/ssl/ca-bundle.pem",
            "a.key.of.tomorrow": "x7-hunter2",
            "retries": "2147483647",
        }
    )
    assert sorted(settings.secrets) == ["pw", "x7-hunter2"]
    assert settings.passwords == ["pw"]


def test_what_opens_nothing_may_stand_in_an_operators_arguments() -> None:
    """An application's principal, its provider's address and a region have their place there, too."""
    made = KafkaSettings((
        ("sasl.kerberos.principal", "etl@EXAMPLE.COM"), ("sasl.oauthbearer.client.id", "0oa1b2c3d4"),
        ("sasl.oauthbearer.client.secret", "s3cret"), ("sasl.oauthbearer.config", "eu-central-1"),
        ("sasl.oauthbearer.token.endpoint.url", "https://idp.example/token"), ("ssl.ca.pem", "public"),
        ("ssl.certificate.pem", "public"), ("ssl.key.pem", "private"),
        ("sasl.oauthbearer.assertion.private.key.passphrase", "phrase"),
    ))  # fmt: skip
    assert sorted(made.passwords) == ["phrase", "private", "s3cret"]
