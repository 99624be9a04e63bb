"""The checkers find each thing that must not be, and nothing where nothing is (issue: the fault campaign)."""

from __future__ import annotations

import ast
import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults import accounts, checkers, facts, planted, samples, visible
from tests.faults.checkers import KINDS, differing, judge, windows
from tests.faults.facts import Fate, Look, Observation, OpenTransaction, Value, Violation

RANDOMS = st.integers(0, 2**32).map(random.Random)
# no example here is about time
SETTINGS = settings(deadline=None, max_examples=60)


@SETTINGS
@given(RANDOMS)
def test_a_run_as_it_must_be(rnd: random.Random) -> None:
    assert judge(samples.clean(rnd)) == []


@pytest.mark.parametrize("name", planted.PLANTS)
@settings(deadline=None, max_examples=25)
@given(RANDOMS)
def test_what_is_planted_is_found(name: str, rnd: random.Random) -> None:
    plant, kind = planted.PLANTS[name]
    found = judge(plant(samples.clean(rnd), rnd))
    assert kind in {v.kind for v in found}, found


def test_every_kind_is_planted() -> None:
    assert {kind for _, kind in planted.PLANTS.values()} == set(KINDS)


@pytest.mark.parametrize("check", checkers.CHECKS, ids=KINDS)
def test_a_check_names_its_own_kind_only(check: Callable[[checkers.Case], Iterator[Violation]]) -> None:
    for plant, _ in planted.PLANTS.values():
        rnd = random.Random(7)
        seen = plant(samples.clean(rnd), rnd)
        case = checkers.Case(seen, visible.Visible(seen.final), checkers.TORN_S)
        assert {v.kind for v in check(case)} <= {check.__name__}


def test_each_check_alone_finds_what_is_planted_for_it() -> None:
    """Not one of the others, which a change could take away."""
    for name, (plant, kind) in planted.PLANTS.items():
        rnd = random.Random(11)
        seen = plant(samples.clean(rnd), rnd)
        case = checkers.Case(seen, visible.Visible(seen.final), checkers.TORN_S)
        assert list(getattr(checkers, kind)(case)), name


def test_text_says_who_and_where() -> None:
    rnd = random.Random(1)
    seen = samples.clean(rnd)
    plant, _ = planted.PLANTS["a record of a load of scope task is gone"]
    (lost,) = [v for v in judge(plant(seen, rnd)) if v.kind == "lost"]
    assert lost.text.startswith("load 2026-01-01 (scope task): not visible 1 (")


def test_a_reader_does_not_say_when_a_record_became_visible() -> None:
    """It may be held back, or slow: its looks are no word against anybody."""
    for name in ("visible before its decision", "told before all is visible"):
        rnd = random.Random(2)
        seen = planted.PLANTS[name][0](samples.clean(rnd), rnd)
        assert judge(seen) != []
        assert judge(dataclasses.replace(seen, clock_error_s=None)) == []


def test_who_gave_up_by_the_clock_says_so() -> None:
    seen = a_run()
    late = dataclasses.replace(seen.loads[0], acked=False, gave_up_s=241.0)
    (found,) = judge(dataclasses.replace(seen, loads=(late, *seen.loads[1:])))
    assert found.kind == "unfinished" and "gave up by the clock, after 241 s" in found.text


@pytest.mark.parametrize("name", [name for name in planted.PLANTS if "twice" in name and "reader" not in name])
def test_a_duplicate_is_no_matter_of_order(name: str) -> None:
    """Its second copy stands behind its successors."""
    for seed in range(20):
        rnd = random.Random(seed)
        seen = planted.PLANTS[name][0](samples.clean(rnd), rnd)
        assert "order" not in {v.kind for v in judge(seen)}


def test_a_report_is_answered_in_full() -> None:
    seen = a_run()
    wrong = dataclasses.replace(seen.loads[0], reported="IN_DOUBT", acked=False, told_at=None)
    report, unfinished = judge(dataclasses.replace(seen, loads=(wrong, *seen.loads[1:])))
    assert report.text == "load 2026-01-01 (scope task): all is there, but the ledger says IN_DOUBT"
    decided = f"attempt {seen.loads[0].decided} is decided, it must be COMMITTED, the ledger says IN_DOUBT"
    assert unfinished.text == f"load 2026-01-01 (scope task): {decided}"


