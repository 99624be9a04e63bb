"""``oauth_cb``: the name of a function that makes tokens, from settings to a client. No broker."""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_kafka_eos.errors import AccessError, BrokerUnavailableError, ConfigurationError, KafkaEosError
from airflow_kafka_eos.kafka.client import cloud_tokens, token_sources
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.token_sources import Token, TokenSource, provider_of
from tests.kafka import token_providers
from tests.kafka.token_providers import CREDENTIAL

HERE = "tests.kafka.token_providers."
BASE = {"bootstrap.servers": "b:9092", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}


@pytest.fixture(autouse=True)
def no_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test with those that it makes."""
    monkeypatch.setattr(token_sources, "_sources", {})


def living(seconds: float, text: str = "t") -> tuple[str, float]:
    return text, time.time() + seconds


# -- settings ----------------------------------------------------------------------------------------------------


def test_the_name_travels_and_the_function_does_not() -> None:
    settings = KafkaSettings.from_mapping(BASE).with_token_callback("msk", "region=eu-west-1", lambda _: living(60))
    for there in (pickle.loads(pickle.dumps(settings)), KafkaSettings.from_json(settings.to_json())):
        assert there == settings
        assert there._callback is None
        assert (there.texts["oauth_cb"], there.texts["sasl.oauthbearer.config"]) == ("msk", "region=eu-west-1")
    assert "oauth_cb=msk" in repr(settings)


def test_both_clients_get_the_same_tokens() -> None:
    settings = KafkaSettings.from_mapping(BASE | {"oauth_cb": "mine"})
    made: list[str] = []

    def mine(config: str) -> Any:
        made.append(config)
        return *living(60, f"token {len(made)}"), "me", {"logicalCluster": "one"}

    settings = settings.with_token_callback("mine", "all about it", mine)
    provider = settings.for_kafka_python()["sasl_oauth_token_provider"]
    callback = settings.for_librdkafka()["oauth_cb"]
    assert provider.token() == "token 1"
    assert provider.extensions() == {"logicalCluster": "one"}
    text, expires_s, principal, extensions = callback("ignored: it is the same text")
    assert (text, principal, extensions) == ("token 1", "me", {"logicalCluster": "one"})
    assert 50 < expires_s - time.time() <= 60
    assert made == ["all about it"]
    assert "token 1" not in repr(provider.current()) + repr(provider)


@pytest.mark.parametrize("key", ["error_cb", "throttle_cb", "stats_cb", "log_cb", "on_commit", "some_new_cb"])
def test_a_callback_that_is_not_called_is_named(key: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": "b:9092", key: "my.module.callback"})
    assert key not in settings.texts
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{key} is not called by airflow-kafka-eos" in record.getMessage()


def test_oauth_cb_where_no_token_is_asked_for_is_named(caplog: pytest.LogCaptureFixture) -> None:
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    mapping = {"bootstrap.servers": "b:9092", "oauth_cb": HERE + "raising", "error_cb": "x.y"} | login
    settings = KafkaSettings.from_mapping(mapping)
    assert "oauth_cb" not in settings.for_librdkafka()
    settings.for_kafka_python()
    said = caplog.text
    assert "error_cb, oauth_cb are not called" in said
    assert "oauth_cb is for sasl.mechanism OAUTHBEARER" in said


@pytest.mark.parametrize("given", [lambda _: living(1), 7, ["a"], " "])
def test_what_is_no_name_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"oauth_cb is .*Name the function.*token_providers"):
        KafkaSettings.from_mapping(BASE | {"oauth_cb": given})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sasl.oauthbearer.method", "oidc"),
        ("enable.sasl.oauthbearer.unsecure.jwt", True),
        ("sasl.oauthbearer.client.id", "me"),
        ("sasl.oauthbearer.scope", "kafka"),
        ("https.ca.location", "/ca.pem"),
    ],
)
@pytest.mark.parametrize("client", ["for_kafka_python", "for_librdkafka"])
def test_two_ways_to_a_token_are_refused(key: str, value: Any, client: str) -> None:
    settings = KafkaSettings.from_mapping(BASE | {"oauth_cb": HERE + "raising", key: value})
    with pytest.raises(ConfigurationError, match=rf"{key} stands beside oauth_cb"):
        getattr(settings, client)()


def test_without_any_way_to_a_token_all_ways_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"oauth_cb to what makes tokens \(msk, google"):
        KafkaSettings.from_mapping(BASE).for_kafka_python()


# -- names -------------------------------------------------------------------------------------------------------


def test_a_dotted_path_is_a_function_of_that_module() -> None:
    assert provider_of(HERE + "raising") is token_providers.raising


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no.such.module.token", "cannot be imported in this Python: ModuleNotFoundError"),
        (HERE + "no_such", "cannot be imported in this Python: AttributeError"),
        (HERE + "NOT_A_FUNCTION", "is no function"),
        ("mks", "no installed package has in this Python. Did you mean msk"),
        ("nobodys", "Use one of google, msk, a dotted path"),
    ],
)
def test_a_name_that_means_nothing_here(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        provider_of(name)
    assert name in str(caught.value)


def test_an_entry_point_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a package of somebody's has it."""
    info = tmp_path / "company_tokens-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: company-tokens\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{token_sources.GROUP}]\ncompany = {HERE[:-1]}:raising\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert provider_of("company") is token_providers.raising
    with pytest.raises(ConfigurationError, match="Did you mean company"):
        provider_of("companny")


