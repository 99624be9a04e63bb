"""What runs in the triggerer.

The triggers of cleanup and loaded: each repeats a poll of the protocol, in a thread of its own. That of prepare, which
looks whether an application that runs elsewhere is over. And a callback for Airflow's DeadlineAlert: which loads are
not done yet, and what became of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_kafka_eos.config import optional, setting
from airflow_kafka_eos.errors import (
    ConfigurationError,
    OtherLedgerError,
    TerminalError,
    TopicError,
    TransientError,
)
from airflow_kafka_eos.hooks import KafkaEosHook, Resolved
from airflow_kafka_eos.load import UNENDED, LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.operators.application_watch import (
    MOST_FAILED,
    ApplicationWatch,
    status_by_spark_submit,
)
from airflow_kafka_eos.operators.base import FINAL_WHEN_DECIDED, Final
from airflow_kafka_eos.operators.submitting import NOT_DURABLE, manifest_store

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.protocol.cleanup.poll import Poll


log = logging.getLogger(__name__)

#: Airflow keeps what a callback returns in a text column, which on MySQL ends at 64 KB.
_TOLD = 20
#: The event's status where the triggerer has another ledger than the sensor.
OTHER_LEDGER = "other ledger"
#: The event's status where an application is over; any other one hands the waiting back.
OVER = "over"


class PollingTrigger(BaseTrigger):
    """Carries names and connection ids only: what it serialises holds no secret.

    A transient error is waited out (the sensor's timeout ends it); a terminal one is handed back as the event.

    The triggerer may have another Airflow home than the workers, or another connection of that id. So it makes no
    ledger, and where it finds another one than the sensor's, it hands the waiting back (rule: same-ledger).

    :param ledger_id: of the ledger that the sensor has looked into; None: of a sensor of a version before.
    """

    #: what ends the task for good, found here or by the sensor itself; the rest is tried again
    final: ClassVar[Final] = FINAL_WHEN_DECIDED

    def __init__(
        self,
        *,
        namespace: str,
        load_name: str,
        load_key: str,
        kafka_conn_id: str,
        ledger_conn_id: str | None,
        poll_s: float,
        ledger_id: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.namespace = namespace
        self.load_name = load_name
        self.load_key = load_key
        self.kafka_conn_id = kafka_conn_id
        self.ledger_conn_id = ledger_conn_id
        self.poll_s = poll_s
        self.ledger_id = ledger_id

    @property
    def load_identity(self) -> LoadIdentity:
        return LoadIdentity(self.namespace, self.load_name, self.load_key)

    def fields(self) -> dict[str, Any]:
        """What :meth:`serialize` writes; subclasses add theirs."""
        names = ("namespace", "load_name", "load_key", "kafka_conn_id", "ledger_conn_id", "poll_s", "ledger_id")
        return {name: getattr(self, name) for name in names}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", self.fields()

    @abstractmethod
    def new_poll(self) -> Poll:
        """The protocol's poll that this trigger repeats."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        hook = KafkaEosHook(self.kafka_conn_id, self.ledger_conn_id)
        poll, told = self.new_poll(), ""
        while True:
            try:
                waiting_for = await asyncio.to_thread(self._once, await hook.aresolve(), poll)
            except OtherLedgerError as e:
                yield TriggerEvent({"status": OTHER_LEDGER, "error": str(e), "fields": self.fields()})  # type: ignore[no-untyped-call]
                return
            except TerminalError as e:
                final = isinstance(e, self.final)
                yield TriggerEvent({"status": "failed", "error": f"{type(e).__name__}: {e}", "final": final})  # type: ignore[no-untyped-call]
                return
            except TransientError as e:
                waiting_for = f"{type(e).__name__}: {e}"
            if waiting_for is None:
                yield TriggerEvent({"status": "done", "summary": poll.summary()})  # type: ignore[no-untyped-call]
                return
            if waiting_for != told:  # once: it may stay so for an hour
                self.log.info("waits: %s", waiting_for)
                told = waiting_for
            await asyncio.sleep(self.poll_s)

    def _once(self, resolved: Resolved, poll: Poll) -> str | None:
        # a fresh session each time: a trigger may wait for hours, and brokers and databases go away meanwhile
        with resolved.session(self.namespace, existing=True, ledger_id=self.ledger_id) as session:
            if not self.is_known_to(session.ledger):
                raise OtherLedgerError(
                    f"the ledger {session.ledger!r} does not know what is waited for", load=str(self.load_identity)
                )
            return poll(session)

    def is_known_to(self, ledger: Ledger) -> bool:
        """Whether a ledger has what the sensor has seen in its own."""
        return ledger.load(self.load_identity) is not None


class CleanupTrigger(PollingTrigger):
    """Sweeps until the load's attempts are quiet.

    :param owner: on whose behalf it acts, for the ledger.
    :param up_to: the newest attempt that it may touch.
    :param quiet_s: seconds without anything open.
    :param partitions: topics and partitions where the sensor has aborted something.
    :param aborted: the transactional ids of that.
    """

    def __init__(
        self,
        *,
        owner: str,
        up_to: int,
        quiet_s: float,
        partitions: Sequence[Sequence[Any]] = (),
        aborted: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.owner = owner
        self.up_to = up_to
        self.quiet_s = quiet_s
        self.partitions = partitions
        self.aborted = aborted

    def fields(self) -> dict[str, Any]:
        own = {"owner": self.owner, "up_to": self.up_to, "quiet_s": self.quiet_s}
        done = {"partitions": [list(tp) for tp in self.partitions], "aborted": list(self.aborted)}
        return super().fields() | own | done

    def is_known_to(self, ledger: Ledger) -> bool:
        """An empty one would answer that there is nothing to end."""
        return super().is_known_to(ledger) and (
            self.up_to == 0 or ledger.attempt(self.load_identity, self.up_to) is not None
        )

    def new_poll(self) -> Poll:
        from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll

        return CleanPoll(
            self.load_identity,
            up_to=self.up_to,
            by=self.owner,
            quiet_s=self.quiet_s,
            partitions=self.partitions,
            aborted=self.aborted,
        )


class LoadedTrigger(PollingTrigger):
    """Waits until readers see a committed load: the last stable offset against the load's last record."""

    #: a topic that was deleted behind the commit does not come back with the load in it
    final = (*PollingTrigger.final, TopicError)

    def new_poll(self) -> Poll:
        from airflow_kafka_eos.protocol.cleanup.poll import VisiblePoll

        return VisiblePoll(self.load_identity)


class BatchesTrigger(PollingTrigger):
    """Waits until readers see some committed batches of a streaming query.

    :param query_id, first, last, by: see :class:`~airflow_kafka_eos.protocol.stages.stream_runs.BatchesPoll`.
    """

    def __init__(self, *, query_id: str, first: int, last: int, by: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.query_id, self.first, self.last, self.by = query_id, first, last, by

    def fields(self) -> dict[str, Any]:
        own = {"query_id": self.query_id, "first": self.first, "last": self.last, "by": self.by}
        return super().fields() | own

    def is_known_to(self, ledger: Ledger) -> bool:
        """An empty one would answer that nobody waits for anything."""
        return ledger.stream(self.namespace, self.load_name) is not None

    def new_poll(self) -> Poll:
        from airflow_kafka_eos.protocol.stages.stream_runs import BatchesPoll

        return BatchesPoll(self.namespace, self.load_name, self.query_id, self.first, self.last, self.by)


class ApplicationTrigger(BaseTrigger):
    """Waits until an application that runs elsewhere is over (:mod:`.operators.application_watch`).

    Carries names, connection ids and ids only. It judges nothing: the worker takes over what was left. Where it cannot
    look (the triggerer does not see that folder, has not that library, the platform has never answered it), it hands
    the waiting back, and the worker waits. A triggerer that is restarted begins to look anew.

    :param manifest_dir: as the author gave it, rendered.
    :param application: its id on the platform.
    :param platform: arguments of a SparkSubmitOperator that can ask the platform.
    :param poll_s: seconds between two looks.
    """

    def __init__(
        self,
        *,
        namespace: str,
        load_name: str,
        load_key: str,
        ledger_id: str,
        attempt: int,
        manifest_dir: str | None,
        application: str,
        platform: dict[str, Any],
        poll_s: float,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ref = AttemptRef(LoadIdentity(namespace, load_name, load_key), ledger_id, attempt)
        self.manifest_dir = manifest_dir
        self.application = application
        self.platform = platform
        self.poll_s = poll_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        load = self.ref.load
        own = {name: getattr(self, name) for name in ("manifest_dir", "application", "platform", "poll_s")}
        of_load = {"namespace": load.namespace, "load_name": load.name, "load_key": load.key}
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            **of_load,
            "ledger_id": self.ref.ledger_id,
            "attempt": self.ref.attempt,
            **own,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        # a thread for each look: stores and platforms block, and the connections are asked for from there
        told = ""
        try:
            watch = await sync_to_async(self._watch, thread_sensitive=False)()
            look = sync_to_async(watch.look, thread_sensitive=False)
            while (waits := await look()) is not None:
                if waits != told:  # once: it may stay so for hours
                    self.log.info("waits: %s", waits)
                    told = waits
                if watch.never_answered >= MOST_FAILED:  # it may answer the worker
                    yield TriggerEvent({"status": "cannot look", "error": waits})  # type: ignore[no-untyped-call]
                    return
                await asyncio.sleep(self.poll_s)
        except Exception as e:  # whatever a library raises here that a worker may have no trouble with
            yield TriggerEvent({"status": "cannot look", "error": f"{type(e).__name__}: {e}"})  # type: ignore[no-untyped-call]
            return
        yield TriggerEvent({"status": OVER, "lost": watch.lost})  # type: ignore[no-untyped-call]

    def _watch(self) -> ApplicationWatch:
        """
        :raises ConfigurationError: what prepare has noted is not here: it is another folder.
        """
        from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

        store = manifest_store(self.manifest_dir)
        if store.submitted(self.ref) is None:
            raise ConfigurationError(
                f"the triggerer does not see what prepare has noted in {self.manifest_dir!r}",
                remedy="Mount that folder on the triggerer's hosts too, or use an object store",
                **self.ref.ids,
            )
        asks = SparkSubmitOperator(task_id="status", **NOT_DURABLE, **self.platform)
        return ApplicationWatch(store, self.ref, self.application, status_by_spark_submit(asks))


async def report_unfinished_loads(
    namespace: str | None = None,
    load_name: str | None = None,
    kafka_conn_id: str | None = None,
    ledger_conn_id: str | None = None,
) -> str:
    """A callback for ``AsyncCallback``: the triggerer calls it when a run has missed its deadline, and logs it.

    Only looks. Wrap it in a function of your own to page somebody, and return text from there too: Airflow 3.3 writes
    whatever a callback returns into a text column, and its triggerer ends, with all that it waits for, where that is
    no text. Where namespace or a connection is None, Airflow's section ``[kafka_eos]`` says it, on the triggerer's
    host.

    :param load_name: only loads of that name; None: of the whole namespace.
    :returns: JSON: ``unfinished``, how many loads are neither committed, aborted nor given up, and ``oldest``:
        ``load``, ``state`` and ``updated_at`` of the first 20 of them. The log has all of them, with their reasons.
    :raises LedgerUnavailableError: the ledger's database does not answer.
    :raises OtherLedgerError: there is no ledger on the triggerer's host.
    """
    namespace = setting("namespace", namespace)
    hook = KafkaEosHook(setting("kafka_conn_id", kafka_conn_id), optional("ledger_conn_id", ledger_conn_id))
    resolved = await hook.aresolve()

    def look() -> list[dict[str, Any]]:
        with resolved.ledger(existing=True) as ledger:  # an empty one would report that all is well
            return unfinished_loads(ledger, namespace, load_name)

    found = await asyncio.to_thread(look)
    for row in found:
        log.error("DEADLINE MISSED: load %(load)s has been %(state)s since %(updated_at)s: %(reason)s", row)
    oldest = [{field: row[field] for field in ("load", "state", "updated_at")} for row in found[:_TOLD]]
    return json.dumps({"unfinished": len(found), "oldest": oldest})


def unfinished_loads(ledger: Ledger, namespace: str, load_name: str | None) -> list[dict[str, Any]]:
    """Loads that are neither committed, aborted nor given up; oldest first.

    :returns: ``load``, ``state``, ``attempt``, ``reason``, ``updated_at`` of each.
    """
    return [
        {
            "load": str(row.load),
            "state": row.state.value,
            "attempt": row.newest_attempt,
            "reason": row.reason,
            "updated_at": row.updated_at,
        }
        for row in ledger.loads(namespace, load_name, states=UNENDED)
    ]
