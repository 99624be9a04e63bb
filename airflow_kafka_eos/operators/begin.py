"""begin: open an attempt in the ledger, make older ones undecidable, sweep what they left, and look ahead."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_kafka_eos.arguments import check_topics, is_filled_in_later
from airflow_kafka_eos.errors import ConfigurationError, UndecidableError
from airflow_kafka_eos.generation import check_not_reserved, first_key
from airflow_kafka_eos.load import LoadState, OnCommitted, OnCommittedText, Verdict
from airflow_kafka_eos.operators.base import (
    MAPPED,
    LoadOperator,
    are_siblings,
    check_no_sibling,
    group_of,
    group_of_task,
    index_of,
    no_retry_of_terminal_errors,
    owner_index,
    owner_of,
    run_of,
)
from airflow_kafka_eos.operators.begun import BEGIN, check_not_begun_before
from airflow_kafka_eos.operators.links import AlreadyCommittedLink

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.protocol.session import Session


#: Runs whose data interval says which data they are for. That of a manual run is made of the moment of a click.
_WITH_AN_INTERVAL = ("scheduled", "backfill")


class BeginLoadOperator(LoadOperator):
    """The setup task of a load. Its teardown is the cleanup sensor.

    ::

        begin = BeginLoadOperator(task_id="begin", load_name="orders", on_committed="reload")
        key = "{{ ti.xcom_pull(task_ids='begin')['load_key'] }}"
        prepare = PrepareLoadOperator(task_id="prepare", load_name="orders", load_key=key, ...)

    Behind that it looks at what the group's prepare, or own operator, will need (:mod:`.look_ahead`): connection, job,
    topics, rights.
    """

    template_fields: Sequence[str] = (*LoadOperator.template_fields, "on_committed", "item", "topics")
    operator_extra_links = (AlreadyCommittedLink(),)
    step_name = BEGIN

    def __init__(
        self,
        *,
        on_committed: OnCommittedText | str = "skip",
        item: Any = None,
        topics: Sequence[str] | XComArg = (),
        **kwargs: Any,
    ) -> None:
        if not is_filled_in_later(on_committed):
            OnCommitted.read("on_committed", on_committed)
        if item is not None and not is_filled_in_later(item):
            name_of_item(item)
        check_topics(topics, some=False)  # and again when rendered: they may come from another task
        # the other steps of the load ask for what it returns
        super().__init__(**kwargs | {"do_xcom_push": True})
        self.on_committed = on_committed
        self.item = item
        self.topics: Any = topics  # rendered when it is read
        #: once it has run: what a person should know who sees it green
        self.note = ""
        self._has_own_key = self._has_own_key or item is not None

    def pre_execute(self, context: Any) -> None:
        """See :meth:`LoadOperator.pre_execute`; and make the load's key of ``load_key`` and ``item``."""
        super().pre_execute(context)
        if self.item is not None:
            with no_retry_of_terminal_errors():
                self.load_key = f"{self.load_key}/{name_of_item(self.item)}"

    def execute(self, context: Context) -> dict[str, Any]:
        """Open or keep an attempt; returns the load's key, and the attempt's number and verdict for the UI.

        ``note`` says of a load that is committed already by which run, and when.
        """
        from airflow_kafka_eos.operators.look_ahead import look_ahead
        from airflow_kafka_eos.protocol.stages.begin import begin, reload

        owner = owner_of(context)
        with self.as_step(context) as step:
            with self.open_session() as session:
                mode = OnCommitted.read("on_committed", self.on_committed)
                load = self.load_identity
                check_not_reserved(load)
                check_topics(self.topics, rendered=True, some=False)
                self._check_not_begun_before(session, context, again=mode is OnCommitted.RELOAD)
                if mode is OnCommitted.RELOAD:
                    load = reload(session, load, owner=owner, whole=self._whole_group_runs(context))
                interval = _data_interval(context)
                row = begin(session, load, owner=owner, data_interval=interval)
                check_no_sibling(row, context)
                if mode is OnCommitted.FAIL:
                    check_own(row, owner)
                if row.verdict is Verdict.COMMIT:
                    notes = [_committed_by(row, owner), *_other_topics(session, row, self.topics)]
                    self.note = ". ".join([*notes, *_other_interval(session, row, interval)])
                self._tell_superseded(session, row)
                look_ahead(self, context, session, row, list(self.topics))
            step.attempt = row.number
            step.done(row.load, self.note or _begun(row, owner), warns=bool(self.note))
        return {
            "load": str(row.load),
            "namespace": row.load.namespace,
            "load_name": row.load.name,
            "load_key": row.load.key,
            "attempt": row.number,
            "verdict": row.verdict.value if row.verdict else None,
            "note": self.note,
        }

    def check_begun(self, context: Any) -> None:
        """Nothing was begun before it; see :func:`.begun.check_not_begun_before`."""

    def _check_not_begun_before(self, session: Session, context: Any, *, again: bool) -> None:
        """
        :raises ConfigurationError: this run has loaded the same under another name, or is loading it.
        """
        group = self.task_id.rpartition(".")[0]
        if not self.has_dag() or any(  # type: ignore[no-untyped-call]
            isinstance(task, BeginLoadOperator) and task.task_id != self.task_id
            and task.task_id.rpartition(".")[0] == group
            for task in self.dag.tasks
        ):  # fmt: skip
            return  # hand-written, several loads in one group: they have one owner
        owner = owner_of(context)
        mapped = MAPPED in owner
        if not mapped:
            groups = {group_of_task(task_id) for task_id in self.dag.task_ids}
            is_own = partial(_is_of, owner, groups, first_key(self.load_key))
        elif self.item is not None:  # an index stands for another item behind each edit of the list
            is_own = partial(_is_of_item, owner, f"/{name_of_item(self.item)}")
        else:
            return
        check_not_begun_before(
            session.ledger,
            self.load_identity,
            owner=owner,
            by=owner if mapped else run_of(context["ti"].dag_id, context["ti"].run_id),
            is_own=is_own,
            topics=list(self.topics),
            again=again,
        )

    def _tell_superseded(self, session: Session, row: AttemptRow) -> None:
        """As prepare does, and before it: by then a zombie may have written for a while, and held back readers."""
        from airflow_kafka_eos.operators.look_ahead import store_of_group
        from airflow_kafka_eos.operators.submitting import tell_superseded

        if row.number > 1:
            try:
                store = store_of_group(self)
            except ConfigurationError as e:
                self.log.debug("prepare will say so: %s", e)
            else:
                if store is not None:
                    tell_superseded(session, store, row)

    def _whole_group_runs(self, context: Any) -> bool:
        """Whether no later step of this load has succeeded and stays so: clearing a part brings its setup along."""
        from airflow_kafka_eos.operators.own_submitter import OwnSubmitter

        if not self.has_dag():  # type: ignore[no-untyped-call]
            return True
        group = self.task_id.rpartition(".")[0]
        steps = [
            task.task_id
            for task in self.get_flat_relatives(upstream=False)
            if isinstance(task, (LoadOperator, OwnSubmitter))
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


def _is_of(owner: str, groups: Collection[str], key: str, row: AttemptRow) -> bool:
    """Whether it is this group's, or of one that the DAG has no more: Airflow adds a renamed one to a run under way.

    :param groups: that the DAG has.
    """
    if row.responsible == owner:
        return True
    is_gone = group_of(row.responsible) not in groups and index_of(row.responsible) is None
    return are_siblings(owner, row.responsible) and is_gone and first_key(row.load.key) == key


def _is_of_item(owner: str, item: str, row: AttemptRow) -> bool:
    return row.responsible == owner and first_key(row.load.key).endswith(item)


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


def check_own(row: AttemptRow, owner: str) -> None:
    """Of ``on_committed="fail"``: what somebody else has committed does not pass for this run's.

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


def _begun(row: AttemptRow, owner: str) -> str:
    if row.is_prepared:
        return f"is prepared already, by {row.responsible}: it is kept"
    return "opened" if row.responsible == owner else f"opened before, by {row.responsible}: it is kept"


def _committed_by(row: AttemptRow, owner: str) -> str:
    by = "this run itself" if row.responsible == owner else row.responsible
    return f"Already committed by {by}, decided at {row.decided_at}: nothing is written again"


def _other_topics(session: Session, row: AttemptRow, topics: Sequence[str]) -> list[str]:
    """What to say of a decided load that was written to topics that are not the load's, by now.

    One that is not COMMITTED yet is finished, wherever it was written to.

    :raises ConfigurationError: it is COMMITTED: this run would pass for a load that was never made.
    """
    written = set(session.ledger.summary(row.load, row.number).topics)
    if not topics or written <= set(topics):  # a topic that this load had no records for is fine
        return []
    were, are = ", ".join(sorted(written)), ", ".join(sorted(topics))
    known = session.ledger.load(row.load)
    if known is not None and known.state is not LoadState.COMMITTED:
        return [f"It was written to {were}, topics= names {are}: it is finished as it was begun"]
    raise ConfigurationError(
        f"this key was committed by {row.responsible}, decided at {row.decided_at}, into {were}; topics= names {are}: "
        "nothing was written there",
        remedy="One key loads once. Is a name in topics= wrong, or one missing? Correct it, and clear begin. To "
        "load the same data into another topic, give it another load_name, or a load_key of its own",
        load=str(row.load),
        attempt=row.number,
    )


def _other_interval(session: Session, row: AttemptRow, interval: tuple[str, str] | None) -> list[str]:
    """What to say of a committed load that was begun for another data interval than this scheduled run's.

    Rule: key-names-the-data.
    """
    from airflow_kafka_eos.ledger.attempts import normalise_interval

    known = session.ledger.load(row.load)
    mine = normalise_interval(row.load, interval)
    if mine is None or known is None or known.data_interval in (None, mine):
        return []
    was = known.data_interval
    assert was is not None
    return [
        f"It is of the data interval {was[0]} to {was[1]}, this run's is {mine[0]} to {mine[1]}: the data of this "
        "run is not loaded. Is load_key coarser than the schedule? (docs/load-keys.md)"
    ]


def _data_interval(context: Any) -> tuple[str, str] | None:
    run = context["dag_run"]
    start, end = run.data_interval_start, run.data_interval_end
    if run.run_type not in _WITH_AN_INTERVAL or start is None or end is None:
        return None
    return start.isoformat(), end.isoformat()
