"""Who tells first of a topic that Airflow does not know yet."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG

from airflow_kafka_eos.ledger.rows import LoadRow
from airflow_kafka_eos.lineage import first_event
from airflow_kafka_eos.lineage.first_event import (
    A_TURN,
    PATIENCE,
    Ahead,
    Seen,
    ahead_of,
    take_turn,
    waited_for,
)
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.sensors.loaded import LoadedSensor

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def row(key: str, state: LoadState = LoadState.COMMITTED, ago_s: float = 5, name: str = "days") -> LoadRow:
    at = (NOW - timedelta(seconds=ago_s)).isoformat()
    return LoadRow(LoadIdentity("airflow", name, key), state, 1, "", None, at, at)


def of_one_name(load: LoadIdentity) -> bool:
    return load.name == "days"


def ahead(rows: list[LoadRow], keys: str) -> list[str]:
    """Of loads of one name, which need not have had a record for the topic."""
    committed = [(one, set[str]()) for one in rows]
    of_each = [
        ahead_of(LoadIdentity("airflow", "days", key), "t", committed, NOW, is_kin=of_one_name) for key in keys
    ]
    assert all(one.is_kin for found in of_each for one in found)
    return ["".join(one.load.removeprefix("airflow/days/") for one in found) for found in of_each]


def test_loads_that_were_committed_lately_take_turns_in_the_order_of_their_commits() -> None:
    rows = [row("c", ago_s=7), row("a"), row("b", LoadState.COMMITTING), row("d", ago_s=301), row("e")]
    assert ahead(rows, "cae") == ["", "c", "ca"]
    assert ahead(rows, "d") == ["cae"], "told of so late, it goes behind everybody who may be about to tell"
    assert ahead([], "z") == [""]


def test_whoever_was_first_stays_so_when_another_is_committed_behind_it() -> None:
    """By their keys both would be first, one after the other, and Airflow fails one of two that end at once."""
    before = [row("b", ago_s=2)]
    assert ahead(before, "b") == [""]
    assert ahead([*before, row("a", ago_s=1)], "ba") == ["", "b"]


def test_loads_of_other_names_take_turns_with_those_that_write_to_the_same_topic() -> None:
    """Two DAGs may fill one new topic, and end at the same moment."""
    first, second, elsewhere = row("a", name="shop", ago_s=9), row("a", ago_s=7), row("a", name="web", ago_s=8)
    committed = [(first, {"t", "u"}), (second, {"t"}), (elsewhere, {"v"})]

    def others(one: LoadRow, topic: str) -> list[str]:
        found = ahead_of(one.load, topic, committed, NOW, is_kin=lambda load: load.name == one.load.name)
        assert not any(other.is_kin for other in found)
        return [other.load for other in found]

    assert [others(one, "t") for one in (first, second)] == [[], ["airflow/shop/a"]]
    assert [others(one, "v") for one in (elsewhere, second)] == [[], ["airflow/web/a"]]
    assert others(second, "w") == []
    same = [(row("a", name=name), {"t"}) for name in ("web", "shop")]
    ahead_of_each = [ahead_of(one.load, "t", same, NOW, is_kin=of_one_name) for one, _ in same]
    assert [[one.load for one in found] for found in ahead_of_each] == [["airflow/shop/a"], []], "in the same moment"


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def these(kin: str, others: str = "") -> list[Ahead]:
    """Committed one a second, from second 0."""
    return [Ahead(who, at(n), who in kin) for n, who in enumerate(sorted(kin + others))]


def test_waited_for_are_those_whose_success_makes_what_ours_would_make() -> None:
    """The asset, or that an alias has it: of both Airflow makes one row, and fails whoever makes it second."""
    both = these("ab", "x")
    assert waited_for(both, Seen(), NOW) == ["a", "b", "x"]
    assert waited_for(both, Seen(is_made=True), NOW) == ["a", "b"], "it is not our alias's yet"
    assert waited_for(both, Seen(is_made=True, is_ours=True), NOW) == []
    assert waited_for(both, Seen(told=frozenset("ay")), NOW) == ["b", "x"], "told of topics of its own"


def test_each_has_a_turn_behind_those_before_it() -> None:
    turn = A_TURN.total_seconds()
    left = [(n, "".join(waited_for(these("abc"), Seen(), at(n * turn + 1)))) for n in (0, 1, 2, 3)]
    assert left == [(0, "abc"), (1, "bc"), (2, "c"), (3, "")]
    told = Seen(told=frozenset("a"))
    assert waited_for(these("abc"), told, at(turn + 1.5)) == ["c"], "the turn of one who has told is over"
    late = [Ahead("a", NOW, True), Ahead("b", at(10 * turn), True)]
    assert waited_for(late, Seen(), at(11 * turn - 1)) == ["b"], "a turn begins with the commit"


@pytest.mark.parametrize(("written", "kin"), [("days", False), ("{{ params.name }}", True)])
def test_loads_of_a_templated_name_tell_by_one_alias(
    monkeypatch: pytest.MonkeyPatch, written: str, kin: bool
) -> None:
    other = row("a", name="web")
    committed = [(replace(other, updated_at=datetime.now(UTC).isoformat()), {"t"})]
    ledger = SimpleNamespace(committed_since=lambda namespace, since: committed)
    monkeypatch.setattr(LoadedSensor, "_resolve", lambda _: SimpleNamespace(ledger=lambda: nullcontext(ledger)))
    with DAG("d"):
        sensor = LoadedSensor(task_id="loaded", load_name=written, load_key="k", topics=["t"])
    sensor.load_name = "days"  # rendered
    found = sensor._ahead()("t")
    assert [(one.load, one.is_kin) for one in found] == [("airflow/web/a", kin)]


class Loads:
    """Of one alias, committed one a second, all waiting side by side, in a time that passes by sleeping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.told: dict[str, float] = {}
        monkeypatch.setattr(first_event, "_now", lambda: at(self.now))
        monkeypatch.setattr(first_event, "time", SimpleNamespace(sleep=self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def take_turn(self, ahead: str, since: float = 0.0) -> float:
        """The second at which a load goes that arrives at ``since``."""
        self.now = since
        take_turn("t", these(ahead), self._look)
        return self.now

    def _look(self) -> Seen:
        return Seen(told=frozenset(who for who, when in self.told.items() if self.now >= when))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    return Loads(monkeypatch)


def test_the_first_does_not_wait_and_asks_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def look() -> Seen:
        raise AssertionError("nobody is ahead")

    caplog.set_level("INFO")
    assert take_turn("t", [], look) is False
    assert caplog.messages == []


def test_others_wait_until_their_alias_has_the_asset(loads: Loads, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert take_turn("t", these("abcdef"), lambda: Seen(is_ours=loads.now >= 17)) is True
    assert loads.now == 17
    (said,) = caplog.messages
    assert "topic t " in said
    assert said.endswith(" about to tell: a, b, c, d and 2 more")


def test_nobody_waits_for_a_load_that_has_told_of_other_topics(
    loads: Loads, caplog: pytest.LogCaptureFixture
) -> None:
    """Loads of one name, each to a topic of its own: none makes another's asset, and each waited two minutes."""
    caplog.set_level("INFO")
    loads.told = {"a": 5, "b": 9}
    assert loads.take_turn("ab", since=10) == 10
    assert caplog.messages == []
    assert loads.take_turn("ab") == 9
    assert len(caplog.messages) == 1


def test_one_that_is_silent_costs_all_behind_it_one_turn(loads: Loads, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody marked it as done, say. Those behind it go one after the other, and no two at once."""
    turn = A_TURN.total_seconds()
    for who in "bcdefgh":
        goes = loads.take_turn("abcdefgh"[: ord(who) - ord("a")])
        assert all(goes >= told for told in loads.told.values()), who
        loads.told[who] = goes + 2  # until Airflow has its success
    assert loads.told["b"] == turn + 2
    assert loads.told["h"] == turn + 7 * 2
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said[0].startswith("topic t: this load waits no longer, after 30 s, for what these have to tell: a. If ")
    # whenever a load begins to wait, it does not go with the one before it
    assert all(loads.take_turn("ab", since=since) >= loads.told["b"] for since in range(31))
    assert loads.take_turn("a", since=turn + 1) == turn + 1, "its turn is over already"


def test_thirty_that_are_silent_cost_no_quarter_of_an_hour(loads: Loads) -> None:
    assert loads.take_turn("abcdefghijklmnopqrstuvwxyzABCD") == PATIENCE.total_seconds()
