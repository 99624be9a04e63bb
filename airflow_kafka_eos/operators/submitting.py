"""What stands around a spark-submit.

Where the Spark driver will run, and whether a load can be prepared from there; settings and their secrets, handed over
to it; where its manifests are; the application's own error, before spark-submit's; and a note to the drivers of older
attempts, that they may stop.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import airflow.sdk
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_kafka_eos.errors import (
    AccessError,
    BrokerTooOldError,
    CheckFailedError,
    ConfigurationError,
    KafkaEosError,
    RecordError,
    SupersededError,
)
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.reasons import how_it_ended
from airflow_kafka_eos.spark.driver_secrets import FILE_SUFFIX
from airflow_kafka_eos.spark.formats.settings import REGISTRY_VARIABLE

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.protocol.session import Session
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

log = logging.getLogger(__name__)

#: Airflow 3.3 would reconnect to an application, whosever it is. Versions before warn of the argument, for each task
#: whenever a DAG file is read, for they reconnect to none.
NOT_DURABLE: dict[str, Any] = {"durable": False} if hasattr(airflow.sdk, "ResumableJobMixin") else {}
#: What the next attempt would meet too. Superseded: a retry would open one attempt more, and so stop the one that has
#: superseded this one.
FINAL = (ConfigurationError, AccessError, BrokerTooOldError, RecordError, CheckFailedError, SupersededError)
#: How SparkSubmitHook's error begins; a command line of a kilobyte follows.
_SUBMIT_FAILED = "Cannot execute: "
_ERROR_CODE = re.compile(r"Error code is: (-?\d+)")
#: ``spark.submit.deployMode``: what spark-submit goes by when neither the connection nor the operator names a mode.
_MODE = "spark.submit.deployMode"
_YARN_ENV = "spark.yarn.appMasterEnv."
_KUBERNETES_ENV = "spark.kubernetes.driverEnv."
_KUBERNETES_SECRET = "spark.kubernetes.driver.secretKeyRef."
_KUBERNETES_TEMPLATE = "spark.kubernetes.driver.podTemplateFile"
#: Locations that may name an Airflow connection before ``@``; in ``abfs://container@account`` it is a container.
CONNECTION_SCHEMES = ("s3", "s3a", "gs", "gcs")


@dataclass(frozen=True)
class Deployment:
    """One submission.

    :param master: Spark's, such as ``local[2]``, ``spark://host:port``, ``yarn``, ``k8s://https://host:port``.
    :param deploy_mode: of the connection or the operator; None for Spark's own default.
    :param conf: Spark settings of the operator.
    :param env_vars: spark-submit's environment, of the operator.
    """

    master: str
    deploy_mode: str | None
    conf: Mapping[str, Any]
    env_vars: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, hook: Any, conf: Mapping[str, Any] | None) -> Deployment:
        """That of a SparkSubmitHook."""
        given = hook._env_vars if isinstance(hook._env_vars, Mapping) else {}  # else a template, to be filled in
        return cls(str(hook._connection["master"]), hook._connection.get("deploy_mode"), conf or {}, given)

    @property
    def is_cluster(self) -> bool:
        """Whether the driver runs elsewhere than this worker."""
        return (self.deploy_mode or str(self.conf.get(_MODE, "client"))) == "cluster"

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are one process here."""
        return self.master.startswith("local")

    @property
    def ships_files(self) -> bool:
        """YARN in cluster mode: the settings travel as a file, as Spark's own keytabs do."""
        return self.is_cluster and self.master.startswith("yarn")

    @property
    def _env_is_conf(self) -> bool:
        """Whether SparkSubmitHook makes ``--conf`` of ``env_vars``, in client mode too; it looks for these words."""
        return "yarn" in self.master or "k8s" in self.master

    def file_settings(self, files: Mapping[str, str]) -> dict[str, str]:
        """Spark settings that tell a driver in YARN where its files are.

        :param files: by variable, the name in the driver's working folder. Names are no secrets.
        """
        return {f"{_YARN_ENV}{variable}": name for variable, name in files.items()}

    def check(self, manifest_dir: str | None) -> None:
        """Refuse what cannot work, before an attempt is taken.

        :param manifest_dir: as the author gave it.
        :raises ConfigurationError: naming the deploy mode, and what is missing.
        """
        from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE, SETTINGS_VARIABLE

        kept = (
            (SETTINGS_VARIABLE, "Kafka settings"),
            (REGISTRY_VARIABLE, "schema registry's settings"),
            (LEDGER_VARIABLE, "ledger's URL"),
        )
        for prefix in (_YARN_ENV, _KUBERNETES_ENV, "spark.executorEnv."):
            for name, what in kept:
                if prefix + name in self.conf:
                    raise ConfigurationError(
                        f"{prefix}{name} would show the {what} in Spark's UI and on its command line",
                        remedy=f"Hand the driver a file, and name it by {prefix}{name}_FILE (docs/spark.md)",
                    )
        for name, what in kept:
            if name in self.env_vars:
                # Airflow keeps an operator's rendered fields, in any mode
                where = "on spark-submit's command line and in Spark's UI" if self._env_is_conf else "in Airflow's UI"
                raise ConfigurationError(
                    f"env_vars: {name} would show the {what} {where}",
                    remedy="Leave it out: they come of the Airflow connections, and are handed over to a driver on the "
                    "worker, and on YARN, unseen; on Kubernetes put them into a secret (docs/spark.md)",
                )
        if not self.is_cluster:
            return
        if self.master.startswith(("spark://", "local")):
            raise ConfigurationError(
                f"deploy mode 'cluster' with Spark master {self.master!r}: Spark supports it for Python applications "
                "on YARN and Kubernetes only",
                remedy="Use deploy mode 'client': the driver runs on Airflow's worker",
            )
        if not manifest_dir:
            raise ConfigurationError(
                "deploy mode 'cluster' needs a manifest_dir: the driver does not see this worker's folders",
                remedy="Set manifest_dir to s3://bucket/folder or the like, or to a folder that all hosts mount",
            )
        secret = f"{_KUBERNETES_SECRET}{SETTINGS_VARIABLE}"
        wanted = (secret, f"{_KUBERNETES_ENV}{SETTINGS_VARIABLE}{FILE_SUFFIX}", _KUBERNETES_TEMPLATE)
        if not self.ships_files and not any(key in self.conf for key in wanted):
            raise ConfigurationError(
                f"deploy mode 'cluster' with Spark master {self.master!r}: nothing brings the Kafka settings to the "
                "driver",
                remedy=f"Put them into a Kubernetes secret and set {secret}=<secret>:<key> in conf (docs/spark.md)",
            )


