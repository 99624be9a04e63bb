"""cleanup: the load's teardown; lists what the run's attempts left open and ends it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.sensors.polling import PollingLoadSensor
from airflow_kafka_eos.triggers.cleanup import CleanupTrigger

if TYPE_CHECKING:
    from airflow_kafka_eos.protocol.polling import Poll


class CleanupLoadSensor(PollingLoadSensor):
    """Reads the decision first: a decided load is rolled forward, an undecided one made undecidable and aborted.

    :param quiet_period: how long nothing may have been open after an application that never reported; a zombie
        of it may open one more transaction after a sweep.
    """

    def __init__(self, *, quiet_period: timedelta = timedelta(seconds=10), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.quiet_period = quiet_period

    def new_poll(self, owner: str) -> Poll:
        from airflow_kafka_eos.protocol.polling import CleanPoll

        return CleanPoll(self.load_identity, owner=owner, quiet_s=self.quiet_period.total_seconds())

    def new_trigger(self, owner: str) -> CleanupTrigger:
        return CleanupTrigger(**self.trigger_fields(), owner=owner, quiet_s=self.quiet_period.total_seconds())
