"""Faults from outside: brokers, the ledger's database, connections, and what users do besides the run.

Here is when each strikes; what it does then is in :mod:`.outages`.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time

from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.faults.outages import POLL_S, STRIKES, Strike, Targets
from tests.faults.scenario import END_TXN_KINDS, TIMEOUT_KINDS, Kind
from tests.faults.striking import called_file
from tests.faults.timeline import Timeline, file_of

__all__ = ["Injector", "Targets", "first_begin", "healthy"]


class Injector:
    """One thread per fault; each waits for its moment, and strikes once."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._timeline = Timeline(targets.plan.folder, "injector")
        with Ledger.open(targets.plan.ledger_url) as ledger:
            self._ledger_id = ledger.ledger_id
        self._begun = time.monotonic()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for number, fault in enumerate(self._targets.plan.scenario.faults):
            strike = Strike(self._targets, number, fault, self._timeline, self._ledger_id)
            if fault.kind in END_TXN_KINDS:
                self._watch_end_txn(strike)
            elif fault.kind in STRIKES:
                thread = threading.Thread(target=self._one, args=(strike,), daemon=True)
                thread.start()
                self._threads.append(thread)

    def stop(self) -> None:
        """What waits for a moment that did not come waits no longer; what was begun is ended."""
        self._targets.ended.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a fault did not come to its end"

    def _one(self, strike: Strike) -> None:
        # the moment of a timeout is its sleeper's
        at = time.monotonic() if strike.fault.kind in TIMEOUT_KINDS else self._moment(strike)
        if at is None:
            return
        left = at - time.monotonic()
        if left > 0 and self._targets.ended.wait(left):
            return
        try:
            STRIKES[strike.fault.kind](strike)
        except Exception as e:
            self._timeline.log("a fault failed", number=strike.number, error=f"{type(e).__name__}: {e}"[:500])
        self._timeline.log(f"fault {strike.number} is over", took_effect=strike.is_done)

    def _called(self, number: int) -> float | None:
        """When a process comes to a broker's moment."""
        while not called_file(self._targets.plan.folder, number).exists():
            if self._targets.ended.wait(0.002):
                return None
        return time.monotonic()

    def _moment(self, strike: Strike) -> float | None:
        fault = strike.fault
        delay = fault.moment.delay_ms / 1000
        if fault.moment.step is not None:
            return self._called(strike.number)
        if fault.moment.event == "run":
            return self._begun + delay
        while not self._targets.ended.is_set():
            begun = first_begin(self._targets.plan.folder, fault.moment.event, fault.load)
            if begun is not None:
                return begun + delay
            time.sleep(POLL_S)
        return None

    def _watch_end_txn(self, strike: Strike) -> None:
        what = "twice" if strike.fault.kind is Kind.END_TXN_TWICE else "unanswered"
        left = [1 if what == "unanswered" else 1000]
        lock = threading.Lock()

        def answer() -> str | None:
            with lock:
                if left[0] == 0:
                    return None
                left[0] -= 1
            return what

        for proxy in self._targets.proxies:
            proxy.weather.late_s = strike.fault.seconds
            proxy.weather.of_end_txn = answer
            proxy.weather.did_end_txn = strike.took


def first_begin(folder: str, role: str, load: int) -> float | None:
    """When the first process of a role began for a load, monotonic seconds."""
    with contextlib.suppress(FileNotFoundError):
        for line in file_of(folder).read_bytes().splitlines():
            if b'"begins"' in line and f'"{role}"'.encode() in line:
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if event.get("role") == role and event.get("load") == load:
                        return float(event["t"])
    return None


def healthy(kafka: LocalKafka) -> None:
    """What was stopped runs again, and answers.

    :raises KafkaEosError: it does not.
    """
    for node in set(kafka.node_ids) - set(kafka.running_ids):
        kafka.restart(node)
    try:
        kafka.wait_ready()
    except KafkaEosError:
        kafka.restart()
