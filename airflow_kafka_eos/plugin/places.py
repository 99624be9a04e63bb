"""Opening what a load's connections lead to, in an api-server: Airflow's own look-up of connections works there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.hooks.kafka_eos import KafkaEosHook, ledger_url
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.location import default_url
from airflow_kafka_eos.plugin.dags import Place, is_template
from airflow_kafka_eos.protocol.session import Session

#: Seconds that one request to a broker, with its retries, may take.
REQUEST_S = 8.0


@contextmanager
def open_ledger(conn_id: str | None) -> Iterator[Ledger]:
    """The ledger alone: it is shown also while no broker answers.

    :param conn_id: None for the embedded SQLite file.
    :raises ConfigurationError: the connection is a template, Airflow has no such one, or there is no embedded ledger
        here.
    :raises LedgerUnavailableError: the metadata DB does not answer, or is not upgraded.
    """
    with _known_connections(), Ledger.open_existing(_url(conn_id)) as ledger:
        yield ledger


@contextmanager
def open_session(place: Place, namespace: str) -> Iterator[Session]:
    """Ledger and cluster of a place.

    :raises ConfigurationError: its connections are not known, or lack what they need.
    :raises KafkaEosError: see :func:`airflow_kafka_eos.protocol.session.connect`.
    """
    if place.kafka_conn_id is None:
        raise ConfigurationError(
            "the Kafka connection of this load is not known for sure: its DAG is gone, or kafka_conn_id is a template",
            remedy="Use the command line, with the connection by name: airflow-kafka-eos … --kafka-conn-id …",
        )
    with _known_connections():
        _url(place.ledger_conn_id)  # refuses an embedded ledger that is not there, and says so in the page's words
        resolved = KafkaEosHook(place.kafka_conn_id, place.ledger_conn_id).resolve()
    with resolved.session(namespace, timeout_s=REQUEST_S, existing=True) as session:
        yield session


@contextmanager
def _known_connections() -> Iterator[None]:
    try:
        yield
    except AirflowNotFoundException as e:
        raise ConfigurationError(
            str(e), remedy="Make it where the api-server finds it: Airflow's connections, or a secrets backend"
        ) from e


def _url(conn_id: str | None) -> str:
    if conn_id is not None and is_template(conn_id):
        raise ConfigurationError(
            f"the ledger of these loads is not known for sure: ledger_conn_id is the template {conn_id!r}",
            remedy="Look for them among all loads, where [kafka_eos] names their ledger, or use the command line, with "
            "the connection by name: airflow-kafka-eos … --ledger-conn-id …",
        )
    if conn_id is not None:
        return ledger_url(BaseHook.get_connection(conn_id))
    url = default_url()
    path = Path(url.removeprefix("sqlite:///"))
    if not path.is_file():
        raise ConfigurationError(
            f"no load has run yet, or the ledger is elsewhere: there is no embedded ledger {path} on this api-server",
            remedy="Set ledger_conn_id of the loads, and of [kafka_eos] in Airflow's configuration, to a database "
            "that workers and api-server share",
        )
    return url
