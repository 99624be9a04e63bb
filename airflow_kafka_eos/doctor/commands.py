"""The commands that mend what was found, as they are pasted into a shell: Kafka's own tools, and ours. No I/O.

In a remedy each command is a line of its own, and nothing else of it begins like one: see :func:`in_remedy`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_kafka_eos.doctor.iam import statement
from airflow_kafka_eos.kafka.admin.inspect import TopicSeen
from airflow_kafka_eos.kafka.client.cloud_tokens import MSK
from airflow_kafka_eos.kafka.client.settings import TOKEN_CALLBACK, KafkaSettings

#: In Kafka's own client settings the login of somebody who may do this. We know of no such login.
ADMIN_CONFIG = "admin.properties"
_PROGRAMS = ("kafka-", "airflow-kafka-eos ")
#: A shell says it, and stops, where the variable is not set.
_UNKNOWN_PRINCIPAL = '"User:${PRINCIPAL:?set it to the name that brokers log this login by}"'


@dataclass(frozen=True)
class Commands:
    """For one cluster.

    :param login: whether the tools need a login, which is never printed.
    :param user: what brokers call the login that was examined; None where only they can tell.
    :param by_iam: its rights are actions of an IAM policy, which no tool of Kafka's grants.
    """

    bootstrap_servers: str
    login: bool = False
    user: str | None = "ANONYMOUS"
    by_iam: bool = False

    @classmethod
    def of(cls, settings: KafkaSettings) -> Commands:
        """
        :param settings: the login that was examined.
        """
        login = settings.security_protocol != "PLAINTEXT"
        user = None if login else "ANONYMOUS"
        if settings.sasl_mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            # of certificates, tokens and tickets the brokers' own rules make a name
            user = settings.texts.get("sasl.username")
        return cls(settings.bootstrap_servers, login, user, settings.texts.get(TOKEN_CALLBACK) == MSK)

    def topic_config(self, topic: str, setting: str) -> str:
        return (
            f"kafka-configs.sh {self._where} --alter --entity-type topics --entity-name {shlex.quote(topic)} "
            f"--add-config {shlex.quote(setting)}"
        )

    def dynamic_config(self, setting: str) -> str:
        """For settings that brokers take while they run."""
        return (
            f"kafka-configs.sh {self._where} --alter --entity-type brokers --entity-default "
            f"--add-config {shlex.quote(setting)}"
        )

    def server_properties(self, *settings: str) -> str:
        """For settings that brokers read when they start. No command."""
        return f"In server.properties of every broker: {' and '.join(settings)}; then restart them one by one"

    def feature(self, level: str) -> str:
        return f"kafka-features.sh {self._where} upgrade --feature {level}"

    def create_topic(self, topic: str, brokers: int) -> str:
        return (
            f"kafka-topics.sh {self._where} --create --topic {shlex.quote(topic)} --partitions 6 "
            f"--replication-factor {max(1, min(3, brokers))}"
        )

    def allow(self, operations: str | Sequence[str], resource: str, name: str = "", *, prefixed: bool = False) -> str:
        """The ACLs that a login lacks; for one by IAM, in words, what to allow in its policy.

        :param operations: as the protocol names them, such as ``TWO_PHASE_COMMIT``.
        :param resource: ``topic``, ``transactional-id`` or ``cluster``.
        """
        every = [operations] if isinstance(operations, str) else operations
        if self.by_iam:
            return statement(every, resource, name, prefixed=prefixed)
        words = ("".join(word.capitalize() for word in operation.split("_")) for operation in every)
        asked = " ".join(f"--operation {word}" for word in words)
        pattern = " --resource-pattern-type prefixed" if prefixed else ""
        what = f"--{resource} {shlex.quote(name)}" if name else f"--{resource}"
        who = _UNKNOWN_PRINCIPAL if self.user is None else shlex.quote(f"User:{self.user}")
        return f"kafka-acls.sh {self._where} --add --allow-principal {who} {asked} {what}{pattern}"

    def replicas(self, topic: TopicSeen, count: int, brokers: Sequence[int]) -> str:
        """More copies of each partition; those that it has stay, and lead.

        :param brokers: at least ``count`` of them.
        """
        file = f"{topic.name}-replicas.json"
        wanted = {
            "version": 1,
            "partitions": [
                {"topic": topic.name, "partition": p.partition, "replicas": _more(p.replicas, count, brokers, n)}
                for n, p in enumerate(topic.partitions)
            ],
        }
        text = json.dumps(wanted, separators=(",", ":"))
        return (
            f"kafka-reassign-partitions.sh {self._where} --execute --reassignment-json-file "
            f"<(echo {shlex.quote(text)})"
            if len(text) < 4000
            else f"For a topic with so many partitions write the file by a program: kafka-reassign-partitions.sh "
            f"{self._where} --execute --reassignment-json-file {shlex.quote(file)}"
        )

    @property
    def _where(self) -> str:
        where = f"--bootstrap-server {shlex.quote(self.bootstrap_servers)}"
        return f"{where} --command-config {ADMIN_CONFIG}" if self.login else where


def of_ours(command: str, *arguments: str, flags: str = "") -> str:
    """A command of ours.

    :param flags: which cluster and ledger, as text for the shell.
    """
    words = [f"airflow-kafka-eos {command}", *(shlex.quote(a) for a in arguments), flags]
    return " ".join(word for word in words if word)


def in_remedy(remedy: str) -> tuple[str, ...]:
    """The commands of a remedy."""
    return tuple(line for line in remedy.splitlines() if line.startswith(_PROGRAMS))


def _more(replicas: Sequence[int], count: int, brokers: Sequence[int], start: int) -> list[int]:
    others = [b for b in brokers if b not in replicas]
    turned = others[start % len(others) :] + others[: start % len(others)] if others else []
    return [*replicas, *turned][:count]