@pytest.mark.parametrize(("name", "module"), [("msk", "aws_msk_iam_sasl_signer"), ("google", "google.auth")])
def test_a_cloud_whose_library_is_missing(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    settings = KafkaSettings.from_mapping(BASE | {"oauth_cb": name})
    with pytest.raises(ConfigurationError, match=rf"needs {module}.*airflow-kafka-eos\[{name}\]"):
        settings.for_kafka_python()


# -- what a provider may do --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: "token", "returned a str that is no token and its end"),
        (lambda: None, "returned a NoneType"),
        (lambda: ("t", time.time() + 9, "p", {}, 1), "returned a tuple"),
        (lambda: (b"t", time.time() + 9), "no printable text"),
        (lambda: ("", time.time() + 9), "no printable text"),
        (lambda: ("t\x01auth=x", time.time() + 9), "no printable text"),
        (lambda: ("t", "soon"), "a str where the token's end"),
        (lambda: ("t", True), "a bool where"),
        (lambda: ("t", float("nan")), "a float where"),
        (lambda: ("t", (time.time() + 9) * 1000), "something else than seconds"),
        (lambda: ("t", time.time() + 9, 7), "principal that is no text"),
        (lambda: ("t", time.time() + 9, "p", "x"), "extensions that are no dict"),
        (lambda: ("t", time.time() + 9, "p", {"a": 1}), "extensions that are no texts"),
        (lambda: ("t", time.time() + 9, "p", {"a": "\x01"}), "extensions that are no texts"),
    ],
)
def test_what_is_no_token_is_refused_by_name(answer: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"token provider 'mine' \(oauth_cb\) .*{said}"):
        TokenSource("mine", lambda _: answer()).current()


def test_a_token_that_has_ended_is_told() -> None:
    with pytest.raises(BrokerUnavailableError, match=r"'mine'.* ended 2\d s ago\. Check the clock of"):
        TokenSource("mine", lambda _: living(-20.5)).current()


def test_a_provider_that_raises_is_named_without_what_it_knows() -> None:
    source = TokenSource("mine", token_providers.raising, secrets=[CREDENTIAL])
    with pytest.raises(BrokerUnavailableError, match=r"'mine' \(oauth_cb\) failed: PermissionError: the service") as e:
        source.current()
    assert CREDENTIAL not in str(e.value)
    assert "eyJ" not in str(e.value)
    assert f"{socket.gethostname()}: its credentials" in e.value.remedy, "there are many hosts"
    with pytest.raises(BrokerUnavailableError) as again:
        source.current()
    assert again.value is not e.value


def test_an_error_of_ours_is_raised_as_it_is() -> None:
    """So that a provider can say that asking again does not help."""

    def refused(_: str) -> Any:
        raise AccessError("the account is locked", remedy="Ask the help desk")

    with pytest.raises(AccessError, match=r"locked\. Ask the help desk"):
        TokenSource("mine", refused).current()


def test_a_provider_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_sources, "ANSWER_S", 0.2)
    calls: list[str] = []
    free = threading.Event()

    def hanging(config: str) -> Any:
        calls.append(config)
        free.wait(20)
        return living(60)

    source = TokenSource("mine", hanging)
    for _ in range(3):
        with pytest.raises(BrokerUnavailableError, match=r"'mine' \(oauth_cb\) has not answered for 0\.2 s\. Find out"):
            source.current()
    assert len(calls) == 1, "no thread more for each try"
    free.set()
    monkeypatch.setattr(token_sources, "ANSWER_S", 30.0)
    assert source.token() == "t"


# -- renewal -----------------------------------------------------------------------------------------------------


LIFE_S = 1000.0


class Clock:
    """What a source takes for the time: it stands still but where a test lets it go on."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        return self.now

    monotonic = time

    def living(self, text: str) -> tuple[str, float]:
        return text, self.now + LIFE_S

    def goes_on(self, source: TokenSource, seconds: float, *, answers: int) -> None:
        """Until the source's thread, which is woken for it, has had so many answers in all, and waits again."""
        with source._changed:
            self.now += seconds
            source._changed.notify_all()
        end = time.monotonic() + 30
        while True:
            with source._changed:
                if source._answers == answers:
                    return
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(token_sources, "time", made)
    return made


def test_a_token_is_renewed_before_its_end_and_not_by_who_logs_in(clock: Clock) -> None:
    made: list[str] = []

    def numbered(_: str) -> Any:
        made.append(threading.current_thread().name)
        return clock.living(str(len(made)))

    source = TokenSource("mine", numbered)
    assert source.token() == "1"
    clock.goes_on(source, 0.7 * LIFE_S, answers=1)
    assert source.token() == "1"
    clock.goes_on(source, 0.1 * LIFE_S, answers=2)
    assert source.token() == "2", "while the first was good"
    assert made == ["tokens of mine"] * 2


