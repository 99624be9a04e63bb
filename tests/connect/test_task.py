"""When a Spark Connect server's task looks whether its attempt is over. Without a server: its rows come from here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_eos.connect import task
from airflow_kafka_eos.connect.task import ExecutorWriter, Look, Work
from airflow_kafka_eos.errors import (
    AccessError,
    BrokerUnavailableError,
    ConfigurationError,
    ProducerFencedError,
    SparkUnavailableError,
    SupersededError,
)
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity, TransactionScope, Verdict, WriterName
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import IdRole
from airflow_kafka_eos.protocol import fences
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.attempt_writer import Part, identities
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.preflight import check_cluster
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TopicPartition
from tests.kafka.open_transactions import wait_until

pytestmark = pytest.mark.broker

LEDGER = "00000000ca"
ROWS = pa.RecordBatch.from_pydict({"value": ["v"]})
#: more than a look is good for
LATER = fences.LOOK_S + 1


class Task:
    """One of an attempt whose fence stands, and its clock."""

    def __init__(self, work: Work, settings: KafkaSettings, application_id: str = "app-1") -> None:
        self.now = 0.0
        #: seconds that an answer takes, where that is asked for
        self.slow_s = 0.0
        self.ref = work.options.attempt
        (self.topic,) = work.options.topics
        self.settings = settings
        self.writer = ExecutorWriter(work, settings)
        self.look = Look(work, settings, application_id, clock=lambda: self.now, wall=lambda: self.now)
        self.writer.look = self.look

    def write(self, rows: Iterable[pa.RecordBatch]) -> int:
        """:returns: how many records it has reported."""
        try:
            report = self.writer.write_part(Part(0, 0, 7), iter(rows), lambda batch: None)
        finally:
            self.look.close()
        return sum(w.records for w in report.entry.writes)

    def coordinator(self, wire: Wire) -> Coordinator:
        return Coordinator(wire, namespace=self.ref.load.namespace, ledger_id=self.ref.ledger_id)

    def move(self) -> None:
        """As whoever ends the attempt."""
        with Wire(self.settings) as wire:
            assert fences.move(self.coordinator(wire), [self.ref], set())

    def move_later(self) -> None:
        self.move()
        self.now += LATER

    def state(self) -> str | None:
        """Of its transaction, as its coordinator shows it."""
        name = str(self.ref.task_id(0, 7))
        with Wire(self.settings) as wire:
            found = self.coordinator(wire).describe([name]).get(name)
        return None if found is None else found.coordinator_state.value

    def log_ends(self) -> dict[int, int]:
        """The offset of the next record of each partition, markers counted."""
        tps = [TopicPartition(self.topic, partition) for partition in (0, 1)]
        with Wire(self.settings) as wire:
            return {tp.partition: offset for tp, offset in Partitions(wire).end_offsets(tps).items()}


@pytest.fixture(scope="module", params=["3.9", "4.4"])
def kafka(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    """Transaction version 1, where partitions are announced, and 2, where Produce does it."""
    with LocalKafka(version=request.param, heap="256m") as running:
        yield running


@pytest.fixture
def work(kafka: LocalKafka, topic: Callable[..., str], request: pytest.FixtureRequest) -> Work:
    ref = AttemptRef(LoadIdentity("tests", "connect", request.node.name.partition("[")[0]), LEDGER, 1)
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    options = WriteOptions(ref, "/nowhere", (topic(2),), 900_000, int(time.time() * 1000) + 1_800_000)
    checked = check_cluster(settings, options)  # before it: two-phase commit is asked for by the same id
    stood = fences.stand(settings, ref, options.deadline_ms, lambda: None)
    assert isinstance(stood, PreparedTxnState)
    with Wire(settings) as wire:
        cluster_id = wire.cluster_id()
    assert cluster_id is not None
    return Work(options, checked, {}, "any", (), cluster_id, "app-1", stood)


@pytest.fixture
def made(work: Work, kafka: LocalKafka) -> Task:
    return Task(work, KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers}))


def test_a_task_whose_fence_stands_writes_its_rows(made: Task) -> None:
    assert made.write([ROWS, ROWS]) == 2
    assert made.state() == "Ongoing"


def test_a_task_without_rows_asks_nobody(made: Task) -> None:
    made.move()
    assert made.write([ROWS.slice(0, 0)]) == 0


def test_a_task_whose_fence_has_moved_initialises_nothing(made: Task) -> None:
    made.move()
    with pytest.raises(SupersededError, match=r"its fence .* stands at"):
        made.write([ROWS])
    assert made.state() is None


def test_a_repeated_initialisation_is_behind_a_look_of_its_own(made: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its coordinator is away, and meanwhile the attempt is ended."""
    asked: list[str] = []
    check = Wire.check_id

    def away(wire: Wire, code: int, operation: str, name: str) -> None:
        if operation == "WRITE" and not asked:
            asked.append(name)
            made.move_later()
            raise retry.Retry("the coordinator is moving")
        check(wire, code, operation, name)

    sent: list[str] = []
    init = Wire.send_to_coordinator

    def seen(wire: Wire, name: str, request: Any) -> Any:
        if name == str(made.ref.task_id(0, 7)):
            sent.append(type(request).__name__)
        return init(wire, name, request)

    with monkeypatch.context() as patch:
        patch.setattr(Wire, "check_id", away)
        patch.setattr(Wire, "send_to_coordinator", seen)
        with pytest.raises(SupersededError):
            made.write([ROWS])
    assert asked and sum(name.startswith("InitProducerId") for name in sent) == 1


