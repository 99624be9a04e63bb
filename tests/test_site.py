"""The site that `make docs` builds is whole, is shown without a network, and says what the code says."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from airflow_kafka_eos import errors, stats
from airflow_kafka_eos.argument_groups import Checks, Transactions
from airflow_kafka_eos.config import OPTIONS, value_of
from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.get_provider_info import LEDGER_CONNECTION
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.token_sources import provider_of
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionScope, check_move
from airflow_kafka_eos.protocol.metrics import Metrics
from airflow_kafka_eos.signatures import LoadArguments
from tests.cli.test_docs import EVERY
from tests.public_api import public
from tests.rules import names_in, rules
from tests.site_modules import of_site

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def check_site() -> ModuleType:
    return of_site("check_site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    # as the Makefile does
    command = ["-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site", "-d", str(built / "doctrees"), "."]
    done = subprocess.run(
        [sys.executable, *command, str(built / "html")], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return built / "html"


def test_it_is_whole_and_wants_no_other_host(site: Path, check_site: ModuleType) -> None:
    assert check_site.wrong(site) == []
    assert 'url=README.html' in (site / "index.html").read_text(encoding="utf-8")


def test_it_has_each_document_and_each_public_name(site: Path) -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]
    missing = [d for d in documents if not (site / d.relative_to(ROOT).with_suffix(".html")).is_file()]
    assert missing == []
    api = (site / "docs" / "api.html").read_text(encoding="utf-8")
    names = [f"{module}.{name}" for module, given in public().items() for name in given]
    assert [name for name in names if f'id="{name}"' not in api] == []


def shown(site: Path, page: str) -> str:
    """A page's text, without markup."""
    text = (site / "docs" / f"{page}.html").read_text(encoding="utf-8")
    return " ".join(html.unescape(re.sub("<[^>]*>", "", text)).split())


def test_the_reference_has_all_that_the_code_has(site: Path) -> None:
    of_group = {f.name for kind in (Transactions, Checks) for f in fields(kind)}
    operators = {name for module, names in public().items() if ".operators" in module for name in names}
    wanted = {
        "reference-arguments": {*LoadArguments.__annotations__, *of_group, *operators, "LoadedSensor", "Submit"},
        "reference-configuration": {*OPTIONS, *LEDGER_CONNECTION["conn-fields"]},
        "reference-numbers": {
            f"kafka_eos.{number}"
            for number in (*stats.GAUGES, *stats.COUNTERS, *stats.TIMERS, *(f.name for f in fields(Metrics)))
        },
        "reference-errors": set(errors.__all__),
        "cli": {option for of in EVERY.values() for action in of._actions for option in action.option_strings} - {"-h"},
        "guarantees-and-tests": {rule.mutation for rule in rules().values()},
    }
    # TaskGroup's own are listed without an explanation
    for page, names in wanted.items():
        text = shown(site, page)
        assert {name for name in names if name not in text} - {"--help"} == set(), page


