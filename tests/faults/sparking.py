"""Spark without Spark: the driver and the tasks of one application, each a process, around the data source itself.

What runs here is ``spark/datasource.py``: its ``writer()``, ``write()``, ``commit()`` and ``abort()`` are called as
PySpark calls them, the writer travels by pickle, and a task that fails is run again with its next number.
"""

from __future__ import annotations

import os
import pickle
import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.options import ProducerOptions
from airflow_kafka_eos.load import TransactionScope, TwoPhaseCommit, WriterName
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.spark.datasource import KafkaEosDataSource, KafkaEosWriter
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.no_retries import ONE_RUN
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.scope import Owners, placed
from tests.faults.facts import Value
from tests.faults.plan import Ended, Order, Plan
from tests.faults.scenario import LONG_HOLD_MS, Keeps, Role
from tests.faults.timeline import Timeline
from tests.faults.zygote import ADDRESS, ask

#: Spark's default; and in scope load one more than it is told, for a lost executor's task may come again
#: (rule: scope-load-writes-once)
MAX_FAILURES, MAX_FAILURES_OF_ONE = 4, 2
CORES = int(os.environ.get("FAULTS_SPARK_CORES", "4"))
ROWS_IN_A_BATCH = 4_000
TASK_S = 100.0
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class SparkError(Exception):
    """An application whose tasks have failed so often that Spark gives it up."""


def driver(plan: Plan, order: Order, timeline: Timeline) -> Any:
    """Claim the attempt, run the tasks, write the manifest; as ``spark/application.py``."""
    ref = _ref(plan, order)
    store = ManifestStore(plan.manifests)
    claimant = f"{socket.gethostname()} process {os.getpid()}, {uuid.uuid4().hex}"
    store.claim(ref, claimant)
    options = _options(plan, order, ref, claimant)
    os.environ[SETTINGS_VARIABLE] = KafkaSettings.from_mapping({"bootstrap.servers": plan.servers}).to_json()
    writer = KafkaEosDataSource(options.to_texts()).writer(_schema(plan, order), False)
    carried = Path(order.folder) / f"writer-{uuid.uuid4().hex}"
    carried.write_bytes(pickle.dumps(writer))
    tasks = _tasks(plan, order)
    with ThreadPoolExecutor(CORES) as cores:
        found = list(cores.map(partial(_task_until_done, plan, order, str(carried)), range(tasks)))
    messages = [None if message is None else pickle.loads(Path(message).read_bytes()) for message, _ in found]
    if None in messages:
        writer.abort(messages)
        raise SparkError(f"tasks have failed: {[number for number, m in enumerate(messages) if m is None]}")
    try:
        writer.commit(messages)
    except BaseException:
        writer.abort(messages)
        raise
    if all(once for _, once in found):
        store.note_ran_once(ref)
    return {"attempt": ref.attempt, "tasks": tasks}


def _task_until_done(plan: Plan, order: Order, carried: str, number: int) -> tuple[str | None, bool]:
    """The message of the run that was accepted, and whether it was the task's only one."""
    tries = MAX_FAILURES_OF_ONE if plan.scenario.scope == TransactionScope.LOAD.value else MAX_FAILURES
    twice = plan.scenario.speculates and number == 0
    for attempt_number in range(tries):
        run = partial(_run_task, order, carried, number)
        if twice and attempt_number == 0:
            with ThreadPoolExecutor(2) as both:
                all_ended = list(both.map(run, (0, 1)))
        else:
            all_ended = [run(attempt_number + twice)]
        # the commit coordinator accepts one; the loser's transaction stays open, for cleanup
        for ended in all_ended:
            if ended.is_well:
                return str(ended.answer), attempt_number == 0 and not twice
    return None, False


def _run_task(order: Order, carried: str, partition: int, number: int) -> Ended:
    details = dict(order.details) | {"carried": carried, "partition": partition, "number": number}
    task = Order(Role.TASK.value, order.load, order.owner, order.folder, details, limit_s=TASK_S)
    return ask(os.environ[ADDRESS], task)


def task(plan: Plan, order: Order, timeline: Timeline) -> Any:
    """One run of one Spark task."""
    writer: KafkaEosWriter = pickle.loads(Path(order.details["carried"]).read_bytes())
    partition, number = order.details["partition"], order.details["number"]
    context = TaskContext()
    context._partitionId, context._attemptNumber = partition, number
    # unique within an application, as Spark's are
    context._taskAttemptId = number * _tasks(plan, order) + partition
    context._localProperties = dict(ONE_RUN)
    TaskContext._setTaskContext(context)
    message = writer.write(_batches(plan, order, partition, writer))
    transaction = message.entry.transaction
    timeline.log("has prepared", transaction=transaction and f"{transaction.transactional_id} {transaction.state}")
    file = Path(order.folder) / f"message-{uuid.uuid4().hex}"
    file.write_bytes(pickle.dumps(message))
    return str(file)


