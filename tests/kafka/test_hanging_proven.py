"""Another application's live transaction is never called hanging, what truly hangs is, and what cannot be told says so.

With the least ACLs (docs/acls.md) brokers leave other applications' transactions out of every listing, without a word.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import AccessError, NotFinishedError
from airflow_kafka_eos.kafka.admin.coordinator import Listed
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.protocol import hanging
from airflow_kafka_eos.protocol.hanging import HangingTransaction
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.transaction import CoordinatorState, PreparedTransaction
from tests.acls import Right
from tests.kafka.hanging_support import SEES_ALL, Command, SharedTopic
from tests.kafka.hanging_support import command as command
from tests.kafka.hanging_support import lax as lax
from tests.kafka.hanging_support import shared as shared
from tests.kafka.least_support import NAMESPACE
from tests.kafka.open_transactions import wait_until
from tests.protocol.late import produce_late
from tests.reading import committed_values

pytestmark = pytest.mark.broker


def test_a_live_application_with_records_of_long_ago_is_not_called_hanging_and_can_commit(
    shared: SharedTopic, command: Command
) -> None:
    name = f"billing-{shared.topic}"
    producer = shared.begin(name)
    shared.allow()
    look = ("transactions", "hanging", "--topic", shared.topic)
    code, out, err = command(*look)
    assert "MAY BE ALIVE" in out and "end nothing" in out
    assert "no coordinator knows" not in out and "kafka-transactions.sh" not in out
    assert code == 2 and "NOT PROVEN TO HANG" in err and "DESCRIBE on TransactionalId *" in err
    (row,) = json.loads(command(*look, "--output", "json")[1])
    assert (row["proven"], row["transactional_id"]) == (False, None)
    assert "other applications' transactions may be" in row["doubt"]

    every = ("transactions", "list", "--all")
    code, out, err = command(*every)
    assert (code, out) == (2, "no open transactions that this login may see\n")
    assert "THIS MAY NOT BE ALL" in err
    shown = json.loads(command(*every, "--output", "json")[1])
    assert shown["transactions"] == [] and "may be" in shown["hidden"]

    shared.allow(*SEES_ALL)  # what it says is granted
    assert command(*look)[:2] == (0, f"no hanging transactions in {shared.topic}\n")
    code, out, err = command(*every)
    assert code == 0 and "THIS MAY NOT BE ALL" not in err and name in out
    producer.commit_transaction(60)
    servers = shared.broker.plain.bootstrap_servers
    # the client is answered before the markers are written
    wait_until(lambda: committed_values(servers, shared.topic, 2) == ["alive"], "the committed record")


def test_an_id_that_is_denied_may_be_alive_though_all_others_are_seen(
    shared: SharedTopic, command: Command
) -> None:
    producer = shared.begin(f"payroll-{shared.topic}")
    shared.allow(*SEES_ALL, Right("DESCRIBE", "TransactionalId", "payroll-*", True))
    code, out, err = command("transactions", "hanging", "--topic", shared.topic)
    assert code == 2 and "MAY BE ALIVE" in out and "payroll-" in err
    producer.commit_transaction(60)


def test_what_truly_hangs_is_called_so_with_what_to_make_sure_of_first(
    shared: SharedTopic, command: Command
) -> None:
    known = shared.hang(f"orders-{shared.topic}", 0)
    unknown = shared.hang_unknown(1)
    look = ("transactions", "hanging", "--topic", shared.topic, "--running-longer-than", "0s", "--output", "json")
    shared.allow()
    code, out, _ = command(*look)
    assert code == 2 and {r["proven"] for r in json.loads(out)} == {False}
    shared.allow(*SEES_ALL)
    code, out, err = command(*look)
    first, second = json.loads(out)
    assert (code, len(err.splitlines())) == (1, 1), "which ledger and cluster, and no doubt"
    assert (first["proven"], first["whose"], first["transactional_id"]) == (True, "foreign", known.transactional_id)
    assert first["why"] == "its coordinator shows CompleteCommit"
    assert "Do not end it while an application uses" in first["what_to_do"]
    assert (second["proven"], second["producer_id"]) == (True, unknown.state.producer_id)
    assert (second["transactional_id"], second["why"]) == (None, "no coordinator knows its producer id")
    for row in (first, second):
        offset = row["start_offset"]
        assert f"--partition {row['partition']} --start-offset {offset}" in row["what_to_do"]
    # nothing of it is ended here, whoever may see it
    assert [p.state for p in shared.open(0) + shared.open(1)] == [known.state, unknown.state]


@pytest.fixture
def seeing(shared: SharedTopic, tmp_path: Path) -> Iterator[Session]:
    """A session that may see all, and what hangs unknown there."""
    url = f"sqlite:///{tmp_path}/seeing.db"
    Ledger.open(url, upgrade=True).close()
    shared.allow(*SEES_ALL)
    shared.hang_unknown()
    with connect(shared.broker.loader(), url, NAMESPACE) as session:
        yield session


def find_one(session: Session, shared: SharedTopic) -> HangingTransaction:
    (found,) = hanging.find(session, [shared.partition()], longer_than_ms=0)
    return found


def test_while_a_coordinator_moves_or_is_away_nothing_is_proven(
    seeing: Session, shared: SharedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_one(seeing, shared).is_proven
    monkeypatch.setattr(seeing.coordinator, "epochs", lambda: None)
    assert isinstance(find_one(seeing, shared).doubt, NotFinishedError)
    seen = iter(range(100))
    monkeypatch.setattr(seeing.coordinator, "epochs", lambda: frozenset({(0, 1, next(seen))}))
    assert isinstance(find_one(seeing, shared).doubt, NotFinishedError)


def test_nor_of_what_writes_while_we_look(
    seeing: Session, shared: SharedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    (open_,) = shared.open()
    sleep = time.sleep

    def write(seconds: float) -> None:
        if seconds != hanging._APART_S:  # a client that waits, of this process: that of the write, too
            return sleep(seconds)
        unknown = PreparedTransaction("forgotten", open_.state)
        assert produce_late(shared.everybody, unknown, shared.partition(), "more", 1) == 0

    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", write)
        found = find_one(seeing, shared)
    assert found.doubt is not None and "has written a record" in found.doubt.message
    assert find_one(seeing, shared).is_proven


def test_what_the_second_listing_has_does_not_hang(seeing: Session, shared: SharedTopic) -> None:
    """A new coordinator that lists nothing for a moment."""
    (open_,) = shared.open()
    asked = []

    class Late(Partitions):
        def listed(self, producer_ids: Iterable[int]) -> list[Listed]:
            asked.append(sorted(producer_ids))
            row = Listed(open_.producer_id, "forgotten", CoordinatorState.ONGOING)
            return [row] if len(asked) > 1 else []

    late = replace(seeing, partitions=Late(seeing.partitions.wire))
    assert hanging.find(late, [shared.partition()], longer_than_ms=0) == []
    assert len(asked) == 2


def test_rights_that_are_missing_are_no_proof(seeing: Session, shared: SharedTopic) -> None:
    for taken in SEES_ALL:
        shared.allow(*(SEES_ALL - {taken}))
        found = find_one(seeing, shared)
        assert isinstance(found.doubt, AccessError), taken
        assert f"{taken.operation} on" in found.doubt.remedy and "that may be seen from here" in found.why
    shared.allow(*SEES_ALL)
    assert find_one(seeing, shared).is_proven
