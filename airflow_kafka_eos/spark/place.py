"""Where a store keeps its texts: what it asks of a place, and which place a ``manifest_dir`` names.

A name is a path below the place, with ``/`` between its parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from airflow_kafka_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: Object stores that create an object only where there is none, in one request that is whole or nothing (ADR 0019).
OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az")


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

    def refuse_replacing(self, name: str) -> None:
        """Make sure that nothing is ever replaced here (rule: one-application-per-attempt).

        :param name: of a text that this leaves behind.
        :raises ConfigurationError: the place replaces what is there.
        """


def open_place(base: str, filesystem: AbstractFileSystem | None = None) -> Place:
    """The place that ``manifest_dir`` names.

    :param filesystem: for an object store, with logins of its own; default: fsspec's, with what is configured here.
    :raises ConfigurationError: it is neither an absolute local path nor in an object store that we know.
    """
    from airflow_kafka_eos.spark.local_place import LocalPlace

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
    from airflow_kafka_eos.spark.object_place import ObjectPlace

    return ObjectPlace(base, filesystem)
