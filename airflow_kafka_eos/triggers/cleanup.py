"""The listing trigger: sweeps until the load's attempts are quiet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.triggers.polling import PollingTrigger

if TYPE_CHECKING:
    from airflow_kafka_eos.protocol.polling import Poll


class CleanupTrigger(PollingTrigger):
    """:param owner: the run whose attempts it may touch. :param quiet_s: seconds without anything open."""

    def __init__(self, *, owner: str, quiet_s: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.owner = owner
        self.quiet_s = quiet_s

    def fields(self) -> dict[str, Any]:
        return super().fields() | {"owner": self.owner, "quiet_s": self.quiet_s}

    def new_poll(self) -> Poll:
        from airflow_kafka_eos.protocol.polling import CleanPoll

        return CleanPoll(self.load_identity, owner=self.owner, quiet_s=self.quiet_s)
