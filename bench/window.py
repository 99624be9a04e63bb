"""How long readers see a part of a load: from the first record that is visible to the last, in both scopes."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import TopicPartition
from bench.cases import CASES, CONTESTANTS, Contestant
from bench.host import Host, HostFailed
from bench.identity import LEDGER, NAMESPACE
from bench.measure import NotAvailable, Stage
from bench.report import Extra

#: Spark tasks, and so transactions in scope task.
TASKS = 16
_SECONDS = 60.0


@dataclass(frozen=True)
class Window:
    """Seconds. ``part``: from the first visible record to the last; ``commit``: all EndTxn requests together.

    :param poll: between two looks, on average: nothing shorter can be seen.
    """

    part: float
    commit: float
    poll: float
    transactions: int


def windows(stage: Stage, host: Host, rounds: int, say: Callable[[str], None]) -> Extra:
    """The session has its records loaded; they are spread over 16 tasks."""
    found: dict[str, list[Window]] = {}
    reasons: dict[str, str] = {}
    for _ in range(rounds):
        for name in ("arrow-task", "arrow-load", "confluent"):
            contestant = next(c for c in CONTESTANTS if c.key == name)
            if name in reasons:
                continue
            try:
                window = _one(stage, host, contestant)
            except (NotAvailable, HostFailed) as error:
                reasons[name] = str(error)
                say(f"part-visible window, {name}: left out: {error}")
                continue
            found.setdefault(name, []).append(window)
            say(f"part-visible window, {name}: {window.part * 1000:.1f} ms, {window.transactions} transactions")
    rows = []
    for name, every in found.items():
        part = [w.part * 1000 for w in every]
        poll = statistics.median(w.poll for w in every) * 1000
        commit = statistics.median(w.commit for w in every) * 1000
        rows += [
            (
                f"{name}, {every[0].transactions} transactions: part of the load visible for, ms",
                # 0: two looks, the first saw nothing, the second all of it
                f"{statistics.median(part):.1f} ({min(part):.1f}–{max(part):.1f}; seen every {poll:.1f})",
            ),
            (f"{name}: all EndTxn answered after, ms", f"{commit:.1f}"),
        ]
    rows += [(name, f"left out: {reason[:200]}") for name, reason in reasons.items()]
    return f"Part-visible window of a load over {stage.partitions} partitions", rows


def _one(stage: Stage, host: Host, contestant: Contestant) -> Window:
    ref = stage.attempt(contestant)
    topic = stage.broker.create_topic(stage.partitions)
    try:
        host.ask("run", stage.given(contestant, CASES[0], topic, ref) | {"repartition": str(TASKS)})
        transactions = stage.manifest(ref).transactions
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        # in a process of its own, so that neither waits for the other's turn
        watcher = context.Process(
            target=watch, args=(stage.broker.bootstrap_servers, topic, stage.partitions, there), daemon=True
        )
        watcher.start()
        try:
            if not here.poll(_SECONDS):
                raise HostFailed("the watcher did not start")
            here.recv()
            with Wire(stage.broker.settings) as wire:
                coordinator = Coordinator(wire, namespace=NAMESPACE, ledger_id=LEDGER)
                coordinator.describe([transactions[0].transactional_id])  # the connection is there
                begun = time.perf_counter()
                coordinator.end_many(transactions, Verdict.COMMIT)
                commit = time.perf_counter() - begun
            if not here.poll(_SECONDS):
                raise HostFailed("the watcher did not see all partitions")
            part, poll = here.recv()
        finally:
            watcher.kill()
            watcher.join()
        return Window(part, commit, poll, len(transactions))
    finally:
        stage.broker.delete_topic(topic)


def watch(bootstrap_servers: str, topic: str, partitions: int, connection: Connection) -> None:
    """Look at the last stable offsets until all records are visible: how far a read_committed reader gets."""
    tps = [TopicPartition(topic, p) for p in range(partitions)]
    with Wire(KafkaSettings.from_mapping({"bootstrap.servers": bootstrap_servers})) as wire:
        asked = Partitions(wire)
        ends = asked.end_offsets(tps)  # before any marker
        before = asked.last_stable_offsets(tps)
        connection.send("ready")
        first: float | None = None
        begun, looks = time.perf_counter(), 0
        while True:
            seen = asked.last_stable_offsets(tps)
            now = time.perf_counter()
            looks += 1
            if first is None and seen != before:
                first = now
            if first is not None and all(seen[tp] >= ends[tp] for tp in tps):
                break
            if now - begun > _SECONDS:
                return
        connection.send((now - first, (now - begun) / looks))
