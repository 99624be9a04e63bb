"""Waits until readers see a committed load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_kafka_eos.triggers.polling import PollingTrigger

if TYPE_CHECKING:
    from airflow_kafka_eos.protocol.polling import Poll


class LoadedTrigger(PollingTrigger):
    """The last stable offset against the load's last record."""

    def new_poll(self) -> Poll:
        from airflow_kafka_eos.protocol.polling import VisiblePoll

        return VisiblePoll(self.load_identity)
