"""Creating, upgrading and opening ledgers; where they are, and what of that may be shown."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, event, text
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from airflow_kafka_eos import naming
from airflow_kafka_eos.errors import (
    ConfigurationError,
    KafkaEosError,
    LedgerNotReadyError,
    LedgerUnavailableError,
)
from airflow_kafka_eos.ledger import Ledger, database, default_url, location, migrate, redacted, tables
from airflow_kafka_eos.load import LoadIdentity, Verdict
from tests.ledger.ledger_support import LOAD, next_version, sql

SECRET = "s3cr3t/p@ss"
QUOTED = "s3cr3t%2Fp%40ss"


def test_upgrade_from_empty_and_again(new_url: Callable[[bool], str]) -> None:
    url = new_url(False)
    assert migrate.current(url) is None
    migrate.upgrade(url)
    assert migrate.current(url) == tables.REVISION
    with Ledger.open(url) as first:
        first.begin(LOAD, owner="x")
    migrate.upgrade(url)
    with Ledger.open(url, upgrade=True) as second:
        assert second.ledger_id == first.ledger_id
        assert len(second.attempts(LOAD)) == 1


def test_a_ledger_of_before_is_upgraded_by_the_revisions_since(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = "INSERT INTO kafka_eos_"
    sql(url, insert + "loads VALUES (1, 'n', 'l', 'k', 'COMMITTING', NULL, NULL, 1, '', 't', 't')")
    sql(
        url,
        insert + "attempts (id, load_id, number, owner, opened_at, submitted_at, submitted_by, prepared_at, records) "
        "VALUES (1, 1, 1, 'o', 't', 't', 'o', 't', 10)",
    )
    sql(url, insert + "decisions VALUES (1, 1, 'commit', 't', 'o', '', 1, NULL)")
    sql(url, insert + "transactions VALUES ('id', 1, '7:0', 0, 10, 100, '[]', '{}', NULL, NULL)")
    next_version(tmp_path, monkeypatch)
    with pytest.raises(LedgerUnavailableError, match="revision 0012, not 0013"):
        Ledger.open(url)
    with Ledger.open(url, upgrade=True) as ledger:
        load = LoadIdentity("n", "l", "k")
        (row,) = ledger.attempts(load)
        assert (row.verdict, row.records, row.scope, row.two_phase_commit, row.cluster_id, row.how) == (
            Verdict.COMMIT, 10, None, None, None, "",
        )  # fmt: skip
        assert [str(t.transaction) for t in ledger.transactions(load, 1)] == ["id (7:0)"]
    assert sql(url, "SELECT colour FROM kafka_eos_loads") == [(None,)]
    assert migrate.current(url) == "0013"


def test_an_attempt_whose_cluster_nobody_knows(url: str) -> None:
    insert = "INSERT INTO kafka_eos_"
    sql(url, insert + "loads VALUES (1, 'n', 'l', 'k', 'PREPARING', NULL, NULL, 1, '', 't', 't')")
    sql(
        url,
        insert + "attempts (id, load_id, number, owner, opened_at, submitted_at, submitted_by, slot, writers_until) "
        "VALUES (100, 1, 1, 'o', 't', 't', 'o', 3, 'u')",
    )
    with Ledger.open(url) as ledger:
        load = LoadIdentity("n", "l", "k")
        (row,) = ledger.attempts(load)
        assert (row.submitted_by, row.slot, row.writers_until, row.cluster_id) == ("o", 3, "u", None)
        assert ledger.submit(load, owner="o", cluster_id="here").cluster_id == "here"
        assert [row.cluster_id for row in ledger.attempts(load)] == [None, "here"]
        assert [row.arguments_sha256 for row in ledger.attempts(load)] == [None, None]


def interrupted(url: str, after: int) -> bool:
    """Whether an upgrade was stopped right behind its n-th statement that changes something."""
    opened = database.Database(url)
    opened.make_directory()
    count, stopped = 0, False

    def stop(*arguments: object) -> None:
        nonlocal count, stopped
        count += bool(re.match(r"\s*(CREATE|ALTER|DROP|INSERT|UPDATE|DELETE)", str(arguments[2])))
        if count == after:
            stopped = True
            raise SystemExit  # the connection is invalid behind it

    event.listen(opened.engine, "after_cursor_execute", stop)
    try:
        opened.write(migrate._upgrade)
    except BaseException:  # or what comes of it while the upgrade's own cleaning up finds no connection
        if not stopped:
            raise
    finally:
        opened.engine.dispose()
    return stopped


def test_an_upgrade_that_was_killed_anywhere_is_run_again(new_url: Callable[[bool], str]) -> None:
    """MySQL has no transactional DDL: the half that was done stays, and is passed over."""
    after, whole = 1, False
    while not whole:
        url = new_url(False)
        whole = not interrupted(url, after)
        if not whole and migrate.current(url) != tables.REVISION:
            with pytest.raises(LedgerUnavailableError, match="`airflow-kafka-eos ledger upgrade`"):
                Ledger.open(url)
        migrate.upgrade(url)
        test_tables_are_as_they_are_said_to_be(url)
        with Ledger.open(url) as ledger:
            assert naming.LEDGER_ID_PATTERN.fullmatch(ledger.ledger_id)
            ledger.begin(LOAD, owner="x")
        assert len(sql(url, "SELECT ledger_id FROM kafka_eos_ledger")) == 1
        # where all is rolled back a few places tell enough
        after += 1 if url.startswith("mysql") else 6
    assert after > 13  # statements


def test_each_ledger_has_an_id_of_its_own(new_url: Callable[[bool], str]) -> None:
    ids = []
    for _ in range(2):
        url = new_url(False)
        with Ledger.open(url, upgrade=True) as ledger:
            ids.append(ledger.ledger_id)
    assert all(naming.LEDGER_ID_PATTERN.fullmatch(i) for i in ids)
    assert ids[0] != ids[1]


def test_upgrade_by_many_processes_at_once(new_url: Callable[[bool], str]) -> None:
    url = new_url(False)
    code = (
        "import sys; from airflow_kafka_eos.ledger import Ledger, migrate; print('ready', flush=True);"
        "sys.stdin.readline(); migrate.upgrade(sys.argv[1]); print(Ledger.open(sys.argv[1]).ledger_id)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(answers)) == 1
    assert len(sql(url, "SELECT ledger_id FROM kafka_eos_ledger")) == 1


def test_an_upgrade_waits_for_the_one_under_way(new_url: Callable[[bool], str]) -> None:
    url = new_url(False)
    holder = database.Database(url)
    thread = threading.Thread(target=migrate.upgrade, args=(url,))

    def hold(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({migrate._ADVISORY_LOCK})"))
        if connection.dialect.name in ("mysql", "mariadb"):
            connection.execute(text(f"SELECT GET_LOCK('{migrate._MYSQL_LOCK}', 60)"))
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()

    holder.write(hold)
    thread.join(60)
    holder.close()
    assert migrate.current(url) == tables.REVISION


def test_whoever_waits_for_an_upgrade_sees_what_it_has_made(new_url: Callable[[bool], str]) -> None:
    """Let go before the commit, MySQL's lock let a second one make the same once more, and fail."""
    url = new_url(False)
    first, failed = database.Database(url), list[BaseException]()

    def upgrade() -> None:
        try:
            migrate.upgrade(url)
        except BaseException as e:
            failed.append(e)

    second = threading.Thread(target=upgrade)

    def commits(_: Connection) -> None:
        if not second.ident:
            second.start()
            second.join(1)  # as far as it comes

    first.make_directory()
    event.listen(first.engine, "commit", commits)
    first.write(migrate._upgrade)
    first.close()
    second.join(60)
    assert failed == [] and migrate.current(url) == tables.REVISION
    assert len(sql(url, "SELECT ledger_id FROM kafka_eos_ledger")) == 1