def test_rows_that_were_held_back_begin_nothing_behind_an_old_look(made: Task) -> None:
    """A slow source: the first rows wait for their batch to be full, or for the end."""

    def source() -> Iterator[pa.RecordBatch]:
        yield ROWS
        made.move_later()

    with pytest.raises(SupersededError):
        made.write(source())
    # what was initialised is aborted; on transaction version 2 that has its time even where nothing was begun
    wait_until(lambda: made.state() in ("Empty", "CompleteAbort"), "the end of what was initialised")
    assert made.log_ends() == {0: 0, 1: 0}, "what was begun would have left a marker"


def test_what_was_ended_is_not_begun_anew(work: Work, kafka: LocalKafka) -> None:
    """On transaction version 1 an announcement would, under the same epoch; on 2 the end has raised that."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "batch.size": "1"}  # each record is sent at once
    made = Task(work, KafkaSettings.from_mapping(settings))

    def rows(partition: int) -> pa.RecordBatch:
        places = pa.array([partition] * 3, pa.int32())
        return pa.RecordBatch.from_pydict({"value": ["v"] * 3, "partition": places})

    def source() -> Iterator[pa.RecordBatch]:
        yield rows(0)
        wait_until(lambda: made.state() == "Ongoing", "a transaction")
        made.move_later()
        with Wire(made.settings) as wire:
            name = str(made.ref.task_id(0, 7))
            open_ = made.coordinator(wire).describe([name])[name]
            made.coordinator(wire).end(PreparedTransaction(name, open_.state), Verdict.ABORT)
        wait_until(lambda: made.state() == "CompleteAbort", "its end")
        yield rows(1)

    with pytest.raises(SupersededError if kafka.version.startswith("3.") else ProducerFencedError):
        made.write(source())
    assert made.state() == "CompleteAbort"


def test_a_task_of_scope_load_looks_too(work: Work, made: Task) -> None:
    """It initialises nothing itself."""
    options = replace(work.options, scope=TransactionScope.LOAD)
    shared, _ = identities(options, made.settings, work.checked, store=_Identities())  # type: ignore[arg-type]
    task = Task(replace(work, options=options, shared=shared), made.settings)
    rows = pa.RecordBatch.from_pydict({"value": ["v"], "partition": pa.array([0], pa.int32())})

    def source() -> Iterator[pa.RecordBatch]:
        yield rows
        task.move_later()

    with pytest.raises(SupersededError):
        task.write(source())
    name = str(made.ref.common_id(IdRole.LOAD))
    with Wire(made.settings) as wire:
        assert task.coordinator(wire).describe([name])[name].coordinator_state.value == "Empty"


class _Identities:
    """A store that keeps none."""

    def identity(self, ref: AttemptRef, make: Callable[[], PreparedTxnState]) -> PreparedTxnState:
        return make()


# -- a look ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(made: Task, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When it was asked."""
    found: list[float] = []
    why = fences.why_moved

    def seen(*args: Any) -> str | None:
        found.append(made.now)
        made.now += made.slow_s
        return why(*args)

    monkeypatch.setattr(fences, "why_moved", seen)
    return found


