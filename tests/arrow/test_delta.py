"""A cursor on a real Delta table: versions, its change data feed, and another table in its place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_eos import position
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.sources import DeltaVersions

# the environment may be older than this test
deltalake = pytest.importorskip("deltalake")


def write(path: Path, *ids: int) -> None:
    fed = {"delta.enableChangeDataFeed": "true"}
    deltalake.write_deltalake(str(path), pa.table({"id": list(ids)}), mode="append", configuration=fed)


def read(source: DeltaVersions, since: Any, until: Any) -> list[int]:
    return sorted(pa.table(source.read(since, until)).column("id").to_pylist())


def test_a_range_is_what_versions_have_changed(tmp_path: Path) -> None:
    source, path = DeltaVersions(str(tmp_path / "orders")), tmp_path / "orders"
    with pytest.raises(ConfigurationError, match="no Delta table"):
        source.bounds(None)
    write(path, 1, 2)
    since, until = source.bounds(None)
    write(path, 3)
    assert (since["version"], until["version"], read(source, since, until)) == (-1, 0, [1, 2])
    again, end = source.bounds(until)
    assert (again, read(source, again, end)) == (until, [3])
    source.check(again, end)
    same, still = source.bounds(end)
    assert (same, read(source, same, still)) == (still, [])
    assert position.checked(end, "until") == end
    assert position.is_behind(end, until, "x") and not position.is_behind(still, same, "x")


def test_another_table_in_its_place_is_said(tmp_path: Path) -> None:
    source, path = DeltaVersions(str(tmp_path / "orders")), tmp_path / "orders"
    write(path, 1)
    write(path, 2)
    since, until = source.bounds(None)
    shutil.rmtree(path)
    write(path, 7)
    for look in (lambda: source.bounds(until), lambda: source.check(since, until)):
        with pytest.raises(ConfigurationError):
            look()
    for n in range(3):
        write(path, n)
    with pytest.raises(ConfigurationError, match="without an order"):
        source.bounds(until)
    for wrong in (3, {"v": 1}, {"version": 1, "x": 2}):
        with pytest.raises(ConfigurationError, match="no position of a Delta table"):
            source.bounds(wrong)
