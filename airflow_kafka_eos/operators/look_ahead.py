"""begin looks at what prepare will need, before a JVM starts for it: brokers, connection, job, topics, rights.

What is wrong there fails prepare too, half a minute and a JVM later, or decide, when all is written. Only what can be
seen is judged, and only where it is the same for prepare: a template that is not filled in yet, a job on another host,
a driver elsewhere are left to prepare, which looks at everything itself.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook

from airflow_kafka_eos.arguments import is_filled_in_later
from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError, TopicError, TransientError
from airflow_kafka_eos.hooks import registry_settings
from airflow_kafka_eos.load import Engine, TransactionNaming, TwoPhaseCommit, Verdict, WriterName
from airflow_kafka_eos.operators.base import LoadOperator, overridden, owner_of
from airflow_kafka_eos.operators.by_connect import CONNECTION_TYPE, check_load
from airflow_kafka_eos.operators.own_submitter import submitter_before
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.operators.preparing import PreparingOperator
from airflow_kafka_eos.operators.submitting import Deployment, manifest_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.protocol.session import Session
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

log = logging.getLogger(__name__)

_BY_CONNECT = Deployment("a Spark Connect server", "client", {})
#: What the Spark provider makes a master of; a connection that is a URI has the master's scheme as its type.
_SPARK_TYPES = ("spark", "yarn", "k8s", "mesos", "local")
#: Names in a template that mean something else in prepare's task, or are not there yet.
_OF_A_TASK = re.compile(r"\b(ti|task|task_instance|task_instance_key_str|xcom\w*)\b")


def prepare_behind(begin: LoadOperator) -> PreparingOperator | None:
    """The task of begin's group that prepares its load, or collects what was prepared elsewhere; None where there is
    none, or it is not known which.
    """
    return _that_prepares(begin, upstream=False)


def store_of_group(step: LoadOperator, *, upstream: bool = False) -> ManifestStore | None:
    """Where the applications of the step's group keep their manifests; None where only prepare knows: of a template.

    :param upstream: prepare is before the step, as it is before cleanup; else behind it, as it is behind begin.
    :raises ConfigurationError: prepare will say so, too.
    """
    prepare = _that_prepares(step, upstream=upstream)
    if prepare is None or is_filled_in_later(prepare.manifest_dir):
        return None
    return manifest_store(prepare.manifest_dir)


def _that_prepares(step: LoadOperator, *, upstream: bool) -> PreparingOperator | None:
    if not step.has_dag():  # type: ignore[no-untyped-call]
        return None
    group = step.task_id.rpartition(".")[0]
    found = [
        task
        for task in step.get_flat_relatives(upstream=upstream)
        if isinstance(task, PreparingOperator) and task.task_id.rpartition(".")[0] == group
    ]
    return found[0] if len(found) == 1 else None


def look_ahead(begin: LoadOperator, context: Any, session: Session, row: AttemptRow, topics: Sequence[str]) -> None:
    """Refuse what prepare, or decide, would fail with.

    :param topics: begin's own, rendered; none: prepare's.
    :raises TerminalError: naming the argument or the connection, its value, and what to do. The attempt is closed, with
        that as its reason: nothing was written.
    """
    if row.verdict is not None or row.is_prepared:
        return  # nothing is to be written, or it is already
    try:
        _look(begin, context, session, row, topics)
    except TransientError as e:
        log.warning("load %s: not everything could be checked beforehand, prepare checks it: %s", row.load, e)
    except KafkaEosError as e:
        from airflow_kafka_eos.protocol.cleanup.sweep import needs_quiet_period

        if needs_quiet_period([r for r in session.ledger.attempts(row.load) if r.number < row.number]):
            # cleanup is begin's teardown, and runs only behind a begin that has succeeded
            log.warning("load %s: prepare will fail, and cleanup then ends older attempts: %s", row.load, e)
            return
        _close(session, row, e, owner_of(context))
        raise


def _look(begin: LoadOperator, context: Any, session: Session, row: AttemptRow, topics: Sequence[str]) -> None:
    from airflow_kafka_eos.protocol.stages.begin import (
        Wanted,
        check_brokers,
        check_limits,
        check_rights,
        check_topics_exist,
    )

    check_brokers(session)
    found = prepare_behind(begin)
    seen = None if found is None else _Seen(begin, found, context)
    wanted = None
    if seen is not None:
        deployment = seen.deployment()
        hands_over = deployment is not None and (not deployment.is_cluster or deployment.ships_files)
        seen.check_job(deployment)
        seen.check_manifest_dir(deployment)
        seen.check_registry()
        prepare = seen.prepare
        wanted = Wanted(
            prepare._hold_time_ms,
            TwoPhaseCommit(prepare.two_phase_commit),
            WriterName(prepare.writer),
            # executors of a server may have a login of their own
            writes=hands_over and deployment is not _BY_CONNECT and seen.kafka_conn_id == begin.kafka_conn_id,
        )
        if hands_over:
            _check_settings(session)
        topics = topics or seen.topics()
    if topics:
        try:
            check_topics_exist(session, topics)
        except TopicError as e:
            if seen is None or not seen.may_be_made:
                raise
            log.warning("load %s: not there yet: %s", row.load, e)
    check_rights(session, row.load, topics, wanted)
    if wanted is not None:
        check_limits(session, topics, wanted)


def _check_settings(session: Session) -> None:
    from airflow_kafka_eos.kafka.producer.options import check_setting_names, check_setting_values

    settings = session.partitions.wire.settings
    check_setting_names(settings)
    check_setting_values(settings)


def _close(session: Session, row: AttemptRow, why: KafkaEosError, owner: str) -> None:
    """No application was submitted for it, and none will be: nothing of it is anywhere."""
    known = session.ledger.attempt(row.load, row.number)
    if known is None or known.is_submitted:
        return  # another run of the same load has taken it meanwhile
    reason = f"{type(why).__name__}: {why}"
    closed = session.ledger.make_undecidable(row.load, up_to=row.number, decided_by=owner, reason=reason)
    for mine in closed:
        # undecidable, nobody submits it any more
        if mine.number == row.number and mine.verdict is Verdict.ABORT and not mine.is_submitted:
            session.ledger.record_swept(row.load, row.number)


class _Seen:
    """What can be seen of a prepare task from begin's. Its checks raise ConfigurationError."""

    def __init__(self, begin: LoadOperator, prepare: PreparingOperator, context: Any) -> None:
        self._context = context
        #: a copy, as Airflow's task runner makes one
        self.prepare: PreparingOperator = prepare.prepare_for_execution()
        self._submitter = submitter_before(prepare)
        runs = self._submitter or prepare  # what has the application run
        upstream = begin.get_flat_relative_ids(upstream=True)
        others = runs.get_flat_relative_ids(upstream=True) - upstream - {begin.task_id}
        #: something of the author's runs before prepare, and not before begin: it may make a topic, or fetch the job
        self.may_be_made = (
            bool(others)
            or runs._pre_execute_hook is not None
            or bool(runs.on_execute_callback)
            or bool(overridden(prepare, "pre_execute", "execute"))
        )
        self._known_tasks = upstream
        where = ("queue", "executor", "executor_config")
        self._is_same_place = all(getattr(runs, name) == getattr(begin, name) for name in where)

    def deployment(self) -> Deployment | None:
        """Where the driver will run, checked with its connection; None where that cannot be told yet.

        Without Spark, as a driver beside the Airflow task; behind an operator of the author's, as that was said to be.
        """
        prepare = self.prepare
        if not isinstance(prepare, PrepareLoadOperator):
            here = self._submitter is not None and self._submitter.kafka_eos_runs_here
            return Deployment("an operator of the author's", "client" if here else "cluster", {})
        if prepare.engine == Engine.ARROW:
            return Deployment("prepare's own process", "client", {})
        if _names_a_server(prepare._conn_id):
            check_load(TransactionNaming(prepare.transaction_naming), WriterName(prepare.writer))
            return _BY_CONNECT
        given, conf = prepare.conf, self._known("conf")
        if conf is None and given is not None:
            return None  # it may name another deploy mode
        prepare.conf = conf
        try:
            hook = prepare._get_hook()
        except Exception as e:  # a library that this master needs, a keytab that cannot be written: prepare says so
            log.debug("the Spark connection cannot be looked at: %s", e)
            return None
        found = Deployment.of(hook, conf)
        found.check(prepare.manifest_dir)
        binary = hook._connection["spark_binary"]
        if self._is_same_place and "PATH" not in (self._known("env_vars") or {}) and shutil.which(binary) is None:
            raise ConfigurationError(
                f"there is no {binary} on the PATH of {socket.gethostname()}, where prepare runs it",
                remedy="Install pyspark beside Airflow, or put the bin folder of a Spark of your own on the PATH of "
                "Airflow's workers; then clear begin",
            )
        return found

    def check_job(self, deployment: Deployment | None) -> None:
        """Whether the job's file is there, and can be read."""
        job = self._known("job")
        if deployment is None or deployment.is_cluster or not self._is_same_place or not isinstance(job, str):
            return
        place = job if job.endswith(".py") else job.rpartition(":")[0]
        if not place.endswith(".py") or "://" in place:
            return  # a module: the driver's Python finds it, or not
        path = Path(place)
        if path.is_file() and os.access(path, os.R_OK):
            return
        wrong = "cannot be read" if path.exists() else "is not there"
        in_worker = isinstance(self.prepare, PrepareLoadOperator) and self.prepare.engine == Engine.ARROW
        runs = "prepare" if in_worker or deployment is _BY_CONNECT else "the Spark driver"
        where = f"on {socket.gethostname()}, where {runs} runs"
        message = f"job={job!r}: the file {path.absolute()} {wrong} {where}"
        if self.may_be_made:
            log.warning("not there yet? %s", message)
            return
        raise ConfigurationError(
            message, remedy="Put it there on every worker, or correct job=…; then clear begin"
        )

    def check_manifest_dir(self, deployment: Deployment | None) -> None:
        """Whether it is a place for manifests; one here, where this user may write."""
        given, known = self.prepare.manifest_dir, self._known("manifest_dir")
        if (given and not known) or "://" in (known or ""):
            return  # the library of an object store takes a second to import, and a look there leaves something behind
        folder = Path(manifest_store(known).base)
        if deployment is None or deployment.is_cluster or not self._is_same_place:
            return
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            raise ConfigurationError(
                f"manifest_dir={str(folder)!r}: {nearest} on {socket.gethostname()} is no folder that can be written",
                remedy="Let Airflow's user write it, or set another manifest_dir; then clear begin",
            )

    def check_registry(self) -> None:
        """Whether there is such a connection, with what it needs."""
        conn_id = self.prepare.registry_conn_id
        if conn_id and not is_filled_in_later(conn_id):
            _connection("registry_conn_id", conn_id)
            registry_settings(conn_id)

    @property
    def kafka_conn_id(self) -> str | None:
        """None where it is not known yet."""
        found = self._known("kafka_conn_id")
        return None if found is None else str(found)

    def topics(self) -> Sequence[str]:
        """Prepare's topics; none where they are not known yet."""
        found = self._known("topics")
        return [] if found is None else list(found)

    def _known(self, field: str) -> Any:
        """A field of prepare's as it will be rendered; None where what fills it in is not there yet."""
        value = getattr(self.prepare, field)
        if self._is_open(value):
            return None
        try:
            return self.prepare.render_template(value, self._context, self.prepare.get_template_env())
        except Exception as e:  # prepare meets it, and says so with its own context
            log.debug("%s of %s is not known yet: %s", field, self.prepare.task_id, e)
            return None

    def _is_open(self, value: Any) -> bool:
        if isinstance(value, str):
            return is_filled_in_later(value) and _OF_A_TASK.search(value) is not None
        if isinstance(value, dict):
            return any(map(self._is_open, value.values()))
        if isinstance(value, (list, tuple)):
            return any(map(self._is_open, value))
        references = getattr(value, "iter_references", None)
        return references is not None and not {task.task_id for task, _ in references()} <= self._known_tasks


