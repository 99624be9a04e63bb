"""Who tells first of a topic that Airflow does not know yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_kafka_eos.ledger.rows import LoadRow
from airflow_kafka_eos.lineage import assets, first_event
from airflow_kafka_eos.lineage.first_event import ahead_of, take_turn
from airflow_kafka_eos.load import LoadIdentity, LoadState

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def row(key: str, state: LoadState = LoadState.COMMITTED, ago_s: float = 5, name: str = "days") -> LoadRow:
    at = (NOW - timedelta(seconds=ago_s)).isoformat()
    return LoadRow(LoadIdentity("airflow", name, key), state, 1, "", None, at, at)


def ahead(rows: list[LoadRow], keys: str) -> list[str]:
    """Of loads of one name, which need not have had a record for the topic."""
    committed = [(one, set[str]()) for one in rows]
    found = [ahead_of(LoadIdentity("airflow", "days", key), "t", committed, NOW) for key in keys]
    return ["".join(sorted(load.removeprefix("airflow/days/") for load in loads)) for loads in found]


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
    assert [ahead_of(r.load, "t", committed, NOW) for r in (first, second)] == [set(), {"airflow/shop/a"}]
    assert [ahead_of(r.load, "v", committed, NOW) for r in (elsewhere, second)] == [set(), {"airflow/web/a"}]
    assert ahead_of(second.load, "w", committed, NOW) == set()
    same = [(row("a", name=name), {"t"}) for name in ("web", "shop")]
    ahead = [ahead_of(r.load, "t", same, NOW) for r, _ in same]
    assert ahead == [{"airflow/shop/a"}, set()], "committed in the same moment"


def test_the_first_does_not_wait_and_the_others_wait_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(first_event, "_LOOK_S", 0.001)
    caplog.set_level("INFO")
    looks: list[None] = []

    def known_at_the_third_look() -> bool:
        looks.append(None)
        return len(looks) == 3

    wait(known_at_the_third_look, ())
    assert (looks, caplog.messages) == ([], [])
    wait(known_at_the_third_look, {"airflow/days/a"})
    assert len(looks) == 3
    (said,) = caplog.messages
    assert "topic t " in said
    assert "waiting, 30 s at most, for" in said
    assert said.endswith(" tell of it: airflow/days/a")
    # whoever goes first may have died
    monkeypatch.setattr(first_event, "A_TURN_S", 0.01)
    began = time.monotonic()
    wait(lambda: False, "abc")
    assert time.monotonic() - began >= 0.03
    # thirty loads that were committed within minutes are no half an hour of waiting
    monkeypatch.setattr(first_event, "MAX_TURNS", 1)
    monkeypatch.setattr(first_event, "A_TURN_S", 0.1)
    began = time.monotonic()
    wait(lambda: False, {str(n) for n in range(100_000)})
    assert time.monotonic() - began < 60
    assert len(caplog.messages[-1]) < 300


def test_nobody_waits_for_a_load_that_has_told_of_other_topics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Loads of one name, each to a topic of its own: none makes another's asset, and each would wait two minutes."""
    monkeypatch.setattr(first_event, "_LOOK_S", 0.001)
    monkeypatch.setattr(first_event, "A_TURN_S", 5.0)
    caplog.set_level("INFO")
    answers = iter([{"a"}, {"a"}, {"a", "b", "x"}])
    wait(lambda: False, "ab", lambda: next(answers))
    assert list(answers) == [], "asked until the last had told, and not after"
    # a load of another name, which tells by another alias, is known by the asset
    wait(iter([False, True]).__next__, "abc", lambda: {"a", "b"})
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["b", "c"]
    wait(lambda: False, "ab", lambda: {"a", "b"})
    assert len(caplog.messages) == 2


def wait(is_known: Callable[[], bool], ahead: Collection[str], told: Callable[[], set[str]] = set) -> None:
    take_turn("t", ahead, is_known=is_known, told=told)


def test_a_topic_that_airflow_knows_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the ledger asked whose turn it is."""
    told: list[Any] = []

    class Accessors(dict[Any, Any]):
        def __missing__(self, of: Any) -> Any:
            return self.setdefault(of, type("Accessor", (), {
                "key": assets.AssetUniqueKey("n", "kafka://s/t"),
                "add": lambda self, asset, extra: told.append((asset.uri, extra["records"])),
            })())  # fmt: skip

    announce(monkeypatch, Accessors())
    assert told == [("kafka://s/t", 3)]


def test_nor_is_one_that_has_an_event_and_that_no_scheduler_has_called_active_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []

    class Accessors(dict[Any, Any]):
        def __missing__(self, of: Any) -> Any:
            if isinstance(of, assets.AssetRef):
                raise assets.AirflowRuntimeError(ErrorResponse(error=ErrorType.ASSET_NOT_FOUND))
            add = lambda self, asset, extra: told.append((asset.uri, extra["records"]))  # noqa: E731
            return self.setdefault(of, type("Accessor", (), {"add": add})())

    class Past(list[Any]):
        def limit(self, number: int) -> list[Any]:
            return self[:number]

    monkeypatch.setattr(assets, "_past", lambda key: Past([key]))
    announce(monkeypatch, Accessors())
    assert told == [("kafka://s/t", 3)]


def announce(monkeypatch: pytest.MonkeyPatch, accessors: Any) -> None:
    """Of a topic that the ledger must not be asked about."""
    monkeypatch.setattr(assets, "_was_told", lambda key, arrival: False)
    topic = {"records": 3, "offsets": {}}
    arrival = {"load": "l", "attempt": 1, "decided_at": "x", "records": 3, "topics": {"t": topic}}

    def ahead(topic: str) -> set[str]:
        raise AssertionError("nobody has to wait")

    context: Any = {"outlet_events": accessors}
    assets.announce(context, [], arrival, alias=assets.alias_of("days"), topics=["t"], server="s", ahead=ahead)