def test_a_load_that_was_not_committed_in_time_is_not_called_lost() -> None:
    seen = a_run()
    changes: dict[str, Any] = {"reported": "PREPARED", "decided": None, "acked": False, "told_at": None}
    late = dataclasses.replace(seen.loads[0], key="late", records=5, **changes)
    assert [v.kind for v in judge(dataclasses.replace(seen, loads=(*seen.loads, late)))] == ["unfinished"]


def a_run(**changes: object) -> Observation:
    return dataclasses.replace(samples.clean(random.Random(3)), **changes)  # type: ignore[arg-type]


def test_others_may_hold_a_partition_open() -> None:
    """A transaction of another application's over the whole run: an id that looks like ours, and still is not."""
    seen = a_run()
    theirs = dataclasses.replace(seen.foreign[1], transactional_id=seen.loads[0].prefix + "1-0-1x")
    one = OpenTransaction(theirs.transactional_id, (("orders", 0),), 1)
    held = dataclasses.replace(
        seen, foreign=(*seen.foreign, theirs), open=(one,), stable_short={("orders", 0): (1, 9)}
    )
    assert judge(held) == []
    assert [v.kind for v in judge(dataclasses.replace(held, open=()))] == ["stable_short"]


def test_a_prefix_of_another_deployment_is_not_ours() -> None:
    assert judge(a_run(open=(OpenTransaction("eos.99.1", (("orders", 0),), 1),))) == []


def test_a_foreign_transaction_of_unknown_fate_may_be_there_or_not() -> None:
    seen = a_run()
    unknown = [dataclasses.replace(f, fate=Fate.UNKNOWN) for f in seen.foreign]
    assert judge(dataclasses.replace(seen, foreign=tuple(unknown))) == []


def test_a_plain_record_may_be_there_without_its_producer_knowing() -> None:
    seen = a_run()
    forgotten = dataclasses.replace(seen.plain[0], acked=seen.plain[0].acked[1:])
    assert judge(dataclasses.replace(seen, plain=(forgotten,))) == []


def test_an_empty_load() -> None:
    seen = a_run()
    empty = dataclasses.replace(seen.loads[0], key="empty", records=0)
    assert judge(dataclasses.replace(seen, loads=(*seen.loads, empty))) == []
    nothing = dataclasses.replace(
        empty, reported="ABORTED", decided=None, acked=False, told_at=None, expect="absent"
    )
    assert judge(dataclasses.replace(seen, loads=(*seen.loads, nothing))) == []


def test_a_load_of_scope_task_may_be_visible_in_part_for_a_while() -> None:
    """Its window is a figure, not a violation."""
    seen = a_run()
    key, records = seen.loads[0].key, seen.loads[0].records
    looks = (Look(1.0, {}), Look(2.0, {key: 1}), Look(30.0, {key: records}), Look(40.0, {key: records}))
    task = dataclasses.replace(seen.loads[0], told_at=30.0)
    seen = dataclasses.replace(seen, looks=looks, loads=(task, *seen.loads[1:]))
    assert judge(seen) == []
    assert windows(seen) == {key: 28_000.0}


def test_how_long_a_load_may_be_torn_is_said_by_the_caller() -> None:
    rnd = random.Random(5)
    seen = planted.PLANTS["a load of scope load in part for long"][0](samples.clean(rnd), rnd)
    assert [v.kind for v in judge(seen)] == ["torn"]
    assert judge(seen, torn_s=9.5) == []


def test_records_with_times_headers_and_nulls_as_they_were_written() -> None:
    for seed in range(20):
        rnd = random.Random(seed)
        seen = samples.clean(rnd)
        records = [planted.rich(r) if r.said.startswith(b"load|") else r for r in seen.final]
        assert judge(samples.with_final(seen, rnd, records)) == []


