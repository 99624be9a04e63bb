"""The archive for executors: whole, importable, and what it cannot bring is named."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from airflow_kafka_eos.cli import main, terminal
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import WriterName
from airflow_kafka_eos.spark.errortext import own_error
from airflow_kafka_eos.spark.python_env import NEEDED, check_libraries, write_archive
from tests.spark.bare_python import python_without

#: What a task attempt imports, from the archive alone, where nothing of it is installed.
IMPORTS = """
import sys
import airflow_kafka_eos.spark.datasource as found, kafka
from airflow_kafka_eos.kafka.producer.arrow.writer import ArrowWriter
from airflow_kafka_eos.kafka.admin import coordinator
from airflow_kafka_eos.kafka.producer import writers as describing
from airflow_kafka_eos.kafka.client import wire
from airflow_kafka_eos.kafka.producer import writers
from airflow_kafka_eos.spark.python_env import check_libraries
from airflow_kafka_eos.load import WriterName
check_libraries(WriterName.ARROW)
assert all(m.__file__.startswith(sys.argv[1]) for m in (found, kafka, wire)), (found.__file__, kafka.__file__)
"""


def test_executors_import_it_from_the_archive_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "eos.zip"
    assert main(["spark-archive", str(path)]) == terminal.OK
    assert "crc32c, lz4, numpy, pyarrow, xxhash" in capsys.readouterr().out
    bare = python_without(tmp_path / "venv", "airflow", "_editable", "__editable", "kafka")
    code = f"import sys; sys.path.insert(0, {str(path)!r})\n{IMPORTS}"
    done = subprocess.run([bare, "-c", code, str(path)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_same_sources_make_the_same_archive_and_one_that_is_there_is_replaced(tmp_path: Path) -> None:
    one, two = tmp_path / "1.zip", tmp_path / "2.zip"
    two.write_text("older")
    write_archive(one)
    write_archive(two)
    assert one.read_bytes() == two.read_bytes()
    names = zipfile.ZipFile(one).namelist()
    assert "airflow_kafka_eos/spark/datasource.py" in names and "kafka/__init__.py" in names
    assert not [n for n in names if "__pycache__" in n or "/sandbox/" in n]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.zip", "2.zip"]


@pytest.mark.parametrize(("name", "says"), [("eos.tar", "end in .zip"), ("no/folder/eos.zip", "No such file")])
def test_where_it_cannot_be_written_is_named(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        write_archive(tmp_path / name)


@pytest.mark.parametrize("writer", [WriterName.ARROW, WriterName.CONFLUENT])
def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch, writer: WriterName) -> None:
    check_libraries(writer)
    for module in list(NEEDED[writer])[-2:]:
        monkeypatch.setitem(NEEDED[writer], f"no_such_{module}", NEEDED[writer].pop(module))
    lacking = ", ".join(list(NEEDED[writer].values())[-2:])
    with pytest.raises(ConfigurationError, match=f"lacks {lacking} .*pip install"):
        check_libraries(writer)


def test_executors_without_the_package_are_named() -> None:
    """They cannot even raise an error of ours."""
    text = "Job aborted due to stage failure: ...\nModuleNotFoundError: No module named 'airflow_kafka_eos'\n\tat org"
    found = own_error(RuntimeError(text))
    assert found is not None and found.startswith("ConfigurationError: the Python of Spark's executors")
    assert "spark-archive" in found
    found = own_error(RuntimeError("ModuleNotFoundError: No module named 'xxhash'"))
    assert found is not None and "pip install xxhash" in found
    assert own_error(RuntimeError("ModuleNotFoundError: No module named 'kafkaesque'")) is None
