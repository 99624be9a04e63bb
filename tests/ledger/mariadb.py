"""A MariaDB server of this test session, where one is installed (``mariadbd`` on the PATH; Debian: mariadb-server).

No wheel carries one, and ``make test`` needs nothing but Python, Java and Maven: so it is the one database that a
machine may be without. CI installs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

START_SECONDS = 60.0


@dataclass(frozen=True)
class MariaDB:
    """``socket`` is the only way in; it listens to no port."""

    socket: Path

    def url(self, database: str) -> str:
        return f"mysql+pymysql://root@localhost/{database}?unix_socket={self.socket}&charset=utf8mb4"

    def run(self, statement: str) -> None:
        engine = create_engine(self.url("mysql"), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
        finally:
            engine.dispose()


def executable() -> str | None:
    """The server's path, or None where it is not installed. It lives where only root's PATH may look."""
    return shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextmanager
def running_mariadb() -> Iterator[MariaDB]:
    """Start it in a folder of its own, and end it by its id."""
    server = executable()
    assert server is not None
    home = Path(tempfile.mkdtemp(prefix="kafka-eos-maria-"))
    data, socket, log = home / "data", home / "socket", home / "log"
    user = f"--user={os.environ.get('USER', 'root')}" if os.geteuid() == 0 else "--skip-name-resolve"
    try:
        install = [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            user,
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL, timeout=120)
        options = [
            f"--datadir={data}",
            f"--socket={socket}",
            f"--pid-file={home / 'pid'}",
            f"--log-error={log}",
            user,
            "--skip-networking",
            "--innodb-buffer-pool-size=64M",
            # no test here pulls the plug
            "--innodb-flush-log-at-trx-commit=0",
        ]
        process = subprocess.Popen([server, "--no-defaults", *options])
        try:
            running = MariaDB(socket)
            _wait_until_it_answers(running, process, log)
            yield running
        finally:
            process.kill()
            process.wait(30)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _wait_until_it_answers(running: MariaDB, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + START_SECONDS
    while True:
        try:
            return running.run("SELECT 1")
        except OperationalError:
            said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            assert process.poll() is None and time.monotonic() < give_up, f"mariadbd does not answer: {said}"
            time.sleep(0.1)
