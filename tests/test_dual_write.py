"""What an author may write for a dual write, before any database sees it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_kafka_eos.dual_write import DualWrite, Statement, ends_transaction
from airflow_kafka_eos.errors import ConfigurationError


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