@contextmanager
def private_files(texts: Mapping[str, str]) -> Iterator[dict[str, Path]]:
    """A file for each text that this user alone may read, gone afterwards.

    :param texts: by variable.
    """
    with TemporaryDirectory(prefix="airflow-kafka-eos-") as folder:
        paths = {variable: Path(folder) / f"{variable.lower()}.json" for variable in texts}
        for variable, path in paths.items():
            path.touch(mode=0o600)
            path.write_text(texts[variable], encoding="utf-8")
        yield paths


@contextmanager
def environment(texts: Mapping[str, str], local: bool) -> Iterator[None]:
    """Hand the cluster's and the registry's settings to the Spark driver by environment: all else is shown.

    Set on this process, not by the hook's ``env_vars``: on YARN and Kubernetes those become ``--conf`` arguments.
    """
    from airflow_kafka_eos.spark.python_env import quick_python

    with quick_python() as python:
        wanted = dict(texts)
        if "PYSPARK_DRIVER_PYTHON" not in os.environ:
            wanted["PYSPARK_DRIVER_PYTHON"] = python  # client mode: the driver runs here, with our package
        if local and "PYSPARK_PYTHON" not in os.environ:
            wanted["PYSPARK_PYTHON"] = python
        with for_a_child(wanted):
            yield


@contextmanager
def for_a_child(texts: Mapping[str, str]) -> Iterator[None]:
    """Set them in this process's environment, for a Spark driver that it starts and that ends when it is gone."""
    from airflow_kafka_eos.spark.airflow_here import NO_DATABASE
    from airflow_kafka_eos.spark.orphan import PARENT_VARIABLE, identity_of

    # the driver sets it for itself; here for the executors of a local master, which inherit this environment too
    wanted = {**texts, PARENT_VARIABLE: identity_of(os.getpid()), NO_DATABASE: "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def own_error_first(
    word: Callable[[], str | None] = lambda: None, *, final: tuple[type[KafkaEosError], ...] = FINAL
) -> Iterator[None]:
    """Say what the application said, before spark-submit's command line and the tail of its output.

    An error that the next attempt would meet too ends the task without retries.

    :param word: asks for what the application has left as its reason, where its output does not reach this process.
    :param final: those errors.
    """
    try:
        yield
    except AirflowException as e:
        printed = str(e)
        said = what_it_said(printed, final) or what_it_said(asked(word), final)
        if said is not None:
            raise said from e
        if isinstance(e, AirflowFailException) or not printed.startswith(_SUBMIT_FAILED):
            raise
        code = _ERROR_CODE.search(printed)
        raise AirflowException(
            f"spark-submit ended with exit code {code[1] if code else 'unknown'}, and the application has not said "
            f"why: {_why_silent(int(code[1]) if code else 1)}. See the lines above"
        ) from e


