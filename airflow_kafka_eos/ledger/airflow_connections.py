"""One row of Airflow's own table of connections, for commands: importing Airflow takes longer than all else they do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import column, create_engine, select, table
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from airflow_kafka_eos.errors import TransientError
from airflow_kafka_eos.ledger.database import CONNECT_TIMEOUT


def connection_row(url: str, conn_id: str, columns: Iterable[str]) -> Any:
    """The columns of a connection; None where the table has no such one.

    :param url: of Airflow's database, which is a server's.
    :raises TransientError: it does not answer.
    :raises ValueError: it cannot be asked in this way.
    """
    names: list[Any] = [column(name) for name in columns]
    asked = select(*names).select_from(table("connection")).where(column("conn_id") == conn_id)
    arguments = {"connect_timeout": CONNECT_TIMEOUT} if url.startswith(("postgresql", "mysql")) else {}
    try:
        with create_engine(url, poolclass=NullPool, connect_args=arguments).connect() as opened:
            return opened.execute(asked).one_or_none()
    except (OperationalError, InterfaceError) as e:
        problem = type(e.orig).__name__
    except (SQLAlchemyError, ImportError, TypeError):
        raise ValueError("another way is needed") from None
    # outside of the block: the driver's error quotes the address, and may quote more
    raise TransientError(
        f"Airflow's database, where connection {conn_id!r} is looked for, did not answer ({problem})",
        remedy=f"Check [database] sql_alchemy_conn on this machine, or set AIRFLOW_CONN_{conn_id.upper()}",
    )
