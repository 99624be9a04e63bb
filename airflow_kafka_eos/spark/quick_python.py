"""The Python that Spark's processes on this host are started with: it takes the installed pyspark, not that of a zip.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` in front of every Python process's path, and of what it imports from a
zip Python keeps no byte code: 0.4 s of a core in each of the six processes that a small write starts (PySpark 4.2.0,
bench/AIRFLOW.md). Where Spark is the one that pip has installed, the same files lie beside that zip.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

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