def _names_a_server(conn_id: str) -> bool:
    """Whether a Spark connection, which is looked at, is a Spark Connect server's.

    The Spark provider takes a connection that is not there for a YARN.
    """
    found = _connection("spark_conn_id", conn_id)
    if found is None:
        return False  # nothing is judged by it: prepare asks again
    if found.conn_type == CONNECTION_TYPE:
        from airflow_kafka_eos.connect.remote import Remote

        Remote.of(conn_id, found)
        return True
    if found.conn_type not in _SPARK_TYPES:
        raise ConfigurationError(
            f"spark_conn_id={conn_id!r}: the Airflow connection is of type {found.conn_type!r}, not 'spark'",
            remedy="Name a connection of type spark, or spark_connect; then clear begin",
        )
    if found.conn_type != "yarn" and not found.host:
        raise ConfigurationError(
            f"spark_conn_id={conn_id!r}: the Airflow connection names no Spark master, its host is empty",
            remedy="Set its host to local[2], spark://host:7077, yarn or k8s://https://host:port; then clear begin",
        )
    return False


def _connection(argument: str, conn_id: str) -> Any:
    """The connection; None where that cannot be told.

    :raises ConfigurationError: there is none of that name.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as e:
        raise ConfigurationError(
            f"{argument}={conn_id!r}: there is no Airflow connection of that name",
            remedy="Make it, or correct the name; then clear begin",
        ) from e
    except Exception as e:  # a secrets backend that does not answer: prepare asks again
        log.debug("the connection %s cannot be looked at: %s", conn_id, e)
        return None
