"""Cases side by side: each waits most of the time, and none shares more with another than broker and database."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Generic, TypeVar

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.crashes.reader import Reader
from tests.crashes.victim import NAMESPACE
from tests.crashes.zygote import Zygote

C = TypeVar("C")
HANDS = int(os.environ.get("HANDS", "4"))
FOREIGN_TOPIC = "crashes-foreign"
_numbers = itertools.count(1)


class Hand:
    """What one thread works with: connections and readers of its own."""

    def __init__(self, kafka: LocalKafka, urls: dict[str, str], victims: Zygote, stack: ExitStack) -> None:
        self.servers = kafka.bootstrap_servers
        self.settings = KafkaSettings.from_mapping({"bootstrap.servers": self.servers})
        # everybody waits for the one writer of an SQLite file
        own = f"{urls['sqlite']}-{next(_numbers)}"
        Ledger.open(own, upgrade=True).close()
        self.urls = urls | {"sqlite": own}
        self.victims = victims
        self.wire = stack.enter_context(Wire(self.settings))
        self.reader = Reader(self.servers)
        self.kafka = kafka
        self._stack = stack
        self._sessions: dict[str, Session] = {}

    def session(self, database: str) -> Session:
        if database not in self._sessions:
            opened = connect(self.settings, self.urls[database], NAMESPACE)
            self._sessions[database] = self._stack.enter_context(opened)
        return self._sessions[database]


class Crew(Generic[C]):
    """Runs all cases of one broker, in their order, some at a time; each one's test takes its own result."""

    def __init__(
        self, kafka: LocalKafka, urls: dict[str, str], victims: Zygote, work: Callable[[Hand, C], None]
    ) -> None:
        self._kafka = kafka
        self._urls = urls
        self._victims = victims
        self._work = work
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(HANDS)
        self._results: dict[C, Future[None]] = {}
        kafka.create_topic(FOREIGN_TOPIC, partitions=1)

    def start(self, cases: Sequence[C]) -> None:
        self._results = {case: self._pool.submit(self._one, case) for case in cases}

    def result(self, case: C) -> None:
        """:raises Exception: what the case raised."""
        self._results[case].result(240)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._stack.close()

    def _one(self, case: C) -> None:
        if not hasattr(self._own, "hand"):
            with self._lock:
                self._own.hand = Hand(self._kafka, self._urls, self._victims, self._stack)
        self._work(self._own.hand, case)
