"""What cleanup and loaded have in common: a look by the sensor itself, and deferral only where it has to wait."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout

from airflow_kafka_eos.arguments import Duration, duration
from airflow_kafka_eos.config import deferrable as in_the_triggerer
from airflow_kafka_eos.errors import KafkaEosError, TransientError
from airflow_kafka_eos.operators.base import FINAL_WHEN_DECIDED, LoadOperator, Step, owner_of
from airflow_kafka_eos.triggers.polling import OTHER_LEDGER

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_eos.protocol.cleanup.poll import Poll
    from airflow_kafka_eos.triggers.polling import PollingTrigger


class PollingLoadSensor(LoadOperator, BaseSensorOperator):
    """Base of cleanup and loaded.

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
                self.defer(trigger=self.new_trigger(owner), method_name="execute_complete", timeout=wait)
            return self.done(poll.summary(), context, step)

    def _wait(self, poll: Poll, give_up: float, *, may_defer: bool) -> bool:
        """True once there is nothing to wait for; False where the triggerer is to wait on.

        :raises AirflowSensorTimeout: past ``give_up``, on the monotonic clock.
        """
        told = ""
        while (waiting_for := self._look(poll)) is not None:
            if waiting_for != told:  # once: it may stay so for an hour
                self.log.info("%s waits: %s", self.step_name, waiting_for)
                told = waiting_for
            if may_defer and self._knows_its_ledger():
                return False
            if time.monotonic() >= give_up:
                raise AirflowSensorTimeout(f"after {self.timeout:g} s: {waiting_for}")
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
            with self.open_session(FINAL_WHEN_DECIDED) as session:
                self._ledger_id = session.ledger.ledger_id
                return poll(session)
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
                poll = self.trigger_class(**found["fields"]).new_poll()
                self._wait(poll, time.monotonic() + self.timeout, may_defer=False)
                return self.done(poll.summary(), context, step)
            error = str(found.get("error", "the trigger ended without an event"))
            raise AirflowFailException(error) if found.get("final") else AirflowException(error)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """At the timeout, say what was waited for: the trigger's own log is elsewhere."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowSensorTimeout as e:
            with self.as_step(context) as step:
                owner = owner_of(context)
                try:
                    self.before_polling(owner)
                    poll = self.new_poll(owner)
                    waiting_for = self._look(poll)
                except (KafkaEosError, AirflowFailException) as look:
                    raise AirflowSensorTimeout(f"after {self.timeout:g} s: {look}") from e
                if waiting_for is None:
                    return self.done(poll.summary(), context, step)
                raise AirflowSensorTimeout(f"after {self.timeout:g} s: {waiting_for}") from e
