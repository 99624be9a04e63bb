"""A folder of an object store, by fsspec. One conditional request creates an object whole, or finds one (ADR 0019).

S3 calls it ``If-None-Match: *``, Google ``ifGenerationMatch=0``, Azure ``If-None-Match: *``; fsspec calls all of them
``pipe_file(mode="create")``. Each of these stores shows an object to everybody as soon as it has said that it is there.
"""

from __future__ import annotations

import inspect
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError, StorageUnavailableError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_INSTALL = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
_AZURE = "adlfs"
_REMEDY = "Give the Spark driver and Airflow a login that may read and create objects there (docs/spark.md)"
#: Errors of the stores' libraries that another try would meet too; all of them have classes of their own.
_LASTING = ("NoCredentialsError", "PartialCredentialsError", "ParamValidationError", "ClientAuthenticationError")


class ObjectPlace:
    """A :class:`~airflow_kafka_eos.spark.place.Place` in an object store.

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

    def refuse_replacing(self, name: str) -> None:
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
    import fsspec

    try:
        # not fsspec's shared instance: it may have been made with other logins, and before a fork
        return fsspec.filesystem(scheme, skip_instance_cache=True)
    except ImportError as e:
        raise ConfigurationError(
            f"manifest_dir is in {scheme}://, and there is no library for it here ({e})",
            remedy=f"Install {_INSTALL.get(scheme, _AZURE)} where the Spark driver and Airflow's tasks run",
        ) from e
