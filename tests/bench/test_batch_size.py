"""Which batch.size is best: every write is another, interleaved; medians stand in a table."""

from __future__ import annotations

from itertools import groupby

from bench.batch_size import DEFAULT, SIZES, page, plan, writer
from bench.cases import Case, Knobs, kafka_settings
from bench.stats import Run


def test_writers_differ_by_their_batch_size_alone() -> None:
    assert sorted(SIZES) == [64 << 10, 128 << 10, 256 << 10, 512 << 10, DEFAULT]
    writers = [writer(size) for size in SIZES]
    assert len({w.key for w in writers}) == len(SIZES)
    assert [w.given["kafka.batch.size"] for w in writers] == [str(size) for size in SIZES]
    assert all(w.is_ours and w.given["option.writer"] == "arrow" for w in writers)
    settings = [kafka_settings(w, Case("small", "zstd"), "b") for w in writers]
    assert all(one == settings[0] and "batch.size" not in one for one in settings)


def test_rounds_are_interleaved_and_every_other_one_goes_from_the_end() -> None:
    steps = list(plan(Knobs(rounds=2, cases=("small-none", "large-zstd"))))
    sizes = {key: [size for *_, size in group] for key, group in groupby(steps, lambda s: (s[0], s[1].name))}
    assert list(sizes) == [(r, c) for r in (-1, 1, 2) for c in ("small-none", "large-zstd")]
    assert sizes[1, "small-none"] == list(SIZES)
    assert sizes[2, "small-none"] == list(reversed(SIZES))


def test_the_page_has_medians_of_the_rounds_alone() -> None:
    about = dict.fromkeys(("machine", "Python", "Java", "broker", "Spark", "topics"), "some")

    def run(round_: int, seconds: float) -> Run:
        key = writer(DEFAULT).key
        return Run("small-none", key, round_, seconds, 0.0, 4.0, 1.0, 2_000_000, 280_000_000, 900_000, 281_000_000)

    text = page([run(-1, 90.0), run(1, 3.0), run(2, 5.0), run(3, 4.0)], about)
    (line,) = [line for line in text.splitlines() if line.startswith("| small-none")]
    assert [cell.strip() for cell in line.split("|")][2:-1] == [
        "1,000,000 (default)", "4.00", "3.00–5.00", "2.00", "0.50", "281", "900", "3",
    ]  # fmt: skip
