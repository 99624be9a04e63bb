"""Logins by token: an Airflow connection gives our clients what the Kafka provider's hook gives librdkafka.

The connections are those of the provider's own tests (``test_base.py`` of apache-airflow-providers-apache-kafka); each
is read by both. Of Google's provider, which brings a hundred libraries of Google's, a stand-in has the one hook.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.hooks import KafkaEosHook
from airflow_kafka_eos.kafka.client import token_sources
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka_connection import settings_of
from airflow_kafka_eos.spark.formats.settings import RegistrySettings
from tests.kafka import token_providers

HERE = "tests.kafka.token_providers."
MSK = "b-1.demo.abcde1.c2.kafka.us-east-1.amazonaws.com:9098"
SERVERLESS = "boot-abcde1.c2.kafka-serverless.eu-west-1.amazonaws.com:9098"
GOOGLE = "bootstrap.demo.us-central1.managedkafka.a-project.cloud.goog:9092"


def login(servers: str, **more: Any) -> dict[str, Any]:
    given = {"bootstrap.servers": servers, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    return given | {k.replace("__", "."): v for k, v in more.items()}


@pytest.fixture(autouse=True)
def no_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_sources, "_sources", {})


@pytest.fixture
def allowed() -> Iterator[None]:
    """What `[apache_kafka] callback_allowlist` may name."""
    if not conf.has_section("apache_kafka"):
        conf.add_section("apache_kafka")
    conf.set("apache_kafka", "callback_allowlist", f"x.y, {HERE}raising")
    yield
    conf.remove_option("apache_kafka", "callback_allowlist")


class ManagedKafkaHook:
    """As Google's provider has it, and nobody asked."""

    def get_confluent_token(self, config_str: str) -> tuple[str, float]:
        return f"of Google's provider {config_str}", time.time() + 3600


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "airflow.providers.google"
    for part in ("", ".cloud", ".cloud.hooks", ".cloud.hooks.managed_kafka"):
        monkeypatch.setitem(sys.modules, name + part, ModuleType(name + part))
    monkeypatch.setattr(sys.modules[f"{name}.cloud.hooks.managed_kafka"], "ManagedKafkaHook", ManagedKafkaHook, False)


