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
    A_TURN_S,
    LATELY,
    MAX_TURNS,
    Ahead,
    Seen,
    Turns,
    ahead_of,
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
    assert not any(one.others for one in of_each)
    return ["".join(sorted(load.removeprefix("airflow/days/") for load in one.kin)) for one in of_each]


def test_loads_that_were_committed_lately_take_turns_in_the_order_of_their_commits() -> None:
    rows = [row("c", ago_s=7), row("a"), row("b", LoadState.COMMITTING), row("d", ago_s=301), row("e")]
    assert ahead(rows, "cae") == ["", "c", "ac"]
    assert ahead(rows, "d") == ["ace"], "told of so late, it goes behind everybody who may be about to tell"
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

    def others(one: LoadRow, topic: str) -> set[str]:
        found = ahead_of(one.load, topic, committed, NOW, is_kin=lambda load: load.name == one.load.name)
        assert not found.kin
        return set(found.others)

    assert [others(one, "t") for one in (first, second)] == [set(), {"airflow/shop/a"}]
    assert [others(one, "v") for one in (elsewhere, second)] == [set(), {"airflow/web/a"}]
    assert others(second, "w") == set()
    same = [(row("a", name=name), {"t"}) for name in ("web", "shop")]
    first_of_same = [ahead_of(one.load, "t", same, NOW, is_kin=of_one_name).others for one, _ in same]
    assert first_of_same == [{"airflow/shop/a"}, set()], "committed in the same moment"
    # a templated load name: the same alias, whatever the name came to be
    assert ahead_of(same[0][0].load, "t", same, NOW, is_kin=lambda load: True).kin == {"airflow/shop/a"}


def test_waited_for_are_those_whose_success_makes_what_ours_would_make() -> None:
    """The asset, or that an alias has it: of both Airflow makes one row, and fails whoever makes it second."""
    both = Ahead(kin=frozenset("ab"), others=frozenset("x"))
    assert waited_for(both, Seen()) == set("abx")
    assert waited_for(both, Seen(is_made=True)) == set("ab"), "it is not our alias's yet"
    assert waited_for(both, Seen(is_made=True, is_ours=True)) == set()
    assert waited_for(both, Seen(told=frozenset("ay"))) == set("bx"), "told of topics of its own"


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
    assert (found.kin, found.others) == (({"airflow/web/a"}, set()) if kin else (set(), {"airflow/web/a"}))


class Clock:
    """Time that passes by sleeping only, and what happens at which second of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, told_at: dict[str, float]) -> None:
        self.now = 0.0
        self.told_at = told_at
        self.ours_at = float("inf")
        monkeypatch.setattr(first_event, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, ahead: str, turns: Turns | None = None, since: float = 0.0) -> float:
        """When it is the turn of a load that arrives at ``since``, behind these."""
        self.now = since
        (turns or Turns()).take("t", Ahead(kin=frozenset(ahead)), self._look)
        return self.now

    def _look(self) -> Seen:
        return Seen(
            is_ours=self.now >= self.ours_at,
            told=frozenset(who for who, at in self.told_at.items() if self.now >= at),
        )


def test_the_first_does_not_wait_and_asks_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def look() -> Seen:
        raise AssertionError("nobody is ahead")

    caplog.set_level("INFO")
    assert Turns().take("t", Ahead(), look) is False
    assert caplog.messages == []


def test_others_wait_until_their_alias_has_the_asset(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock = Clock(monkeypatch, {})
    clock.ours_at = 17
    assert clock.wait("abcdef") == 17
    (said,) = caplog.messages
    assert "topic t " in said
    assert said.endswith(" about to tell: a, b, c, d and 2 more")


def test_nobody_waits_for_a_load_that_has_told_of_other_topics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Loads of one name, each to a topic of its own: none makes another's asset, and each waited two minutes."""
    caplog.set_level("INFO")
    clock = Clock(monkeypatch, {"a": 5, "b": 9})
    assert clock.wait("ab", since=10) == 10
    assert caplog.messages == []
    assert clock.wait("ab") == 9
    assert len(caplog.messages) == 1


def test_whoever_is_silent_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(monkeypatch, {})
    turns = Turns()
    assert clock.wait("a", turns) == A_TURN_S, "it may have died"
    (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith("topic t: these have not told of it in 30 s, this load does, without them: a. ")
    assert clock.wait("a", turns, since=100) == 100, "for another topic"
    # thirty loads that were committed within minutes are no half an hour of waiting
    assert clock.wait("abcdefghijklmnopqrstuvwxyzABCD") == MAX_TURNS * A_TURN_S
    # nor are many that tell one by one
    clock.told_at = {who: 25.0 * n for n, who in enumerate("abcdefghijklmnopqrstuvwxyz")}
    assert clock.wait("abcdefghij") == 225
    assert clock.wait("abcdefghijklmnopqrstuvwxyz") == LATELY.total_seconds()


def test_a_load_behind_another_does_not_give_up_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that give up at one moment make the same asset at once: whenever the second began to wait."""
    clock = Clock(monkeypatch, {"p": 5, "q": 10})  # and r never tells
    first = clock.wait("pqr")
    assert first == 10 + A_TURN_S
    for since in range(40):
        assert clock.wait("pqrA", since=since) >= first + 20, f"{since}: A has not told yet, and nobody else is left"