def test_tables_are_as_they_are_said_to_be(url: str) -> None:
    opened = database.Database(url)
    with opened.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": tables.VERSION_TABLE})
        assert compare_metadata(context, tables.metadata) == []
    opened.close()


def test_a_ledger_that_was_never_made(new_url: Callable[[bool], str], tmp_path: Path) -> None:
    url = new_url(False)
    said = r"not been created yet.*If loads have run already, create none.*Else run `airflow-kafka-eos ledger upgrade`"
    with pytest.raises(LedgerUnavailableError, match=said):
        Ledger.open(url)
    assert list(tmp_path.iterdir()) == []  # looking creates no file


def test_a_ledger_of_an_older_version(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "REVISION", "9999")
    with pytest.raises(
        LedgerUnavailableError, match=r"revision 0012, not 9999.*`airflow-kafka-eos ledger upgrade`"
    ):
        Ledger.open(url)


def test_a_ledger_of_a_newer_version(url: str) -> None:
    sql(url, f"UPDATE {tables.VERSION_TABLE} SET version_num = '9999'")
    for call in (lambda: Ledger.open(url), lambda: migrate.upgrade(url)):
        with pytest.raises(ConfigurationError, match="revision 9999"):
            call()


def test_only_the_embedded_default_is_upgraded_for_you(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "100% home"))
    assert default_url() == f"sqlite:///{tmp_path}/100% home/kafka_eos_ledger.db"
    with Ledger.open(default_url()) as ledger:
        ledger.begin(LOAD, owner="x")
    with pytest.raises(LedgerUnavailableError):
        Ledger.open(f"sqlite:///{tmp_path}/other.db")