def test_a_token_is_renewed_before_either_client_asks_for_the_next() -> None:
    """librdkafka does at 0.8 of a token's life, kafka-python logs in anew from 0.85 on: nobody waits for a provider."""
    asked, life_s = threading.Event(), 1000.0
    pauses: list[float] = []

    class Noted(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread().name == "tokens of mine" and timeout is not None:
                pauses.append(timeout)
                asked.set()
            return super().wait(timeout)

    source = TokenSource("mine", lambda _: living(life_s))
    source._changed = Noted()
    source.current()
    assert asked.wait(30)
    assert 0 < pauses[0] < 0.8 * life_s


def test_nobody_renews_for_nobody(clock: Clock) -> None:
    made: list[float] = []

    def counted(_: str) -> Any:
        made.append(clock.now)
        return clock.living("t")

    source = TokenSource("mine", counted)
    source.current()
    thread = source._thread
    assert thread is not None
    clock.goes_on(source, 0.8 * LIFE_S, answers=2)
    clock.goes_on(source, 0.8 * LIFE_S, answers=2)
    thread.join(30)
    assert source._thread is None
    assert len(made) == 2, "the first one's renewal, which nobody has used"
    clock.goes_on(source, LIFE_S, answers=2)
    source.current()
    assert len(made) == 3


def test_a_renewal_that_fails_is_tried_again_while_the_token_is_good(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def stumbling(_: str) -> Any:
        nonlocal calls
        calls += 1
        if calls in (2, 3):
            raise OSError("the network is down")
        return clock.living(str(calls))

    source = TokenSource("mine", stumbling)
    assert source.token() == "1"
    clock.goes_on(source, 0.8 * LIFE_S, answers=2)
    assert source.token() == "1"
    clock.goes_on(source, 60, answers=3)
    assert source.token() == "1"
    clock.goes_on(source, 60, answers=4)
    assert source.token() == "4"
    assert caplog.text.count("token in use is good for") == 2
    assert "'mine' (oauth_cb) failed: OSError: the network is down" in caplog.text


def test_a_process_that_was_forked_renews_by_itself() -> None:
    """Airflow forks tasks and Spark its workers; a thread stays where it was."""
    source = TokenSource("mine", lambda _: living(0.5))
    source.current()
    child = os.fork()
    if child == 0:
        time.sleep(0.6)
        done = 1
        try:
            source.current()
            done = 0
        finally:
            os._exit(done)
    assert os.waitpid(child, 0)[1] == 0


# -- clouds ------------------------------------------------------------------------------------------------------


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Credentials of nobody: MSK's tokens are signed without asking anybody."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalr-example")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield


def read_msk(token: str) -> tuple[str, dict[str, list[str]]]:
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    return url.hostname or "", parse_qs(url.query)


def test_a_token_of_msk_is_a_signed_address_of_its_region(aws: None) -> None:
    settings = KafkaSettings.from_mapping(
        BASE | {"oauth_cb": "msk", "sasl.oauthbearer.config": cloud_tokens.msk_config("cn-north-1")}
    )
    source = settings.token_source()
    assert source is not None
    found = source.current()
    host, query = read_msk(found.text)
    assert host == "kafka.cn-north-1.amazonaws.com"
    assert query["Action"] == ["kafka-cluster:Connect"]
    assert "/cn-north-1/kafka-cluster/" in query["X-Amz-Credential"][0]
    assert 800 < found.expires_s - time.time() <= 900


@pytest.mark.parametrize("config", ["", "region=", "eu-west-1"])
def test_msk_without_a_region_says_where_it_stands(config: str, aws: None) -> None:
    settings = KafkaSettings.from_mapping(BASE | {"oauth_cb": "msk", "sasl.oauthbearer.config": config})
    source = settings.token_source()
    assert source is not None
    with pytest.raises(ConfigurationError, match=r"sasl\.oauthbearer\.config names no region"):
        source.current()


def test_a_host_without_credentials_of_aws_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    source = TokenSource("msk", provider_of("msk"), "region=eu-west-1")
    with pytest.raises(KafkaEosError, match=r"'msk' \(oauth_cb\) failed: .* no credentials of AWS"):
        source.current()


def test_a_token_of_google_says_who_it_is() -> None:
    expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)
    credentials = SimpleNamespace(service_account_email="loads@p.iam", expiry=expiry, token="ya29.x")
    token, expires_s = cloud_tokens.google_token(credentials)
    header, claims, access = (base64.urlsafe_b64decode(part + "==").decode() for part in token.split("."))
    assert json.loads(header) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    said = json.loads(claims)
    assert (said["iss"], said["scope"], said["sub"]) == ("Google", "kafka", "loads@p.iam")
    assert said["exp"] == expires_s
    assert 3590 < expires_s - time.time() <= 3600
    assert access == "ya29.x"
    assert isinstance(TokenSource("google", lambda _: (token, expires_s)).current(), Token)


def test_google_without_an_account_of_a_service_says_so() -> None:
    with pytest.raises(ValueError, match="SimpleNamespace name no service account"):
        cloud_tokens.google_token(SimpleNamespace(token="t"))
