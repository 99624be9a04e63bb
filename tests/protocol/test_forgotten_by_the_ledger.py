"""What brokers show of a ledger that was restored, and a person's word on it (``ledger compare``)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import ConfigurationError, InDoubtError, ManifestError
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest, dump
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.repair.restored import Forgotten, compare, reinstate, set_committed
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, submit
from airflow_kafka_eos.protocol.stages.visible import arrival_of, lags
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.transaction import Outcome
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
    ids = {
        name: tuple(t.transactional_id for t in made.transactions)
        for name, made in (("aborted", left), ("undecided", waiting))
    }
    assert forgotten(own.session, own) == {
        name: [Forgotten(world.load.name, world.load.key, 1, None, state, (), ids[name])]
        for name, world, state in (
            ("aborted", aborted, LoadState.ABORTING), ("undecided", undecided, LoadState.PREPARED)
        )
    }, "of what is decided, nothing"  # fmt: skip
    checkpoint(own)
    backup(tmp_path)
    later.load_all(["later"], ["later too"])
    nobodys = open_.prepare(["open"])
    half = torn.prepare(["visible"], ["not visible"])
    own.session.coordinator.end_many(half.transactions[:1], Verdict.COMMIT)
    with restored(own, tmp_path) as session:
        found = forgotten(session, own)
        assert sorted(found) == ["aborted", "later", "open", "torn", "undecided"]
        ids |= {w: tuple(t.transactional_id for t in m.transactions) for w, m in (("open", nobodys), ("torn", half))}
        (one,) = found["later"]
        assert (one.key, one.attempt, one.slot, one.state) == (later.load.key, 1, None, None)
        assert (len(one.committed), one.open) == (2, ())
        assert [(f.committed, f.open) for f in found["open"]] == [((), ids["open"])]
        assert [(f.committed, f.open) for f in found["torn"]] == [(ids["torn"][:1], ids["torn"][1:])]
        old = session.ledger.new_id(decided_by="ann")
    with restored(own, tmp_path) as session:
        assert forgotten(session, own) == {}
        assert compare(session).other_ledgers[old] == 4
        assert old not in compare(session, old).other_ledgers
        assert sorted(forgotten(session, own, old)) == ["aborted", "later", "open", "torn", "undecided"]
    still = [*ids["aborted"], *ids["undecided"], *ids["open"], *ids["torn"][1:]]
    assert own.open_ids() == sorted(still), "it only looks"


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


def manifests(folder: Path, *made: Manifest) -> ManifestStore:
    store = ManifestStore(str(folder / "manifests"))
    for one in made:
        store.claim(one.attempt, "driver")
        store.write(one.attempt, dump(one))
    return store


def test_a_load_that_was_visible_in_part_is_taken_back_by_its_manifest_and_completed(
    own: World, tmp_path: Path
) -> None:
    """Decided, and told to Kafka in part, when the ledger's last transactions were lost: both attempts were."""
    checkpoint(own)
    backup(tmp_path)
    own.open_attempt()
    made = own.prepare(["a"], ["b"], ["c"])
    assert made.attempt.attempt == 2
    own.decide(made)
    own.commit()
    half = of(own, "half")
    torn = half.prepare(["d"], ["e"])
    own.session.coordinator.end_many(torn.transactions[:1], Verdict.COMMIT)
    zombie = half.write(torn.attempt, ["zombie"], 1)
    assert zombie.transaction is not None
    store = manifests(tmp_path, made, torn)
    with restored(own, tmp_path) as session:
        with pytest.raises(InDoubtError, match="knows no decision"):
            begin(session, own.load, owner=RUN)
        for load in (own.load, half.load):
            row = reinstate(session, load, store.read, by="ann", writers_left=store.writers_left, deadline_s=30)
            assert row.state is LoadState.COMMITTED
        assert [t.outcome for t in session.ledger.transactions(half.load, 1)] == [Outcome.COMMITTED] * 2
        assert begin(session, own.load, owner=RUN).verdict is Verdict.COMMIT
        (left,) = compare(session).forgotten
        assert [*left.open] == own.open_ids() == [zombie.transaction.transactional_id]
        poll = CleanPoll(half.load, up_to=1, by=RUN, quiet_s=0)
        while poll(session) is not None:
            time.sleep(0.1)
    assert own.visible() == ["a", "b", "c", "d", "e"]


def test_nothing_is_taken_back_that_is_not_proven(own: World, tmp_path: Path) -> None:
    checkpoint(own)
    backup(tmp_path)
    undecided = of(own, "undecided")
    other = of(own, "other")
    twice = of(own, "twice")
    open_, shown = undecided.prepare(["u"]), other.prepare(["o"])
    refs = [AttemptRef(twice.load, own.session.ledger.ledger_id, number) for number in (1, 2)]
    first, second = (twice.manifest(ref, [twice.write(ref, ["t"])]) for ref in refs)
    every = [*shown.transactions, *first.transactions, *second.transactions]
    own.session.coordinator.end_many(every, Verdict.COMMIT)
    lies = replace(shown, entries=open_.entries)
    half = of(own, "half")
    aborted = half.prepare(["h"], ["i"])
    own.session.coordinator.end_many(aborted.transactions[:1], Verdict.COMMIT)
    own.session.coordinator.end_many(aborted.transactions[1:], Verdict.ABORT)
    anew = of(own, "anew")
    changed = anew.prepare(["j"], ["k"])
    own.session.coordinator.end_many(changed.transactions[:1], Verdict.COMMIT)
    (entry,) = changed.entries[1:]
    more = replace(entry, writes=tuple(replace(w, records=w.records + 1) for w in entry.writes))
    says_more = replace(changed, entries=(*changed.entries[:1], more))
    gone = of(own, "gone")
    own.session.coordinator.end_many(gone.prepare(["g"]).transactions, Verdict.COMMIT)
    store = manifests(tmp_path, open_, first, second, aborted)
    ids = own.open_ids()

    def refuse(session: Session, load: LoadIdentity, kind: type[Exception], said: str) -> None:
        told = {other.load: lies, anew.load: says_more}
        read = (lambda ref: told[load]) if load in told else store.read
        with pytest.raises(kind, match=said):
            reinstate(session, load, read, by="ann", writers_left=store.writers_left, deadline_s=5)
        assert session.ledger.load(load) is None

    with restored(own, tmp_path) as session:
        refuse(session, undecided.load, ConfigurationError, "show no commit of this load")
        refuse(session, other.load, InDoubtError, "does not name")
        refuse(session, twice.load, InDoubtError, r"attempts or repairs \[1, 2\]")
        refuse(session, gone.load, ManifestError, r"no manifest at .*clear nothing")
        refuse(session, half.load, InDoubtError, r"neither committed, by the log, nor open \(lost\)")
        refuse(session, anew.load, InDoubtError, "not as it was prepared .*the manifest says 2")
    with pytest.raises(ConfigurationError, match="the ledger knows this load: it is COMMITTED"):
        known = of(own, "known")
        reinstate(
            own.session, known.load_all(["x"]).attempt.load, store.read, by="ann", writers_left=store.writers_left,
            deadline_s=5,
        )  # fmt: skip
    assert own.open_ids() == ids
