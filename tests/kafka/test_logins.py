"""Each way to log in, on a real broker: the same settings for confluent-kafka and kafka-python; no secret in a text."""

from __future__ import annotations

import base64
import json
import logging
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from airflow_kafka_eos.errors import AccessError, BrokerUnavailableError, ConfigurationError, KafkaEosError
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.kafka.client.oauth import OidcTokens, UnsecuredTokens, token_provider
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import TopicPartition
from tests.kafka.identities import (
    CLIENT_ID,
    CLIENT_SECRET,
    Logins,
    broker_with_logins,
    make_identity,
    token_endpoint,
)
from tests.kafka.open_transactions import an_id, coordinator_of, open_one
from tests.secured import PASSWORD

pytestmark = pytest.mark.broker

KEY_PASSWORD = "k3y-secret"
_O = "sasl.oauthbearer."
UNSECURE = "enable.sasl.oauthbearer.unsecure.jwt"


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logins]:
    with broker_with_logins(tmp_path_factory.mktemp("logins")) as running:
        yield running


def scram(mechanism: str) -> Callable[[Logins], dict[str, str]]:
    return lambda logins: {
        "bootstrap.servers": logins.addresses["SCRAM"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }


def tls(logins: Logins) -> dict[str, str]:
    return {
        "bootstrap.servers": logins.addresses["TLS"],
        "security.protocol": "SSL",
        "ssl.ca.location": logins.authority_file,
    }


def tls_in_text(logins: Logins) -> dict[str, str]:
    return {
        "bootstrap.servers": logins.addresses["TLS"],
        "security.protocol": "SSL",
        "ssl.ca.pem": logins.authority.certificate_pem,
    }


def mutual(logins: Logins) -> dict[str, str]:
    return tls(logins) | {
        "bootstrap.servers": logins.addresses["MUTUAL"],
        "ssl.certificate.location": logins.file("client.pem", logins.client.certificate_pem),
        "ssl.key.location": logins.file("client.key", logins.client.key_pem(KEY_PASSWORD)),
        "ssl.key.password": KEY_PASSWORD,
    }


def mutual_in_text(logins: Logins) -> dict[str, str]:
    return {
        "bootstrap.servers": logins.addresses["MUTUAL"],
        "security.protocol": "SSL",
        "ssl.ca.pem": logins.authority.certificate_pem,
        "ssl.certificate.pem": logins.client.certificate_pem,
        "ssl.key.pem": logins.client.key_pem(KEY_PASSWORD),
        "ssl.key.password": KEY_PASSWORD,
    }


def mutual_by_keystore(logins: Logins) -> dict[str, str]:
    return tls(logins) | {
        "bootstrap.servers": logins.addresses["MUTUAL"],
        "ssl.keystore.location": logins.file("client.p12", logins.client.pkcs12(KEY_PASSWORD)),
        "ssl.keystore.password": KEY_PASSWORD,
    }


def both(logins: Logins) -> dict[str, str]:
    return scram("SCRAM-SHA-512")(logins) | {
        "bootstrap.servers": logins.addresses["BOTH"],
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": logins.authority_file,
    }


def unsecured(logins: Logins) -> dict[str, str]:
    return {
        "bootstrap.servers": logins.addresses["UNSECURED"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        UNSECURE: "true",
        _O + "config": "principal=loader scope=a,b lifeSeconds=600",
    }


def oidc(logins: Logins) -> dict[str, str]:
    return {
        "bootstrap.servers": logins.addresses["OIDC"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        _O + "method": "oidc",
        _O + "client.id": CLIENT_ID,
        _O + "client.secret": CLIENT_SECRET,
        _O + "token.endpoint.url": logins.endpoint.url,
        _O + "scope": "kafka",
    }


WAYS = {
    "scram-256": scram("SCRAM-SHA-256"),
    "scram-512": scram("SCRAM-SHA-512"),
    "tls": tls,
    "tls in text": tls_in_text,
    "mutual tls": mutual,
    "mutual tls in text": mutual_in_text,
    "mutual tls by keystore": mutual_by_keystore,
    "tls and scram": both,
    "unsecured token": unsecured,
    "oidc": oidc,
}


def secrets_of(logins: Logins) -> set[str]:
    client = f"{CLIENT_ID}:{CLIENT_SECRET}"
    key = logins.client.key_pem().splitlines()[1]
    encoded = base64.b64encode(client.encode()).decode()
    return {PASSWORD, KEY_PASSWORD, CLIENT_SECRET, encoded, key, *logins.endpoint.tokens}


@pytest.mark.parametrize("way", WAYS)
def test_both_clients_log_in_with_the_same_settings(
    logins: Logins, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = KafkaSettings.from_mapping(WAYS[way](logins))
    # a hook may have silenced kafka-python in this process before
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "kafka"), Wire(settings, timeout_s=20) as wire:
        assert wire.broker_ids() == [1]
        assert coordinator_of(wire).describe([an_id("nobody")]) == {}
        assert coordinator_of(wire).list_open("airflow.") == []
    assert caplog.records
    shown = caplog.text + repr(settings) + str(settings) + repr(wire)
    assert not {secret for secret in secrets_of(logins) if secret in shown}
    producer = Producer(settings.for_librdkafka() | {"transactional.id": f"login {way}"})
    producer.init_transactions(30)
    metadata = AdminClient(settings.for_librdkafka()).list_topics(timeout=20)
    assert list(metadata.brokers) == [1]


def wrong(logins: Logins) -> dict[str, tuple[dict[str, str], str]]:
    """What is wrong -> settings, and what the error says."""
    stranger = make_identity("stranger")
    foreign_file = logins.file("foreign.pem", stranger.certificate_pem)
    return {
        "scram password": (scram("SCRAM-SHA-256")(logins) | {"sasl.password": "wr0ng"}, "refused the login"),
        "scram user": (scram("SCRAM-SHA-512")(logins) | {"sasl.username": "bob"}, "refused the login"),
        "scram in tls": (both(logins) | {"sasl.password": "wr0ng"}, "refused the login"),
        "authority": (tls(logins) | {"ssl.ca.location": foreign_file}, "certificate of .* could not be verified"),
        "authority in text": (
            tls_in_text(logins) | {"ssl.ca.pem": stranger.certificate_pem},
            "certificate of .* could not be verified",
        ),
        "no certificate": (
            tls(logins) | {"bootstrap.servers": logins.addresses["MUTUAL"]},
            "refused the client's certificate",
        ),
        "foreign certificate": (
            mutual_in_text(logins)
            | {"ssl.certificate.pem": stranger.certificate_pem, "ssl.key.pem": stranger.key_pem(KEY_PASSWORD)},
            "refused the client's certificate",
        ),
        "client secret": (oidc(logins) | {_O + "client.secret": "wr0ng"}, r"token endpoint .*/token .*invalid_client"),
        "unsigned token": (unsecured(logins) | {"bootstrap.servers": logins.addresses["OIDC"]}, "refused the login"),
        "mechanism": (unsecured(logins) | {"bootstrap.servers": logins.addresses["SCRAM"]}, r"sasl\.oauthbearer"),
    }


@pytest.mark.parametrize(
    "what",
    [
        "scram password",
        "scram user",
        "scram in tls",
        "authority",
        "authority in text",
        "no certificate",
        "foreign certificate",
        "client secret",
        "unsigned token",
        "mechanism",
    ],
)
def test_a_wrong_login_is_refused_at_once(logins: Logins, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not at the deadline: that would be a BrokerUnavailableError, and tried again."""
    changed, said = wrong(logins)[what]
    settings = KafkaSettings.from_mapping(changed)
    with (
        caplog.at_level(logging.DEBUG),
        caplog.at_level(logging.DEBUG, "kafka"),
        Wire(settings, timeout_s=60) as wire,
        pytest.raises(AccessError, match=said) as caught,
    ):
        wire.broker_ids()
    text = str(caught.value) + repr(caught.value) + caplog.text + repr(settings)
    assert not {secret for secret in {"wr0ng", *secrets_of(logins)} if secret in text}


def broken_files(logins: Logins) -> list[tuple[dict[str, str], str]]:
    stranger = make_identity("stranger")
    store = logins.file("client.p12", logins.client.pkcs12(KEY_PASSWORD))
    return [
        (mutual_in_text(logins) | {"ssl.key.password": "wr0ng"}, "ssl.key.pem"),
        (mutual_in_text(logins) | {"ssl.key.pem": stranger.key_pem(KEY_PASSWORD)}, "ssl.key.pem"),
        (mutual_in_text(logins) | {"ssl.ca.pem": "no PEM"}, "ssl.ca.pem"),
        (tls(logins) | {"ssl.keystore.location": store, "ssl.keystore.password": "wr0ng"}, "ssl.keystore.password"),
        (tls(logins) | {"ssl.keystore.location": "/nowhere.p12"}, "ssl.keystore.location"),
        (tls(logins) | {"ssl.keystore.location": logins.authority_file}, "ssl.keystore.location"),
        ({k: v for k, v in mutual_in_text(logins).items() if k != "ssl.key.pem"}, "ssl.key.pem"),
    ]


def test_certificates_that_cannot_be_used_are_named(logins: Logins) -> None:
    for changed, key in broken_files(logins):
        with pytest.raises(ConfigurationError, match=key) as caught:
            KafkaSettings.from_mapping(changed).for_kafka_python()
        text = str(caught.value) + repr(caught.value.__cause__)
        assert not {secret for secret in {"wr0ng", *secrets_of(logins)} if secret in text}


def test_no_key_stays_on_the_disk(logins: Logins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    real = ssl.SSLContext.load_cert_chain

    def seen(self: ssl.SSLContext, certfile: str, *arguments: object, **options: object) -> None:
        modes.append(Path(certfile).stat().st_mode & 0o777)
        real(self, certfile, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", seen)
    for way in (mutual_in_text, mutual_by_keystore):
        KafkaSettings.from_mapping(way(logins)).for_kafka_python()
    with pytest.raises(ConfigurationError):
        KafkaSettings.from_mapping(mutual_in_text(logins) | {"ssl.key.password": "x"}).for_kafka_python()
    assert modes == [0o600] * 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("way", ["tls and scram", "mutual tls in text", "oidc"])
def test_every_connection_of_a_batch_logs_in(logins: Logins, way: str) -> None:
    """One that did not would answer nothing; TLS records and frames do not end at the same places."""
    before = logins.endpoint.asked
    settings = KafkaSettings.from_mapping(WAYS[way](logins))
    with Wire(settings) as wire:
        transactions = [open_one(wire, an_id(way, n), TopicPartition("orders", 0)) for n in range(60)]
        answers = coordinator_of(wire).end_many(transactions, Verdict.COMMIT)
    assert list(answers.values()) == [EndAnswer.DONE] * 60
    assert logins.endpoint.asked == before + (way == "oidc")


# -- tokens ------------------------------------------------------------------------------------------------------


def test_a_token_is_asked_for_once_for_all_connections(logins: Logins) -> None:
    before = logins.endpoint.asked
    with Wire(KafkaSettings.from_mapping(oidc(logins))) as wire:  # two connections: bootstrap, then the broker's
        wire.broker_ids()
    assert logins.endpoint.asked == before + 1


def test_a_token_is_renewed_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with token_endpoint() as endpoint:
        tokens = OidcTokens(endpoint.url, CLIENT_ID, CLIENT_SECRET, extensions={"logicalCluster": "one"})
        assert tokens.extensions() == {"logicalCluster": "one"}
        assert tokens.token() == tokens.token()
        real = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: real() + 0.79 * 600)
        tokens.token()
        assert endpoint.asked == 1
        monkeypatch.setattr(time, "monotonic", lambda: real() + 0.81 * 600)
        tokens.token()
        assert endpoint.asked == 2
        endpoint.instead = (200, json.dumps({"access_token": "of-unknown-life"}).encode())
        monkeypatch.setattr(time, "monotonic", lambda: real() + 10_000)
        assert [tokens.token(), tokens.token()] == ["of-unknown-life"] * 2
        assert endpoint.asked == 4


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ((401, b'{"error": "invalid_client", "error_description": "t0ken"}'), AccessError, r"401 \(invalid_client\)"),
        ((400, b'{"error": "see t0ken here"}'), AccessError, "400"),
        ((302, b""), AccessError, "302"),
        ((503, b"t0ken"), BrokerUnavailableError, "503"),
        ((429, b""), BrokerUnavailableError, "429"),
        ((200, b"t0ken, not JSON"), BrokerUnavailableError, "holds no token"),
        ((200, b'{"token": "t0ken"}'), BrokerUnavailableError, "holds no token"),
        ((200, b'{"access_token": "t0ken\\u0001auth=x"}'), BrokerUnavailableError, "holds no token"),
        ((200, b'["t0ken"]'), BrokerUnavailableError, "holds no token"),
    ],
)
def test_what_the_token_endpoint_may_answer(
    answer: tuple[int, bytes], error: type[KafkaEosError], said: str
) -> None:
    with token_endpoint() as endpoint:
        endpoint.instead = answer
        shown = endpoint.url.partition("://")[2]
        tokens = OidcTokens(f"http://{shown}?key=t0ken", CLIENT_ID, CLIENT_SECRET)
        with pytest.raises(error, match=said) as caught:
            tokens.token()
    text = str(caught.value) + repr(caught.value.__cause__)
    assert shown in text
    assert "t0ken" not in text
    assert CLIENT_SECRET not in text


def test_a_token_endpoint_that_is_not_there_is_named(logins: Logins) -> None:
    settings = KafkaSettings.from_mapping(oidc(logins) | {_O + "token.endpoint.url": "http://127.0.0.1:9/token"})
    with (
        Wire(settings, timeout_s=1) as wire,
        pytest.raises(BrokerUnavailableError, match=r"http://127\.0\.0\.1:9/token") as caught,
    ):
        wire.broker_ids()
    assert CLIENT_SECRET not in str(caught.value)


def test_an_unsecured_token_says_what_librdkafkas_says() -> None:
    tokens = UnsecuredTokens("principal=me scopeClaimName=roles scope=a,b lifeSeconds=60 extension_x=1")
    header, claims, signature = tokens.token().split(".")
    read = [json.loads(base64.urlsafe_b64decode(part + "==")) for part in (header, claims)]
    assert read[0] == {"alg": "none"}
    assert read[1]["sub"] == "me"
    assert read[1]["roles"] == ["a", "b"]
    assert read[1]["exp"] - read[1]["iat"] == 60
    assert signature == ""
    assert tokens.extensions() == {"x": "1"}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, _O + "method"),
        ({_O + "method": "magic"}, _O + "method"),
        ({_O + "method": "oidc"}, _O + "client.id"),
        ({_O + "method": "oidc", UNSECURE: "true"}, UNSECURE),
        ({_O + "method": "oidc", _O + "grant.type": "jwt-bearer"}, _O + "grant.type"),
        ({_O + "method": "oidc", _O + "config": "principal=x"}, _O + "config"),
        ({UNSECURE: "true", _O + "client.id": "x"}, _O + "client.id"),
        ({UNSECURE: "true"}, _O + "config"),
        ({UNSECURE: "true", _O + "config": "principal=x lifeSeconds=soon"}, _O + "config"),
        ({UNSECURE: "true", _O + "config": "principal=x colour=red"}, _O + "config"),
    ],
)
def test_what_a_token_needs_is_named(changes: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        token_provider(changes)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({_O + "token.endpoint.url": "file:///etc/passwd"}, _O + "token.endpoint.url"),
        ({_O + "extensions": "nothing"}, _O + "extensions"),
        ({"https.ca.location": "/nowhere.pem"}, "https.ca.location"),
        ({"https.ca.pem": "no PEM"}, "https.ca.pem"),
    ],
)
def test_what_an_endpoint_needs_is_named(changes: dict[str, str], key: str) -> None:
    given = {_O + "method": "oidc", _O + "client.id": "i", _O + "client.secret": "s"}
    with pytest.raises(ConfigurationError, match=key):
        token_provider(given | {_O + "token.endpoint.url": "https://idp.example/token"} | changes)
