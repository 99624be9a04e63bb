"""What waits: cleanup, the load's teardown, and loaded, its leaf.

Each looks by itself, and is deferred only where it has to wait.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, assert_never

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSensorTimeout
from airflow.sdk import BaseSensorOperator

from airflow_kafka_eos.arguments import Duration, check_bool, check_text, check_topics, duration
from airflow_kafka_eos.config import deferrable as in_the_triggerer
from airflow_kafka_eos.config import setting
from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError, TransientError
from airflow_kafka_eos.lineage import LEASE_TTL, alias_of, announce, check_server, server_of
from airflow_kafka_eos.load import STAYS_GIVEN_UP, LoadState
from airflow_kafka_eos.naming import counted
from airflow_kafka_eos.operators.base import (
    LoadOperator,
    Step,
    are_siblings,
    is_of_this_try,
    no_retry_of_terminal_errors,
    note_deferral,
    owner_index,
    owner_of,
    task_of,
)
from airflow_kafka_eos.operators.begun import begun_in_run
from airflow_kafka_eos.stats import count_arrival
from airflow_kafka_eos.triggers import OTHER_LEDGER, CleanupTrigger, LoadedTrigger

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context, XComArg

    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll, Poll
    from airflow_kafka_eos.triggers import PollingTrigger


class PollingLoadSensor(LoadOperator, BaseSensorOperator):
    """Base of cleanup and loaded: a look by the sensor itself, and deferral only where it has to wait.

    :param poke_interval: a timedelta, or seconds, between two looks.
    :param timeout: a timedelta, or seconds, after which it fails; a retry waits as long again.
    """

    template_fields: Sequence[str] = LoadOperator.template_fields
    #: what it defers to
    trigger_class: ClassVar[type[PollingTrigger]]

    # poke_interval and timeout are named so that default_args reach them
    def __init__(
        self,
        *,
        deferrable: bool | None = None,
        poke_interval: Duration = 2.0,
        timeout: Duration = 3600.0,
        **kwargs: Any,
    ) -> None:
        kwargs["poke_interval"] = duration("poke_interval", poke_interval).total_seconds()
        kwargs["timeout"] = duration("timeout", timeout).total_seconds()
        wanted = in_the_triggerer(deferrable)
        # a skipped cleanup or loaded would show a failed load as a successful run, whatever default_args say
        kwargs |= {"soft_fail": False, "never_fail": False, "silent_fail": False, "mode": "poke"}
        super().__init__(**kwargs)
        self.deferrable = wanted
        self._ledger_id: str | None = None

    def before_polling(self, owner: str) -> None:
        """What has to be asked once, before the first poll. Nothing here."""

    def has_looked(self, ledger: Ledger) -> None:
        """Behind each look of its own, whatever that has found. Nothing here; never raises."""

    @abstractmethod
    def new_poll(self, owner: str) -> Poll:
        """The protocol's poll that this sensor repeats."""

    @abstractmethod
    def new_trigger(self, owner: str) -> PollingTrigger:
        """The trigger that repeats the same poll in the triggerer."""

    @abstractmethod
    def done(self, summary: dict[str, Any], context: Context, step: Step) -> dict[str, Any]:
        """What the task returns, of what the poll found."""

    def trigger_fields(self) -> dict[str, Any]:
        """What every trigger of ours needs: rendered names, connection ids, and which ledger was looked into."""
        names = ("namespace", "load_name", "load_key", "kafka_conn_id", "ledger_conn_id")
        own = {"poll_s": float(self.poke_interval), "ledger_id": self._ledger_id}
        return {name: getattr(self, name) for name in names} | own

    def execute(self, context: Context) -> Any:
        """Look once; done, or wait."""
        owner = owner_of(context)
        give_up = time.monotonic() + self.timeout
        with self.as_step(context) as step:
            while True:
                try:
                    self.before_polling(owner)
                    break
                except TransientError as e:  # not deferred: what the trigger is to be told is not known yet
                    if time.monotonic() >= give_up:
                        raise
                    self.log.info("%s: %s", type(e).__name__, e)
                    time.sleep(self.poke_interval)
            poll = self.new_poll(owner)
            if not self._wait(poll, give_up, may_defer=self.deferrable):
                wait = timedelta(seconds=self.timeout)
                note_deferral(context)
                self.defer(trigger=self.new_trigger(owner), method_name="execute_complete", timeout=wait)
            return self.done(poll.summary(), context, step)

    def _wait(self, poll: Poll, give_up: float, *, may_defer: bool) -> bool:
        """True once there is nothing to wait for; False where the triggerer is to wait on.

        :raises AirflowException: past ``give_up``, on the monotonic clock.
        """
        told = ""
        while (waiting_for := self._look(poll)) is not None:
            if waiting_for != told:  # once: it may stay so for an hour
                self.log.info("%s waits: %s", self.step_name, waiting_for)
                told = waiting_for
            if may_defer and self._knows_its_ledger():
                return False
            if time.monotonic() >= give_up:
                raise self._timed_out(waiting_for)
            time.sleep(self.poke_interval)
        return True

    def _knows_its_ledger(self) -> bool:
        """Whether the trigger can be told which ledger it is; it may be known while no broker answers."""
        if self._ledger_id is None:
            with suppress(TransientError), self._resolve().ledger() as ledger:
                self._ledger_id = ledger.ledger_id
        return self._ledger_id is not None

    def _look(self, poll: Poll) -> str | None:
        try:
            with self.open_session(self.trigger_class.final) as session:
                self._ledger_id = session.ledger.ledger_id
                try:
                    return poll(session)
                finally:
                    self.has_looked(session.ledger)
        except TransientError as e:
            return f"{type(e).__name__}: {e}"  # a broker that is away is waited for like everything else

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """What the trigger found."""
        found = event or {}
        with self.as_step(context) as step:
            if found.get("status") == "done":
                return self.done(found["summary"], context, step)
            if found.get("status") == OTHER_LEDGER:
                self.log.warning("THE TRIGGERER CANNOT WAIT, this worker does: %s", found["error"])
                poll = self.go_on(self.trigger_class(**found["fields"]))
                self._wait(poll, time.monotonic() + self.timeout, may_defer=False)
                return self.done(poll.summary(), context, step)
            error = str(found.get("error", "the trigger ended without an event"))
            raise AirflowFailException(error) if found.get("final") else AirflowException(error)

    def go_on(self, trigger: Any) -> Poll:
        """The poll of a trigger that could not wait, for this worker to wait with."""
        poll: Poll = trigger.new_poll()
        return poll

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """At the timeout, say what was waited for: the trigger's own log is elsewhere.

        A task that was cleared while it ran comes back here too, in a later try: it looks anew.
        """
        if not is_of_this_try(context):
            self.log.warning("this task was cleared since it was deferred, or a version before has deferred it: what "
                             "the triggerer has found is not believed, it looks anew")  # fmt: skip
            return self.execute(context)
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowSensorTimeout as e:
            with self.as_step(context) as step:
                owner = owner_of(context)
                try:
                    self.before_polling(owner)
                    poll = self.new_poll(owner)
                    waiting_for = self._look(poll)
                except AirflowFailException as look:  # no retry mends it, within the timeout or behind it
                    raise AirflowFailException(str(self._timed_out(look))) from e
                except KafkaEosError as look:
                    raise self._timed_out(look) from e
                if waiting_for is None:
                    return self.done(poll.summary(), context, step)
                raise self._timed_out(waiting_for) from e

    def _timed_out(self, waiting_for: object) -> AirflowException:
        """No AirflowSensorTimeout: Airflow fails a task for good by that, whatever its ``retries`` say."""
        return AirflowException(f"after {self.timeout:g} s: {waiting_for}")


