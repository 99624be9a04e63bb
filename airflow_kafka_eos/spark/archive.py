"""The archive for ``--py-files``: what executors need of this package, and kafka-python. Libraries with machine code
cannot be imported from an archive: :mod:`.installed` says which must be there."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path

from airflow_kafka_eos.errors import ConfigurationError

PACKAGES = ("airflow_kafka_eos", "kafka")
#: What no Spark driver or executor imports.
_LEFT_OUT = ("airflow_kafka_eos/sandbox", "kafka/benchmarks", "kafka/cli")
_COMPILED = (".pyc", ".pyo")
#: The oldest time that a zip file can name: the same sources make the same archive.
_TIME = (1980, 1, 1, 0, 0, 0)


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
    found = importlib.util.find_spec(package)
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