@pytest.mark.parametrize("scope", ["task", "load"])
def test_a_compacted_topic_keeps_the_newest_of_a_key(scope: str) -> None:
    """What a later record of its attempt has superseded is not missed; the last one of a key is."""
    rnd = random.Random(4)
    seen = samples.clean(rnd)
    fact = dataclasses.replace(seen.loads[0], compacted=True, keys=3, records=9, scope=scope)
    others = [r for r in seen.final if not r.said.startswith(f"load|{fact.key}|".encode())]
    assert fact.decided is not None
    values = [Value(visible.LOAD, fact.key, fact.decided, f"k{n % 3}", n) for n in range(9)]
    mine = [facts.Record(fact.topics[0], v.number % 3, 0, v.key_bytes, v.encode()) for v in values]
    looks = (Look(1.0, {}), Look(fact.told_at or 2.0, {fact.key: 3}))
    seen = dataclasses.replace(seen, loads=(fact, *seen.loads[1:]), looks=(*looks, *seen.looks[1:]))

    def judged(left: list[facts.Record]) -> list[str]:
        return [v.text for v in judge(samples.with_final(seen, rnd, [*others, *left])) if fact.key in v.text]

    assert judged(mine[6:]) == []
    assert judged([mine[1], *mine[6:]]) == []
    assert any("not visible 2 (5, 8)" in text for text in judged([mine[2], mine[6], mine[7]]))
    plain = dataclasses.replace(fact, compacted=False)
    seen = dataclasses.replace(seen, loads=(plain, *seen.loads[1:]))
    assert any("not visible 6 " in text for text in judged(mine[6:]))


def test_windows() -> None:
    seen = a_run()
    a, b, c, never = seen.loads
    whole = {a.key: a.records}
    looks = (
        Look(0.0, {}),
        Look(1.0, whole),
        Look(1.5, {**whole, b.key: 1}),
        Look(1.75, {**whole, b.key: b.records, c.key: 8}),
        Look(4.0, {**whole, b.key: b.records, c.key: 8}),
    )
    seen = dataclasses.replace(seen, looks=looks, loads=(a, b, dataclasses.replace(c, records=9), never))
    assert windows(seen) == {a.key: 0.0, b.key: 250.0, c.key: 2250.0}


def test_readers_are_compared_with_the_first() -> None:
    final = a_run().final
    other = (*final[:-1], dataclasses.replace(final[-1], value=b"?"))
    assert differing({"one": final, "same": samples.tailed(random.Random(1), final)}) == []
    (found,) = differing({"one": final, "same": final, "other": other})
    assert found.kind == "reader_differs" and found.text.startswith("one and other, ")


def test_a_million_numbers_fit_a_text() -> None:
    seen = a_run()
    huge = dataclasses.replace(seen.loads[0], records=1_000_000)
    found = judge(dataclasses.replace(seen, loads=(huge, *seen.loads[1:])))
    assert {v.kind for v in found} == {"lost", "reported_wrong"}
    assert all(len(v.text) < 300 for v in found)


@given(st.text(st.characters(exclude_characters="|", codec="utf-8")), st.integers(), st.integers(0, 300))
def test_values_say_who_wrote_them(text: str, number: int, size: int) -> None:
    value = Value("load", text, number, text, number)
    encoded = value.encode(size)
    assert Value.decode(encoded) == value
    assert len(encoded) >= size


@pytest.mark.parametrize("module", [facts, visible, checkers, accounts])
def test_judges_know_nothing_of_our_package(module: object) -> None:
    source = Path(str(module.__file__)).read_text()  # type: ignore[attr-defined]
    imported = {
        name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert not [name for name in imported if name.startswith("airflow_kafka_eos")]
    assert imported


def told_of_by_a_ledger_that_was_put_back(rnd: random.Random) -> tuple[Observation, facts.LoadFact]:
    """A load that is visible and was told of, of whose attempts and decision its ledger knows nothing any more."""
    seen = samples.clean(rnd)
    told = next(f for f in seen.loads if f.told_at is not None or f.acked)
    forgotten = dataclasses.replace(told, decided=None, reported=None, expect="either", lost_at=0.0)
    loads = tuple(forgotten if f is told else f for f in seen.loads)
    return dataclasses.replace(seen, loads=loads), forgotten


def test_what_a_ledger_that_was_put_back_has_forgotten_is_neither_lost_nor_wrong() -> None:
    seen, _ = told_of_by_a_ledger_that_was_put_back(random.Random(3))
    assert judge(seen) == []


def test_a_record_of_it_that_is_gone_is_lost() -> None:
    seen, forgotten = told_of_by_a_ledger_that_was_put_back(random.Random(3))
    gone = next(r for r in seen.final if r.said.startswith(f"load|{forgotten.key}|".encode()))
    found = judge(dataclasses.replace(seen, final=tuple(r for r in seen.final if r is not gone)))
    assert "lost" in {v.kind for v in found}
