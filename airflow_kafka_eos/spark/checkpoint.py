"""What Spark's checkpoint of a streaming query says: whose it is, and which batch is planned.

Of the query's folder the files ``metadata``, ``offsets/<batch>`` and ``commits/<batch>`` are read (Spark's
StreamMetadata, OffsetSeqLog and CommitLog). A batch is planned by its file of offsets, which is written once, before
the batch; its first two lines are a version and settings of the batch, and each further one is the end of the batch in
one source. A source of files counts there only, ``{"logOffset": 5}``: which files those are is in a log of its own,
``sources/<source>/<offset>``, or that of several in ``<offset>.compact`` (Spark's FileStreamSourceLog).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from airflow_kafka_eos.errors import ConfigurationError, OtherCheckpointError, StorageUnavailableError
from airflow_kafka_eos.micro_batch import MicroBatch

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def normal(location: str) -> str:
    """A checkpoint's location in the one way in which the ledger notes it."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        path = location.removeprefix("file:")
        return os.path.normpath(path) if os.path.isabs(path) else path.rstrip("/")
    if scheme.lower() == "file":
        return os.path.normpath(unquote(urlsplit(location).path))
    return f"{scheme.lower()}://{rest.rstrip('/')}"


class Checkpoint:
    """A query's checkpoint, for reading.

    :param location: as ``checkpointLocation`` has it: an absolute path, or a URL of a filesystem that fsspec knows.
    :raises ConfigurationError: it is neither.
    """

    def __init__(self, location: str, filesystem: AbstractFileSystem | None = None) -> None:
        self.location = normal(location)
        self._files = filesystem
        self._root = self.location
        if "://" in self.location and filesystem is None:
            try:
                import fsspec

                self._files, self._root = fsspec.core.url_to_fs(self.location, skip_instance_cache=True)
            except (ImportError, ValueError) as e:
                raise ConfigurationError(
                    f"the checkpoint {self.location} cannot be read where the Spark driver runs: {e}",
                    remedy="Install fsspec's library for it there, or use a path that is mounted there",
                ) from e
        elif not os.path.isabs(self.location):
            raise ConfigurationError(
                f"checkpointLocation {location!r} is neither absolute nor a URL", remedy="Write it as either"
            )

    def planned(self, namespace: str, name: str) -> MicroBatch:
        """The batch that Spark is about to run, or runs: the last one whose offsets are there.

        :raises OtherCheckpointError: there is none; or the offsets of the one before are gone.
        :raises StorageUnavailableError: it could not be read now.
        """
        metadata = self._read("metadata")
        numbers = self._numbers("offsets")
        if metadata is None or not numbers:
            raise OtherCheckpointError(
                f"the checkpoint {self.location} has no query, or no batch of it is planned",
                remedy="Name by the option checkpointLocation the very folder that the query runs with. A query with a "
                "continuous trigger has no batches: set processingTime or availableNow",
            )
        number = numbers[-1]
        return MicroBatch(
            namespace,
            name,
            str(json.loads(metadata)["id"]),
            number,
            self._digest(number),
            self._digest(number - 1) if number else None,
        )

    def _digest(self, number: int) -> str:
        text = self._read(f"offsets/{number}")
        if text is None:
            raise OtherCheckpointError(
                f"the checkpoint {self.location} lacks the offsets of batch {number}",
                remedy="Put the checkpoint back as it was last",
            )
        lines = text.splitlines()
        if lines[:1] != ["v1"]:
            raise ConfigurationError(
                f"this version of Spark writes its offsets in a form that is not known here ({text[:20]!r})",
                remedy="Set spark.sql.streaming.offsetLog.formatVersion=1, begin with a new checkpoint, or report it",
            )
        said = [part for source, end in enumerate(lines[2:]) for part in (end, *self._files_of(source, end))]
        return hashlib.sha256("\n".join(said).encode()).hexdigest()

    def _files_of(self, source: int, end: str) -> list[str]:
        """The files that a source of files has read last, where it ends so; in any order of theirs the same answer.

        :raises OtherCheckpointError: the source's own log lacks them.
        """
        try:
            offset = json.loads(end)["logOffset"]
        except (ValueError, TypeError, LookupError):
            return []
        if type(offset) is not int or offset < 0:
            return []  # a topic of Kafka's has that name; or no file has come yet
        folder = f"sources/{source}"
        log = self._read(f"{folder}/{offset}")
        if log is None:  # of those behind it, the first one that has it is the shortest
            compact = [name for name in self._numbers(folder, ".compact") if name >= offset]
            log = self._read(f"{folder}/{compact[0]}.compact") if compact else None
        entries = [json.loads(line) for line in (log or "").splitlines()[1:]]
        found = sorted(json.dumps([e["path"], e["timestamp"]]) for e in entries if e["batchId"] == offset)
        if not found:
            raise OtherCheckpointError(
                f"the checkpoint {self.location} lacks the files up to offset {offset} of its source {source}",
                remedy="Put the checkpoint back as it was last, with its folder sources",
            )
        return found

    def _numbers(self, folder: str, suffix: str = "") -> list[int]:
        try:
            if self._files is None:
                names = os.listdir(Path(self._root, folder))
            else:
                path = f"{self._root}/{folder}"
                self._files.invalidate_cache(path)
                names = [str(found).rpartition("/")[2] for found in self._files.ls(path, detail=False)]
        except FileNotFoundError:
            return []
        except Exception as e:
            raise self._error(folder, e) from e
        numbers = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
        return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())

    def _read(self, name: str) -> str | None:
        try:
            if self._files is None:
                return Path(self._root, name).read_text(encoding="utf-8")
            content: bytes = self._files.cat_file(f"{self._root}/{name}")
            return content.decode()
        except FileNotFoundError:
            return None
        except Exception as e:
            raise self._error(name, e) from e

    def _error(self, name: str, error: Exception) -> StorageUnavailableError:
        return StorageUnavailableError(
            f"{self.location}/{name} cannot be read ({type(error).__name__}: {error})",
            remedy="Let the Spark driver's Python read the checkpoint, by a login of its environment",
        )
