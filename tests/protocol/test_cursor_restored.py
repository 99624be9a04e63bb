"""A cursor behind a ledger that was restored: the brokers know loads of the name that it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.cursor import Cursor
from airflow_kafka_eos.errors import InDoubtError, KafkaEosError, NotFinishedError, SourceUnavailableError
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, record_prepared, reference, submit
from airflow_kafka_eos.protocol.stages.take_range import Wanted, check_range, take_range
from tests.kafka.open_transactions import wait_until
from tests.protocol.test_restored import backup, checkpoint, restored
from tests.protocol.world import RUN, World

pytestmark = pytest.mark.broker


class Numbers:
    """A source whose end is what the test says."""

    def __init__(self, end: int) -> None:
        self.end = end

    def bounds(self, since: Any) -> tuple[Any, Any]:
        return since, self.end

    def check(self, since: Any, until: Any) -> None: ...


@pytest.fixture
def own(world: World, tmp_path: Path) -> Iterator[World]:
    """A world with a ledger file of its own, and a load name of its own."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    with connect(world.settings, url, "test") as session:
        yield replace(world, session=session, load=LoadIdentity("test", world.topic, "a"))


def wanted(end: int) -> Wanted:
    return Wanted(Cursor(source=Numbers(end), first_since=0))


def prepared(own: World, end: int) -> Any:
    begin(own.session, own.load, owner=RUN)
    check_range(own.session, own.load, wanted(end))
    row = submit(own.session, own.load, owner=RUN)
    take_range(own.session, row, wanted(end), chosen=lambda n: None)
    ref = reference(own.session, row)
    manifest = own.manifest(ref, [own.write(ref, ["x"])])
    record_prepared(own.session, manifest)
    return manifest


def load_all(own: World, end: int) -> None:
    own.decide(prepared(own, end))
    own.commit()


def of(own: World, key: str, session: Session | None = None) -> World:
    return replace(own, load=replace(own.load, key=key), session=session or own.session)


def test_a_commit_of_another_key_that_the_ledger_does_not_know_stops_a_range(own: World, tmp_path: Path) -> None:
    """Its own key says nothing: the range rests on every load of the name."""
    load_all(own, 10)
    checkpoint(own)
    backup(tmp_path)
    load_all(of(own, "b"), 20)
    old = restored(own, tmp_path)
    later = of(own, "c", old)
    begin(old, later.load, owner=RUN)
    with pytest.raises(InDoubtError, match=r"does not know: b\. They have read on.*new-id"):
        check_range(old, later.load, wanted(30))
    row = submit(old, later.load, owner=RUN)
    assert row.verdict is None
    # with a new id the brokers show nothing any more, and the cursor is in doubt
    old.ledger.new_id(decided_by="ann")
    old.ledger.close()
    with connect(own.settings, f"sqlite:///{tmp_path}/backup.db", "test") as anew:
        begin(anew, later.load, owner=RUN)
        with pytest.raises(InDoubtError, match="cursors set"):
            check_range(anew, later.load, wanted(30))
        cursor = anew.ledger.cursor("test", own.load.name)
        assert cursor is not None and cursor.position == 10
        anew.ledger.set_cursor(
            "test", own.load.name, expected=10, moves=cursor.moves, to=20, by="ann", reason="b is there"
        )
        load_all(of(own, "c", anew), 30)
        cursor = anew.ledger.cursor("test", own.load.name)
        assert cursor is not None and cursor.position == 30
    assert own.visible() == ["x", "x", "x"]


def test_a_ledger_of_before_the_first_load_does_not_begin_at_first_since(own: World, tmp_path: Path) -> None:
    """It has no cursor that could be in doubt."""
    backup(tmp_path)
    load_all(own, 10)
    old = restored(own, tmp_path)
    old.ledger.new_id(decided_by="ann")
    old.ledger.close()
    with connect(own.settings, f"sqlite:///{tmp_path}/backup.db", "test") as anew:
        later = of(own, "b", anew)
        begin(anew, later.load, owner=RUN)
        with pytest.raises(InDoubtError, match=r"cursors set .* --new"):
            check_range(anew, later.load, wanted(20))
        row = submit(anew, later.load, owner=RUN)
        with pytest.raises(InDoubtError, match=r"cursors set .* --new"):
            take_range(anew, row, wanted(20), chosen=lambda n: None)
        anew.ledger.set_cursor("test", own.load.name, expected=None, moves=None, to=10, by="ann", reason="a is there")
        load_all(later, 20)
        (found,) = anew.ledger.ranges(later.load)[-1:]
        assert (found.since, found.until) == (10, 20)


def test_while_a_coordinator_is_away_no_range_is_taken(own: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has is not listed: a commit that the ledger does not know would not be seen."""
    begin(own.session, own.load, owner=RUN)
    before = own.session.coordinator.epochs()
    answers = iter([before, None])
    monkeypatch.setattr(own.session.coordinator, "epochs", lambda: next(answers))
    with pytest.raises(NotFinishedError, match="coordinator is moving or away"):
        check_range(own.session, own.load, wanted(10))


def test_a_range_of_before_the_restore_is_not_decided(own: World, tmp_path: Path) -> None:
    """It was taken before the backup, and aborted behind it; another load has read on."""
    manifest = prepared(own, 10)
    checkpoint(own)
    backup(tmp_path)
    own.session.ledger.make_undecidable(own.load, up_to=1, decided_by="cleanup", reason="gone")
    load_all(of(own, "b"), 20)
    old = restored(own, tmp_path)
    with pytest.raises(InDoubtError, match="does not know: b"):
        replace(own, session=old).decide(manifest)
    assert [row.verdict for row in old.ledger.attempts(own.load)] == [None]
    old.ledger.close()
    sweep(own.session, own.load, up_to=1, by=RUN)  # its transaction holds readers back
    wait_until(lambda: own.visible() == ["x"], "what b has loaded")


def test_where_a_source_is_down_a_retry_goes_on(own: World) -> None:
    """An attempt that is aborted would be the end of it: only begin opens another one then."""
    begin(own.session, own.load, owner=RUN)

    class Down(Numbers):
        def bounds(self, since: Any) -> tuple[Any, Any]:
            raise SourceUnavailableError("down", remedy="wait")

    row = submit(own.session, own.load, owner=RUN)
    with pytest.raises(KafkaEosError, match="down"):
        take_range(own.session, row, Wanted(Cursor(source=Down(1), first_since=0)), chosen=lambda n: None)
    again = submit(own.session, own.load, owner=RUN)
    found = take_range(own.session, again, wanted(3), chosen=lambda n: None)
    assert (again.number, found.since, found.until) == (2, 0, 3)


def test_what_the_cursor_refuses_is_aborted_and_not_left_prepared(own: World) -> None:
    manifest = prepared(own, 10)
    cursor = own.session.ledger.cursor("test", own.load.name)
    assert cursor is not None
    own.session.ledger.set_cursor("test", own.load.name, expected=0, moves=cursor.moves, to=5, by="ann", reason="")
    with pytest.raises(KafkaEosError, match="has moved"):
        own.decide(manifest)
    (row,) = own.session.ledger.attempts(own.load)
    assert row.verdict is Verdict.ABORT