def test_default_url_without_airflow_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_url() == f"sqlite:///{tmp_path}/airflow/kafka_eos_ledger.db"


def test_settings_of_a_connection(url: str) -> None:
    if url.startswith("mysql"):
        assert sql(url, "SELECT @@innodb_lock_wait_timeout") == [(database.LOCK_TIMEOUT,)]
        assert sql(url, "SELECT @@tx_isolation") == [("READ-COMMITTED",)]
        return
    if not url.startswith("sqlite"):
        assert sql(url, "SHOW synchronous_commit") == [("on",)]
        assert sql(url, "SHOW transaction_isolation") == [("read committed",)]
        return
    pragmas = {
        p: sql(url, f"PRAGMA {p}")[0][0]
        for p in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    }
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": database.LOCK_TIMEOUT * 1000,
    }


def test_synchronous_commit_off_is_overridden(url: str) -> None:
    if not url.startswith("postgresql"):
        return
    name = location.parse(url).database
    sql(url, f"ALTER DATABASE {name} SET synchronous_commit = off")
    assert sql(url, "SHOW synchronous_commit") == [("on",)]
    sql(url, f"ALTER DATABASE {name} SET synchronous_commit = remote_apply")
    assert sql(url, "SHOW synchronous_commit") == [("remote_apply",)]


def test_mysql_types_compare_byte_by_byte_and_fit_its_indexes() -> None:
    for table in tables.metadata.sorted_tables:
        ddl = str(CreateTable(table).compile(dialect=mysql.dialect()))
        lines = [line for line in ddl.splitlines() if "CHAR" in line or "TEXT" in line]
        assert lines
        assert all("COLLATE utf8mb4_bin" in line for line in lines), ddl
        for index in (*table.indexes, *table.constraints):
            columns = getattr(index, "columns", ())
            assert sum(4 * (getattr(c.type, "length", None) or 2) for c in columns) <= 3072


def secrets_in(error: BaseException) -> list[str]:
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(getattr(error, "__dict__", ""))
    chain: BaseException | None = error
    while chain is not None:
        shown += str(chain)
        chain = chain.__cause__ or chain.__context__
    return re.findall(r"s3cr3t", shown)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{QUOTED}@127.0.0.1:1/ledger",
        f"postgres://user:{QUOTED}@127.0.0.1:1/ledger",
        f"postgresql+psycopg2://user@127.0.0.1:1/ledger?password={QUOTED}",
        f"postgresql://user:{QUOTED}@127.0.0.1:1/ledger?no_such_option=1",
        f"postgresql+nodriver://user:{QUOTED}@127.0.0.1:1/ledger",
        f"oracle://user:{QUOTED}@127.0.0.1/ledger",
        f"postgresql://user:{SECRET}@127.0.0.1:nonumber/ledger",
        f"//user:{QUOTED}@nothing",
    ],
)
def test_a_password_is_never_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LONGEST_PAUSE", 0.01)
    assert "s3cr3t" not in redacted(url)
    for call in (lambda: Ledger.open(url), lambda: migrate.upgrade(url), lambda: migrate.current(url)):
        with pytest.raises(KafkaEosError) as caught:
            call()
        assert secrets_in(caught.value) == []


