"""The Python of Spark's processes: what must be installed there, what an archive brings, and how it starts quickly.

Executors need this package and kafka-python, which an archive for ``--py-files`` can bring, and libraries with machine
code, which none can.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` in front of every Python process's path, and of what it imports from a
zip Python keeps no byte code: 0.4 s of a core in each of the six processes that a small write starts (PySpark 4.2.0,
bench/AIRFLOW.md). Where Spark is the one that pip has installed, the same files lie beside that zip.
"""

from __future__ import annotations

import os
import platform
import shlex
import socket
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import WriterName

#: By writer: the module, and what installs it.
NEEDED = {
    WriterName.ARROW: {
        "kafka": "kafka-python",
        "pyarrow": "pyarrow",
        "numpy": "numpy",
        "crc32c": "crc32c",
        "lz4": "lz4",
        "xxhash": "xxhash",
    },
    WriterName.CONFLUENT: {
        "kafka": "kafka-python",
        "pyarrow": "pyarrow",
        "numpy": "numpy",
        "confluent_kafka": "confluent-kafka",
        "xxhash": "xxhash",
    },
}
PACKAGES = ("airflow_kafka_eos", "kafka")
#: What no Spark driver or executor imports.
_LEFT_OUT = ("airflow_kafka_eos/sandbox", "kafka/benchmarks", "kafka/cli")
_COMPILED = (".pyc", ".pyo", ".elf")
#: The oldest time that a zip file can name: the same sources make the same archive.
_TIME = (1980, 1, 1, 0, 0, 0)
_SCRIPT = """\
#!/bin/sh
# without the zips of {home}, whose content is installed
kept=
IFS=:
set -f
for part in $PYTHONPATH; do
    case $part in
        {home}/python/lib/*.zip) ;;
        *) kept=$kept${{kept:+:}}$part ;;
    esac
done
export PYTHONPATH="$kept"
exec {python} "$@"
"""


def check_libraries(writer: WriterName) -> None:
    """Before a row is read: all that is missing at once, and where.

    :raises ConfigurationError: naming each library, the host and its Python.
    """
    missing = [project for module, project in NEEDED[writer].items() if find_spec(module) is None]
    if missing:
        raise ConfigurationError(
            f"the Python of this Spark executor lacks {', '.join(missing)} "
            f"({sys.executable} {platform.python_version()} on {socket.gethostname()}): writer={writer.value} needs "
            "them, and an archive of Python files cannot bring them",
            remedy=f"pip install {' '.join(missing)} on every executor, or ship a whole environment (docs/spark.md)",
        )


def write_archive(path: Path) -> int:
    """Write the archive, whole or not at all; one that is there is replaced.

    :param path: its name must end in ``.zip``: Spark takes an archive by that.
    :returns: the number of files in it.
    :raises ConfigurationError: the name is wrong, the folder cannot be written, or a package is not in a folder.
    """
    if path.suffix != ".zip":
        raise ConfigurationError(f"the archive's name is {path}", remedy="Let it end in .zip: Spark goes by that")
    files = sorted((name, file) for package in PACKAGES for name, file in _files(package))
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, file in files:
                entry = zipfile.ZipInfo(name, _TIME)
                entry.external_attr = 0o644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, file.read_bytes())
        unfinished.replace(path)
    except OSError as e:
        raise ConfigurationError(
            f"the archive {path} cannot be written ({e.strerror or e})",
            remedy="Name a file in a folder that is there and that you may write",
        ) from e
    finally:
        unfinished.unlink(missing_ok=True)
    return len(files)


def _files(package: str) -> list[tuple[str, Path]]:
    found = find_spec(package)
    folder = Path(found.origin).parent if found is not None and found.origin else Path()
    if not folder.is_dir() or folder == Path():
        raise ConfigurationError(f"the package {package} is not in a folder here", remedy="Install it with pip")
    named = [(f"{package}/{file.relative_to(folder).as_posix()}", file) for file in folder.rglob("*")]
    return [
        (name, file)
        for name, file in named
        if file.is_file()
        and file.suffix not in _COMPILED
        and not any(name == left or name.startswith(f"{left}/") for left in _LEFT_OUT)
    ]


@contextmanager
def quick_python() -> Iterator[str]:
    """A path for ``PYSPARK_PYTHON``, which is good until the end of the ``with``.

    This process's own Python where pyspark is not installed whole, or nothing may be run from the temporary folder.
    Another Spark's zips are left where they are: a Spark of the user's own has the pyspark that fits it.
    """
    home = _installed()
    if home is None:
        yield sys.executable
        return
    with TemporaryDirectory(prefix="airflow-kafka-eos-") as folder:
        path = Path(folder) / "python"
        path.touch(mode=0o700)
        path.write_text(_SCRIPT.format(home=shlex.quote(home), python=shlex.quote(sys.executable)), encoding="utf-8")
        yield str(path) if os.access(path, os.X_OK) else sys.executable


def _installed() -> str | None:
    """pyspark's folder, where what is in it is what is in its zips."""
    found = find_spec("pyspark")
    if found is None or found.origin is None or find_spec("py4j") is None:
        return None
    try:
        own = version("pyspark")
    except PackageNotFoundError:
        return None  # pyspark-client alone: it has no JVM, and no zips
    try:
        # it unpacks into the same folder, of whatever version it is
        if version("pyspark-client") != own:
            return None
    except PackageNotFoundError:
        pass
    return str(Path(found.origin).parent)
