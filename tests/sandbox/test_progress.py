"""Waits say what they wait for, and end; processes that end are told of in words."""

from __future__ import annotations

import re
import time

import pytest

from airflow_kafka_eos.errors import SandboxError
from airflow_kafka_eos.sandbox import keeping
from airflow_kafka_eos.sandbox.keeping import Keeper, Restarts


def test_a_long_wait_says_what_for_and_ends_with_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(keeping, "EVERY_SECONDS", 0.1)
    said: list[str] = []
    with pytest.raises(SandboxError, match=r"waited 1 s for the tide, in vain\. It is ebb") as given_up:
        keeping.wait_for(lambda: None, "the tide", 1, said.append, remedy="Look out", why=lambda: "It is ebb")
    assert given_up.value.remedy == "Look out"
    assert len(said) >= 2 and all(re.fullmatch(r"\.\.\. waiting for the tide \(\d s\)", line) for line in said)


def test_a_short_wait_says_nothing() -> None:
    said: list[str] = []
    answers = iter([None, "high"])
    assert keeping.wait_for(lambda: next(answers), "the tide", 10, said.append) == "high"
    assert said == []


def test_what_a_keeper_gives_up_is_raised_where_others_wait() -> None:
    restarts, said = Restarts(), list[str]()

    def look() -> None:
        restarts.one_more("the pump", "its log ends with: dry", "See pump.log")

    keeper = Keeper("pumps", look, said.append)
    keeper.start()
    until = time.monotonic() + 30
    while keeper.is_looking and time.monotonic() < until:
        time.sleep(0.05)
    with pytest.raises(SandboxError, match=r"the pump ended 4 times in .* its log ends with: dry") as raised:
        keeper.check()
    assert raised.value.remedy == "See pump.log" and said[0].startswith("giving up: the pump ended 4 times")
    keeper.stop()