def test_who_is_woken_is_woken_by_numbers_that_are_sent() -> None:
    page = (ROOT / "docs" / "howto-on-call.md").read_text(encoding="utf-8").partition("| gauge | alert |")[2]
    named = {name for row in re.findall(r"(?m)^\| (`.*?) \|", page) for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 8
    assert named <= {*stats.GAUGES, *(field.name for field in fields(Metrics))}


def test_a_marker_that_names_nothing_is_refused() -> None:
    reference = of_site("reference")
    assert reference.made("no marker") == "no marker"
    with pytest.raises(KeyError, match="nothing"):
        reference.made("<!-- from the code: nothing -->")


def test_a_help_that_has_lists_keeps_its_lines() -> None:
    page = of_site("reference").made("<!-- from the code: commands -->")
    assert "\n### streams set\n\n```text\nThe ledger binds a query's name" in page
    assert "\n  --decided       the last batch of the query that its topics have" in page
    assert "\n### cleanup\n\nEnd what runs have left open" in page and "```text\n```" not in page
    assert page.count("```text\n") == page.count("\n```\n") >= 5


@pytest.mark.parametrize(
    "fail",
    [
        lambda: LoadIdentity("airflow", "", "key"),
        lambda: check_move(LoadIdentity("a", "b", "c"), LoadState.COMMITTED, LoadState.ABORTING),
        lambda: value_of("hold_time", "soon"),
        lambda: TransactionScope.read("scope", "tsak"),
        lambda: KafkaSettings.from_mapping({"bootstrap.servers": "b:9092", "acks": "1"}),
        lambda: provider_of("nobodys"),
    ],
)
def test_an_error_is_found_by_its_text_with_what_to_do(fail: Callable[[], object]) -> None:
    """As somebody who has it in a log looks for it."""
    try:
        error = fail()
    except KafkaEosError as e:
        error = e
    assert isinstance(error, KafkaEosError)

    def like(pattern: str, text: str) -> bool:
        return re.fullmatch(".*".join(map(re.escape, re.split("‹[^›]*›", pattern))), text) is not None

    found = [
        one
        for one in of_site("raised_errors").raised()
        if one.error == type(error).__name__ and like(one.message, error.message)
    ]
    assert any(like(remedy, error.remedy) for one in found for remedy in one.remedy.split(" / ")), found


def test_each_place_that_makes_an_error_says_what_to_do() -> None:
    raised_errors = of_site("raised_errors")
    found = raised_errors.raised()
    assert [one for one in found if not one.remedy] == []
    # the others hand on what they are told from elsewhere
    assert len([one for one in found if not raised_errors.says_something(one.remedy)]) < 8


def test_what_a_function_is_told_to_say_stands_with_the_remedy_that_it_is_told() -> None:
    found = {one.message: one.remedy for one in of_site("raised_errors").raised() if "token provider" in one.message}
    assert "Check the clock" in found["the token provider ‹name› (oauth_cb) gave a token that has ended ‹…› s ago"]
    silent = "the token provider ‹name› (oauth_cb) has not answered for 30 s"
    assert "a timeout of its own" in found[silent]


def test_two_things_of_one_name_are_told_apart() -> None:
    messages = [one.message for one in of_site("raised_errors").raised()]
    assert "the attempt belongs to ledger ‹ledger_id›, this one is ‹ledger_id 2›" in messages
    assert [m for m in messages if re.search(r"(‹[^›]*›)\1", m)] == []


def test_an_error_has_the_rules_that_are_at_stake() -> None:
    found = [one for one in of_site("raised_errors").raised() if one.rules]
    assert {name for one in found for name in one.rules} <= set(rules())
    assert any("is of namespace" in one.message and one.rules == ("only-our-ids",) for one in found)


def test_the_pictures_are_as_the_code_draws_them() -> None:
    """If not: ``python docs/site/pictures.py``."""
    for name, svg in of_site("pictures").drawn():
        assert (ROOT / "docs" / "images" / name).read_text(encoding="utf-8") == svg, name


def test_each_failure_of_the_picture_has_a_test_that_is_there() -> None:
    for failure in of_site("pictures").FAILURES:
        file, _, test = failure.test.partition("::")
        assert test in names_in(ROOT / file), failure.test


def test_a_picture_with_a_move_that_the_code_lacks_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = of_site("pictures")
    theme = pictures.THEMES["light"]
    wrong = (LoadState.COMMITTED, LoadState.ABORTING)
    first = pictures.FAILURES[0]
    with monkeypatch.context() as changed:
        changed.setattr(pictures, "FAILURES", (type(first)(first.what, wrong, first.then, first.test),))
        with pytest.raises(ValueError, match="no move from COMMITTED to ABORTING"):
            pictures.failures(theme)
    moves = dict(pictures.MOVES)
    for changed_moves in (moves | {wrong: next(iter(moves.values()))}, dict(list(moves.items())[1:])):
        monkeypatch.setattr(pictures, "MOVES", changed_moves)
        with pytest.raises(ValueError, match="differ"):
            pictures.life(theme)


def test_a_picture_is_shown_in_the_theme_of_the_site(site: Path) -> None:
    for page in ("concepts", "page"):
        text = (site / "docs" / f"{page}.html").read_text(encoding="utf-8")
        pictures = re.findall(r'<img [^>]*class="only-(light|dark)"[^>]*src="[^"]*/([\w-]+)\.\w+"', text)
        named = {(shade, name.removesuffix(f"-{shade}")) for shade, name in pictures}
        assert {name for shade, name in named if shade == "light"} == {name for shade, name in named if shade == "dark"}
        assert len(named) >= 4
        assert all(name.endswith(f"-{shade}") for shade, name in pictures)


@pytest.mark.parametrize(
    ("markup", "says"),
    [
        ('<a href="gone.html">x</a>', "gone.html is not there"),
        ('<a href="page.html#gone">x</a>', "has no such anchor"),
        ('<a href="page.html#here" id="here">x</a>', None),
        ('<a href="https://example.org/">x</a>', None),
        ('<img src="//example.org/x.png">', "is fetched from"),
        ('<script src="https://example.org/x.js"></script>', "is fetched from"),
        ('<link rel="stylesheet" href="https://example.org/x.css">', "is fetched from"),
        ('<p style="background: url(https://example.org/x.png)">x</p>', "is fetched from"),
        ('<img srcset="x.png 1x, https://example.org/x.png 2x">', "is fetched from"),
        ('<div class="highlight-mermaid notranslate"></div>', "would need a script"),
    ],
)
def test_what_is_wrong_with_a_page_is_found(
    markup: str, says: str | None, tmp_path: Path, check_site: ModuleType
) -> None:
    (tmp_path / "x.png").touch()
    (tmp_path / "page.html").write_text(markup, encoding="utf-8")
    found = check_site.wrong(tmp_path)
    assert found == [] if says is None else len(found) == 1 and says in found[0]


def test_what_a_style_sheet_wants_is_found(tmp_path: Path, check_site: ModuleType) -> None:
    text = '@import "https://example.org/a.css"; p { background: url(data:image/png;base64,x) }'
    (tmp_path / "x.css").write_text(text, encoding="utf-8")
    assert check_site.wrong(tmp_path) == ["x.css: is fetched from https://example.org/a.css"]
