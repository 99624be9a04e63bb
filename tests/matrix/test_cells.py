"""What docs/compatibility.md promises, what pyproject.toml lets pip install, and what ``make matrix`` runs are one."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from airflow_kafka_eos.sandbox.jars import DEFAULT_KAFKA, VERSIONS
from airflow_kafka_eos.spark.versions import OLDEST
from tests.matrix.table import COLUMNS, ROOT, parts, rows, table

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def tried(column: str) -> list[Version]:
    """Oldest first."""
    found = table()
    cells = [*found["cells"].values(), found["newest"]]
    return sorted({Version(cell[column]) for cell in cells if column in cell})


def minor(version: Version) -> tuple[int, int]:
    return version.major, version.minor


def bounds(extra: str, name: str) -> SpecifierSet:
    every = [Requirement(text) for text in PROJECT["optional-dependencies"][extra]]
    return next(one.specifier for one in every if one.name == name)


def test_the_page_has_the_cells() -> None:
    assert parts()[1] == rows(), "write it by: python -m tests.matrix.table"


def test_the_page_names_the_servers() -> None:
    majors = [name.partition(".")[0] for name in table()["postgresql"]]
    assert f"PostgreSQL {', '.join(majors[:-1])} and {majors[-1]} " in parts()[2]
    assert {Version(one) for one in table()["postgresql"].values()} <= set(tried("sqlalchemy"))


def test_a_cell_has_no_other_columns() -> None:
    assert not {key for cell in table()["cells"].values() for key in cell} - {
        *COLUMNS, "beside", "dags_test", "examples",
    }  # fmt: skip
    assert set(table()["newest"]) == set(COLUMNS)


@pytest.mark.parametrize(
    ("column", "allowed"),
    [
        ("python", SpecifierSet(PROJECT["requires-python"])),
        ("airflow", bounds("airflow", "apache-airflow")),
        ("sqlalchemy", bounds("ledger", "sqlalchemy")),
    ],
)
def test_the_bounds_are_what_was_tried(column: str, allowed: SpecifierSet) -> None:
    versions = tried(column)
    assert all(version in allowed for version in versions), (column, versions, allowed)
    oldest, newest = minor(versions[0]), minor(versions[-1])
    assert f"{oldest[0]}.{oldest[1] - 1}.99" not in allowed, f"older than what was tried: {allowed}"
    assert column == "sqlalchemy" or f"{newest[0]}.{newest[1] + 1}.0" not in allowed, f"newer: {allowed}"


def test_no_minor_between_is_left_out() -> None:
    versions = [minor(version) for version in tried("airflow")]
    assert versions == [(versions[0][0], n) for n in range(versions[0][1], versions[-1][1] + 1)]


def test_the_examples_run_with_every_airflow() -> None:
    found = table()
    running = [found["newest"] | cell for cell in found["cells"].values() if "examples" in cell]
    run = {minor(Version(cell["airflow"])) for cell in running}
    assert run == {minor(version) for version in tried("airflow")}


def test_every_kafka_that_the_sandbox_has_is_tried() -> None:
    assert {str(version) for version in tried("kafka")} == set(VERSIONS.values())
    assert table()["newest"]["kafka"] == DEFAULT_KAFKA


def test_the_oldest_spark_is_tried() -> None:
    assert minor(tried("spark")[0]) == OLDEST


def test_python_s_classifiers_are_what_was_tried() -> None:
    named = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text}
    assert named == {str(version) for version in tried("python")}
