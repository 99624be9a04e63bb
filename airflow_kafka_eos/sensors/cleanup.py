"""cleanup: the load's teardown; lists what the run's attempts left open and ends it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, assert_never

from airflow.sdk.exceptions import AirflowFailException

from airflow_kafka_eos.arguments import Duration, duration
from airflow_kafka_eos.config import setting
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.naming import counted
from airflow_kafka_eos.operators.base import Step, are_siblings, no_retry_of_terminal_errors, owner_index
from airflow_kafka_eos.sensors.base import PollingLoadSensor
from airflow_kafka_eos.sensors.loaded import LoadedSensor
from airflow_kafka_eos.triggers.polling import CleanupTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll, Poll


class CleanupLoadSensor(PollingLoadSensor):
    """Reads the decision first: a decided load is rolled forward, an undecided one made undecidable and aborted.

    ::

        cleanup = CleanupLoadSensor(task_id="cleanup", load_name="orders", quiet_period=timedelta(seconds=30))
        cleanup.as_teardown(setups=begin, on_failure_fail_dagrun=True)

    What only commit or a person can end (a decided transaction was lost, its load given up, or one hangs and ALTER on
    the Cluster is missing) is not waited for. It is a warning in the log and ``problem`` in the result, no failure:
    loaded, which has waited for commit, fails the run.
    """

    trigger_class = CleanupTrigger
    step_name = "cleanup"

    def __init__(self, *, quiet_period: Duration | None = None, **kwargs: Any) -> None:
        wanted = duration("quiet_period", setting("quiet_period", quiet_period), zero=True)
        super().__init__(**kwargs)
        self.quiet_period = wanted
        self._up_to = 0
        self._poll: CleanPoll | None = None

    def before_polling(self, owner: str) -> None:
        """See :meth:`look_up`."""
        with no_retry_of_terminal_errors(), self._resolve().ledger() as ledger:
            self.look_up(ledger, owner)

    def look_up(self, ledger: Ledger, owner: str) -> None:
        """Which attempts are this run's own, once: a poll that outlives its task must not touch a later one.

        Rule: up-to-its-own-attempt.

        :raises ConfigurationError: the ledger does not know the load that begin has opened: it is another ledger.
        """
        from airflow_kafka_eos.protocol.cleanup.poll import own_number

        if ledger.load(self.load_identity) is None:
            raise ConfigurationError(
                f"the ledger {ledger!r} does not know this load, although begin has opened it",
                remedy="Let all workers use one ledger: set ledger_conn_id to a database that they share",
                load=str(self.load_identity),
            )
        rows = ledger.attempts(self.load_identity)
        self._up_to = own_number(rows, owner)
        if self._up_to == 0 and any(are_siblings(owner, r.responsible) for r in rows):
            raise ConfigurationError(
                f"this run's attempts are of {rows[-1].responsible}, cleanup is of {owner}",
                remedy="Put begin, prepare, decide, commit and cleanup of a load into one task group",
                load=str(self.load_identity),
            )

    def new_poll(self, owner: str) -> Poll:
        from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll

        self._poll = CleanPoll(
            self.load_identity, up_to=self._up_to, by=owner, quiet_s=self.quiet_period.total_seconds()
        )
        return self._poll

    def done(self, summary: dict[str, Any], context: Context, step: Step) -> dict[str, Any]:
        """
        :raises AirflowFailException: see :func:`hidden_failure`.
        """
        problem = summary.get("problem")
        hidden = hidden_failure(summary.get("state"), *_states_of_group(context))
        if hidden is not None:
            if problem:  # what is raised says something else
                self.log.warning("NOT CLEAN, and cleanup alone cannot change that: %s", problem)
            raise AirflowFailException(f"load {summary['load']}, cleaned up: {hidden}")
        step.attempt = self._up_to or None
        if problem:
            step.done(summary["load"], f"NOT CLEAN, and cleanup alone cannot change that: {problem}", warns=True)
        else:
            step.done(summary["load"], swept_text(summary["aborted"], summary.get("state")))
        return summary

    def new_trigger(self, owner: str) -> CleanupTrigger:
        return CleanupTrigger(
            **self.trigger_fields(),
            owner=owner,
            up_to=self._up_to,
            quiet_s=self.quiet_period.total_seconds(),
            partitions=() if self._poll is None else self._poll.partitions,
            aborted=() if self._poll is None else self._poll.aborted,
        )


def swept_text(aborted: Sequence[str], state: str | None) -> str:
    """What a sweep did, for people. No I/O."""
    what = f"aborted {counted(aborted)}" if aborted else "nothing was open"
    return f"clean: {what}" + ("" if state is None else f"; the load is {state}")


def hidden_failure(load: str | None, tasks: Mapping[str, str | None], leaves: Collection[str]) -> str | None:
    """Why Airflow would show the run as successful although it is not, or None. No I/O.

    Marking a run (Airflow 3.3.2) skips all of its tasks that have not begun, but for teardowns; when those are
    through, it judges the run by its leaves, for which skipped is as good as success. So a load's leaf must not be
    skipped behind a begin that has succeeded, whoever skips it: a person, or a check that raises AirflowSkipException.
    Not of a committed load either: nobody has waited until readers see it (rule: loaded-is-visible), nor told them of
    it.

    :param load: the load's state in the ledger.
    :param tasks: task id -> state, the tasks of the load's group.
    :param leaves: which of them are its ``loaded``.
    """
    skipped = sorted(task for task, state in tasks.items() if state == "skipped")
    failed = sorted(task for task, state in tasks.items() if state == "failed")
    untold = not set(skipped).isdisjoint(leaves)
    state = None if load is None else LoadState(load)
    if not skipped or (state is LoadState.COMMITTED and not failed and not untold):
        return None
    match state:
        case LoadState.COMMITTED:
            remedy = "Clear what was skipped, and cleanup, so that those who wait for the load are told"
        case None | LoadState.ABORTED:
            remedy = "Nothing of it is visible. To load it after all, clear prepare with what is downstream of it"
        case (
            LoadState.COMMITTING | LoadState.REPAIRING | LoadState.IN_DOUBT | LoadState.GIVEN_UP
            # cleanup has made these ABORTED by now
            | LoadState.PREPARING | LoadState.PREPARED | LoadState.ABORTING
        ):
            remedy = "It is decided. Clear commit with what is downstream of it, and cleanup, to finish it"
        case _:
            assert_never(state)
    return (
        f"it is {load or 'not begun'}, {', '.join(skipped)} skipped and {', '.join(failed) or 'none'} failed. Airflow "
        f"would show the run as successful. {remedy}"
    )


def _states_of_group(context: Any) -> tuple[dict[str, str | None], set[str]]:
    """Of the tasks of this cleanup's group and map index, but for itself; and which of them are ``loaded``."""
    ti, dag = context["ti"], context["dag"]
    group = ti.task_id.rpartition(".")[0]
    wanted = [t for t in dag.task_ids if t.rpartition(".")[0] == group and t != ti.task_id]
    index = owner_index(context)
    found = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=wanted, map_index=index)
    suffix = "" if index is None else f"_{index}"  # as Airflow names a mapped task there
    states = {task: None if state is None else str(state) for task, state in found.get(ti.run_id, {}).items()}
    return states, {task + suffix for task in wanted if isinstance(dag.get_task(task), LoadedSensor)}
