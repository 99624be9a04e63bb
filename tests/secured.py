"""Real brokers with further listeners, for logins, and with ACLs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.keeping import free_ports

PASSWORD = "t0p-secret"
#: of ``loader``. No part of it is a word of anything else: it is searched for in logs
SCRAM_PASSWORD = "xq7-l0ader-zw9"


@dataclass(frozen=True)
class Secured:
    """``alice`` may log in at ``address``, and nothing else; whoever comes by ``plain``'s own listener may all.

    ``loader`` logs in at ``loader_address``, by SASL_SSL with SCRAM-SHA-512, and may what a test grants; ``admin`` does
    so, and may all.
    """

    plain: LocalKafka
    address: str
    loader_address: str
    authority_file: Path

    def extra(self, **changes: str) -> dict[str, str]:
        """alice's login in librdkafka's keys; dots of names are written as underscores."""
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
        } | {k.replace("_", "."): v for k, v in changes.items()}

    def login(self, **changes: str) -> KafkaSettings:
        return KafkaSettings.from_mapping(self.extra(**changes))

    def loader_extra(self) -> dict[str, str]:
        """loader's login in librdkafka's keys."""
        return {
            "bootstrap.servers": self.loader_address,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "loader",
            "sasl.password": SCRAM_PASSWORD,
            "ssl.ca.location": str(self.authority_file),
        }

    def admin_properties(self) -> str:
        """admin's login as Kafka's own tools read it."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return "\n".join(
            (
                "security.protocol=SASL_SSL",
                "sasl.mechanism=SCRAM-SHA-512",
                f'sasl.jaas.config={module} required username="admin" password="{SCRAM_PASSWORD}";',
                "ssl.truststore.type=PEM",
                f"ssl.truststore.location={self.authority_file}",
                "",
            )
        )

    def loader(self) -> KafkaSettings:
        return KafkaSettings.from_mapping(self.loader_extra())


def free_port() -> int:
    """None of those that Linux hands out to connections: one of them may have it before a server comes to it."""
    (port,) = free_ports(1)
    return port


def add_listeners(plain: LocalKafka, protocols: Mapping[str, str], settings: Iterable[str]) -> dict[str, str]:
    """Restart a broker with further listeners (name -> security protocol); returns their addresses."""
    ports = free_ports(len(protocols))
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(protocols, ports, strict=True)}
    properties = plain.log_file().parent / "server.properties"
    lines = []
    for line in properties.read_text().splitlines():
        key = line.partition("=")[0]
        if key in ("listeners", "advertised.listeners"):
            line += "".join(f",{name}://{address}" for name, address in addresses.items())
        if key == "listener.security.protocol.map":
            line += "".join(f",{name}:{protocol}" for name, protocol in protocols.items())
        lines.append(line)
    properties.write_text("\n".join([*lines, *settings]) + "\n")
    plain.restart()
    return addresses


@contextmanager
def secured_broker(
    folder: Path, version: str = "4.4.0", more: Mapping[str, str] | None = None
) -> Iterator[Secured]:
    """Started, with a topic ``orders`` of one partition.

    :param more: broker settings.
    """
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        **(more or {}),
    }
    with LocalKafka(version=version, broker_settings=settings, data_dir=folder) as plain:
        plain.create_topic("orders", partitions=1)
        login = [
            "listener.name.login.sasl.enabled.mechanisms=PLAIN",
            "listener.name.login.plain.sasl.jaas.config="
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{PASSWORD}";',
        ]
        addresses = add_listeners(
            plain, {"LOGIN": "SASL_PLAINTEXT", "LOADER": "SASL_SSL"}, login + _scram_over_tls(folder)
        )
        for user in ("loader", "admin"):
            _add_scram_user(plain, user)
        yield Secured(plain, addresses["LOGIN"], addresses["LOADER"], folder / "ca.pem")


def _scram_over_tls(folder: Path) -> list[str]:
    from tests.kafka.identities import make_identity  # it needs this module

    authority = make_identity("test authority")
    server = make_identity("broker", authority)
    (folder / "ca.pem").write_text(authority.certificate_pem)
    (folder / "broker.pem").write_text(server.key_pem() + server.certificate_pem)
    return [
        "listener.name.loader.sasl.enabled.mechanisms=SCRAM-SHA-512",
        "listener.name.loader.scram-sha-512.sasl.jaas.config="
        "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        "listener.name.loader.ssl.keystore.type=PEM",
        f"listener.name.loader.ssl.keystore.location={folder / 'broker.pem'}",
    ]


def _add_scram_user(plain: LocalKafka, user: str) -> None:
    admin = AdminClient({"bootstrap.servers": plain.bootstrap_servers})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = UserScramCredentialUpsertion(user, info, SCRAM_PASSWORD.encode())
    for done in admin.alter_user_scram_credentials([wanted]).values():
        done.result(30)
