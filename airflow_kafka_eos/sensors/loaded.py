"""loaded: the leaf of a load; done when readers see it. Carries the asset outlets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.arguments import check_bool, check_text, check_topics
from airflow_kafka_eos.lineage.assets import LEASE_TTL, alias_of, announce, check_server, server_of
from airflow_kafka_eos.lineage.metrics import count_arrival
from airflow_kafka_eos.operators.base import (
    LoadOperator,
    Step,
    no_retry_of_terminal_errors,
    owner_of,
    task_of,
)
from airflow_kafka_eos.sensors.base import PollingLoadSensor
from airflow_kafka_eos.triggers.polling import LoadedTrigger

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context, XComArg

    from airflow_kafka_eos.protocol.cleanup.poll import Poll


class LoadedSensor(PollingLoadSensor):
    """Waits until the last stable offset has passed the load's last record; names whoever holds it back.

    Then it tells of the load, once: an asset event for each topic and each outlet (docs/assets.md).
    """

    template_fields: Sequence[str] = (*LoadOperator.template_fields, "topics")
    trigger_class = LoadedTrigger
    step_name = "loaded"

    def __init__(
        self,
        *,
        topics: Sequence[str] | XComArg = (),
        asset_events: bool = True,
        asset_server: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_text("asset_server", asset_server)
        check_server(asset_server)
        check_topics(topics, some=False)  # and again when rendered: they may come from another task
        check_bool("asset_events", asset_events)
        super().__init__(**kwargs)
        self.topics: Any = topics  # rendered when it is read
        self.asset_server = asset_server
        self._alias = alias_of(self._known_name()) if asset_events and topics else None
        if self._alias is not None:
            self.outlets = [*self.outlets, self._alias]
        self._arrival: dict[str, Any] | None = None
        self._wrote = False

    def _known_name(self) -> str:
        """The load's, but for a template: it is rendered too late for an outlet."""
        is_template = "{{" in self.load_name or "{%" in self.load_name
        return f"{self.dag_id}.{self.task_id}" if is_template else self.load_name

    def before_polling(self, owner: str) -> None:
        """
        :raises AirflowFailException: the rendered ``topics`` are no list of names.
        """
        with no_retry_of_terminal_errors():
            check_topics(self.topics, rendered=True, some=False)

    def new_poll(self, owner: str) -> Poll:
        from airflow_kafka_eos.protocol.cleanup.poll import VisiblePoll

        return VisiblePoll(self.load_identity)

    def new_trigger(self, owner: str) -> LoadedTrigger:
        return LoadedTrigger(**self.trigger_fields())

    def done(self, summary: dict[str, Any], context: Context, step: Step) -> dict[str, Any]:
        self._arrival = summary
        self._wrote = summary["by"] == owner_of(context)
        before: list[str] = []
        news = ""
        if self.outlets:
            place, by = cache(self._resolve), task_of(context)

            def acquire(what: Collection[str]) -> str | None:
                with place().ledger() as ledger:  # opened for each question: one that is away may come back
                    return ledger.acquire_lease(what, by=by, ttl=LEASE_TTL)

            told = announce(
                context,
                self.outlets,
                summary,
                alias=self._alias,
                topics=self._topics(summary),
                server=self._server(),
                acquire=acquire,
            )
            self.outlets = told.outlets  # of this run's copy of the task: Airflow tells of them with its success
            before = told.before
            news = f"; asset events: {', '.join(told.events) or 'none, they were sent before'}"
        if self._wrote and not before:  # a cleared loaded counts no load twice
            count_arrival(self.load_identity, summary, datetime.now(UTC))
        step.attempt = summary["attempt"]
        topics = ", ".join(self._topics(summary)) or "no topic"
        step.done(summary["load"], f"readers see {summary['records'] or 0:,} records in {topics}{news}")
        return summary

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """OpenLineage's hook: the topics with their rows."""
        from airflow_kafka_eos.lineage.openlineage import lineage_of

        topics = self._topics(self._arrival) if self._arrival else ()
        return lineage_of(self._arrival, topics=topics, server=self._server(), wrote=self._wrote)

    def _topics(self, arrival: dict[str, Any]) -> list[str]:
        """Those that were written to: what is in ``topics`` says what may be written, by the DAG as it is now."""
        return sorted(arrival["topics"])

    def _server(self) -> str:
        return self.asset_server or server_of(self._resolve().settings.bootstrap_servers)
