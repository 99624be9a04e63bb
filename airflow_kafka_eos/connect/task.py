"""What runs on a Spark Connect server's executors: a task's transaction, behind looks that no client can make.

An executor finds its cluster and its login by itself, and its client may be gone for minutes while the server goes on.
So before a task begins anything it looks whether it has come to the cluster that Airflow has pinned (rule:
one-cluster-per-attempt), whether the server is still the one that was asked, and whether its attempt's fence still
stands (:mod:`airflow_kafka_eos.protocol.fences`). Its writer has it look right before it sends what begins something
(:class:`~airflow_kafka_eos.kafka.producer.interface.WriteTarget`): rows may be held back for minutes, and what is sent
is repeated for minutes. Nothing here, and nothing that it imports, is of pyspark's client.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from airflow_kafka_eos.connect.logins import settings_here
from airflow_kafka_eos.errors import (
    AccessError,
    BrokerUnavailableError,
    OtherClusterError,
    SparkUnavailableError,
)
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.manifest import entry_document, entry_of
from airflow_kafka_eos.protocol import fences
from airflow_kafka_eos.reasons import without_known
from airflow_kafka_eos.spark.attempt_writer import PartReport
from airflow_kafka_eos.spark.datasource import KafkaEosWriter, PreparedPartition
from airflow_kafka_eos.spark.options import Checked, WriteOptions
from airflow_kafka_eos.spark.orphan import superseded
from airflow_kafka_eos.spark.pooled import Snapshot
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: As :func:`airflow_kafka_eos.connect.shipped.shipped` names it.
WRITE = f"{__name__}:write"
LOOK, REACH = f"{__name__}:look", f"{__name__}:reach"
#: The column of what it returns.
REPORT = "report"
#: Looks that may take longer than they would be good for.
SLOW_LOOKS = 5
#: Of the server's Spark application; another one is another run of the server.
APPLICATION = "spark.app.id"


@dataclass(frozen=True)
class Work:
    """What every task of an attempt is told. Travels in a plan: holds no secret.

    :param sent: Kafka's settings without what may be a secret (:mod:`.logins`).
    :param login: the id of the login to add.
    :param needed: which settings were left out.
    :param cluster_id: of the Kafka cluster that the ledger has pinned.
    :param application_id: of the server's Spark application, as the client has seen it.
    :param fence: the identity under which the attempt's fence stands.
    """

    options: WriteOptions
    checked: Checked
    sent: Mapping[str, str]
    login: str
    needed: tuple[str, ...]
    cluster_id: str
    application_id: str
    fence: PreparedTxnState
    shared: PreparedTransaction | None = None
    at_lease: Snapshot = field(default_factory=dict)


def write(pickled: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Prepare one Spark partition, and report it.

    :param pickled: a :class:`Work`.
    :returns: one batch of one row: the report, as JSON.
    """
    work: Work = pickle.loads(pickled)
    settings = settings_here(work.sent, work.login, list(work.needed), os.environ)
    try:
        report = _written(work, settings, batches)
    except Exception as e:
        if (masked := without_login(e, settings)) is e:
            raise
        raise masked from None
    text = json.dumps({
        "entry": entry_document(report.entry),
        "attempt_number": report.attempt_number,
        "skipped_ids": report.skipped_ids,
    })  # fmt: skip
    yield pa.RecordBatch.from_arrays([pa.array([text.encode()], pa.binary())], [REPORT])


def _written(work: Work, settings: KafkaSettings, batches: Iterator[pa.RecordBatch]) -> PreparedPartition:
    try:
        return ExecutorWriter(work, settings).write(batches)
    except AccessError as e:
        # whoever reads its remedy has the Airflow connection before him, whose rights are not these
        raise AccessError(
            f"by the Kafka login {work.login!r} of the server's executors, on {socket.gethostname()}, and not by the "
            f"Kafka connection's own: {e.message}",
            remedy=e.remedy,
            load=e.load,
            attempt=e.attempt,
            transactional_id=e.transactional_id,
        ) from e