def _why_silent(code: int) -> str:
    """What an application that has said nothing may have ended of, by spark-submit's exit code.

    It is a signal's also where Spark passes on how the driver's Python has ended.
    """
    ended = how_it_ended(code)
    if not ended.startswith("killed"):
        return "it did not begin, or was killed"
    if ended.endswith("SIGKILL"):
        ended += " (memory ran out there, by the kernel or the container's limit, or somebody has killed it)"
    return f"it was {ended}. A retry is safe: what this try has left open is ended by it, or by cleanup"


def what_it_said(text: str | None, final: tuple[type[KafkaEosError], ...] = FINAL) -> AirflowException | None:
    """What a task fails with, for what the packaged application has printed or left; None: it has said nothing."""
    from airflow_kafka_eos.spark.errortext import gist, printed_cause, printed_error

    found, lines = printed_error(text or ""), printed_cause(text or "")
    if found is not None:
        return for_airflow(*found, final)
    return AirflowException(f"the Spark application failed: {gist(lines)}") if lines else None


def for_airflow(
    kind: type[KafkaEosError], message: str, final: tuple[type[KafkaEosError], ...] = FINAL
) -> AirflowException:
    """What prepare fails with, for an error of what writes: without retries, where the next attempt would meet it."""
    return (AirflowFailException if issubclass(kind, final) else AirflowException)(f"{kind.__name__}: {message}")


def asked(word: Callable[[], str | None]) -> str | None:
    """What the application has left, as far as that can be read now."""
    try:
        return word()
    except Exception as e:  # a store that is away must not hide the error
        log.debug("it is not known whether the application has said why: %s", e)
        return None


def manifest_store(manifest_dir: str | None) -> ManifestStore:
    """The store in ``manifest_dir``, or in Airflow's home.

    ``s3://conn_id@bucket/folder``: as in an ObjectStoragePath, with that connection's login here; its ``base``, which
    the Spark driver gets, has none.
    """
    from airflow_kafka_eos.spark.manifest_store import DEFAULT_FOLDER, ManifestStore

    if not manifest_dir:
        home = os.environ.get("AIRFLOW_HOME") or os.path.expanduser("~/airflow")
        return ManifestStore(os.path.join(home, DEFAULT_FOLDER))
    scheme, _, rest = manifest_dir.partition("://")
    conn_id, at, place = rest.partition("@")
    if at and scheme in CONNECTION_SCHEMES and not {":", "/"} & set(conn_id):  # else it may be a login
        from airflow.sdk.io import attach

        return ManifestStore(f"{scheme}://{place}", attach(scheme, conn_id).fs)
    return ManifestStore(manifest_dir)


def tell_superseded(session: Session, store: ManifestStore, row: AttemptRow) -> None:
    """Leave a note for each application that may still write an attempt that is over. Never raises.

    What it has open is swept in any case.

    :param row: the attempt that is open now.
    """
    if row.verdict is not None:
        return  # decided: no attempt was opened, and that of the decision has its manifest
    try:
        rows = session.ledger.attempts(row.load)
        note_superseded(store, session.ledger.ledger_id, left_behind(rows, up_to=row.number - 1))
    except KafkaEosError as e:
        log.warning("load %s: drivers of older attempts that still run are not told to stop: %s", row.load, e)


def left_behind(rows: Sequence[AttemptRow], *, up_to: int) -> list[AttemptRow]:
    """Attempts that are over, and whose application may still write, or begin to: it has never reported. No I/O."""
    return [
        row
        for row in rows
        if row.number <= up_to and row.verdict is Verdict.ABORT and row.is_submitted and not row.is_prepared
    ]


def note_superseded(store: ManifestStore, ledger_id: str, rows: Sequence[AttemptRow]) -> None:
    """Leave a note for the application of each of these, which looks for it before it begins and then now and then
    (spark/orphan.py). The ledger has given the attempts up before (rule: decide-before-kafka).

    :raises KafkaEosError: see :meth:`~airflow_kafka_eos.spark.manifest_store.ManifestStore.note_superseded`.
    """
    from airflow_kafka_eos.manifest import AttemptRef

    for row in rows:
        by = f"aborted by {row.decided_by} at {row.decided_at}: {row.reason}"
        store.note_superseded(AttemptRef(row.load, ledger_id, row.number, row.slot), by)