def test_a_password_that_the_driver_quotes_is_not_shown(url: str) -> None:
    if url.startswith("sqlite"):
        return
    parts = location.parse(url)
    same = parts.set(password="s3cr3t", database="db-s3cr3t").render_as_string(hide_password=False)
    says = "Access denied" if url.startswith("mysql") else r'database "db-\*\*\*" does not exist'
    with pytest.raises(LedgerUnavailableError, match=says):
        migrate.current(same)


def test_an_unreachable_database_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LONGEST_PAUSE", 0.01)
    with pytest.raises(LedgerUnavailableError, match=r"127\.0\.0\.1"):
        Ledger.open("postgresql://user:x@127.0.0.1:1/ledger")


def test_an_opened_ledger_shows_no_password(ledger: Ledger) -> None:
    url = location.parse(f"postgresql://user:{QUOTED}@host/db?sslpassword={QUOTED}&application_name=a")
    shown = redacted(url.render_as_string(hide_password=False))
    assert "s3cr3t" not in shown
    assert "application_name=a" in shown
    assert location.scrub(f"{SECRET} {QUOTED} stays", url) == "*** *** stays"
    assert ledger.ledger_id in repr(ledger)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "sqlite:///ledger.db", "", "mongodb://h/d"]
)
def test_urls_that_cannot_be_a_ledger(url: str) -> None:
    with pytest.raises(ConfigurationError):
        Ledger.open(url)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("this is not a database, it only looks like a file" * 100)
    with pytest.raises(LedgerNotReadyError, match=r"is no SQLite database .*Correct the URL"):
        Ledger.open(f"sqlite:///{tmp_path}/x.db")


def test_a_user_without_rights_is_told_so(url: str) -> None:
    if url.startswith("sqlite"):
        return
    if url.startswith("mysql"):
        says = "command denied"
        sql(url, "CREATE USER IF NOT EXISTS reader@localhost")
        sql(url, f"GRANT SELECT ON {location.parse(url).database}.* TO reader@localhost")
    else:
        says = "permission denied"
        sql(url, "DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        sql(url, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    with (
        Ledger.open(url.replace("//postgres@", "//reader@").replace("//root@", "//reader@")) as ledger,
        pytest.raises(ConfigurationError, match=says),
    ):
        ledger.begin(LOAD, owner="x")


def test_importing_the_ledger_imports_no_airflow() -> None:
    code = "import sys, airflow_kafka_eos.ledger; print([m for m in sys.modules if m.split('.')[0] == 'airflow'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_of_cursors_of_revision_0011_nobody_has_said_that_they_read_over_what_was_named(url: str) -> None:
    """So ranges by name are compared with what their loads read."""
    with Ledger.open(url) as ledger:
        made = ledger.set_cursor(
            "team", "orders", expected=None, moves=None, to=5, by="ann", reason="new", over_named=True
        )
        assert made.said_at is not None
    sql(url, "ALTER TABLE kafka_eos_cursors DROP COLUMN said_at")
    for _ in range(2):  # it may be cut off behind the column
        sql(url, f"UPDATE {tables.VERSION_TABLE} SET version_num = '0011'")
        migrate.upgrade(url)
    with Ledger.open(url) as ledger:
        found = ledger.cursor("team", "orders")
    assert found is not None and (found.position, found.said_at) == (5, None) and found.moved_at is not None


def test_attempts_of_revision_0010_have_no_fence(url: str) -> None:
    with Ledger.open(url) as ledger:
        ledger.begin(LOAD, owner="o")
        assert ledger.submit(LOAD, owner="o").has_fence is False
    sql(url, f"ALTER TABLE {tables.attempts.name} DROP COLUMN has_fence")
    sql(url, f"UPDATE {tables.VERSION_TABLE} SET version_num = '0010'")
    for _ in range(2):  # where MySQL was cut off
        migrate.upgrade(url)
        sql(url, f"UPDATE {tables.VERSION_TABLE} SET version_num = '0010'")
    migrate.upgrade(url)
    with Ledger.open(url) as ledger:
        assert [row.has_fence for row in ledger.attempts(LOAD)] == [None]
        assert ledger.submit(LOAD, owner="o", has_fence=True).has_fence
        assert [row.has_fence for row in ledger.attempts(LOAD)] == [None, True]
