"""What Airflow's tasks do, call by call as ``airflow_kafka_eos/operators`` and ``sensors`` do it, without Airflow."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from airflow_kafka_eos import errors
from airflow_kafka_eos.errors import KafkaEosError, TerminalError, TransientError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import TransactionNaming, Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.naming import AttemptRef
from airflow_kafka_eos.operators.base import FINAL_WHEN_DECIDED
from airflow_kafka_eos.protocol.cleanup import namespace
from airflow_kafka_eos.protocol.cleanup import poll as polling
from airflow_kafka_eos.protocol.guards.id_caps import Caps
from airflow_kafka_eos.protocol.repair.reprepare import (
    Repreparation,
    abandon_all,
    adopt_all,
    open_repreparation,
)
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages import begin as opening
from airflow_kafka_eos.protocol.stages import commit as committing
from airflow_kafka_eos.protocol.stages import decide as deciding
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from tests.faults.accounts import DECIDING, SWEEPING
from tests.faults.plan import Ended, Order, Plan
from tests.faults.scenario import LONG_HOLD_MS, SHORT_HOLD_MS, Role, Wish
from tests.faults.timeline import Timeline
from tests.faults.zygote import ADDRESS, ask

#: the operators' own defaults are minutes. These are bounds for a machine that is busy with other things too
REQUEST_S = 30.0
COMMIT_S = 40.0
SENSOR_S = 90.0
WRITER_DEADLINE_S = 90.0
DRIVER_S = 120.0
QUIET_S = 1.0
POLL_S = 0.1
#: an event of prepare's timeline: it writes lost Spark partitions of a decided load
PREPARES_AGAIN = "prepares again"
#: what decide wants to be left of the hold time: nothing is refused for a busy machine, unless time is what it is about
MARGIN_S, SHORT_MARGIN_S = 40.0, 2.0


class FinalError(Exception):
    """Airflow's AirflowFailException: no retries."""


class FailedError(Exception):
    """A task that Airflow tries again: what the operators raise of themselves."""


def note_decisions(timeline: Timeline) -> None:
    """From here on, this process says when it begins to record a decision: nothing may be visible before. To be called
    before faults are planted, so that one that strikes before the call comes before this."""
    decide_commit = Ledger.decide_commit

    @functools.wraps(decide_commit)
    def noted(self: Ledger, manifest: Any, **options: Any) -> Any:
        ref = manifest.attempt
        timeline.log(DECIDING, load_key=ref.load.key, attempt=ref.attempt)
        return decide_commit(self, manifest, **options)

    Ledger.decide_commit = noted  # type: ignore[method-assign]


@contextmanager
def session(plan: Plan, final: tuple[type[KafkaEosError], ...] = (TerminalError,)) -> Iterator[Session]:
    """As ``LoadOperator.open_session``: errors that are ``final`` end the task without retries, others do not."""
    settings = KafkaSettings.from_mapping({"bootstrap.servers": plan.servers})
    try:
        with connect(settings, plan.ledger_url, plan.namespace, timeout_s=REQUEST_S) as opened:
            yield opened
    except final as e:
        raise FinalError(f"{type(e).__name__}: {e}") from e
    except TerminalError as e:
        raise FailedError(f"{type(e).__name__}: {e}") from e  # tried again all the same


def begin(plan: Plan, order: Order, timeline: Timeline) -> Any:
    with session(plan) as s:
        row = opening.begin(s, plan.identity(order.load), owner=order.owner)
    return {"attempt": row.number, "verdict": row.verdict and row.verdict.value}


def prepare(plan: Plan, order: Order, timeline: Timeline) -> Any:
    store = ManifestStore(plan.manifests)
    deadline_ms = time.time_ns() // 10**6 + int(WRITER_DEADLINE_S * 1000)
    with session(plan) as s:
        row = opening.submit(
            s,
            plan.identity(order.load),
            owner=order.owner,
            naming=TransactionNaming(plan.scenario.naming),
            deadline_ms=deadline_ms,
            caps=Caps(10_000, 100_000),
        )
        again = None
        if row.verdict is Verdict.COMMIT:
            # whoever clears it has raised hold_time, as the second attempt has it
            again = open_repreparation(s, row, by=order.owner, hold_time_ms=LONG_HOLD_MS, deadline_s=COMMIT_S)
        ref = opening.reference(s, row)
    if row.verdict is Verdict.COMMIT:
        done = {"attempt": row.number, "verdict": Verdict.COMMIT.value}
        return done if again is None else done | _prepare_again(plan, order, timeline, again, store, deadline_ms)
    timeline.log("submits", attempt=ref.attempt, slot=ref.slot)
    _run_spark(order, ref, deadline_ms)
    manifest = store.read(ref)
    with session(plan) as s:
        opening.record_prepared(s, manifest, writers_left=store.writers_left(manifest))
    return {"attempt": ref.attempt, "records": manifest.records}


