"""Airflow connections for the command line: from the environment, a secrets backend, or Airflow's own database."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_kafka_eos.cli.logs import to_stderr
from airflow_kafka_eos.errors import ConfigurationError


def airflow_connection(option: str, conn_id: str) -> Any:
    """The connection of that id.

    :param option: the argument that names it, for the error.
    :raises ConfigurationError: Airflow has no such connection here.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    to_stderr()
    with suppress(AirflowNotFoundException):
        return BaseHook.get_connection(conn_id)
    # tasks ask the API server; a command line stands beside the database, where Airflow itself looks
    found = _of_database(conn_id)
    to_stderr()
    if found is None:
        raise ConfigurationError(
            f"{option} {conn_id!r}: Airflow has no such connection here",
            remedy="Name one that `airflow connections list` shows on this machine, or set "
            f"AIRFLOW_CONN_{conn_id.upper()}",
        )
    return found


def _of_database(conn_id: str) -> Any:
    from airflow.sdk.configuration import conf

    url = conf.get("database", "sql_alchemy_conn", fallback="")
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        return None  # asking would create it
    try:
        from airflow.secrets.metastore import MetastoreBackend

        return MetastoreBackend().get_connection(conn_id)
    except Exception:  # no database here, or not upgraded: whatever it is, the connection cannot be read
        return None
