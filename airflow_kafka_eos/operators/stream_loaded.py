"""loaded, the leaf of a streaming query's run: readers see what has been committed, and those who wait are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from airflow_kafka_eos.lineage import told_up_to
from airflow_kafka_eos.operators.base import FINAL_WHEN_DECIDED, Step, dag_of, no_retry_of_terminal_errors
from airflow_kafka_eos.operators.stream import EVERY_BATCH, StreamTask
from airflow_kafka_eos.sensors import LoadedSensor
from airflow_kafka_eos.triggers import BatchesTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.protocol.cleanup.poll import Poll

#: Nothing new.
_NONE = ("", 0, -1)


class StreamLoadedSensor(LoadedSensor):
    """loaded: waits until readers see the batches that nobody was told of, and tells of them: an event for each topic.

    Which those are, the ledger and Airflow say, not the run: batches that a run has committed which failed afterwards
    are told of by the next one, and a clear tells nobody again.
    """

    trigger_class = BatchesTrigger  # type: ignore[assignment]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(load_key=EVERY_BATCH, **kwargs)
        self._new: tuple[str, int, int] = _NONE

    check_key = StreamTask.check_key

    def before_polling(self, owner: str) -> None:
        """Which batches are new.

        :raises AirflowFailException: the rendered ``topics`` are no list of names.
        """
        from airflow_kafka_eos.protocol.stages.stream_runs import committed_batches

        super().before_polling(owner)
        dag = dag_of(owner)
        with no_retry_of_terminal_errors(), self._resolve().ledger() as ledger:
            self._ledger_id = ledger.ledger_id
            stream = ledger.stream(self.namespace, self.load_name)
            if stream is None or stream.query_id is None:
                self._new = _NONE
                return
            told = told_up_to(self._told_by(), stream.query_id)

            def is_of_this_dag(row: AttemptRow) -> bool:
                # behind what was told all is new; where nobody was told of anything, it may have run elsewhere for long
                return told is not None or (dag is not None and dag_of(row.responsible) == dag)

            found = committed_batches(ledger, stream, above=-1 if told is None else told, go_on=is_of_this_dag)
        self._new = (stream.query_id, found[-1][0], found[0][0]) if found else _NONE

    def _told_by(self) -> list[Asset | AssetAlias]:
        # the alias is among them: it tells of topics that no other outlet names
        return [outlet for outlet in self.outlets if isinstance(outlet, Asset | AssetAlias)]

    def new_poll(self, owner: str) -> Poll:
        from airflow_kafka_eos.protocol.stages.stream_runs import BatchesPoll

        return BatchesPoll(self.namespace, self.load_name, *self._new, owner)

    def new_trigger(self, owner: str) -> BatchesTrigger:  # type: ignore[override]
        query_id, first, last = self._new
        return BatchesTrigger(**self.trigger_fields(), query_id=query_id, first=first, last=last, by=owner)

    def _untold(self, summary: dict[str, Any]) -> dict[str, Any]:
        """What of it nobody was told of yet: another run's ``loaded`` may have waited for the same readers."""
        if not summary["batches"]:
            return summary
        first, last = summary["batches"]
        told = told_up_to(self._told_by(), summary["query_id"])
        if told is None or told < first:
            return summary
        from airflow_kafka_eos.protocol.stages.stream_runs import arrival_of_batches

        query = self.namespace, self.load_name, summary["query_id"]
        with self.open_session(FINAL_WHEN_DECIDED) as session:
            return arrival_of_batches(session, *query, range(told + 1, last + 1)) | {"by": summary["by"]}

    def done(self, summary: dict[str, Any], context: Context, step: Step) -> dict[str, Any]:
        """
        :returns: see :func:`~airflow_kafka_eos.protocol.stages.stream_runs.arrival_of_batches`. Without ``load``, by
            which the page would look for one load of that key.
        """
        summary = self._untold(summary)
        result = {name: value for name, value in summary.items() if name != "load"}
        if not summary["batches"]:
            self.outlets = []  # of this run's copy of the task: Airflow would tell of them with its success
            self.log.info("query %s/%s: nothing new is visible, and nobody is told of anything", self.namespace,
                          self.load_name)  # fmt: skip
        else:
            super().done(summary, context, step)
        return result
