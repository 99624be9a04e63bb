"""What cleanup costs among other applications' transactional ids: by listing, as the package does it, and by probing.

``python -m bench.cleanup`` writes ``bench/CLEANUP.md``. ``FOREIGN_IDS`` (``10,100,1000,10000``) and ``KAFKA``
(``4.4.0``) are its knobs. Probing is what FLIP-511 replaces: one InitProducerId for each id that an earlier run might
have used, which creates the id where it was not.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from kafka.protocol.producer.transaction import InitProducerIdRequest

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.pool import ConnectionPool
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, submit
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from bench.report import table

NAMESPACE, TOPIC = "bench", "cleanup"
#: Transactions that a killed load has left open.
LEFT = 4
_TIMEOUT_MS = 600_000
_BATCH = 1000
_numbers = count(1)


class CountingWire(Wire):
    """Counts what is sent, by the requests' names."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings)
        self.sent: Counter[str] = Counter()

    def _send(self, node_id: int, request: Any) -> Any:
        self.sent[type(request).__name__] += 1
        return super()._send(node_id, request)

    def pool(self) -> ConnectionPool[Any]:
        made = super().pool()
        submit_to = made.submit

        def counted(node_id: int, request: Any, tag: Any, *, timeout_s: float) -> None:
            self.sent[type(request).__name__] += 1
            submit_to(node_id, request, tag, timeout_s=timeout_s)

        made.submit = counted  # type: ignore[method-assign]
        return made


@dataclass(frozen=True)
class Cost:
    """Of one pass: requests in all, those by name, seconds."""

    requests: int
    by_name: Counter[str]
    seconds: float


def initialise(settings: KafkaSettings, names: Iterable[str]) -> None:
    """Make the coordinators know these ids, many requests at a time."""
    every = list(names)
    with Wire(settings) as wire:
        for batch in (every[n : n + _BATCH] for n in range(0, len(every), _BATCH)):
            left = batch
            while left:
                left = list(_refused(wire, left))


def _refused(wire: Wire, names: Sequence[str]) -> Iterator[str]:
    nodes = wire.coordinators(names)
    with closing(wire.pool()) as pool:
        for name in names:
            pool.submit(nodes[name], _request(name), name, timeout_s=30)
        answered = 0
        while answered < len(names):
            for reply in pool.wait(30):
                answered += 1
                if reply.error is not None or reply.answer.error_code:
                    yield reply.tag


def _request(name: str) -> Any:
    return InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=_TIMEOUT_MS, producer_id=-1, producer_epoch=-1, min_version=2
    )


def listing(session: Session, settings: KafkaSettings) -> tuple[Cost, Cost]:
    """Of the pass that ends what a killed load has left, and of the next one, which finds nothing."""
    load = LoadIdentity(NAMESPACE, "orders", f"key-{next(_numbers)}")
    begin(session, load, owner="bench")
    row = submit(session, load, owner="bench")
    for n in range(LEFT):
        name = TransactionalId(load, session.ledger.ledger_id, row.number, n, n)
        producer = Producer({"bootstrap.servers": settings.bootstrap_servers, "transactional.id": str(name)})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(TOPIC, b"v")
        producer.flush(30)
    costs = []
    for aborted in (LEFT, 0):
        with CountingWire(settings) as wire:
            coordinator = Coordinator(wire, namespace=NAMESPACE, ledger_id=session.ledger.ledger_id)
            wire.api_versions()  # connected: a login is no part of the cost
            began = time.perf_counter()
            report = sweep(replace(session, coordinator=coordinator), load, up_to=row.number, by="bench")
            seconds = time.perf_counter() - began
            assert len(report.aborted) == aborted, report
            costs.append(Cost(wire.sent.total(), wire.sent, seconds))
        _settled(session, load)
    return costs[0], costs[1]


def _settled(session: Session, load: LoadIdentity) -> None:
    while not sweep(session, load, up_to=1, by="bench").is_quiet:
        time.sleep(0.05)


def probing(settings: KafkaSettings, ids: int) -> Cost:
    """One InitProducerId for each possible id, in turn; their coordinators are found in batches, in its favour."""
    names = [f"probed-{next(_numbers)}-{n}" for n in range(ids)]
    with CountingWire(settings) as wire:
        wire.api_versions()
        began = time.perf_counter()
        for batch in (names[n : n + _BATCH] for n in range(0, ids, _BATCH)):
            nodes = wire.coordinators(batch)
            for name in batch:
                while wire.send_to_broker(nodes[name], _request(name)).error_code:
                    time.sleep(0.01)
        return Cost(wire.sent.total(), wire.sent, time.perf_counter() - began)


def report(kafka: LocalKafka, folder: Path, foreign: Sequence[int]) -> str:
    """The page, measured on a running broker."""
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    url = f"sqlite:///{folder}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    kafka.create_topic(TOPIC, partitions=1)
    rows, made = [], 0
    with connect(settings, url, NAMESPACE) as session:
        listing(session, settings)  # warm
        for ids in sorted(foreign):
            initialise(settings, (f"foreign-{n}" for n in range(made, ids)))
            made = ids
            ending, quiet = listing(session, settings)
            print(f"{ids} foreign ids: {dict(ending.by_name)} in {ending.seconds:.3f} s", file=sys.stderr)
            rows.append([f"{ids:,}", str(ending.requests), f"{ending.seconds * 1000:.0f}",
                         str(quiet.requests), f"{quiet.seconds * 1000:.0f}"])  # fmt: skip
        # last, for what is probed stays on the broker
        for row, ids in zip(rows, sorted(foreign), strict=True):
            probed = probing(settings, ids)
            row += [f"{probed.requests:,}", f"{probed.seconds * 1000:,.0f}"]
    head = ["ids", f"ending {LEFT}: requests", "ms", "quiet: requests", "ms", "probing: requests", "ms"]
    shown = ", ".join(f"{n} {name.removesuffix('Request')}" for name, n in sorted(ending.by_name.items()))
    return "\n".join([
        "# What cleanup costs", "",
        f"Made by `python -m bench.cleanup`: Kafka {kafka.version}, one broker, {os.cpu_count()} cores.", "",
        f"One pass over a load whose killed attempt has left {LEFT} transactions open, and one that finds nothing,",
        "beside so many transactional ids of other applications; and FLIP-511's probing of so many ids that an earlier",
        "run might have used (one InitProducerId each; it also creates each of them).", "",
        *table(head, rows), "",
        f"The first pass sends {shown}.", "",
    ])  # fmt: skip


def main() -> None:
    foreign = [int(n) for n in os.environ.get("FOREIGN_IDS", "10,100,1000,10000").split(",")]
    with (
        tempfile.TemporaryDirectory(prefix="bench-cleanup-") as folder,
        LocalKafka(version=os.environ.get("KAFKA", "4.4.0")) as kafka,
    ):
        page = report(kafka, Path(folder), foreign)
    Path(__file__).with_name("CLEANUP.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
