"""The shape of the tree, as far as import-linter's contracts in pyproject.toml cannot say it."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "airflow_kafka_eos"
#: a file holds one idea, whole: this only notices one that has grown into several
MAX_LINES = 600
SOURCES = sorted(
    path
    for folder in ("airflow_kafka_eos", "dags", "tests", "bench", "scripts")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
    and path.name != "public_api.txt"  # nobody writes it: python -m tests.public_api does
)  # fmt: skip

#: Who may import what, at any depth of a function; folders and modules right below the package, or one module.
#: None of it may be imported by modules that no entry names.
ALLOWED = {
    "airflow": {
        *("operators", "sensors", "triggers", "hooks", "task_group", "lineage", "mapped", "decorator", "config"),
        *("plugin", "sandbox", "cli", "misplaced", "signatures", "dag_bundle", "bundled_dags", "kafka_connection"),
        *("stats", "sources", "stream_group"),
        "airflow_kafka_eos.spark.airflow_here",  # once somebody else has imported it
    },
    "kafka": {"kafka", "sandbox"},
    # testing counts by a reader that is not ours
    "confluent_kafka": {"kafka", "spark", "sandbox", "testing"},
    # the hook makes a URL out of a connection, which quotes the password
    # the last two ask Airflow's own database
    "sqlalchemy": {"ledger", "hooks", "sources", "airflow_kafka_eos.plugin.dags", "airflow_kafka_eos.cli.connections"},
    "alembic": {"ledger"},
    "pyspark": {"spark", "connect", "streams", "airflow_kafka_eos.testing.rows"},
    "grpc": {"airflow_kafka_eos.connect.remote"},
    "pyarrow": {
        *("kafka", "spark", "sources", "arrow", "streams"),
        *("airflow_kafka_eos.connect.task", "airflow_kafka_eos.testing.rows"),
    },
    "numpy": {"arrow", "kafka", "spark"},
    "pandas": {"sandbox"},
}

#: What parsing a DAG must not load: each costs the scheduler time and memory, or is not installed there.
HEAVY = {"alembic", "confluent_kafka", "kafka", "numpy", "pandas", "pyarrow", "pyspark", "sqlalchemy"}
PARSED = (
    *("airflow_kafka_eos", "get_provider_info", "task_group", "mapped", "decorator", "config", "generation"),
    *("arguments", "argument_groups", "misplaced", "signatures", "cursor", "sources", "stream_group"),
    *("operators", "sensors", "triggers", "hooks", "lineage", "stats"),
)

# runs in a fresh interpreter. Airflow's own SDK imports some of HEAVY, which is its business: so what it has loaded
# already does not count, but an import statement of ours for it does
PROBE = """
import builtins, importlib, sys
heavy, modules = set(sys.argv[1].split(",")), sys.argv[2].split(",")
import airflow.sdk
before = set(sys.modules)
real, ours = builtins.__import__, []

def spy(name, globals=None, locals=None, fromlist=(), level=0):
    importer = str((globals or {}).get("__name__"))
    if level == 0 and name.split(".")[0] in heavy and importer.split(".")[0] == "airflow_kafka_eos":
        ours.append(importer + " imports " + name)
    return real(name, globals, locals, fromlist, level)

builtins.__import__ = spy
for module in modules:
    importlib.import_module(module)
new = {name.split(".")[0] for name in set(sys.modules) - before} & heavy
new -= {name.split(".")[0] for name in before}
print("\\n".join(ours + ["loaded: " + name for name in sorted(new)]), end="")
"""


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _room(path: Path) -> str:
    inside = path.relative_to(PACKAGE).with_suffix("").parts
    return inside[0] if inside[0] != "__init__" else PACKAGE.name


PYTHON_FILES = [path for path in SOURCES if path.suffix == ".py" and path.is_relative_to(PACKAGE)]
DAG_MODULES = sorted(_name(path) for path in PYTHON_FILES if _room(path) in PARSED)


def _probe(modules: list[str]) -> str:
    run = subprocess.run(
        [sys.executable, "-c", PROBE, ",".join(sorted(HEAVY)), ",".join(modules)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_no_file_is_longer_than_a_reader_bears() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_bytes().splitlines()) for path in SOURCES}
    assert len(lines) > 10
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_parsing_a_dag_loads_no_heavy_library() -> None:
    assert "airflow_kafka_eos.task_group" in DAG_MODULES
    assert _probe(DAG_MODULES) == ""


def test_the_probe_sees_what_it_is_there_to_see() -> None:
    # ledger and kafka do import heavy libraries, one of which Airflow has loaded before
    seen = _probe(["airflow_kafka_eos.ledger.tables", "airflow_kafka_eos.kafka.client.wire"])
    assert "airflow_kafka_eos.ledger.tables imports sqlalchemy" in seen
    assert "loaded: kafka" in seen


def test_the_data_source_is_light_to_import() -> None:
    """Spark imports it in a new process for each of writer(), write(), commit() and abort()."""
    streams = ["airflow_kafka_eos.streams.source", "airflow_kafka_eos.streams.foreach"]
    seen = _probe(["airflow_kafka_eos.spark.datasource", *streams])
    assert "imports pyspark" in seen
    assert [line for line in seen.splitlines() if "pyspark" not in line] == []


def test_libraries_are_imported_in_their_own_rooms_only() -> None:
    wrong = []
    for path in PYTHON_FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            named = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for name in named:
                library = name.split(".")[0]
                if library in ALLOWED and not {_room(path), _name(path)} & ALLOWED[library]:
                    wrong.append(f"{_name(path)} line {node.lineno}: {name}")
    assert wrong == []


def test_no_import_leads_back_to_where_it_began() -> None:
    """Not in a function, and not for a type either: of two modules one can be read without the other."""
    graph = grimp.build_graph(PACKAGE.name, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert "airflow_kafka_eos.operators.base" in imported["airflow_kafka_eos.operators.decide"]
    circle: list[str] = []
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as e:
        circle = e.args[1][::-1]
    assert " imports ".join(circle) == ""


def test_the_rooms_of_the_design_are_there() -> None:
    rooms = {_room(path) for path in PYTHON_FILES}
    assert {"transaction", "naming", "load", "errors", "kafka", "ledger", "protocol", "spark"} <= rooms
    assert {"operators", "sensors", "triggers", "hooks", "cli"} <= rooms
