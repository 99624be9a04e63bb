"""Where a store keeps its texts: what it asks of a place, and which place a ``manifest_dir`` names.

A name is a path below the place, with ``/`` between its parts. In a folder that is mounted here, a text has its name
only when all of it is on the disk. In an object store one conditional request creates an object whole, or finds one
(ADR 19): S3 and Azure call it ``If-None-Match: *``, Google ``ifGenerationMatch=0``; fsspec calls all of them
``pipe_file(mode="create")``. Each of these stores shows an object to everybody as soon as it has said that it is there.
"""

from __future__ import annotations

import errno
import inspect
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError, StorageUnavailableError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: Object stores that create an object only where there is none, in one request that is whole or nothing (ADR 0019).
OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az")
_INSTALL = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
_AZURE = "adlfs"
_REMEDY = "Give the Spark driver and Airflow a login that may read and create objects there (docs/spark.md)"
#: Errors of the stores' libraries that another try would meet too; all of them have classes of their own.
_LASTING = ("NoCredentialsError", "PartialCredentialsError", "ParamValidationError", "ClientAuthenticationError")


class Place(Protocol):
    """A folder or a bucket."""

    #: as ``manifest_dir`` names it
    base: str

    def path(self, name: str) -> str:
        """Where a text is or will be, for people."""

    def create(self, name: str, text: str) -> bool:
        """Create a text whole or not at all; False where another one is there already. It is durable on return.

        :raises ConfigurationError: it cannot be written, now or ever.
        :raises StorageUnavailableError: it could not be written now, or it is unknown whether it was.
        """

    def read(self, name: str) -> str | None:
        """A text as it is now, never from a cache; None where there is none.

        :raises ConfigurationError, StorageUnavailableError: as :meth:`create`.
        """

    def check_creates_only(self, name: str) -> None:
        """Make sure that nothing is ever replaced here (rule: one-application-per-attempt).

        :param name: of a text that this leaves behind.
        :raises ConfigurationError: the place replaces what is there.
        """


def open_place(base: str, filesystem: AbstractFileSystem | None = None) -> Place:
    """The place that ``manifest_dir`` names.

    :param filesystem: for an object store, with logins of its own; default: fsspec's, with what is configured here.
    :raises ConfigurationError: it is neither an absolute local path nor in an object store that we know.
    """
    scheme, separator, rest = base.partition("://")
    scheme = scheme.lower()
    if not separator:
        return LocalPlace(base)
    if scheme == "file" and rest.partition("/")[0] in ("", "localhost"):
        return LocalPlace(unquote(urlsplit(base).path))
    shown = f"manifest_dir '{scheme}://…'"  # what follows may be a password, and be split anywhere
    if scheme not in OBJECT_STORES:
        raise ConfigurationError(
            f"{shown} is neither a local path nor in an object store that creates an object only where there is none",
            remedy="Use an absolute path that the Spark driver and Airflow share, or one of "
            + ", ".join(f"{scheme}://" for scheme in OBJECT_STORES),
        )
    # by hand: urlsplit ends a login at its first slash, and takes the rest for a path
    bucket, _, folder = rest.partition("/")
    if scheme in ("abfs", "abfss"):  # container@account is no login
        bucket = bucket.replace("@", "", 1)
    if ":" in bucket or "@" in bucket + folder:
        raise ConfigurationError(
            f"{shown} names a login or an Airflow connection, and Spark drivers have none: there is an @ in it, or a "
            ": in the bucket",
            remedy="Give the driver a login by its environment (docs/spark.md) and leave it out here",
        )
    if not bucket or "?" in rest or "#" in rest:
        raise ConfigurationError(
            f"{shown} has {'no bucket' if not bucket else 'a ? or a #'}",
            remedy=f"Use {scheme}://bucket/folder",
        )
    return ObjectPlace(base, filesystem)


def read_text(location: str) -> str:
    """A text by its path or URL, as :meth:`Place.path` names it.

    :raises ConfigurationError: there is none, it cannot be read, or it is in no place that :func:`open_place` knows.
    :raises StorageUnavailableError: it cannot be read now.
    """
    folder, _, name = location.rpartition("/")
    place = open_place(folder) if "://" in location else LocalPlace(os.path.abspath(folder or "."))
    found = place.read(name)
    if found is None:
        raise ConfigurationError(
            f"there is no file {location}", remedy="Is it the same storage, for Airflow and where Spark's driver runs?"
        )
    return found


#: of a shared folder whose server is away for now, or has come back
_PASSING = {
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN, errno.ECONNRESET,
    errno.ECONNREFUSED, errno.ENETUNREACH, errno.EAGAIN,
}  # fmt: skip


