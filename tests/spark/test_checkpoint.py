"""What is read out of a query's checkpoint; tests/streams reads those that Spark has made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import ConfigurationError, OtherCheckpointError
from airflow_kafka_eos.spark.checkpoint import Checkpoint, normal

QUERY = "4348e361-1ef1-4936-9258-2e3bfc44c293"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    (tmp_path / "offsets").mkdir()
    return tmp_path


def plan(folder: Path, number: int, end: str, when: int = 1) -> None:
    (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchTimestampMs":{when}}}\n{end}')
    (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")


def test_the_batch_that_is_planned_is_the_last_one(folder: Path) -> None:
    for number in range(12):
        plan(folder, number, f'{{"offset":{number}}}')
    batch = Checkpoint(f"file://{folder}").planned("n", "q")
    assert (batch.namespace, batch.name, batch.query_id, batch.number) == ("n", "q", QUERY, 11)
    (folder / "offsets" / "11").unlink()
    before = Checkpoint(str(folder)).planned("n", "q")
    assert (before.number, before.offsets_sha256) == (10, batch.before_sha256)


def test_a_batch_is_known_by_where_it_ends_whenever_it_was_planned(folder: Path) -> None:
    digests = []
    for end, when in (("a", 1), ("a", 2), ("b", 1)):
        plan(folder, 0, end, when)
        digests.append(Checkpoint(str(folder)).planned("n", "q").offsets_sha256)
    assert digests[0] == digests[1] != digests[2]


def test_what_is_no_checkpoint_of_a_query_at_work(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OtherCheckpointError, match="no batch of it is planned"):
        Checkpoint(str(folder)).planned("n", "q")
    plan(folder, 1, "a")
    with pytest.raises(OtherCheckpointError, match="lacks the offsets of batch 0"):
        Checkpoint(str(folder)).planned("n", "q")
    with pytest.raises(ConfigurationError, match="neither absolute nor a URL"):
        Checkpoint("here")
    with pytest.raises(ConfigurationError, match="cannot be read where"):
        Checkpoint("nowhere://host/folder")


def test_a_location_has_one_way_to_be_written() -> None:
    assert {normal(f"{begin}/a/b{end}") for begin in ("", "file:", "file://") for end in ("", "/", "//")} == {"/a/b"}
    assert normal("S3://bucket/a/") == "s3://bucket/a"


def test_one_in_an_object_store(tmp_path: Path) -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe_file("/ck/metadata", json.dumps({"id": QUERY}).encode())
    files.pipe_file("/ck/offsets/0", b"v1\n{}\n5")
    assert Checkpoint("memory://ck").planned("n", "q").number == 0
