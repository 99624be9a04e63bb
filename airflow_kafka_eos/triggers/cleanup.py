"""The listing trigger: sweeps until the load's attempts are quiet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.triggers.polling import PollingTrigger

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.protocol.polling import Poll


class CleanupTrigger(PollingTrigger):
    """
    :param owner: on whose behalf it acts, for the ledger.
    :param up_to: the newest attempt that it may touch.
    :param quiet_s: seconds without anything open.
    :param places: topics and partitions where the sensor has aborted something.
    :param aborted: the transactional ids of that.
    """

    def __init__(
        self,
        *,
        owner: str,
        up_to: int,
        quiet_s: float,
        places: Sequence[Sequence[Any]] = (),
        aborted: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.owner = owner
        self.up_to = up_to
        self.quiet_s = quiet_s
        self.places = places
        self.aborted = aborted

    def fields(self) -> dict[str, Any]:
        own = {"owner": self.owner, "up_to": self.up_to, "quiet_s": self.quiet_s}
        done = {"places": [list(place) for place in self.places], "aborted": list(self.aborted)}
        return super().fields() | own | done

    def is_known_to(self, ledger: Ledger) -> bool:
        """An empty one would answer that there is nothing to end."""
        return super().is_known_to(ledger) and (
            self.up_to == 0 or ledger.attempt(self.load_identity, self.up_to) is not None
        )

    def new_poll(self) -> Poll:
        from airflow_kafka_eos.protocol.polling import CleanPoll

        return CleanPoll(
            self.load_identity,
            up_to=self.up_to,
            by=self.owner,
            quiet_s=self.quiet_s,
            places=self.places,
            aborted=self.aborted,
        )
