"""A Spark connection of type ``spark_connect``: what prepare does with its server instead of a spark-submit."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException, mask_secret
from airflow.sdk import BaseHook

from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError
from airflow_kafka_eos.load import OR_GIVE_UP, TransactionNaming, WriterName
from airflow_kafka_eos.operators.submitting import for_airflow
from airflow_kafka_eos.spark.dag_file import JOB, function_here

if TYPE_CHECKING:
    from airflow_kafka_eos.connect.remote import Remote
    from airflow_kafka_eos.hooks import Resolved
    from airflow_kafka_eos.operators.preparing import Taken
    from airflow_kafka_eos.spark.formats.settings import RegistrySettings
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

log = logging.getLogger(__name__)

CONNECTION_TYPE = "spark_connect"
#: Arguments of SparkSubmitOperator that say how a driver is started, or what it and its executors are given.
OF_A_DRIVER = (
    "files", "py_files", "archives", "driver_class_path", "jars", "java_class", "packages", "exclude_packages",
    "repositories", "total_executor_cores", "executor_cores", "executor_memory", "driver_memory", "keytab", "principal",
    "proxy_user", "num_executors", "env_vars", "properties_file", "yarn_queue", "deploy_mode",
)  # fmt: skip
#: And those that say how it is waited for.
OF_A_SUBMIT = (
    *OF_A_DRIVER, "post_submit_commands", "yarn_track_via_rm_api", "track_driver_via_k8s_api", "wait_in_triggerer",
)  # fmt: skip


def remote_of(conn_id: str) -> Remote | None:
    """The server of a Spark connection; None where it is another type, for spark-submit.

    The provider's own default need not be defined: its hook goes on with a YARN then.

    :raises AirflowException: a connection that was named is not found. Airflow says the same of a secrets backend that
        is away, so that it is no answer: spark-submit would go on with a master that nobody has named.
    :raises ConfigurationError: see :meth:`Remote.of`.
    """
    try:
        found = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as e:
        if conn_id == SparkSubmitHook.default_conn_name:
            return None
        raise AirflowException(
            f"the Spark connection {conn_id!r} is not defined, or cannot be looked up now: {e}. Define it (type spark, "
            "or spark_connect), or name another one by spark_conn_id. No attempt was opened"
        ) from e
    if found.conn_type != CONNECTION_TYPE:
        return None
    from airflow_kafka_eos.connect.remote import Remote

    made = Remote.of(conn_id, found)
    for secret in made.secrets:
        mask_secret(secret)
    return made


def runner(
    remote: Remote,
    job: str | None,
    job_args: Mapping[str, Any],
    resolved: Resolved,
    kafka_conn_id: str,
    registry: RegistrySettings | None,
    store: ManifestStore,
    *,
    asked: Mapping[str, Any],
    conf: Mapping[str, Any] | None,
    naming: TransactionNaming,
    writer: WriterName,
    stop: threading.Event,
) -> Callable[[Taken], None]:
    """What prepares an attempt. What is wrong with it is found out before an attempt is taken.

    :param job: None where the specification has SQL.
    :param asked: what the author has given of SparkSubmitOperator's arguments.
    :param stop: interrupts the operation at the server.
    :raises ConfigurationError: there is no such job; an argument is spark-submit's; and see :func:`check_load`.
    """
    from airflow_kafka_eos.connect.logins import check_login_id

    check_load(naming, writer)
    login = remote.login_of(kafka_conn_id)
    check_login_id(login)
    for name in OF_A_SUBMIT:
        if asked.get(name):
            raise ConfigurationError(
                f"spark_args={{{name!r}: …}} is of spark-submit, and connection {remote.conn_id!r} is a Spark Connect "
                "server, which runs already",
                remedy="Leave it out, and set the server up with it; Spark settings of a session go into "
                "spark_args={'conf': {…}}",
            )
    function = None if job is None else _bound(job, job_args)

    def run(taken: Taken) -> None:
        from airflow_kafka_eos.connect.engine import Job, prepare
        from airflow_kafka_eos.connect.remote import SparkFailed
        from airflow_kafka_eos.protocol import fences
        from airflow_kafka_eos.spark.spec import ApplicationSpec

        def why_over() -> str | None:
            with resolved.ledger(existing=True) as ledger:
                return fences.why_over(ledger.attempt(taken.ref.load, taken.ref.attempt))

        try:
            if taken.again is not None:
                raise _not_again(remote, taken)
            prepare(
                ApplicationSpec.from_json(taken.spec),
                resolved.settings,
                store,
                remote,
                Job(function, login, taken.row.cluster_id, why_over, conf or {}, registry),
                stop=stop,
                say=log.info,
            )
        except KafkaEosError as e:
            raise for_airflow(type(e), str(e)) from e
        except SparkFailed as e:
            raise AirflowException(f"the Spark Connect server failed: {e}") from e

    return run


def _not_again(remote: Remote, taken: Taken) -> ConfigurationError:
    return ConfigurationError(
        f"what is lost and gone from the log must be prepared again, and the {remote} does not: what a dead client has "
        "left there could not be stopped",
        remedy="Name a connection of type spark by spark_conn_id, and clear prepare: spark-submit writes only what is "
        f"lost. {OR_GIVE_UP}",
        **taken.ref.ids,
    )


def check_load(naming: TransactionNaming, writer: WriterName) -> None:
    """Refuse what could not be stopped behind a dead client.

    :raises ConfigurationError: ids are pooled: a fence of a slot would stop whoever has leased it since. Or the writer
        is one that lets nobody look before it begins.
    """
    from airflow_kafka_eos.connect.engine import check_writer

    check_writer(writer)
    if naming is TransactionNaming.POOLING:
        raise ConfigurationError(
            "transaction_naming='pooling' with a Spark Connect server: what a dead client has left there is stopped by "
            "an id of its attempt's own",
            remedy="Leave transaction_naming out; where [kafka_eos] says so for all, write "
            "Transactions(transaction_naming='incrementing') here",
        )


def _bound(job: str, job_args: Mapping[str, Any]) -> Callable[..., Any]:
    from airflow_kafka_eos.spark.find_job import by_value, find_job

    if job != JOB:
        return _with(find_job(job, loaded=by_value, where="where prepare runs"), job_args)
    function = function_here(job_args)
    module = sys.modules.get(function.__module__)
    if module is not None:
        by_value(module)  # the server's executors have no DAG file
    return _with(function, job_args["arguments"])


def _with(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[..., Any]:
    return partial(_call, function, dict(arguments))


def _call(function: Callable[..., Any], arguments: Mapping[str, Any], spark: Any, **of_cursor: Any) -> Any:
    return function(spark, **arguments, **of_cursor)
