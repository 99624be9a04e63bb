"""Ledger and cluster of a driver's Python process, which is used for batch after batch: both stay open in between.

The ledger is named by ``AIRFLOW_KAFKA_EOS_LEDGER`` in the Spark driver's environment, or by a file that
``AIRFLOW_KAFKA_EOS_LEDGER_FILE`` names: its URL may hold a password, so it is no option and never leaves the driver.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE, handed_over
from airflow_kafka_eos.streams.options import StreamOptions

_LOCAL_DIRS = "SPARK_LOCAL_DIRS"
_MARK = "blockmgr-"

_open_ledger = partial(Ledger.open, keeps_connections=True)
_open: dict[tuple[object, ...], tuple[Session, ExitStack]] = {}


def ledger_url(environ: Mapping[str, str]) -> str:
    """
    :raises ConfigurationError: the driver's environment names no ledger.
    """
    url = handed_over(environ, LEDGER_VARIABLE)
    if not url:
        raise ConfigurationError(
            f"there is no ledger: {LEDGER_VARIABLE} is not set in the Spark driver's environment",
            remedy=f"Set {LEDGER_VARIABLE} to the ledger's URL, as `airflow-kafka-eos` has it",
        )
    return url.strip()


@contextmanager
def session(settings: KafkaSettings, namespace: str) -> Iterator[Session]:
    """The session of this process and thread; one that an error came out of is not used again.

    Nor is one whose ledger got another id since: its coordinator looks for the transactions of the old one.

    :raises KafkaEosError: see :func:`airflow_kafka_eos.protocol.session.connect`.
    """
    url = ledger_url(os.environ)
    key = (os.getpid(), threading.get_ident(), settings.to_json(), url, namespace)
    if key in _open and _open[key][0].ledger.id_now() != _open[key][0].ledger.ledger_id:
        _open.pop(key)[1].close()
    if key not in _open:
        stack = ExitStack()
        opening = connect(settings, url, namespace, open_ledger=_open_ledger)
        _open[key] = stack.enter_context(opening), stack
    made, stack = _open[key]
    try:
        yield made
    except BaseException:
        del _open[key]
        stack.close()
        raise


@contextmanager
def query_session(options: StreamOptions) -> Iterator[Session]:
    """A session of its own for who ends what a query has open."""
    any_batch = LoadIdentity(options.namespace, options.name, "any")
    settings = options.write(AttemptRef(any_batch, "0" * 10, 1), 1).settings(os.environ)
    with connect(settings, ledger_url(os.environ), options.namespace) as made:
        yield made


def driver_identity(environ: Mapping[str, str]) -> str:
    """What tells this driver from every other, in each of its Python processes.

    Spark keeps its blocks in folders of a random name, made for each driver.

    :param environ: of a Python process that Spark has started on the driver.
    :raises ConfigurationError: it is told of no such folder.
    """
    folders = environ.get(_LOCAL_DIRS, "")
    found = folders.partition(_MARK)[2].partition(",")[0].strip("/")
    if not found:
        raise ConfigurationError(
            f"this version of Spark does not tell the sink's process which driver it is of ({_LOCAL_DIRS} is "
            f"{folders!r})",
            remedy="Use foreachBatch with exactly_once (docs/streams.md), and report the version",
        )
    return f"{socket.gethostname()[:120]} {found}"[:255]
