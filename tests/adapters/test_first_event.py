"""Who tells first of a topic that Airflow does not know yet."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_kafka_eos.ledger.rows import LoadRow
from airflow_kafka_eos.lineage import assets, first_event
from airflow_kafka_eos.lineage.first_event import take_turn, turn_of
from airflow_kafka_eos.load import LoadIdentity, LoadState

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def row(key: str, state: LoadState = LoadState.COMMITTED, ago_s: float = 5, name: str = "days") -> LoadRow:
    at = (NOW - timedelta(seconds=ago_s)).isoformat()
    return LoadRow(LoadIdentity("airflow", name, key), state, 1, "", None, at, at)


def turns(rows: list[LoadRow], keys: str) -> list[int]:
    """Of loads of one name, which need not have had a record for the topic."""
    committed = [(one, set[str]()) for one in rows]
    return [turn_of(LoadIdentity("airflow", "days", key), "t", committed, NOW) for key in keys]


def test_loads_that_were_committed_lately_take_turns_in_the_order_of_their_commits() -> None:
    rows = [row("c", ago_s=7), row("a"), row("b", LoadState.COMMITTING), row("d", ago_s=301), row("e")]
    assert turns(rows, "cae") == [0, 1, 2]
    assert turns(rows, "d") == [3], "told of so late, it goes behind everybody who may be about to tell"
    assert turns([], "z") == [0]


def test_whoever_was_first_stays_so_when_another_is_committed_behind_it() -> None:
    """By their keys both would be first, one after the other, and Airflow fails one of two that end at once."""
    before = [row("b", ago_s=2)]
    assert turns(before, "b") == [0]
    assert turns([*before, row("a", ago_s=1)], "ba") == [0, 1]


def test_loads_of_other_names_take_turns_with_those_that_write_to_the_same_topic() -> None:
    """Two DAGs may fill one new topic, and end at the same moment."""
    first, second, elsewhere = row("a", name="shop", ago_s=9), row("a", ago_s=7), row("a", name="web", ago_s=8)
    committed = [(first, {"t", "u"}), (second, {"t"}), (elsewhere, {"v"})]
    assert [turn_of(r.load, "t", committed, NOW) for r in (first, second)] == [0, 1]
    assert [turn_of(r.load, "v", committed, NOW) for r in (elsewhere, second)] == [0, 1]
    assert turn_of(second.load, "w", committed, NOW) == 0
    same = [(row("a", name=name), {"t"}) for name in ("web", "shop")]
    assert [turn_of(r.load, "t", same, NOW) for r, _ in same] == [1, 0], "committed in the same moment"


def test_the_first_does_not_wait_and_the_others_wait_until_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_event, "_LOOK_S", 0.001)
    looks: list[None] = []

    def known_at_the_third_look() -> bool:
        looks.append(None)
        return len(looks) == 3

    take_turn(known_at_the_third_look, 0)
    assert looks == []
    take_turn(known_at_the_third_look, 1)
    assert len(looks) == 3
    # whoever goes first may have died
    monkeypatch.setattr(first_event, "A_TURN_S", 0.01)
    began = time.monotonic()
    take_turn(lambda: False, 3)
    assert time.monotonic() - began >= 0.03
    # thirty loads that were committed within minutes are no half an hour of waiting
    monkeypatch.setattr(first_event, "MAX_TURNS", 1)
    monkeypatch.setattr(first_event, "A_TURN_S", 0.1)
    began = time.monotonic()
    take_turn(lambda: False, 1_000_000)
    assert time.monotonic() - began < 60


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

    def turn(topic: str) -> int:
        raise AssertionError("nobody has to wait")

    context: Any = {"outlet_events": accessors}
    assets.announce(context, [], arrival, alias=assets.alias_of("days"), topics=["t"], server="s", turn=turn)
