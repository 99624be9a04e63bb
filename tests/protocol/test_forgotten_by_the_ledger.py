"""What brokers show of a ledger that was restored, and a person's word on it (``ledger compare``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import InDoubtError
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.protocol.repair.restored import Forgotten, compare, set_committed
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, submit
from airflow_kafka_eos.protocol.stages.visible import arrival_of, lags
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.test_restored import backup, checkpoint
from tests.protocol.test_restored import own as own
from tests.protocol.world import RUN, World

pytestmark = pytest.mark.broker


def of(own: World, name: str) -> World:
    return replace(own, load=LoadIdentity(own.load.namespace, f"{own.load.name}-{name}", own.load.key))


def forgotten(session: Session, own: World, ledger_id: str | None = None) -> dict[str, list[Forgotten]]:
    """By the last word of the load name; other tests' loads have ledgers of their own."""
    found = compare(session, ledger_id)
    assert (found.hidden, found.has_moved) == (None, False)
    by: dict[str, list[Forgotten]] = {}
    for one in found.forgotten:
        by.setdefault(one.name.removeprefix(f"{own.load.name}-"), []).append(one)
    return by


@contextmanager
def restored(own: World, folder: Path) -> Iterator[Session]:
    with connect(own.settings, f"sqlite:///{folder}/backup.db", own.load.namespace) as session:
        yield session


def test_all_that_the_backup_lacks_is_shown_and_nothing_else(own: World, tmp_path: Path) -> None:
    known, aborted, undecided, later, open_, torn = (
        of(own, name) for name in ("known", "aborted", "undecided", "later", "open", "torn")
    )
    known.load_all(["known"])
    left = aborted.prepare(["aborted"])
    own.session.ledger.make_undecidable(aborted.load, up_to=1, decided_by=RUN, reason="test")
    waiting = undecided.prepare(["undecided"])
    assert forgotten(own.session, own) == {
        "undecided": [
            Forgotten(
                undecided.load.name, undecided.load.key, 1, None, LoadState.PREPARED,
                (), tuple(t.transactional_id for t in waiting.transactions),
            )
        ]
    }, "what is decided, or aborted, is the ledger's own"  # fmt: skip
    checkpoint(own)
    backup(tmp_path)
    later.load_all(["later"], ["later too"])
    nobodys = open_.prepare(["open"])
    half = torn.prepare(["visible"], ["not visible"])
    own.session.coordinator.end_many(half.transactions[:1], Verdict.COMMIT)
    with restored(own, tmp_path) as session:
        found = forgotten(session, own)
        assert sorted(found) == ["later", "open", "torn", "undecided"]
        ids = {w: tuple(t.transactional_id for t in m.transactions) for w, m in (("open", nobodys), ("torn", half))}
        (one,) = found["later"]
        assert (one.key, one.attempt, one.slot, one.state) == (later.load.key, 1, None, None)
        assert (len(one.committed), one.open) == (2, ())
        assert [(f.committed, f.open) for f in found["open"]] == [((), ids["open"])]
        assert [(f.committed, f.open) for f in found["torn"]] == [(ids["torn"][:1], ids["torn"][1:])]
        old = session.ledger.new_id(decided_by="ann")
    with restored(own, tmp_path) as session:
        assert forgotten(session, own) == {}
        assert sorted(forgotten(session, own, old)) == ["aborted", "later", "open", "torn", "undecided"]
    assert own.open_ids() == sorted([*ids["open"], *ids["torn"][1:], *(t.transactional_id for t in left.transactions),
                                     *(t.transactional_id for t in waiting.transactions)]), "it only looks"  # fmt: skip


def test_of_pooled_ids_the_slot_is_shown(own: World, tmp_path: Path) -> None:
    pooled = PooledWorld(**vars(of(own, "pooled")))
    pooled.of("first").load_all(["first"])
    checkpoint(own)
    backup(tmp_path)
    pooled.of("second").load_all(["second"])
    with restored(own, tmp_path) as session:
        (one,) = forgotten(session, own)["pooled"]
        assert (one.key, one.attempt, one.slot, len(one.committed), one.open) == (None, None, 0, 1, ())
    assert forgotten(own.session, own) == {}


def test_a_load_that_a_person_has_seen_is_written_by_no_run_once_the_ledger_has_a_new_id(
    own: World, tmp_path: Path
) -> None:
    checkpoint(own)
    backup(tmp_path)
    own.load_all(["a"])
    with restored(own, tmp_path) as session:
        with pytest.raises(InDoubtError, match=r"knows no decision.*new-id"):
            set_committed(session, own.load, by="ann", reason="seen")
        assert session.ledger.load(own.load) is None
        session.ledger.new_id(decided_by="ann")
    with restored(own, tmp_path) as session:
        row = set_committed(session, own.load, by="ann", reason="seen")
        assert row.cluster_id == session.cluster_id
        renewed = replace(own, session=session)
        assert begin(session, own.load, owner=RUN) == row
        assert submit(session, own.load, owner=RUN) == row
        assert renewed.commit().verdict is Verdict.COMMIT, "its tasks pass"
        assert lags(session, own.load) == []
        assert arrival_of(session, own.load)["topics"] == {}
    assert own.visible() == ["a"]
    with Ledger.open(f"sqlite:///{tmp_path}/backup.db") as ledger:
        assert ledger.state(own.load) is LoadState.COMMITTED
