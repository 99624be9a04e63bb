"""What an author may write for a dual write, before any database sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_eos.dual_write import DualWrite, Statement, commits_on_mysql, ends_transaction
from airflow_kafka_eos.errors import ConfigurationError, DualWriteError
from airflow_kafka_eos.ledger import transaction_guard


def test_texts_pairs_and_mappings() -> None:
    one = Statement("insert into t values (:x)", {"x": 1})
    found = DualWrite.of(["delete from t", (one.sql, one.parameters), {"sql": one.sql, "parameters": {"x": 1}}], None)
    assert found is not None
    assert found.statements == (Statement("delete from t"), one, one)
    single = DualWrite.of("delete from t", None)
    assert single is not None and single.statements == (Statement("delete from t"),)
    assert DualWrite.of(None, None) is None


@pytest.mark.parametrize("given", ["", "  ", [], [""], [("a",)], ["x", 3], 7, {"sql": ""}, [("x", 1)]])
def test_what_is_no_sql_is_refused_without_showing_it(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="is no SQL"):
        DualWrite.of(given, None)


def test_an_unknown_key_and_a_callable_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="'params'"):
        DualWrite.of({"sql": "x", "params": {}}, None)
    with pytest.raises(ConfigurationError, match="cannot be called"):
        DualWrite.of(None, "delete from t")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sql",
    ["COMMIT", " commit;", "-- why\nROLLBACK", "/* a */ begin", "START  TRANSACTION", "END", "prepare transaction 'x'",
     "ROLLBACK WORK", "insert into t values (1); commit", "delete from t;\n--x\n ROLLBACK; select 1"],
)  # fmt: skip
def test_a_statement_that_ends_the_transaction_is_refused(sql: str) -> None:
    with pytest.raises(ConfigurationError, match="statement 2 begins or ends a transaction"):
        DualWrite.of(["select 1", sql], None)


@pytest.mark.parametrize(
    "sql",
    ["insert into commits values (1)", "update t set x = 'commit'", "SAVEPOINT a", "rollback to savepoint a",
     "DO $$ BEGIN PERFORM 1; END $$", "select 1; select 2", "ROLLBACK TRANSACTION TO a", "RELEASE SAVEPOINT a"],
)  # fmt: skip
def test_other_statements_pass(sql: str) -> None:
    assert DualWrite.of(sql, None) is not None
    assert not ends_transaction(sql)


@pytest.mark.parametrize(
    ("sql", "word"),
    [("TRUNCATE t", "TRUNCATE"), ("/* a */ # b\n create table t (a int)", "CREATE"), ("lock tables t write", "LOCK"),
     ("Set @@SESSION.autocommit = 1", "SET"), ("ANALYZE LOCAL TABLE t", "ANALYZE"), ("DROP INDEX i ON t", "DROP"),
     ("rename table a to b", "RENAME"), ("GRANT SELECT ON t TO a", "GRANT"),
     ("CREATE OR REPLACE VIEW v AS SELECT 1", "CREATE")],
)  # fmt: skip
def test_what_mysql_commits_by_itself_is_known_by_its_first_words(sql: str, word: str) -> None:
    assert commits_on_mysql(sql) == word
    assert DualWrite.of(sql, None) is not None, "on another database it is a part of the transaction"


@pytest.mark.parametrize(
    "sql",
    ["CREATE TEMPORARY TABLE t (a INT)", "drop temporary table t", "CREATE OR REPLACE TEMPORARY TABLE t (a INT)",
     "INSERT INTO drops VALUES (1)", "SET @a = 1", "LOAD DATA INFILE 'x' INTO TABLE t", "SELECT 1", "DELETE FROM t",
     "UPDATE t SET a = 'truncate'", "DROP PREPARE p", "CREATE /* x */ TEMPORARY TABLE t (a INT)"],
)  # fmt: skip
def test_and_nothing_else_is(sql: str) -> None:
    assert commits_on_mysql(sql) == ""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("comment", ["/* a */\n", "/* a * b **/", "-- a\n", "# a\n", "; /* a */", "/* a"])
def test_comments_are_passed_over_however_many_there_are(comment: str) -> None:
    """It takes no time: the load's row is locked meanwhile. Thirty took ten minutes."""
    for statement in ("INSERT INTO t VALUES (1)", "CREATE", "COMMI"):
        DualWrite.of(f"{statement} {comment * 200}", None)
        commits_on_mysql(comment * 200 + statement)
        assert not ends_transaction(comment * 200 + statement)


@pytest.mark.parametrize("database", ["mysql", "mariadb", "postgresql", "sqlite"])
def test_it_is_refused_where_the_database_is_mysql(database: str) -> None:
    guarded: Any = SimpleNamespace(
        dialect=SimpleNamespace(name=database),
        get_execution_options=lambda: {transaction_guard._GUARDED: True},
    )
    transaction_guard._check_statement(guarded, None, "DELETE FROM t")
    if database in ("mysql", "mariadb"):
        with pytest.raises(DualWriteError, match="runs TRUNCATE, which MySQL commits by itself"):
            transaction_guard._check_statement(guarded, None, "TRUNCATE t")
    else:
        transaction_guard._check_statement(guarded, None, "TRUNCATE t")
