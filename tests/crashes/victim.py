"""What the process that is killed does: the steps of a load as Airflow's tasks would do them, until it dies."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow_kafka_eos import manifest as m
from airflow_kafka_eos.kafka.client import pool
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.database import Database
from airflow_kafka_eos.load import LoadIdentity, TransactionScope
from airflow_kafka_eos.manifest import AttemptRef, Manifest, ManifestEntry
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll, own_number
from airflow_kafka_eos.protocol.session import Session, connect
from tests.crashes.steps import ARROW, BY_NAME, CONFLUENT, PHASES, Step, When
from tests.protocol.world import RUN, World

NAMESPACE = "test"
PARTS = [[f"{part}-{n}" for n in range(20)] for part in range(2)]
ALL = sorted(value for part in PARTS for value in part)


@dataclass(frozen=True)
class Order:
    """One victim's work; plain values, for it goes to another process as JSON."""

    step: str
    servers: str
    ledger_url: str
    topic: str
    key: str
    scope: str
    two_phase: bool
    folder: str
    writer: str = ARROW

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Place(World):
    """A world that writes with the writer that is asked for, and keeps manifests where another process finds them."""

    scope: TransactionScope = TransactionScope.TASK
    two_phase: bool = False
    writer: str = ARROW
    folder: Path = field(default_factory=Path)

    def prepare_all(self) -> Manifest:
        if self.scope is TransactionScope.LOAD:
            return self.prepare_shared(*PARTS, two_phase=self.two_phase)
        return self.prepare_two_phase(*PARTS) if self.two_phase else self.prepare(*PARTS)

    def write(self, ref: AttemptRef, values: Sequence[str], spark_partition: int = 0) -> ManifestEntry:
        if self.writer == CONFLUENT:
            return super().write(ref, values, spark_partition)
        self._task_attempts[0] += 1
        name = TransactionalId(ref.load, ref.ledger_id, ref.attempt, spark_partition, self._task_attempts[0])
        return ManifestEntry(spark_partition, *self.write_arrow(name, values))

    def manifest(self, ref: AttemptRef, *arguments: Any, **options: Any) -> Manifest:
        """Built as always, and kept before anybody is told of it, as the manifest store does."""
        document = super().manifest(ref, *arguments, **options)
        self._path(ref).write_text(m.dump(document))
        return document

    def kept(self, number: int) -> Manifest:
        ref = AttemptRef(self.load, self.session.ledger.ledger_id, number)
        return m.load(self._path(ref).read_text(), ref)

    def newest(self) -> Manifest:
        return self.kept(self.session.ledger.attempts(self.load)[-1].number)

    def clean(self) -> None:
        """Airflow's teardown: polls until nothing of the run's attempts is open."""
        ours = own_number(self.session.ledger.attempts(self.load), RUN)
        poll = CleanPoll(self.load, up_to=ours, by=RUN, quiet_s=0.1)
        self.until_done(lambda: poll(self.session))

    def until_done(self, poll: Callable[[], str | None], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while (waiting := poll()) is not None:
            assert time.monotonic() < end, waiting
            time.sleep(0.02)

    def _path(self, ref: AttemptRef) -> Path:
        return self.folder / f"{ref.load.key}-{ref.attempt}.json"


def place(session: Session, order: Order) -> Place:
    return Place(
        session,
        KafkaSettings.from_mapping({"bootstrap.servers": order.servers}),
        order.topic,
        LoadIdentity(NAMESPACE, "crashes", order.key),
        scope=TransactionScope(order.scope),
        two_phase=order.two_phase,
        writer=order.writer,
        folder=Path(order.folder),
    )


def run(order: Order) -> None:
    """Come so far as the step lets it."""
    step = BY_NAME[order.step]
    pool.DEPTH = 1  # one EndTxn at a time, so that "between two" is a place
    settings = KafkaSettings.from_mapping({"bootstrap.servers": order.servers})
    with connect(settings, order.ledger_url, NAMESPACE) as session:
        world = place(session, order)
        phases: dict[str, Callable[[], object]] = {
            "prepare": world.prepare_all,
            "decide": lambda: world.decide(world.newest()),
            "commit": world.commit,
            "clean": world.clean,
            "prepare again": world.prepare_all,
        }
        for phase in PHASES[step.run]:
            if phase == step.phase:
                plant(step)
            phases[phase]()


def plant(step: Step) -> None:
    """Replace the step's function by one that kills this process at its n-th call."""
    module, _, path = step.target.partition(":")
    *parents, name = path.split(".")
    owner = functools.reduce(getattr, parents, import_module(module))
    original = getattr(owner, name)
    calls = 0

    @functools.wraps(original)
    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        mine = calls == step.nth
        if mine and step.when is When.BEFORE:
            die()
        if mine and step.when is When.WRITTEN:
            _die_before_commit()
        answer = original(*arguments, **options)
        if mine:
            die()
        return answer

    setattr(owner, name, counted)


def _die_before_commit() -> None:
    write = Database.write

    def written(self: Database, work: Callable[[Any], Any]) -> Any:
        def whole(connection: Any) -> None:
            work(connection)
            die()

        return write(self, whole)

    Database.write = written  # type: ignore[method-assign]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