def test_a_look_is_good_for_a_while_and_then_made_again(made: Task, asked: list[float]) -> None:
    for at in (0.0, fences.LOOK_S - 1, LATER):
        made.now = at
        made.look()
    made.look.close()
    assert asked == [0.0, LATER]


def test_a_look_is_as_old_as_its_question(made: Task, asked: list[float]) -> None:
    """Its answer may have been given before anybody moved the fence."""
    made.slow_s = fences.LOOK_S - 1
    made.look()
    made.now += 2
    made.look()
    made.look.close()
    assert len(asked) == 2


def test_looks_that_take_longer_than_they_are_good_for_begin_nothing(made: Task, asked: list[float]) -> None:
    made.slow_s = LATER
    with pytest.raises(BrokerUnavailableError, match="could not be found out within 5 s, 5 times"):
        made.look()
    made.look.close()
    assert len(asked) == task.SLOW_LOOKS


def test_looks_share_a_connection(made: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of tasks: each would log in again every few seconds."""
    opened = []

    class Counted(Wire):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            opened.append(self)

    monkeypatch.setattr(task, "Wire", Counted)
    for at in (0.0, LATER):
        made.now = at
        made.look()
    made.look.close()
    assert len(opened) == 1 and opened[0]._closed


def test_another_run_of_the_server_is_told_as_what_a_retry_may_mend(work: Work, made: Task) -> None:
    with pytest.raises(SparkUnavailableError, match="was started again: this is its application app-2"):
        Task(work, made.settings, "app-2").write([ROWS])
    assert made.state() is None


def test_a_fence_that_the_brokers_have_forgotten_is_told_as_that(work: Work, made: Task) -> None:
    """They do, where a prepare takes a week."""
    ref = replace(made.ref, attempt=2)
    forgotten = Task(replace(work, options=replace(work.options, attempt=ref)), made.settings)
    with pytest.raises(SupersededError, match=r"not known to the brokers\. .*transactional\.id\.expiration\.ms"):
        forgotten.write([ROWS])


# -- who writes, and as whom -------------------------------------------------------------------------------------------


def test_the_confluent_writer_begins_nothing_for_who_looks(work: Work, made: Task) -> None:
    """It hides when it begins: prepare does not ask for it, and would not get it."""
    made.writer.checked = replace(work.checked, writer=WriterName.CONFLUENT)
    with pytest.raises(ConfigurationError, match="nor does it let anybody look before it begins one"):
        made.write([ROWS])
    assert made.state() is None


def test_a_right_that_is_missing_is_the_logins(
    work: Work, made: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy names the principal of the Kafka connection, and that is another one."""

    def refused(*_: Any) -> None:
        raise AccessError("the broker refused WRITE on Topic t", remedy="Grant it", transactional_id="x")

    monkeypatch.setattr(ExecutorWriter, "write", refused)
    with pytest.raises(AccessError) as caught:
        task._written(replace(work, login="orders"), made.settings, iter([ROWS]))
    assert "by the Kafka login 'orders' of the server's executors, on " in str(caught.value)
    assert "refused WRITE on Topic t" in str(caught.value)
    assert (caught.value.remedy, caught.value.transactional_id) == ("Grant it", "x")
