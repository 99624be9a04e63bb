"""begin: open an attempt in the ledger, make older ones undecidable, sweep what they left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_kafka_eos.arguments import choose, is_filled_in_later
from airflow_kafka_eos.errors import ConfigurationError, UndecidableError
from airflow_kafka_eos.generation import refuse_reserved
from airflow_kafka_eos.load import OnCommitted, OnCommittedText, Verdict
from airflow_kafka_eos.operators.base import (
    LoadOperator,
    no_retry_of_terminal_errors,
    owner_index,
    owner_of,
    refuse_siblings,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_eos.ledger.rows import AttemptRow


class BeginLoadOperator(LoadOperator):
    """The setup task of a load. Its teardown is the cleanup sensor.

    ::

        begin = BeginLoadOperator(task_id="begin", load_name="orders", on_committed="reload")
        key = "{{ ti.xcom_pull(task_ids='begin')['load_key'] }}"
        prepare = PrepareLoadOperator(task_id="prepare", load_name="orders", load_key=key, ...)

    :param on_committed: what happens with a load that is committed already. ``skip``: it passes as done, nothing is
        written again. ``fail``: begin fails, unless this run's own group committed it. ``reload``: it is written once
        more, as a load with the key ``<load_key>~reload-<n>``; all other steps must take begin's ``load_key``, as
        above. Clearing the whole group, or ``prepare`` with what is downstream, reloads; clearing less of it does not,
        nor does a retry, but for one that comes when another run has committed meanwhile (ADR 17). (templated)
    :param item: what tells this load from the others of a mapped group: a text, or a list of topics. Its name is put
        behind ``load_key``, so that no load is known by the position of its map index. (templated)
    """

    template_fields: Sequence[str] = (*LoadOperator.template_fields, "on_committed", "item")

    def __init__(
        self, *, on_committed: OnCommittedText | str = "skip", item: Any = None, **kwargs: Any
    ) -> None:
        choose("on_committed", on_committed, OnCommitted.read)
        if item is not None and not is_filled_in_later(item):
            name_of_item(item)
        # the other steps of the load ask for what it returns
        super().__init__(**kwargs | {"do_xcom_push": True})
        self.on_committed = on_committed
        self.item = item
        self._has_own_key = self._has_own_key or item is not None

    def pre_execute(self, context: Any) -> None:
        """See :meth:`LoadOperator.pre_execute`; and make the load's key of ``load_key`` and ``item``."""
        super().pre_execute(context)
        if self.item is not None:
            with no_retry_of_terminal_errors():
                self.load_key = f"{self.load_key}/{name_of_item(self.item)}"

    def execute(self, context: Context) -> dict[str, Any]:
        """Open or keep an attempt; returns the load's key, and the attempt's number and verdict for the UI."""
        from airflow_kafka_eos.protocol.opening import begin
        from airflow_kafka_eos.protocol.reloading import reload

        owner = owner_of(context)
        with self.open_session() as session:
            mode = OnCommitted.read("on_committed", self.on_committed)
            load = self.load_identity
            refuse_reserved(load)
            if mode is OnCommitted.RELOAD:
                load = reload(session, load, owner=owner, whole=self._whole_group_runs(context))
            row = begin(session, load, owner=owner, data_interval=_data_interval(context))
            refuse_siblings(row, context)
            if mode is OnCommitted.FAIL:
                refuse_loads_of_others(row, owner)
        self.log.info("load %s: attempt %d", row.load, row.number)
        return {
            "load": str(row.load),
            "load_key": row.load.key,
            "attempt": row.number,
            "verdict": row.verdict.value if row.verdict else None,
        }

    def _whole_group_runs(self, context: Any) -> bool:
        """Whether no later step of this load has succeeded and stays so: clearing a part brings its setup along."""
        if not self.has_dag():  # type: ignore[no-untyped-call]
            return True
        group = self.task_id.rpartition(".")[0]
        steps = [
            task.task_id
            for task in self.get_flat_relatives(upstream=False)
            if isinstance(task, LoadOperator)
            and not task.is_teardown
            and task.task_id.rpartition(".")[0] == group
        ]
        if not steps:
            return True
        ti = context["ti"]
        found = ti.get_task_states(
            dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=steps, map_index=owner_index(context)
        )
        return "success" not in found.get(ti.run_id, {}).values()


def name_of_item(item: Any) -> str:
    """How an item stands in a key: topics in any order have one name, and no item looks like another.

    :raises ConfigurationError: the item has no name.
    """
    parts = [item] if isinstance(item, str) else item
    if not isinstance(parts, Sequence) or not parts or not all(isinstance(p, str) and p.strip() for p in parts):
        raise ConfigurationError(
            f"item={item!r} cannot name a load",
            remedy="Let each item be a text, or a list of topics",
        )
    return ",".join(sorted(quote(part, safe=" :@+") for part in parts))


def refuse_loads_of_others(row: AttemptRow, owner: str) -> None:
    """``on_committed="fail"``: what somebody else has committed does not pass for this run's.

    :raises UndecidableError: naming who has.
    """
    if row.verdict is Verdict.COMMIT and row.responsible != owner:
        raise UndecidableError(
            f"the load is decided to be committed already, by {row.responsible} at {row.decided_at}",
            remedy="Nothing was written by this run. To load it once more set on_committed='reload', to let it pass "
            "on_committed='skip'; or give this load another load_key",
            load=str(row.load),
            attempt=row.number,
        )


def _data_interval(context: Any) -> tuple[str, str] | None:
    run = context["dag_run"]
    start, end = run.data_interval_start, run.data_interval_end
    # a manual run has no logical date, and its interval says nothing about the data
    if run.logical_date is None or start is None or end is None:
        return None
    return start.isoformat(), end.isoformat()
