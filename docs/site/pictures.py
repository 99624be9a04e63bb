"""The pictures of a load's states, drawn from the code: ``python docs/site/pictures.py`` writes docs/images/*.svg.

A move that the code has and the picture lacks, or the reverse, is refused; so is a way through a failure that the code
does not have. Each picture is made twice, for light and for dark pages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from airflow_kafka_eos.load import LoadState  # noqa: E402

S = LoadState
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Theme:
    """Colours: of the page, of text and of lines; and of states, each a filling and an edge."""

    page: str
    text: str
    line: str
    undecided: tuple[str, str]
    decided: tuple[str, str]
    committed: tuple[str, str]
    doubt: tuple[str, str]
    ended: tuple[str, str]

    def of(self, state: LoadState) -> tuple[str, str]:
        """By what the code says of the state; only for two of them is it more than that."""
        if state is S.COMMITTED:
            return self.committed
        if state is S.IN_DOUBT:
            return self.doubt
        if state.is_ended:
            return self.ended
        return self.decided if state.is_decided else self.undecided


THEMES: Mapping[str, Theme] = {
    "light": Theme(
        *("#ffffff", "#1f2328", "#59636e", ("#ddf4ff", "#0969da"), ("#fff8c5", "#9a6700")),
        *(("#dafbe1", "#1a7f37"), ("#ffebe9", "#cf222e"), ("#eff2f5", "#59636e")),
    ),
    "dark": Theme(
        *("#131416", "#e6edf3", "#9198a1", ("#0c2d6b", "#58a6ff"), ("#3d2e00", "#d29922")),
        *(("#0f3d1e", "#3fb950"), ("#5d0f12", "#f85149"), ("#2a2f36", "#9198a1")),
    ),
}

# --- a load's life

WIDTH, HALF, HIGH = 960, 66, 20
PLACES: Mapping[LoadState, tuple[int, int]] = {
    S.PREPARING: (120, 90), S.PREPARED: (350, 90), S.COMMITTING: (600, 90), S.COMMITTED: (860, 90),
    S.ABORTED: (120, 230), S.ABORTING: (350, 230), S.REPAIRING: (600, 230), S.IN_DOUBT: (860, 230),
    S.GIVEN_UP: (730, 345),
}  # fmt: skip


@dataclass(frozen=True)
class Move:
    """:param path: of an SVG; its number stands at ``at``.
    :param says: who makes the move, and why.
    """

    path: str
    at: tuple[int, int]
    says: str


AGAIN = "a retry or a clear opens the next attempt"
MOVES: Mapping[tuple[LoadState, LoadState], Move] = {
    (S.PREPARING, S.PREPARED): Move("M186,82 L282,82", (218, 82), "prepare: all is written, flushed and reported"),
    (S.PREPARING, S.PREPARING): Move("M100,70 C100,35 140,35 140,68", (120, 44), AGAIN),
    (S.PREPARING, S.ABORTING): Move("M164,110 L318,208", (220, 146), "cleanup: the attempt was lost, or has failed"),
    (S.PREPARED, S.PREPARING): Move("M284,98 L188,98", (252, 98), AGAIN),
    (S.PREPARED, S.COMMITTING): Move("M416,90 L532,90", (446, 90), "decide: commit. The point of no return"),
    (S.PREPARED, S.ABORTING): Move("M350,110 L350,208", (350, 155), "decide: abort; or cleanup, without a decision"),
    (S.ABORTING, S.PREPARING): Move("M284,210 L132,112", (222, 170), AGAIN),
    (S.ABORTING, S.ABORTED): Move("M284,230 L188,230", (236, 230), "cleanup: nothing is open any more"),
    (S.ABORTED, S.PREPARING): Move("M100,210 L100,112", (100, 160), AGAIN),
    (S.COMMITTING, S.COMMITTED): Move("M666,90 L792,90", (730, 90), "commit: the log shows every commit marker"),
    (S.COMMITTING, S.REPAIRING): Move("M600,110 L600,208", (600, 155), "a transaction was lost after the decision"),
    (S.COMMITTING, S.IN_DOUBT): Move("M640,110 L812,208", (680, 133), "the log does not show one outcome"),
    (S.COMMITTING, S.GIVEN_UP): Move("M552,110 C486,215 480,345 662,345", (514, 250), "a person gives it up"),
    (S.REPAIRING, S.COMMITTED): Move("M640,210 L812,112", (680, 187), "the same records are written again"),
    (S.REPAIRING, S.IN_DOUBT): Move("M666,222 L792,222", (714, 222), "what was written again is not the same"),
    (S.REPAIRING, S.GIVEN_UP): Move("M618,250 L696,323", (657, 287), "a person gives it up"),
    (S.IN_DOUBT, S.COMMITTED): Move("M872,210 L872,112", (872, 160), "a person asks for another look: all is there"),
    (S.IN_DOUBT, S.REPAIRING): Move("M794,238 L668,238", (746, 238), "a person asks for another look: it is lost"),
    (S.IN_DOUBT, S.GIVEN_UP): Move("M842,250 L764,323", (803, 287), "a person gives it up"),
}  # fmt: skip


def _check_moves() -> None:
    of_code = {(old, new) for old in LoadState for new in old.moves}
    if different := of_code ^ MOVES.keys():
        raise ValueError(f"the picture and LoadState.moves differ in {sorted(different)}")
    if missing := set(LoadState) - PLACES.keys():
        raise ValueError(f"the picture has no place for {missing}")


def _numbered() -> list[tuple[str, list[Move]]]:
    """What is said of moves, each text once, in the order of its first move."""
    texts = dict.fromkeys(move.says for move in MOVES.values())
    return [(text, [move for move in MOVES.values() if move.says == text]) for text in texts]


def life(theme: Theme) -> str:
    """States and moves."""
    _check_moves()
    numbered = _numbered()
    rows = (len(numbered) + 1) // 2
    height = 400 + 24 * rows
    parts = [
        f'<path d="M484,20 L484,375" stroke="{theme.line}" stroke-dasharray="5 5" fill="none"/>',
        _text(474, 22, "undecided", theme, anchor="end", colour=theme.undecided[1]),
        _text(494, 22, "decided: only forwards", theme, colour=theme.decided[1]),
        _text(8, 78, "begin", theme, size=13),
        _arrow("M8,90 L50,90", theme),
    ]
    parts += [_arrow(move.path, theme) for move in MOVES.values()]
    parts += [_box(*PLACES[state], state, theme) for state in LoadState]
    for number, (text, moves) in enumerate(numbered, 1):
        parts += [_badge(*move.at, number, theme) for move in moves]
        x, y = (24, 502)[(number - 1) // rows], 410 + 24 * ((number - 1) % rows)
        parts += [_badge(x, y - 5, number, theme), _text(x + 18, y, text, theme, size=14)]
    return _svg(height, theme, "A load's states, and the moves between them", parts)


# --- what each failure leads to


@dataclass(frozen=True)
class Failure:
    """:param way: states, one behind the other.
    :param then: what to do, or what is done.
    :param test: pytest's node id of one that has it happen.
    """

    what: str
    way: tuple[LoadState, ...]
    then: str
    test: str


_PREPARED = (S.PREPARING, S.PREPARED)
_DECIDED = (*_PREPARED, S.COMMITTING)
FAILURES: tuple[Failure, ...] = (
    Failure(
        "The worker or Spark dies while prepare writes",
        (S.PREPARING, *_DECIDED, S.COMMITTED),
        "The retry opens the next attempt, and aborts what the first one left open",
        "tests/protocol/test_sweeping.py::test_a_retried_prepare_sweeps_what_its_first_try_left",
    ),
    Failure(
        "prepare fails for good, or its run is gone",
        (S.PREPARING, S.ABORTING, S.ABORTED),
        "Cleanup aborts what is open, or else maintenance; clear prepare to start over",
        "tests/protocol/test_sweeping.py::test_a_killed_prepare_is_found_by_listing_and_aborted",
    ),
    Failure(
        "Your check refuses what was prepared",
        (*_PREPARED, S.ABORTING, S.ABORTED),
        "Nothing was visible; clear prepare to start over",
        "tests/protocol/test_dual_write.py::test_a_refused_load_writes_no_row",
    ),
    Failure(
        "The broker's timeout ends a transaction before the decision",
        (*_PREPARED, S.ABORTING, S.ABORTED),
        "decide refuses the load; clear prepare to start over",
        "tests/protocol/test_outcomes.py::test_lost_by_timeout_before_the_decision_is_refused_and_behind_it_repaired",
    ),
    Failure(
        "decide is killed behind the decision, or commit on its way",
        (*_DECIDED, S.COMMITTED),
        "The retry ends the rest, and writes nothing again",
        "tests/protocol/test_committing.py::test_a_commit_killed_between_two_endtxn_is_finished_by_a_rerun",
    ),
    Failure(
        "The broker loses a transaction after the decision",
        (*_DECIDED, S.REPAIRING, S.COMMITTED),
        "commit copies its records out of the log, and commits the copy",
        "tests/protocol/test_repairing.py::test_one_lost_of_eight_is_copied_byte_for_byte_and_only_that_one",
    ),
    Failure(
        "… and its records are gone from the log",
        (*_DECIDED, S.REPAIRING, S.COMMITTED),
        "Clear prepare: it runs the job again, and writes only those",
        "tests/protocol/test_repreparing.py::test_only_what_is_lost_is_prepared_again_and_enters_the_decision",
    ),
    Failure(
        "… and the source has changed since",
        (*_DECIDED, S.REPAIRING, S.IN_DOUBT),
        "Nothing of it enters; a person compares the two digests that the error has",
        "tests/protocol/test_repreparing.py::test_only_an_equal_digest_enters_and_anything_else_says_both",
    ),
    Failure(
        "The log shows a commit here, and an abort there",
        (*_DECIDED, S.IN_DOUBT),
        "It is touched no more: a person looks, and recovers it or gives it up",
        "tests/protocol/test_repairing.py::test_mixed_markers_stop_a_load_before_anything_is_repaired",
    ),
    Failure(
        "A committed load is cleared, retried or backfilled",
        (S.COMMITTED,),
        "Nothing is written: one key loads once",
        "tests/ledger/test_ledger_attempts.py::test_a_committed_load_gets_no_new_attempt",
    ),
)


def failures(theme: Theme) -> str:
    """A row for each, with the states that the load goes through."""
    parts, step, y = [], 168, 40
    for failure in FAILURES:
        for old, new in pairwise(failure.way):
            if new not in old.moves:
                raise ValueError(f"{failure.what}: the code has no move from {old.value} to {new.value}")
        parts.append(_text(24, y, failure.what, theme, size=15, bold=True))
        for number, state in enumerate(failure.way):
            x = 24 + HALF + number * step
            parts.append(_box(x, y + 34, state, theme))
            if number:
                parts.append(_arrow(f"M{x - step + HALF},{y + 34} L{x - HALF - 2},{y + 34}", theme))
        parts.append(_text(24, y + 76, failure.then, theme, size=14))
        y += 116
    return _svg(y - 10, theme, "What each failure leads to", parts)


# --- SVG


def _text(x: int, y: int, text: str, theme: Theme, **given: str | int | bool) -> str:
    """:param given: ``size``, ``anchor``, ``bold``, ``colour``."""
    style = f'font-size="{given.get("size", 14)}" text-anchor="{given.get("anchor", "start")}"'
    style += ' font-weight="600"' if given.get("bold") else ""
    return f'<text x="{x}" y="{y}" fill="{given.get("colour", theme.text)}" {style}>{escape(text)}</text>'


def _box(x: int, y: int, state: LoadState, theme: Theme) -> str:
    filling, edge = theme.of(state)
    return (
        f'<rect x="{x - HALF}" y="{y - HIGH}" width="{2 * HALF}" height="{2 * HIGH}" rx="8" fill="{filling}" '
        f'stroke="{edge}" stroke-width="1.5"/>' + _text(x, y + 5, state.value, theme, anchor="middle", bold=True)
    )


def _arrow(path: str, theme: Theme) -> str:
    return f'<path d="{path}" stroke="{theme.line}" stroke-width="1.5" fill="none" marker-end="url(#head)"/>'


def _badge(x: int, y: int, number: int, theme: Theme) -> str:
    return (
        f'<circle cx="{x}" cy="{y}" r="10" fill="{theme.page}" stroke="{theme.line}"/>'
        + _text(x, y + 4, str(number), theme, size=12, anchor="middle")
    )


def _svg(height: int, theme: Theme, title: str, parts: list[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img" font-family="{FONT}">',
            f"<title>{escape(title)}</title>",
            f'<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0,0 L10,5 L0,10 z" fill="{theme.line}"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{height}" fill="{theme.page}"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def drawn() -> Iterator[tuple[str, str]]:
    """Each picture's name and content."""
    for name, draw in (("load-life", life), ("load-failures", failures)):
        for shade, theme in THEMES.items():
            yield f"{name}-{shade}.svg", draw(theme)


if __name__ == "__main__":
    for name, svg in drawn():
        (ROOT / "docs" / "images" / name).write_text(svg, encoding="utf-8")
