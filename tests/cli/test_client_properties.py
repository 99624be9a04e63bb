"""``--command-config`` takes what ``kafka-transactions.sh`` takes: files by Kafka's rules, stores by keytool."""

from __future__ import annotations

import base64
import shutil
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.client_properties import read_client_properties, translated
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from tests.cli.conftest import Command
from tests.secured import SCRAM_PASSWORD, Secured

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PASSWORD = "st0re-secret"
KEY_PASSWORD = "k3y-secret"


def read(tmp_path: Path, text: str | bytes) -> dict[str, str]:
    file = tmp_path / "client.properties"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_client_properties(file)


def keytool(*arguments: str) -> None:
    done = subprocess.run(["keytool", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What keytool makes: keystores with a key each, and truststores with its certificate, in both forms."""
    folder = tmp_path_factory.mktemp("stores")
    for kind, key_password in (("JKS", KEY_PASSWORD), ("PKCS12", PASSWORD)):
        keytool(
            "-genkeypair", "-alias", "client", "-keyalg", "EC", "-groupname", "secp256r1", "-dname", f"CN={kind}",
            "-keystore", f"{folder}/key.{kind}", "-storetype", kind, "-storepass", PASSWORD, "-keypass", key_password,
        )  # fmt: skip
        keytool(
            "-exportcert", "-rfc", "-alias", "client", "-keystore", f"{folder}/key.{kind}", "-storepass", PASSWORD,
            "-file", f"{folder}/{kind}.pem",
        )  # fmt: skip
        keytool(
            "-importcert", "-noprompt", "-alias", "ca", "-file", f"{folder}/{kind}.pem",
            "-keystore", f"{folder}/trust.{kind}", "-storetype", kind, "-storepass", PASSWORD,
        )  # fmt: skip
    return folder


# -- the file --------------------------------------------------------------------------------------------------------


def test_a_file_of_kafkas_own_is_read_by_javas_rules(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        f"""\
! the other comment
bootstrap.servers : h:1,\\
    i:2
security.protocol  SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config={SCRAM} required \\
    username="ada" \\
    password="a\\\\\\"b\\u00fc;=c";
""",
    )
    assert found == {
        "bootstrap.servers": "h:1,i:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ada",
        "sasl.password": 'a"bü;=c',
    }


def test_a_file_of_ours_is_read_as_it_stands(tmp_path: Path) -> None:
    found = read(tmp_path, "bootstrap.servers=h:1\nsasl.username=u\nsasl.password=a\\b\\u00fc=c\n")
    assert found["sasl.password"] == "a\\b\\u00fc=c"
    assert read(tmp_path, "\ufeffbootstrap.servers=h:1\n") == {"bootstrap.servers": "h:1"}


def test_bytes_that_are_no_utf_8_are_latin_1_as_for_java(tmp_path: Path) -> None:
    jaas = f'sasl.jaas.config={SCRAM} required username="a" password="\u00fc";'
    assert read(tmp_path, f"security.protocol=SASL_SSL\n{jaas}\n".encode("latin-1"))["sasl.password"] == "ü"


IAM = "software.amazon.msk.auth.iam."
SERVERLESS = "boot-ab1.c2.kafka-serverless.eu-west-1.amazonaws.com:9098"
BY_IAM = {
    "its own mechanism": f"""\
sasl.mechanism=AWS_MSK_IAM
sasl.jaas.config={IAM}IAMLoginModule required awsDebugCreds=true;
sasl.client.callback.handler.class={IAM}IAMClientCallbackHandler
""",
    "tokens": f"""\
sasl.mechanism=OAUTHBEARER
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
sasl.login.callback.handler.class={IAM}IAMOAuthBearerLoginCallbackHandler
sasl.client.callback.handler.class={IAM}IAMOAuthBearerLoginCallbackHandler
""",
}


def signed(token: str) -> str:
    """The address that a token of MSK's is."""
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


@pytest.mark.parametrize("how", BY_IAM)
def test_a_file_for_amazon_msk_asks_for_its_tokens(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of the ways that AWS describes for Java's clients: MSK's brokers take the same tokens from either client."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalr-example")
    found = read(tmp_path, f"security.protocol=SASL_SSL\n{BY_IAM[how]}")
    assert found == {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": "msk"}
    # the address may come beside the file: only then is the region known
    settings = KafkaSettings.from_mapping(found | {"bootstrap.servers": SERVERLESS})
    token = settings.for_kafka_python()["sasl_oauth_token_provider"].token()
    assert "//kafka.eu-west-1.amazonaws.com/" in signed(token)
    assert settings.for_librdkafka()["oauth_cb"]("")[0] == token
    private = KafkaSettings.from_mapping(found | {"bootstrap.servers": "kafka.internal:9098"})
    with pytest.raises(ConfigurationError, match=r"names no region for the token provider 'msk'.*MSK's own names"):
        private.for_kafka_python()["sasl_oauth_token_provider"].token()
    # and Java leaves alone what it does not know
    named = read(tmp_path, f"security.protocol=SASL_SSL\n{BY_IAM[how]}sasl.oauthbearer.config=region=us-east-2\n")
    private = KafkaSettings.from_mapping(named | {"bootstrap.servers": "kafka.internal:9098"})
    assert "//kafka.us-east-2." in signed(private.for_kafka_python()["sasl_oauth_token_provider"].token())


@pytest.mark.parametrize("option", ["awsProfileName=ops", "awsRoleArn='arn:aws:iam::1:role/x'", "awsStsRegion=eu-1"])
@pytest.mark.parametrize("how", BY_IAM)
def test_who_logs_in_to_amazon_msk_is_not_dropped(tmp_path: Path, how: str, option: str) -> None:
    text = BY_IAM[how].replace("required", f"required {option}")
    with pytest.raises(ConfigurationError, match=rf"has {option.partition('=')[0]}, and tokens.*AWS_PROFILE"):
        read(tmp_path, f"security.protocol=SASL_SSL\n{text}")


@pytest.mark.parametrize(
    ("java", "ours"),
    [
        ({"ssl.endpoint.identification.algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
        ({"ssl.protocol": "TLSv1.3", "ssl.enabled.protocols": "TLSv1.2,TLSv1.3"}, {}),
        ({"key.serializer": "x", "retries": "0", "acks": "1", "metrics.num.samples": "2", "linger.ms": "5"}, {}),
        ({"request.timeout.ms": "5", "default.api.timeout.ms": "5", "client.id": "ops"}, {"client.id": "ops"}),
        (
            {
                "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
                "sasl.login.callback.handler.class":
                    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
                "sasl.jaas.config":
                    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId='c' "
                    "clientSecret='s' scope='kafka' extension_pool='p';",
            },
            {
                "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": "https://idp/token", "sasl.oauthbearer.client.id": "c",
                "sasl.oauthbearer.client.secret": "s", "sasl.oauthbearer.scope": "kafka",
                "sasl.oauthbearer.extensions": "pool=p",
            },
        ),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.jaas.config":
                    "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true serviceName=kafka;",
            },
            {
                "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI",
                "sasl.kerberos.service.name": "kafka",
            },
        ),
    ],
)  # fmt: skip
def test_names_are_translated_and_what_java_keeps_to_itself_is_left_out(
    java: Mapping[str, str], ours: Mapping[str, str]
) -> None:
    assert translated(java) == ours


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("sasl.jaas.config=com.example.Own required password=\"s3cret\";", "names com.example.Own, which only Java"),
        (f"sasl.jaas.config={SCRAM} required password=\"s3cret\"", "is no entry of JAAS"),
        (f"sasl.jaas.config={SCRAM} required password \"s3cret\";", "is no entry of JAAS"),
        (f"sasl.jaas.config={SCRAM} required password=\"s3cret;", "is no entry of JAAS"),
        ("ssl.engine.factory.class=com.example.Own", "ssl.engine.factory.class is 'com.example.Own'"),
        ("ssl.enabled.protocols=TLSv1.3", "name TLSv1.2 too"),
        ("sasl.login.callback.handler.class=com.example.Own", "which only Java can run"),
        ("config.providers=file", "config.providers is 'file'"),
        ("ssl.truststore.location=/nowhere/trust.jks", "ssl.truststore.location names cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_without_a_secret(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, f"security.protocol=SASL_SSL\n{line}\nsasl.login.read.timeout.ms=5\n")
    assert says in str(refused.value) and "s3cret" not in str(refused.value)


# -- the stores ------------------------------------------------------------------------------------------------------


def certificate(text: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(text.encode())


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_a_truststore_of_keytools(tmp_path: Path, stores: Path, kind: str) -> None:
    location = f"ssl.truststore.location={stores}/trust.{kind}\n"
    found = read(tmp_path, f"{location}ssl.truststore.password={PASSWORD}\n")
    assert certificate(found.pop("ssl.ca.pem")) == certificate((stores / f"{kind}.pem").read_text())
    assert found == {}
    with pytest.raises(ConfigurationError, match=r"ssl\.truststore\.password is not its password") as refused:
        read(tmp_path, f"{location}ssl.truststore.password=wr0ng\n")
    assert "wr0ng" not in str(refused.value)


def test_a_jks_keystore_of_keytools_with_a_password_of_the_keys_own(tmp_path: Path, stores: Path) -> None:
    where = f"ssl.keystore.location={stores}/key.JKS\nssl.keystore.password={PASSWORD}\n"
    found = read(tmp_path, f"{where}ssl.key.password={KEY_PASSWORD}\n")
    key = serialization.load_pem_private_key(found["ssl.key.pem"].encode(), found["ssl.key.password"].encode())
    theirs = certificate((stores / "JKS.pem").read_text())
    assert certificate(found["ssl.certificate.pem"]) == theirs and key.public_key() == theirs.public_key()
    assert KEY_PASSWORD not in str(found) and "PRIVATE" not in repr(
        KafkaSettings.from_mapping(found | {"bootstrap.servers": "h:1"})
    )
    with pytest.raises(ConfigurationError, match="has a key under another password"):
        read(tmp_path, where)


def test_every_byte_that_is_lost_or_changed_is_noticed(tmp_path: Path, stores: Path) -> None:
    whole = (stores / "trust.JKS").read_bytes()
    for at in range(4, len(whole), 97):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            (tmp_path / "trust.jks").write_bytes(damaged)
            with pytest.raises(ConfigurationError, match="is damaged"):
                read(tmp_path, f"ssl.truststore.location={tmp_path}/trust.jks\nssl.truststore.password={PASSWORD}\n")


def test_a_store_of_another_form_comes_with_the_command_that_converts_it(tmp_path: Path, stores: Path) -> None:
    keytool(
        "-importkeystore", "-noprompt", "-srckeystore", f"{stores}/trust.PKCS12", "-srcstorepass", PASSWORD,
        "-destkeystore", f"{tmp_path}/trust.jceks", "-deststoretype", "JCEKS", "-deststorepass", PASSWORD,
    )  # fmt: skip
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, f"ssl.truststore.location={tmp_path}/trust.jceks\n")
    assert "a JCEKS keystore" in str(refused.value)
    command = str(refused.value).partition("Make PKCS#12 of it: ")[2].rstrip(".").split()
    assert command[0] == "keytool"
    keytool(*command[1:], "-noprompt", "-srcstorepass", PASSWORD, "-deststorepass", PASSWORD)
    found = read(
        tmp_path, f"ssl.truststore.location={tmp_path}/trust.jceks.p12\nssl.truststore.password={PASSWORD}\n"
    )
    assert certificate(found["ssl.ca.pem"]) == certificate((stores / "PKCS12.pem").read_text())


def test_pem_as_kafka_has_it_in_one_line(tmp_path: Path, stores: Path) -> None:
    text = (stores / "JKS.pem").read_text()
    continued = " \\\n".join(text.split("\n"))
    found = read(tmp_path, f"ssl.truststore.type=PEM\nssl.truststore.certificates={continued}\n")
    assert certificate(found["ssl.ca.pem"]) == certificate(text)
    ssl.create_default_context(cadata=found["ssl.ca.pem"])  # OpenSSL takes lines only
    pem = f"ssl.keystore.type=PEM\nssl.keystore.location={stores}/JKS.pem\n"
    assert read(tmp_path, pem) == {
        "ssl.certificate.location": f"{stores}/JKS.pem", "ssl.key.location": f"{stores}/JKS.pem",
    }  # fmt: skip


# -- a broker --------------------------------------------------------------------------------------------------------


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["JKS", "PKCS12", "PEM"])
def test_one_file_serves_kafkas_clients_and_ours(
    secured: Secured, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    trust = tmp_path / f"trust.{kind}"
    if kind == "PEM":
        shutil.copy(secured.authority_file, trust)
    else:
        keytool(
            "-importcert", "-noprompt", "-alias", "ca", "-file", str(secured.authority_file),
            "-keystore", str(trust), "-storetype", kind, "-storepass", PASSWORD,
        )  # fmt: skip
    file = tmp_path / "client.properties"
    file.write_text(
        f"bootstrap.servers={secured.loader_address}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM} required \\\n  username="loader" password="{SCRAM_PASSWORD}";\n'
        f"ssl.truststore.type={kind}\nssl.truststore.location={trust}\n"
        + ("" if kind == "PEM" else f"ssl.truststore.password={PASSWORD}\n")
    )
    monkeypatch.setenv("AIRFLOW_KAFKA_EOS_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    assert command("ledger", "upgrade").code == 0
    seen = command("transactions", "list", "--command-config", str(file))
    # logged in; what it may not see is another matter
    assert seen.out == "no open transactions that this login may see\n", seen
    assert f"at {secured.loader_address}" in seen.err, seen
    # where Kafka's own tools take them: before the command
    assert command("transactions", "--command-config", str(file), "list").out == seen.out
    file.write_text(file.read_text().replace(SCRAM_PASSWORD, "wr0ng-secret"))
    refused = command("transactions", "list", "--command-config", str(file), "--timeout", "5")
    assert refused.code == 2 and "refused the login" in refused.err
    for answer in (seen, refused):
        assert SCRAM_PASSWORD not in str(answer) and "wr0ng-secret" not in str(answer) and PASSWORD not in str(answer)
