"""docs/cli.md has every command, and every field that programs may read."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.cli import parser, terminal
from tests.cli.conftest import Command
from tests.protocol.world import World

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
CODE = set(re.findall(r"`([^`]+)`", PAGE))


def commands(of: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    groups = [a for a in of._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield path.strip(), of
    for group in groups:
        for name, inner in group.choices.items():
            yield from commands(inner, f"{path} {name}")


EVERY = dict(commands(parser()))


@pytest.mark.parametrize("name", EVERY)
def test_every_command_is_on_the_page(name: str) -> None:
    assert any(code == name or code.startswith(f"{name} ") for code in CODE)


def test_every_command_that_can_ask_is_on_the_page() -> None:
    asking = {name for name, p in EVERY.items() if any(a.dest == "yes" for a in p._actions)}
    (line,) = [part for part in PAGE.split("\n\n") if "take `--yes`" in part]
    named = {re.sub(" --(abort|commit)$", "", code) for code in re.findall(r"`([^`]+)`", line)}
    assert asking <= named


def test_each_options_help_comes_to_an_end() -> None:
    told = {f"{name} {a.option_strings}": a.help or "" for name, p in EVERY.items() for a in p._actions}
    assert {name: help for name, help in told.items() if re.search(r"\b(else( none)?|default:)\s*$", help)} == {}


def test_no_command_takes_a_secret() -> None:
    """Process lists show arguments."""
    for name, of in EVERY.items():
        options = [option for action in of._actions for option in action.option_strings]
        assert not [o for o in options if re.search("pass|secret|token|url|sasl", o)], name


def test_the_exit_codes_are_on_the_page_and_in_the_help() -> None:
    for code in (terminal.OK, terminal.FOUND, terminal.USAGE, terminal.TRANSIENT):
        assert f"\n| {code} | " in PAGE and f"{code} " in terminal.EXPLAINED
    assert terminal.EXPLAINED in (parser().epilog or "")


def fields(document: Any) -> set[str]:
    if isinstance(document, dict):
        # whose keys are topic partitions
        named = {name: value for name, value in document.items() if name != "markers"}
        return set(document) | {f for value in named.values() for f in fields(value)}
    return {f for value in document for f in fields(value)} if isinstance(document, list) else set()


@pytest.mark.broker
def test_every_field_is_on_the_page(world: World, command: Command, at: tuple[str, str]) -> None:
    manifest = world.prepare(["a"])
    name = manifest.transactions[0].transactional_id
    load = (world.load.name, world.load.key)
    printed = [
        command("loads", "list", "--output", "json"),
        command("loads", "show", *load, "--output", "json"),
        command("transactions", "list", *at, "--output", "json"),
        command("transactions", "describe", name, *at, "--output", "json"),
        command("cleanup", "--abandoned-after", "0s", "--dry-run", *at, "--output", "json"),
    ]
    world.decide(manifest)
    printed.append(command("transactions", "commit", name, *at, "--output", "json"))
    found = {f for answer in printed for f in fields(json.loads(answer.out))}
    assert len(found) > 30 and found <= CODE
