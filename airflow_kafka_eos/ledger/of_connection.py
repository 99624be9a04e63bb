"""The ledger's URL from an Airflow connection, whoever has read it: nothing here imports Airflow."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import URL

from airflow_kafka_eos.errors import ConfigurationError

#: Airflow's connection types and SQLAlchemy's names for them
_DIALECTS = {
    "postgres": "postgresql+psycopg2",
    "postgresql": "postgresql+psycopg2",
    "mysql": "mysql",
    "mariadb": "mariadb",
    "sqlite": "sqlite",
}
#: The connection type of our own; its extra's ``backend`` names the kind of database, the first if none
LEDGER_CONN_TYPE = "kafka_eos_ledger"
BACKENDS = ("postgresql", "mysql", "mariadb", "sqlite")


def ledger_url(connection: Any) -> str:
    """The SQLAlchemy URL, with password, of an Airflow connection.

    :raises ConfigurationError: a connection type that is no database of ours.
    """
    kind = connection.conn_type
    if kind == LEDGER_CONN_TYPE:
        kind = connection.extra_dejson.get("backend") or BACKENDS[0]
        if kind not in BACKENDS:
            raise ConfigurationError(
                f"connection {connection.conn_id!r} has backend {kind!r} in its extra",
                remedy=f"Set it to one of {', '.join(BACKENDS)}",
            )
    dialect = _DIALECTS.get(kind)
    if dialect is None:
        types = ", ".join(sorted((*_DIALECTS, LEDGER_CONN_TYPE)))
        # `airflow connections add --conn-type postgres` stores this one, with a warning, where no such provider is
        generic = " (Airflow stores generic for a type whose provider is not installed)" if kind == "generic" else ""
        raise ConfigurationError(
            f"connection {connection.conn_id!r} of type {connection.conn_type!r} cannot hold the ledger{generic}",
            remedy=f"Use a connection of one of the types {types}; {LEDGER_CONN_TYPE} comes with this package",
        )
    if dialect == "sqlite":
        path = connection.host or connection.schema
        if not path:
            raise ConfigurationError(
                f"connection {connection.conn_id!r} has no path",
                remedy="Put the SQLite file's path into its host field",
            )
        return URL.create("sqlite", database=path).render_as_string(hide_password=False)
    query = {
        k: str(v)
        for k, v in connection.extra_dejson.items()
        if k.startswith(("ssl", "connect_", "application_"))
    }
    host, port = connection.host, connection.port
    if host and host.startswith("/") and dialect.startswith("postgres"):
        query["host"], host = host, None  # a Unix socket's directory: no URL has it in a host's place
        if port:
            query["port"], port = str(port), None
    return URL.create(
        dialect,
        username=connection.login,
        password=connection.password,
        host=host,
        port=port,
        database=connection.schema,
        query=query,
    ).render_as_string(hide_password=False)
