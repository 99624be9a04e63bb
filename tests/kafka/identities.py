"""What logins need, made here: certificates, a token endpoint, and one broker that knows all of them."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jwt
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from airflow_kafka_eos.sandbox.jars import QUICK_JVM
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.secured import PASSWORD, add_listeners

CLIENT_ID, CLIENT_SECRET = "loads", "cl1ent+secret:/%"
_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Identity:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(_PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        encryption = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        )
        return self.key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, encryption).decode()

    def pkcs12(self, password: str) -> bytes:
        encryption = serialization.BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"me", self.key, self.certificate, None, encryption)


def make_identity(name: str, issuer: Identity | None = None) -> Identity:
    """A certificate authority where there is no issuer, else a certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
    )
    return Identity(builder.sign(issuer.key if issuer else key, hashes.SHA256()), key)


@dataclass
class TokenEndpoint:
    """An OpenID Connect provider's token endpoint on loopback, over plain HTTP."""

    key: rsa.RSAPrivateKey = field(
        default_factory=lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048)
    )
    url: str = ""
    asked: int = 0
    tokens: list[str] = field(default_factory=list)
    #: what is answered instead of a token: status and body
    instead: tuple[int, bytes] | None = None

    def jwks(self) -> str:
        document = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return json.dumps({"keys": [document | {"kid": "one", "alg": "RS256", "use": "sig"}]})

    def key_pem(self) -> str:
        no_password = serialization.NoEncryption()
        return self.key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, no_password).decode()

    def answer(self, authorization: str, form: dict[str, str]) -> tuple[int, bytes]:
        self.asked += 1
        if self.instead is not None:
            return self.instead
        given = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        if given != f"{CLIENT_ID}:{CLIENT_SECRET}":
            return 401, json.dumps({"error": "invalid_client", "error_description": authorization}).encode()
        now = int(time.time())
        claims = {"sub": "loader", "iat": now, "exp": now + 600, "scope": form.get("scope", "")}
        claims |= {"aud": "kafka", "iss": "tests"}
        token = jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": "one"})
        self.tokens.append(token)
        return 200, json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": 600}).encode()


@contextmanager
def token_endpoint() -> Iterator[TokenEndpoint]:
    endpoint = TokenEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, answer = endpoint.answer(
                self.headers.get("Authorization", ""), dict(urllib.parse.parse_qsl(body))
            )
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            if status in (301, 302, 307):
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}/token"
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


@dataclass(frozen=True)
class Logins:
    """One broker, a listener for each way to log in (``addresses``), and what a client of each needs."""

    plain: LocalKafka
    addresses: dict[str, str]
    folder: Path
    authority: Identity
    client: Identity
    endpoint: TokenEndpoint

    def file(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def by_function(self, life_s: int) -> dict[str, str]:
        """Signed tokens of :func:`tests.kafka.token_providers.signed`; a connection ends with its token."""
        return {
            "bootstrap.servers": self.addresses["ENDING"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": "tests.kafka.token_providers.signed",
            "sasl.oauthbearer.config": f"{self.folder / 'authority.key'} {life_s}",
        }

    def tokens_made(self) -> dict[int, int]:
        """By process: how many tokens of :meth:`by_function` it has made."""
        made = self.folder / "authority.made"
        return Counter(int(line.split()[0]) for line in made.read_text().splitlines()) if made.exists() else {}

    @property
    def authority_file(self) -> str:
        return str(self.folder / "ca.pem")


@contextmanager
def broker_with_logins(folder: Path) -> Iterator[Logins]:
    authority = make_identity("test authority")
    server = make_identity("broker", authority)
    (folder / "ca.pem").write_text(authority.certificate_pem)
    (folder / "broker.pem").write_text(server.key_pem() + server.certificate_pem)
    protocols = {
        "SCRAM": "SASL_PLAINTEXT",
        "TLS": "SSL",
        "MUTUAL": "SSL",
        "BOTH": "SASL_SSL",
        "UNSECURED": "SASL_PLAINTEXT",
        "OIDC": "SASL_PLAINTEXT",
        "ENDING": "SASL_PLAINTEXT",
    }
    security = "org.apache.kafka.common.security"
    scram = f"{security}.scram.ScramLoginModule required;"
    bearer = f"{security}.oauthbearer.OAuthBearerLoginModule required;"
    settings = [
        "listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512",
        f"listener.name.scram.scram-sha-256.sasl.jaas.config={scram}",
        f"listener.name.scram.scram-sha-512.sasl.jaas.config={scram}",
        "listener.name.both.sasl.enabled.mechanisms=SCRAM-SHA-512",
        f"listener.name.both.scram-sha-512.sasl.jaas.config={scram}",
        "listener.name.mutual.ssl.client.auth=required",
        "listener.name.unsecured.sasl.enabled.mechanisms=OAUTHBEARER",
        f"listener.name.unsecured.oauthbearer.sasl.jaas.config={bearer}",
    ]
    for name in ("oidc", "ending"):
        settings += [
            f"listener.name.{name}.sasl.enabled.mechanisms=OAUTHBEARER",
            f"listener.name.{name}.oauthbearer.sasl.jaas.config={bearer}",
            f"listener.name.{name}.oauthbearer.sasl.server.callback.handler.class="
            f"{security}.oauthbearer.OAuthBearerValidatorCallbackHandler",
            f"listener.name.{name}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={(folder / 'jwks.json').as_uri()}",
            # Kafka 4.4 does not start without them
            f"listener.name.{name}.oauthbearer.sasl.oauthbearer.expected.audience=kafka",
            f"listener.name.{name}.oauthbearer.sasl.oauthbearer.expected.issuer=tests",
        ]
    # a connection ends with the token that it was logged in by, unless another one is shown before (KIP-368)
    settings.append("listener.name.ending.oauthbearer.connections.max.reauth.ms=3600000")
    for name in ("tls", "mutual", "both"):
        settings += [
            f"listener.name.{name}.ssl.keystore.type=PEM",
            f"listener.name.{name}.ssl.keystore.location={folder / 'broker.pem'}",
            f"listener.name.{name}.ssl.truststore.type=PEM",
            f"listener.name.{name}.ssl.truststore.location={folder / 'ca.pem'}",
        ]
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={(folder / 'jwks.json').as_uri()}"
    with token_endpoint() as endpoint:
        (folder / "jwks.json").write_text(endpoint.jwks())
        (folder / "authority.key").write_text(endpoint.key_pem())
        with LocalKafka(data_dir=folder / "broker", jvm_options=[*QUICK_JVM, allowed]) as plain:
            plain.create_topic("orders", partitions=1)
            addresses = add_listeners(plain, protocols, settings)
            admin = AdminClient({"bootstrap.servers": plain.bootstrap_servers})
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                info = ScramCredentialInfo(mechanism, 4096)
                user = UserScramCredentialUpsertion("alice", info, PASSWORD.encode())
                for done in admin.alter_user_scram_credentials([user]).values():
                    done.result(30)
            client = make_identity("client", authority)
            yield Logins(plain, addresses, folder, authority, client, endpoint)
