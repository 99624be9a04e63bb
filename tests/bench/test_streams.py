"""Streaming queries: what the page makes of times of batches and ages of rows, and who has written too little."""

from __future__ import annotations

import pytest

from bench.logcheck import Found, NotWhatWasWritten
from bench.streams import BASE, SINKS, Figures, check, page

ABOUT = {"machine": "some", "Spark": "local[2]"}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")][1:-1]


def test_the_page_has_ratios_to_sparks_own_sink() -> None:
    figures = Figures()
    for sink, ms in zip(SINKS, (100.0, 150.0, 200.0), strict=True):
        figures.batches[1000, sink] += [{"rows": 1000, "ms": ms * n, "addBatch_ms": ms / 2} for n in (1, 1, 4)]
    text = page(figures, ABOUT)
    (ours,) = [cells(line) for line in text.splitlines() if line.startswith("| `kafka_eos`")]
    assert ours[1:] == ["1,000", "150", "600", "75", "3,333", "1.50", "0.67", "3"]
    assert "How old" not in text
    assert "- machine: some" in text.splitlines()


def test_the_page_has_how_old_rows_are() -> None:
    figures = Figures()
    figures.ages["flink"] += [float(n) for n in range(1, 101)]
    (line,) = [cells(line) for line in page(figures, ABOUT).splitlines() if line.startswith("| Flink")]
    assert line[1:] == ["50", "91", "100", "100"]


def test_a_sink_that_has_written_too_little_is_found_out() -> None:
    check([Found(committed=2), Found(committed=3)], 5, "kafka_eos")
    check([Found(plain=5)], 5, BASE)
    for found in (Found(committed=5), Found(plain=4)):
        with pytest.raises(NotWhatWasWritten, match="of 5 rows"):
            check([found], 5, BASE)
    with pytest.raises(NotWhatWasWritten, match="4 of 5"):
        check([Found(committed=4, open=1)], 5, "kafka_eos")
