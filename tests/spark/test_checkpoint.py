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


def files(folder: Path, name: str, *entries: tuple[str, int]) -> None:
    """A log of a source of files; of each its path and offset."""
    lines = [json.dumps({"path": path, "timestamp": 1, "batchId": offset}) for path, offset in entries]
    (folder / "sources" / "0").mkdir(parents=True, exist_ok=True)
    (folder / "sources" / "0" / name).write_text("\n".join(["v1", *lines]))


def test_a_source_of_files_is_known_by_its_files(folder: Path) -> None:
    def digest() -> str:
        return Checkpoint(str(folder)).planned("n", "q").offsets_sha256

    plan(folder, 0, '{"logOffset":3}')
    with pytest.raises(OtherCheckpointError, match="lacks the files up to offset 3 of its source 0"):
        digest()
    files(folder, "3", ("a", 3), ("b", 3))
    first = digest()
    files(folder, "3", ("b", 3), ("a", 3))
    assert digest() == first
    files(folder, "3", ("a", 3), ("c", 3))
    assert digest() != first
    # Spark puts several of its logs into one, and removes them later
    (folder / "sources" / "0" / "3").unlink()
    files(folder, "9.compact", ("older", 2), ("a", 3), ("b", 3), ("newer", 4))
    files(folder, "19.compact")
    files(folder, "2.compact", ("older", 2))
    assert digest() == first
    plan(folder, 0, '{"logOffset":-1}')  # no file has come yet
    assert digest() != first


def test_offsets_in_another_form_are_refused(folder: Path) -> None:
    (folder / "offsets" / "0").write_text('v2\n{}\n{"0":"5"}')
    with pytest.raises(ConfigurationError, match="a form that is not known here"):
        Checkpoint(str(folder)).planned("n", "q")


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