class LoadedSensor(PollingLoadSensor):
    """loaded: the leaf of a load. Carries the asset outlets.

    Waits until the last stable offset has passed the load's last record; names whoever holds it back.

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
            none = "none, they were sent before" if before else "none"
            news = f"; asset events: {', '.join(told.events) or none}"
        if self._wrote and not before:  # a cleared loaded counts no load twice
            count_arrival(self.load_identity, summary, datetime.now(UTC))
        step.attempt = summary.get("attempt")
        topics = ", ".join(self._topics(summary)) or "no topic"
        step.done(summary["load"], f"readers see {summary['records'] or 0:,} records in {topics}{news}")
        return summary

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """OpenLineage's hook: the topics with their rows."""
        from airflow_kafka_eos.lineage import lineage_of

        topics = self._topics(self._arrival) if self._arrival else ()
        return lineage_of(self._arrival, topics=topics, server=self._server(), wrote=self._wrote)

    def _topics(self, arrival: dict[str, Any]) -> list[str]:
        """Those that were written to: what is in ``topics`` says what may be written, by the DAG as it is now."""
        return sorted(arrival["topics"])

    def _server(self) -> str:
        return self.asset_server or server_of(self._resolve().settings.bootstrap_servers)


class CleanupLoadSensor(PollingLoadSensor):
    """cleanup: lists what the run's attempts left open, and ends it.

    Reads the decision first: a decided load is rolled forward, an undecided one made undecidable and aborted.

    ::

        cleanup = CleanupLoadSensor(task_id="cleanup", load_name="orders", quiet_period=timedelta(seconds=30))
        cleanup.as_teardown(setups=begin, on_failure_fail_dagrun=True)

    What only commit or a person can end (a decided transaction was lost, its load given up, or one hangs and ALTER on
    the Cluster is missing) is not waited for. It is a warning in the log and ``problem`` in the result, no failure:
    loaded, which has waited for commit, fails the run.

    An application may begin behind it: its cluster was still starting when the task that has submitted it was killed.
    So cleanup leaves a note for those of its attempts, as whoever opens the next attempt does (rule:
    writers-have-a-deadline). A store that does not answer is tried at each look, and once more at the end; behind that
    it is a warning: whether Kafka is clean does not hang on it, and the next begin leaves the note.
    """

    trigger_class = CleanupTrigger
    step_name = "cleanup"

    def __init__(self, *, quiet_period: Duration | None = None, **kwargs: Any) -> None:
        wanted = duration("quiet_period", setting("quiet_period", quiet_period), zero=True)
        super().__init__(**kwargs)
        self.quiet_period = wanted
        self._up_to = 0
        self._poll: CleanPoll | None = None
        self._is_told = False
        self._why_untold: Exception | None = None

    def check_begun(self, context: Any) -> None:
        """What begin has opened is swept, whatever the DAG file names by now."""
        begun = begun_in_run(self, context)
        if begun is not None and begun != self.load_identity:
            self.log.warning("this run has begun %s, and the DAG file names %s now: it was edited meanwhile. Cleanup "
                             "is of what the run has begun", begun, self.load_identity)  # fmt: skip
            self.namespace, self.load_name, self.load_key = begun.namespace, begun.name, begun.key

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

    def go_on(self, trigger: Any) -> Poll:
        self._up_to = trigger.up_to  # this try's own, not looked up again
        return super().go_on(trigger)

    def has_looked(self, ledger: Ledger) -> None:
        """Tell the applications of its attempts that these are over, once, behind the sweep that has made them so."""
        if not self._is_told:
            self._tell_superseded(ledger, self._up_to)

    def _tell_superseded(self, ledger: Ledger, up_to: int) -> None:
        from airflow_kafka_eos.operators.look_ahead import store_of_group
        from airflow_kafka_eos.operators.submitting import left_behind, note_superseded

        try:
            rows = ledger.attempts(self.load_identity)
            behind = left_behind(rows, up_to=up_to)
            store = store_of_group(self, upstream=True) if behind else None
            if store is not None:
                note_superseded(store, ledger.ledger_id, behind)
        except Exception as e:  # whatever a store's library raises: Kafka can be swept without it
            self._why_untold = e
        else:
            self._why_untold = None
            # else the sweep has not come so far
            self._is_told = not any(row.is_undecided for row in rows if row.number <= up_to)

    def _tell_at_last(self, owner: str) -> None:
        """Where the triggerer has waited, which does not know the store; or the store did not answer before."""
        from airflow_kafka_eos.protocol.cleanup.poll import own_number

        try:
            with self._resolve().ledger(existing=True) as ledger:
                own = own_number(ledger.attempts(self.load_identity), owner)
                self._tell_superseded(ledger, self._up_to or own)
        except Exception as e:  # the sweep is done, whatever becomes of this
            self._why_untold = e
        if self._why_untold is not None:
            self.log.warning(
                "load %s: an application of this run that begins only now is not told that its attempt is over; what "
                "it opens stays open until its timeout, or until the next begin or maintenance ends it: %s",
                self.load_identity, self._why_untold,
            )  # fmt: skip

    def done(self, summary: dict[str, Any], context: Context, step: Step) -> dict[str, Any]:
        """
        :raises AirflowFailException: see :func:`hidden_failure`.
        """
        if not self._is_told:
            self._tell_at_last(owner_of(context))
        step.attempt = self._up_to or None
        problem = summary.get("problem")
        hidden = hidden_failure(summary.get("state"), *states_of_group(context))
        if hidden is not None:
            what = f"NOT CLEAN, which cleanup alone cannot change ({problem})" if problem else "cleaned up"
            raise AirflowFailException(f"load {summary['load']}, {what}: {hidden}")
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
        case LoadState.COMMITTING | LoadState.REPAIRING | LoadState.IN_DOUBT:
            remedy = "It is decided. Clear commit with what is downstream of it, and cleanup, to finish it"
        case LoadState.GIVEN_UP:
            remedy = f"A person has given it up. {STAYS_GIVEN_UP}"
        case LoadState.PREPARING | LoadState.PREPARED:  # this run's own attempts are ABORTED by now
            remedy = (
                "Another run has a newer attempt of it: wait for that one. To clear prepare here would abort what that "
                "run writes"
            )
        case LoadState.ABORTING:
            remedy = (
                "Nothing of it is visible, but it may still be open somewhere, and hold readers back: clear cleanup, "
                "once what it says can be done. To load it after all, clear prepare with what is downstream of it"
            )
        case _:
            assert_never(state)
    return (
        f"it is {load or 'not begun'}, {', '.join(skipped)} skipped and {', '.join(failed) or 'none'} failed. Airflow "
        f"would show the run as successful. {remedy}"
    )


def states_of_group(context: Any) -> tuple[dict[str, str | None], set[str]]:
    """Of the tasks of this cleanup's group and map index, but for itself; and which of them are ``loaded``."""
    ti, dag = context["ti"], context["dag"]
    group = ti.task_id.rpartition(".")[0]
    wanted = [t for t in dag.task_ids if t.rpartition(".")[0] == group and t != ti.task_id]
    index = owner_index(context)
    found = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=wanted, map_index=index)
    suffix = "" if index is None else f"_{index}"  # as Airflow names a mapped task there
    states = {task: None if state is None else str(state) for task, state in found.get(ti.run_id, {}).items()}
    return states, {task + suffix for task in wanted if isinstance(dag.get_task(task), LoadedSensor)}