class LocalPlace:
    """A :class:`Place` in a folder.

    :param base: an absolute path.
    :raises ConfigurationError: it is not absolute.
    """

    def __init__(self, base: str) -> None:
        self._root = Path(base)
        if not self._root.is_absolute():
            raise ConfigurationError(f"manifest_dir {base!r} is not absolute", remedy="Use an absolute path")
        self.base = str(self._root)

    def path(self, name: str) -> str:
        """The file's path."""
        return str(self._root / name)

    def create(self, name: str, text: str) -> bool:
        """Create a file with all of its text on the disk; False when it exists."""
        path = self._root / name
        try:
            _make_folders(path.parent)
            unfinished = path.parent / f".{path.name}.{uuid.uuid4().hex}"
            try:
                with open(unfinished, "x", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(unfinished, path)  # refuses an existing name, where a rename would replace it
            finally:
                unfinished.unlink(missing_ok=True)
            _sync(path.parent)
        except FileExistsError:
            return False
        except OSError as e:
            raise ConfigurationError(
                f"the manifest folder cannot be written: {path} ({e.strerror or e})",
                remedy="Set manifest_dir to a folder that the Spark driver may write and Airflow may read",
            ) from e
        return True

    def read(self, name: str) -> str | None:
        """The file's text; None where there is no file."""
        path = self._root / name
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as e:
            if e.errno in _PASSING:
                raise StorageUnavailableError(
                    f"{path} cannot be read now ({e.strerror or e})",
                    remedy="Look whether the file server of manifest_dir runs, and try again",
                ) from e
            raise ConfigurationError(
                f"{path} cannot be read ({e.strerror or e})",
                remedy="Give Airflow's user the right to read manifest_dir",
            ) from e

    def check_creates_only(self, name: str) -> None:
        """Nothing to ask for: ``link`` never replaces, and says so itself where a file system has none."""


def _make_folders(folder: Path) -> None:
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync(made.parent)


def _sync(folder: Path) -> None:
    # without it, the name of a file may be lost in a crash although its content is not
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ObjectPlace:
    """A :class:`Place` in an object store.

    :param base: ``s3://bucket/folder`` and the like, without a login.
    :param filesystem: fsspec's; default: one with the logins that this process has.
    :raises ConfigurationError: the library for that store is not installed, or cannot do conditional requests.
    """

    def __init__(self, base: str, filesystem: AbstractFileSystem | None = None) -> None:
        self.base = base.rstrip("/")
        self._files = filesystem if filesystem is not None else _filesystem(urlsplit(base).scheme)
        # a library that does not know the mode falls back to fsspec's "look, then write", which two can pass at once
        own = getattr(type(self._files), "_pipe_file", None)
        known = own is not None and "mode" in inspect.signature(own).parameters
        if not known and type(self._files).__module__.partition(".")[0] != _AZURE:
            raise ConfigurationError(
                f"{type(self._files).__module__} cannot create an object only where there is none",
                remedy=f"Install a newer {_INSTALL.get(urlsplit(base).scheme, _AZURE)}, or use another manifest_dir",
            )

    def path(self, name: str) -> str:
        """The object's URL."""
        return f"{self.base}/{name}"

    def create(self, name: str, text: str) -> bool:
        """Create an object; False when another one is there.

        True also where this very text is there: a request that was sent again after its answer was lost finds its own
        object. So texts that must tell two writers apart differ.
        """
        try:
            self._files.pipe_file(self.path(name), text.encode(), mode="create")
        except FileExistsError:
            return self.read(name) == text
        except Exception as e:
            raise self._error("written", name, e) from e
        return True

    def read(self, name: str) -> str | None:
        """The object's text; None where there is no object."""
        try:
            # reading asks for the object's length first, and a filesystem of Airflow's may have a listing of before
            self._files.invalidate_cache(self.path(name))
            content: bytes = self._files.cat_file(self.path(name))
        except FileNotFoundError:
            return None
        except Exception as e:
            raise self._error("read", name, e) from e
        return content.decode()

    def check_creates_only(self, name: str) -> None:
        """Create an object twice: stores that speak a protocol without its conditions take the second one too."""
        first, second = uuid.uuid4().hex, uuid.uuid4().hex
        probe = f"{name}.{first}"
        if not self.create(probe, first) or self.create(probe, second) or self.read(probe) != first:
            raise ConfigurationError(
                f"the object store behind {self.base} replaces objects although it is told not to: two Spark "
                "applications could claim one attempt",
                remedy="Use a store with conditional writes (If-None-Match), or a folder that all hosts share",
            )

    def _error(self, verb: str, name: str, error: Exception) -> KafkaEosError:
        message = f"{self.path(name)} cannot be {verb} ({type(error).__name__}: {error})"
        if isinstance(error, (PermissionError, FileNotFoundError)) or type(error).__name__ in _LASTING:
            return ConfigurationError(message, remedy=_REMEDY)
        return StorageUnavailableError(message, remedy="Look whether the object store answers; run it again")


def _filesystem(scheme: str) -> Any:
    try:
        import fsspec

        # not fsspec's shared instance: it may have been made with other logins, and before a fork
        return fsspec.filesystem(scheme, skip_instance_cache=True)
    except ImportError as e:
        raise ConfigurationError(
            f"manifest_dir is in {scheme}://, and there is no library for it here ({e})",
            remedy=f"Install {_INSTALL.get(scheme, _AZURE)} where the Spark driver and Airflow's tasks run",
        ) from e
