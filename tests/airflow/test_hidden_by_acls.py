"""Where brokers may leave out of a listing what the login may not describe, maintenance and the page say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.hooks import KafkaEosHook
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.plugin.dags import Access
from airflow_kafka_eos.plugin.dags import Place as Where
from airflow_kafka_eos.plugin.reads import Found, _look_at
from tests.acls import Right, allow_exactly
from tests.airflow.steps import connection
from tests.airflow.test_maintenance import found_by
from tests.secured import Secured

pytestmark = pytest.mark.broker

PRINCIPAL = "User:loader"


class Everything(Access):
    """Of a user who may see all DAGs."""

    def may(self, method: str, dag_id: str | None) -> bool:
        return True


def test_maintenance_and_the_page_say_what_may_be_hidden(
    home: Path, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection(monkeypatch, "kafka_default", "kafka", extra=secured.loader_extra())
    # no Airflow is here that could tell
    monkeypatch.setattr("airflow_kafka_eos.plugin.dags.paused_dags", set)
    load = LoadIdentity("hidden", "orders", "key")
    with KafkaEosHook().resolve().session(load.namespace) as session:
        ledger_id = session.ledger.ledger_id
        row = session.ledger.begin(load, owner="dag/run")
        session.ledger.make_undecidable(load, up_to=1, decided_by="test", reason="")
        known = session.ledger.load(load)
    assert known is not None

    def may_write(prefix: str) -> None:
        allow_exactly(secured.plain, PRINCIPAL, [Right("WRITE", "TransactionalId", f"{prefix}*")])

    def page() -> dict[str, Any]:
        place = Where("kafka_default", None)
        return _look_at(Everything(None), place, [Found(known, row, None)], everything=True)

    may_write("hidden.0123456789.")
    found = found_by("hidden", fail_on_problems=False)
    assert len(found["hidden"]) == 2 and "more may be open than is shown" in found["hidden"][0]
    assert found["problems"] != []
    (text,) = page()["hidden"]
    assert "more may be open than is shown" in text

    may_write(f"hidden.{ledger_id}.")  # enough for this ledger's loads, and no more is asked for
    found = found_by("hidden")
    (text,) = found["hidden"]
    assert "other ledgers' transactions in the namespace are not shown" in text
    assert page()["hidden"] == []

    may_write("hidden.")
    assert found_by("hidden")["hidden"] == page()["hidden"] == []
    allow_exactly(secured.plain, PRINCIPAL, ())