def _batches(plan: Plan, order: Order, task: int, writer: KafkaEosWriter) -> Iterator[pa.RecordBatch]:
    """The task's rows. All of one key are one task's, in their order: it is what a job that cares for order does."""
    load = plan.scenario.loads[order.load]
    numbers = np.arange(load.records)
    chosen: Any = None
    if writer.shared is None:
        numbers = numbers[numbers % load.keys % _tasks(plan, order) == task]
    else:
        owners = Owners.of(writer.checked.partitions, writer.options.tasks)
        columns = _columns(plan, order, [int(n) for n in numbers])
        placing = pa.record_batch({name: columns[name] for name in ("key", "topic") if name in columns})
        codes, chosen = placed(
            placing, owners, writer.options, ProducerOptions.from_settings(writer.settings).partitioner
        )
        mine = owners.owners(codes, chosen) == task
        numbers, chosen = numbers[mine], chosen[mine]
    for begin in range(0, len(numbers), ROWS_IN_A_BATCH):
        columns = _columns(plan, order, [int(n) for n in numbers[begin : begin + ROWS_IN_A_BATCH]])
        if chosen is not None:
            columns["partition"] = pa.array(chosen[begin : begin + ROWS_IN_A_BATCH], pa.int32())
        yield pa.record_batch(columns)


def value_of(plan: Plan, number: int, load: int, attempt: int) -> Value:
    """What record ``number`` of a load's attempt says of itself."""
    of = plan.scenario.loads[load]
    place = number % of.keys
    # one key in thirteen is null; a compacted topic takes none
    has_key = not of.rich or place % 13 != 7 or plan.scenario.keeps is Keeps.NEWEST
    # nobody else's records have these keys: what supersedes one is the load's own
    own = f"{plan.key(load)}~" if plan.scenario.keeps is Keeps.NEWEST else ""
    at_ms = plan.began_ms - number % 600_000 if of.rich else 0
    return Value("load", plan.key(load), attempt, f"{own}k{place}" if has_key else "", number, at_ms)


def _columns(plan: Plan, order: Order, numbers: list[int]) -> dict[str, pa.Array]:
    load, attempt = plan.scenario.loads[order.load], _data_of(order)
    values = [value_of(plan, number, order.load, attempt) for number in numbers]
    columns = {
        "key": pa.array([v.key or None for v in values], pa.string()),
        "value": pa.array([v.encode(load.size).decode() if v.has_value else None for v in values], pa.string()),
    }
    topics = plan.topics[order.load]
    if len(topics) > 1:
        columns["topic"] = pa.array([topics[number % load.keys % len(topics)] for number in numbers])
    if load.rich:
        headers = [[{"key": name, "value": data} for name, data in v.headers] for v in values]
        columns["headers"] = pa.array(headers, _HEADERS)
        columns["timestamp"] = pa.array([v.at_ms * 1000 for v in values], pa.timestamp("us", tz="UTC"))
    return columns


def _schema(plan: Plan, order: Order) -> StructType:
    schema = StructType([StructField("key", StringType()), StructField("value", StringType())])
    if len(plan.topics[order.load]) > 1:
        schema = schema.add("topic", StringType())
    if plan.scenario.loads[order.load].rich:
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        schema = schema.add("headers", ArrayType(header)).add("timestamp", TimestampType())
    if plan.scenario.scope == TransactionScope.LOAD.value:
        schema = schema.add("partition", IntegerType())
    return schema


def _tasks(plan: Plan, order: Order) -> int:
    first, later = plan.scenario.tasks
    tasks = first if _data_of(order) == 1 else later
    # no more than there are Kafka partitions to own
    owned = plan.scenario.partitions * len(plan.topics[order.load])
    return min(tasks, owned) if plan.scenario.scope == TransactionScope.LOAD.value else tasks


def _data_of(order: Order) -> int:
    """The attempt whose rows these are: where it is decided and prepared again, the same ones come once more."""
    return int(order.details.get("decided", order.details["attempt"]))


def _ref(plan: Plan, order: Order) -> AttemptRef:
    details = order.details
    repairs = tuple((int(partition), int(number)) for partition, number in details["repairs"])
    return AttemptRef(plan.identity(order.load), details["ledger_id"], details["attempt"], details["slot"], repairs)


def _options(plan: Plan, order: Order, ref: AttemptRef, claimant: str) -> WriteOptions:
    scenario = plan.scenario
    hold_ms = scenario.hold_ms if ref.attempt == 1 else LONG_HOLD_MS
    return WriteOptions(
        attempt=ref,
        manifest_dir=plan.manifests,
        topics=plan.topics[order.load],
        transaction_timeout_ms=order.details.get("hold_ms", hold_ms),
        deadline_ms=order.details["deadline_ms"],
        claim=claimant,
        scope=TransactionScope(scenario.scope),
        tasks=_tasks(plan, order) if scenario.scope == TransactionScope.LOAD.value else None,
        # a repair's transactions have a timeout, whatever the attempt's had
        two_phase_commit=TwoPhaseCommit.REQUIRED if scenario.two_phase and not ref.repairs else TwoPhaseCommit.OFF,
        writer=WriterName(scenario.writer),
    )