def _prepare_again(
    plan: Plan, order: Order, timeline: Timeline, again: Repreparation, store: ManifestStore, deadline_ms: int
) -> dict[str, Any]:
    """As ``PreparingOperator`` does: what was lost is gone from the log, where its topic keeps the newest record of a
    key."""
    partitions = [part.spark_partition for part in again.parts]
    timeline.log(PREPARES_AGAIN, attempt=again.attempt.number, partitions=partitions)
    try:
        _run_spark(order, again.ref, deadline_ms, decided=again.attempt.number, hold_ms=again.timeout_ms)
        manifest: Manifest = store.read(again.ref)
    except BaseException as e:
        try:
            with session(plan) as s:
                abandon_all(s, again, f"{type(e).__name__}: {e}")
        except (KafkaEosError, FinalError, FailedError) as left:
            timeline.log("what it has open is left to cleanup", why=str(left)[:200])
        raise
    with session(plan) as s:
        adopt_all(s, again, manifest)
    return {"prepared_again": partitions, "records": manifest.records}


def _run_spark(order: Order, ref: AttemptRef, deadline_ms: int, **of_repairs: int) -> None:
    """
    :param of_repairs: what :mod:`.sparking` is told where a decided attempt is prepared again.
    """
    details = {
        "attempt": ref.attempt,
        "ledger_id": ref.ledger_id,
        "slot": ref.slot,
        "repairs": ref.repairs,
        "deadline_ms": deadline_ms,
        **of_repairs,
    }
    ended = ask(
        os.environ[ADDRESS],
        Order(Role.DRIVER.value, order.load, order.owner, order.folder, details, limit_s=DRIVER_S),
    )
    if not ended.is_well:
        raise (FinalError if _is_final(ended) else FailedError)(f"Spark failed: {ended.error or ended.killed_by}")


def _is_final(spark: Ended) -> bool:
    """As ``own_error_first``: an error that the next attempt would meet too."""
    kind = getattr(errors, spark.error.partition(":")[0], None)
    return isinstance(kind, type) and issubclass(
        kind, (errors.ConfigurationError, errors.AccessError, errors.BrokerTooOldError, errors.RecordError)
    )


def decide(plan: Plan, order: Order, timeline: Timeline) -> Any:
    load = plan.identity(order.load)
    refuses = plan.scenario.loads[order.load].fate is Wish.REFUSE
    checks = deciding.Conditions(check=(lambda manifest: "nobody wants it") if refuses else None)
    with session(plan) as s:
        row = deciding.undecided_attempt(s, load, owner=order.owner)
        if row.verdict is not Verdict.COMMIT:
            manifest = ManifestStore(plan.manifests).read(opening.reference(s, row))
            margin_s = MARGIN_S if manifest.transaction_timeout_ms > SHORT_HOLD_MS else SHORT_MARGIN_S
            row = deciding.decide(s, manifest, checks, owner=order.owner, margin_s=margin_s)
            timeline.log("decides", attempt=row.number)
        try:
            committing.commit_pass(s, row.load, row.number)
        except FINAL_WHEN_DECIDED:
            raise
        except KafkaEosError as e:
            timeline.log("commit will finish it", why=str(e)[:200])
    return {"attempt": row.number}


def commit(plan: Plan, order: Order, timeline: Timeline) -> Any:
    with session(plan, FINAL_WHEN_DECIDED) as s:
        row = committing.commit(s, plan.identity(order.load), deadline_s=COMMIT_S)
    return {"attempt": row.number, "records": row.records}


def cleanup(plan: Plan, order: Order, timeline: Timeline) -> Any:
    load = plan.identity(order.load)
    up_to: list[int] = []

    def look_up() -> polling.Poll:
        # once: a poll that outlives its task must not touch a later attempt (rule: up-to-its-own-attempt)
        with session(plan) as s:
            up_to.append(polling.own_number(s.ledger.attempts(load), order.owner))
        timeline.log(SWEEPING, up_to=up_to[0])
        return polling.CleanPoll(load, up_to=up_to[0], by=order.owner, quiet_s=QUIET_S)

    return _polled(plan, look_up)


def loaded(plan: Plan, order: Order, timeline: Timeline) -> Any:
    return _polled(plan, lambda: polling.VisiblePoll(plan.identity(order.load)))


def maintenance(plan: Plan, order: Order, timeline: Timeline) -> Any:
    """What the maintenance DAG does with what no run is left to sweep; of the order's load alone while others are at
    work: a real one leaves those alone for hours, here it would abort them."""
    with session(plan) as s:
        left = namespace.find(s, abandoned_after=timedelta(milliseconds=1))
        of_all = not order.details.get("of_one")
        loads = {load: up_to for load, up_to in left.loads.items() if of_all or load == plan.identity(order.load)}
        swept = namespace.clean(s, loads, by="maintenance", quiet_s=QUIET_S, deadline_s=SENSOR_S)
    errors = [str(one.error) for one in swept if one.error is not None]
    return {"swept": {one.load.key: list(one.aborted) for one in swept}, "errors": errors, "unknown": left.unknown}


def _polled(plan: Plan, new_poll: Callable[[], polling.Poll]) -> Any:
    """As ``PollingLoadSensor.execute``: brokers and ledgers that are away are waited for."""
    give_up = time.monotonic() + SENSOR_S
    poll: polling.Poll | None = None
    while True:
        try:
            poll = poll or new_poll()
            with session(plan, FINAL_WHEN_DECIDED) as s:
                waiting_for = poll(s)
            if waiting_for is None:
                return poll.summary()
        except TransientError as e:
            waiting_for = f"{type(e).__name__}: {e}"
        if time.monotonic() >= give_up:
            raise FailedError(f"after {SENSOR_S:g} s: {waiting_for}")
        time.sleep(POLL_S)