def by_provider(extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The provider's own settings, of a connection in the environment."""
    monkeypatch.setenv("AIRFLOW_CONN_TOKENS", json.dumps({"conn_type": "kafka", "extra": extra}))
    hook: Any = KafkaBaseHook
    return hook("tokens")._build_config()  # type: ignore[no-any-return]


def by_us(extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> KafkaSettings:
    monkeypatch.setenv("AIRFLOW_CONN_TOKENS", json.dumps({"conn_type": "kafka", "extra": extra}))
    return settings_of("tokens", KafkaEosHook("tokens").get_connection("tokens").extra_dejson)


def same_function(one: Any, other: Any) -> bool:
    """Partials and bound methods are made anew each time."""
    if isinstance(one, partial) and isinstance(other, partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    return getattr(one, "__func__", one) is getattr(other, "__func__", other)


#: The provider's own cases: extra, and the name and config that travel to Spark.
CASES: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "provisioned": (login(MSK), "msk", "region=us-east-1"),
    "serverless": (login(SERVERLESS), "msk", "region=eu-west-1"),
    "china": (login("b-1.x.kafka.cn-north-1.amazonaws.com.cn:9098"), "msk", "region=cn-north-1"),
    "capitals": (login("b-1.x.kafka.US-EAST-1.amazonaws.com:9098"), "msk", "region=us-east-1"),
    "second": (login("b1:9092,b2.kafka.us-west-2.amazonaws.com:9098"), "msk", "region=us-west-2"),
    "by the other name": (
        {k.replace("mechanism", "mechanisms"): v for k, v in login(MSK).items()}, "msk", "region=us-east-1",
    ),
    "a function of one's own": (login("b:9098", oauth_cb=HERE + "raising"), HERE + "raising", None),
    "a function of one's own at MSK": (login(MSK, oauth_cb=HERE + "raising"), HERE + "raising", None),
    "Google": (login(GOOGLE), "google", None),
    "Google above a function": (login(GOOGLE, oauth_cb=HERE + "raising"), "google", None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_tokens_come_from_where_the_provider_has_them(
    case: str, monkeypatch: pytest.MonkeyPatch, allowed: None, google: None
) -> None:
    extra, name, config = CASES[case]
    theirs, ours = by_provider(extra, monkeypatch), by_us(extra, monkeypatch)
    assert same_function(ours._callback, theirs["oauth_cb"])
    assert (ours.texts["oauth_cb"], ours.texts.get("sasl.oauthbearer.config")) == (name, config)
    given = ours.for_librdkafka()
    assert given["oauth_cb"] == ours.token_source().for_librdkafka  # type: ignore[union-attr]
    ignored = {"oauth_cb", "sasl.oauthbearer.config"}
    assert {k: v for k, v in given.items() if k not in ignored} == {
        k.replace("mechanisms", "mechanism"): v for k, v in theirs.items() if k not in ignored
    }
    assert ours.for_kafka_python()["sasl_oauth_token_provider"] is ours.token_source()


@pytest.mark.parametrize(
    "extra",
    [
        {"bootstrap.servers": "localhost:9092"},
        login(MSK) | {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "p"},
        login("localhost:9092"),
        login("b-1.x.kafka.us-east-1.amazonaws.com.evil.example.com:9092"),
    ],
)
def test_no_tokens_where_the_provider_has_none(extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "oauth_cb" not in by_provider(extra, monkeypatch)
    assert "oauth_cb" not in by_us(extra, monkeypatch).texts


@pytest.mark.parametrize("list_is_empty", [True, False])
def test_a_function_that_is_not_allowed_is_refused_in_the_providers_words(
    list_is_empty: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if not list_is_empty:
        request.getfixturevalue("allowed")
    extra = login("b:9092", oauth_cb=HERE + "hanging")
    with pytest.raises(ValueError, match="Refusing to resolve") as theirs:
        by_provider(extra, monkeypatch)
    with pytest.raises(ConfigurationError, match=r"\[apache_kafka\] callback_allowlist, wherever") as ours:
        by_us(extra, monkeypatch)
    assert str(theirs.value) in ours.value.message
    assert ours.value.message.startswith("Airflow connection 'tokens': ")


def test_what_is_allowed_and_not_there_is_named(monkeypatch: pytest.MonkeyPatch, allowed: None) -> None:
    with pytest.raises(ConfigurationError, match=r"'tokens': oauth_cb cannot be imported.*'x'.*executors"):
        by_us(login("b:9092", oauth_cb="x.y"), monkeypatch)


def test_an_entry_point_needs_nobodys_leave(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Who installs a package trusts it; a connection cannot choose another."""
    info = tmp_path / "company_tokens-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: company-tokens\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{token_sources.GROUP}]\ncompany = {HERE[:-1]}:raising\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = by_us(login(MSK, oauth_cb="company"), monkeypatch)
    assert (found.texts["oauth_cb"], found._callback) == ("company", token_providers.raising)


@pytest.mark.parametrize(
    ("servers", "module", "said"),
    [
        (MSK, "aws_msk_iam_sasl_signer", r"aws_msk_iam_sasl_signer.*airflow-kafka-eos\[msk\]"),
        (GOOGLE, "airflow.providers.google", r"google provider.*airflow-kafka-eos\[google\]' apache-airflow-providers"),
    ],
)
def test_a_library_that_is_missing_is_named(
    servers: str, module: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=f"'tokens': .*{said}"):
        by_us(login(servers), monkeypatch)


def test_googles_own_connection_is_asked_for(monkeypatch: pytest.MonkeyPatch, google: None) -> None:
    def not_there(self: Any) -> None:
        raise AirflowNotFoundException("The conn_id `google_cloud_default` isn't defined")

    monkeypatch.setattr(ManagedKafkaHook, "__init__", not_there)
    with pytest.raises(ConfigurationError, match=r"'tokens': .*`google_cloud_default` isn't defined\. Make"):
        by_us(login(GOOGLE), monkeypatch)


@pytest.mark.parametrize(
    "more",
    [
        {"sasl__oauthbearer__method": "oidc", "sasl__oauthbearer__client__id": "me"},
        {"enable__sasl__oauthbearer__unsecure__jwt": True, "sasl__oauthbearer__config": "principal=me"},
    ],
)
def test_what_makes_tokens_by_itself_needs_no_provider(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Worked before, and goes on to: the provider would put MSK's above it."""
    found = settings_of("tokens", login(MSK, **more))
    assert "oauth_cb" not in found.texts


def test_tasks_and_triggers_resolve_the_same(monkeypatch: pytest.MonkeyPatch, allowed: None, tmp_path: Any) -> None:
    extra = login(MSK) | {"error_cb": "not.in.any.list"}
    monkeypatch.setenv("AIRFLOW_CONN_TOKENS", json.dumps({"conn_type": "kafka", "extra": extra}))
    url = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "ledger.db")}))
    hook = KafkaEosHook("tokens", "ledger")
    for resolved in (hook.resolve(), asyncio.run(hook.aresolve())):
        assert resolved.settings.texts["oauth_cb"] == "msk"
        assert resolved.settings._callback.args == ("us-east-1",)  # type: ignore[union-attr]
        assert resolved.ledger_url == url


def test_the_providers_own_function_makes_the_tokens_of_airflows_side(
    monkeypatch: pytest.MonkeyPatch, google: None
) -> None:
    source = by_us(login(GOOGLE), monkeypatch).token_source()
    assert source is not None
    assert source.token() == "of Google's provider "


def written(page: str) -> list[dict[str, Any]]:
    """The JSON on a page of docs/."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    return [json.loads(block) for block in re.findall(r"(?ms)^```json$(.*?)^```$", text)]


def test_the_connections_on_the_page_are_taken(google: None) -> None:
    found = [settings_of("kafka_default", extra) for extra in written("logins.md")]
    assert [one.texts["oauth_cb"] for one in found] == ["msk", "google"]


def test_the_secrets_on_the_page_are_taken_by_a_driver() -> None:
    kafka, registry = written("spark.md")
    assert KafkaSettings.from_json(json.dumps(kafka)).sasl_mechanism == "SCRAM-SHA-512"
    assert RegistrySettings.from_json(json.dumps(registry)).address == "https://registry:8081"


def test_without_airflow_msk_has_to_be_named() -> None:
    """As docs/logins.md says of a secret of Kubernetes."""
    extra = written("logins.md")[0]
    with pytest.raises(ConfigurationError, match=r"sasl\.oauthbearer\.method is missing"):
        KafkaSettings.from_json(json.dumps(extra)).for_kafka_python()
    assert KafkaSettings.from_json(json.dumps(extra | {"oauth_cb": "msk"})).token_source() is not None
