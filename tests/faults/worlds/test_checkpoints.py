"""Which rows of the source a batch has, by a checkpoint as Spark writes it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faults.facts import Record
from tests.faults.worlds.checkpoints import Query


def _query(folder: Path, *offsets: object) -> Query:
    query = Query("q", "q", False, folder)
    (query.checkpoint / "offsets").mkdir(parents=True)
    for number, offset in enumerate(offsets):
        text = f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offset)}'
        (query.checkpoint / "offsets" / str(number)).write_text(text)
        (query.checkpoint / "offsets" / f".{number}.crc").touch()
    return query


def test_of_files_it_has_those_that_its_source_has_noted_since_the_batch_before(tmp_path: Path) -> None:
    query = _query(tmp_path, {"logOffset": 0}, {"logOffset": 2})
    log = query.checkpoint / "sources" / "0"
    log.mkdir(parents=True)

    def note(name: str, *entries: tuple[str, int]) -> None:
        lines = [json.dumps({"path": f"file://{tmp_path}/{file}", "batchId": number}) for file, number in entries]
        (log / name).write_text("\n".join(["v1", *lines]))

    for file in ("a b", "c", "d", "e"):
        (tmp_path / file).write_text(f"{file}-1\n{file}-2\n")
    note("0", ("a%20b", 0))
    note("2.compact", ("a%20b", 0), ("c", 1), ("d", 2))
    note("3", ("e", 3))
    (log / ".3.crc").touch()
    assert (query.planned(), query.noted()) == ([0, 1], [])
    assert query.rows(0, ()) == ["a b-1", "a b-2"]
    assert query.rows(1, ()) == ["c-1", "c-2", "d-1", "d-2"]


def test_of_a_topic_it_has_the_records_between_two_offsets(tmp_path: Path) -> None:
    query = _query(tmp_path, {"t": {"0": 1, "1": 0}}, {"t": {"0": 2, "1": 2}})
    source = [Record("t", p, o, None, f"{p}:{o}".encode()) for p in range(2) for o in range(3)]
    assert query.rows(0, source) == ["0:0"]
    assert query.rows(1, source) == ["0:1", "1:0", "1:1"]