def look(_: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Nothing but that this module is there, of the right version and with what it requires."""
    for _batch in batches:
        pass
    yield pa.RecordBatch.from_arrays([pa.array([b"{}"], pa.binary())], [REPORT])


def reach(pickled: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For the doctor: by which host, and to which Kafka cluster, an executor comes.

    :param pickled: what is sent of the settings, the login's id, and the names of what is not sent.
    :returns: one batch of one row: ``{"host", "cluster_id"}``, as JSON.
    """
    for _batch in batches:
        pass
    sent, login, needed = pickle.loads(pickled)
    settings = settings_here(sent, login, needed, os.environ)
    try:
        with Wire(settings, timeout_s=10) as wire:
            found = wire.cluster_id()
    except Exception as e:
        if (masked := without_login(e, settings)) is e:
            raise
        raise masked from None
    text = json.dumps({"host": socket.gethostname(), "cluster_id": found})
    yield pa.RecordBatch.from_arrays([pa.array([text.encode()], pa.binary())], [REPORT])


def schema() -> StructType:
    """Of what :func:`write` returns."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    # made of types, not read from a text: that would be a class of pyspark's client, for executors to import
    return StructType([StructField(REPORT, BinaryType())])


def read_report(text: bytes) -> PartReport:
    """What :func:`write` has reported. Not by pickle: the server is another's, and Airflow's worker reads it.

    :raises ValueError: it is malformed.
    """
    try:
        found: dict[str, Any] = json.loads(text)
        return PartReport(entry_of(found["entry"]), int(found["attempt_number"]), bool(found["skipped_ids"]))
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"{type(e).__name__}: {e}") from e


def without_login(error: Exception, settings: KafkaSettings) -> Exception:
    """The error, or where a secret of the login stands in what Spark would show of it, its text without that.

    The client cannot mask it: the login is the server's own.
    """
    shown = "".join(traceback.format_exception(error))
    masked = without_known(shown, settings.secrets)
    return error if masked == shown else RuntimeError(masked)


class Look:
    """Looks whether anything may be begun; called before each request that may, by one thread at a time.

    It asks only where its last look began longer than :data:`~.fences.LOOK_S` ago, by a connection that it keeps.

    :param application_id: of the Spark application that this task is of.
    :param clock, wall: seconds, since whenever and since the epoch.
    """

    def __init__(
        self,
        work: Work,
        settings: KafkaSettings,
        application_id: str | None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._work = work
        self._settings = settings
        self._application_id = application_id
        #: the first stands still while a machine is suspended, or a VM paused; the second may be set
        self._clocks = clock, wall
        self._looked: tuple[float, ...] | None = None
        self._wire: Wire | None = None

    def __call__(self) -> None:
        """
        :raises OtherClusterError: this host has come to another cluster than Airflow.
        :raises SparkUnavailableError: the server was started again meanwhile, and its client's operation was sent once
            more.
        :raises SupersededError: the attempt is over.
        :raises BrokerUnavailableError: whether it is could not be found out.
        """
        for _ in range(SLOW_LOOKS):
            if self._is_fresh():
                return
            # an answer may be as old as its question
            began = self._now()
            self._look()
            self._looked = began
        if not self._is_fresh():
            raise BrokerUnavailableError(
                f"whether the attempt is over could not be found out within {fences.LOOK_S:g} s, {SLOW_LOOKS} times: "
                "this host, or the brokers, are too slow",
                remedy="Look whether they are short of CPU or memory; prepare's retry opens a new attempt",
                **self._work.options.attempt.ids,
            )

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _now(self) -> tuple[float, ...]:
        return tuple(clock() for clock in self._clocks)

    def _is_fresh(self) -> bool:
        """By both clocks; what lies behind one of them was looked at who knows when."""
        return self._looked is not None and all(
            0 <= now - then <= fences.LOOK_S for now, then in zip(self._now(), self._looked, strict=True)
        )

    def _look(self) -> None:
        work, ref = self._work, self._work.options.attempt
        if self._application_id is None or self._application_id != work.application_id:
            raise SparkUnavailableError(
                f"the Spark Connect server was started again: this is its application {self._application_id}, and the "
                f"attempt is written by {work.application_id}",
                remedy="A retry, or clearing prepare, opens a new attempt",
                **ref.ids,
            )
        if self._wire is None:
            self._wire = Wire(self._settings)
        found = self._wire.cluster_id()
        if found is None or found != work.cluster_id:
            servers = self._settings.bootstrap_servers
            raise OtherClusterError(
                f"the server's executors come to Kafka cluster {found} by {servers}, and the attempt belongs to "
                f"{work.cluster_id}",
                remedy=f"Let {servers} be the same cluster on both sides, or put bootstrap.servers into the file of "
                f"the login {work.login!r} on the executors' hosts. Nothing was written",
                written_to=work.cluster_id,
                leads_to=found,
                **ref.ids,
            )
        coordinator = Coordinator(self._wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
        if (by := fences.why_moved(coordinator, ref, work.fence)) is not None:
            raise superseded(ref, by)


class ExecutorWriter(KafkaEosWriter):
    """The data source's writer, which looks before it begins anything."""

    def __init__(self, work: Work, settings: KafkaSettings) -> None:
        super().__init__(work.options, settings, work.checked, work.shared, work.at_lease)
        self._work = work

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PreparedPartition:
        """The same, and whoever has lost its client meanwhile stops."""
        context = TaskContext.get()
        found = None if context is None else context.getLocalProperty(APPLICATION)
        self.look = looking = Look(self._work, self.settings, found)
        try:
            return super().write(iterator)
        finally:
            looking.close()
