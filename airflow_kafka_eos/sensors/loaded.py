"""loaded: the leaf of a load; done when readers see it. Carries the asset outlets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_kafka_eos.sensors.polling import PollingLoadSensor
from airflow_kafka_eos.triggers.loaded import LoadedTrigger

if TYPE_CHECKING:
    from airflow_kafka_eos.protocol.polling import Poll


class LoadedSensor(PollingLoadSensor):
    """Waits until the last stable offset has passed the load's last record; names whoever holds it back."""

    def new_poll(self, owner: str) -> Poll:
        from airflow_kafka_eos.protocol.polling import VisiblePoll

        return VisiblePoll(self.load_identity)

    def new_trigger(self, owner: str) -> LoadedTrigger:
        return LoadedTrigger(**self.trigger_fields())
