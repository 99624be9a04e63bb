"""Spark's Python processes on this host take the installed pyspark; another Spark's is left to it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest

from airflow_kafka_eos.spark import python_env as module
from airflow_kafka_eos.spark.python_env import quick_python

HOME = Path(pyspark.__file__).parent
ZIPS = [str(path) for path in sorted((HOME / "python" / "lib").glob("*.zip"))]
APPLICATION = """
import os, sys
import pyspark
from pyspark.sql import SparkSession

def where(_):
    import pyspark
    return pyspark.__file__, sys.executable

spark = SparkSession.builder.getOrCreate()
found = spark.sparkContext.parallelize([0], 1).map(where).first()
spark.stop()
print("FOUND", [(pyspark.__file__, sys.executable), found])
"""


def path_of(python: str, *parts: str) -> list[str]:
    code = "import os, pyspark, sys; print(pyspark.__file__, os.environ['PYTHONPATH'], sys.executable, sys.argv[1:])"
    said = subprocess.run(
        [python, "-c", code, "an argument"], env=os.environ | {"PYTHONPATH": ":".join(parts)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return said.stdout.split(maxsplit=3)


def test_the_installed_pyspark_is_taken_and_all_else_of_the_path_is_kept(tmp_path: Path) -> None:
    assert len(ZIPS) == 2
    others = ["/opt/spark/python/lib/pyspark.zip", "/a/b.zip"]
    with quick_python() as python:
        # Python itself would take the other Spark's, were it there
        found = path_of(python, *ZIPS, *others)
        assert found == [pyspark.__file__, ":".join(others), sys.executable, "['an argument']\n"]
        (tmp_path / "lx").touch()
        assert path_of(python, ZIPS[0], f"{tmp_path}/l[x]")[1] == f"{tmp_path}/l[x]"
    assert not Path(python).exists()
    # so it is the zip that is taken without it
    assert ".zip" in path_of(sys.executable, *ZIPS)[0]


@pytest.mark.parametrize("why", ["no pyspark", "no py4j", "another client beside it", "nothing may be run there"])
def test_else_it_is_this_python(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why.startswith("no p"):
        real = find_spec
        monkeypatch.setattr(module, "find_spec", lambda name: None if name == why[3:] else real(name))
    elif why == "another client beside it":
        monkeypatch.setattr(module, "version", lambda name: {"pyspark": "4.2.0", "pyspark-client": "4.2.1"}[name])
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    with quick_python() as python:
        assert python == sys.executable


def test_driver_and_executors_take_it(tmp_path: Path) -> None:
    from airflow_kafka_eos.operators.submitting import environment

    application = tmp_path / "application.py"
    application.write_text(APPLICATION)
    submit = Path(sys.executable).with_name("spark-submit")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            patch.delenv(name, raising=False)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        with environment({}, local=True):
            said = subprocess.run(
                [str(submit), "--master", "local[1]", "--conf", "spark.ui.enabled=false", str(application)],
                capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL,
            )  # fmt: skip
    assert f"FOUND {[(pyspark.__file__, sys.executable)] * 2}" in said.stdout, said.stdout + said.stderr
