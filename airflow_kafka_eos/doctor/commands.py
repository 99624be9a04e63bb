"""The commands that mend what was found, as Kafka's own tools take them. No I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Commands:
    """For one cluster.

    :param login: whether the tools need a login, which is never printed.
    """

    bootstrap_servers: str
    login: bool = False

    def topic_config(self, topic: str, setting: str) -> str:
        return (
            f"kafka-configs.sh {self._where} --alter --entity-type topics --entity-name {topic} "
            f"--add-config {setting}"
        )

    def dynamic_config(self, setting: str) -> str:
        """For settings that brokers take while they run."""
        return f"kafka-configs.sh {self._where} --alter --entity-type brokers --entity-default --add-config {setting}"

    def server_properties(self, *settings: str) -> str:
        """For settings that brokers read when they start."""
        return f"In server.properties of every broker: {' and '.join(settings)}; then restart them one by one"

    def feature(self, level: str) -> str:
        return f"kafka-features.sh {self._where} upgrade --feature {level}"

    def acl(self, operation: str, resource: str, name: str = "", *, prefixed: bool = False) -> str:
        """
        :param operation: as the protocol names it, such as ``TWO_PHASE_COMMIT``.
        :param resource: ``topic``, ``transactional-id`` or ``cluster``.
        """
        words = "".join(word.capitalize() for word in operation.split("_"))
        pattern = " --resource-pattern-type prefixed" if prefixed else ""
        what = f"--{resource} {name}" if name else f"--{resource}"
        return (
            f"kafka-acls.sh {self._where} --add --allow-principal User:<principal> "
            f"--operation {words} {what}{pattern}"
        )

    def replicas(self, topic: str, count: int) -> str:
        return (
            f"kafka-reassign-partitions.sh {self._where} --execute --reassignment-json-file <file that names "
            f"{count} replicas for each partition of {topic}>"
        )

    @property
    def _where(self) -> str:
        where = f"--bootstrap-server {self.bootstrap_servers}"
        return f"{where} --command-config <client.properties>" if self.login else where
