"""Where claims and manifests are kept: a folder that the Spark driver writes and Airflow reads.

Local paths and ``file://`` URIs. Everything is create-only and whole: a file has its final name only when all of it
is on the disk, and nothing is ever replaced (rules 3 and 13). Layout, with names encoded as in transactional ids:

    <base>/<ledger id>/<namespace>/<load name>/<load key>/<attempt>.claim          who claimed the attempt
                                                          <attempt>.initialising   InitProducerId was tried, and
                                                          <attempt>.identity       its answer (scope load only)
                                                          <attempt>.writing        writing the manifest was tried
                                                          <attempt>.json           the manifest, or "given up"
                                                          <attempt>.once           no task of it was run twice
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from airflow_kafka_eos import manifest, naming
from airflow_kafka_eos.errors import ConfigurationError, InvalidNameError, ManifestError, UndecidableError
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.transaction import PreparedTxnState

_COMPONENT_MAX = 255


class ManifestStore:
    """The claims and manifests below one base folder.

    :param base: an absolute path or ``file:///...`` URI, the same storage for Spark's driver and for Airflow.
    """

    def __init__(self, base: str) -> None:
        self._root = _local(base)
        self.base = str(self._root)

    def path(self, ref: AttemptRef) -> str:
        """Where the manifest of an attempt is, or will be.

        :raises InvalidNameError: a name is too long for a file system.
        """
        return str(self._file(ref, "json"))

    def claim(self, ref: AttemptRef, claimant: str) -> None:
        """Claim an attempt for one submitted application, once (rule 3).

        :param claimant: who claims, for people to read; different for every application.
        :raises UndecidableError: it is claimed, by a restarted driver's predecessor or a retried prepare.
        """
        text = json.dumps({"claimant": claimant, "claimed_at": datetime.now(UTC).isoformat()})
        if not self._create(self._file(ref, "claim"), text):
            raise UndecidableError(
                f"the attempt was already claimed by {self.claimant(ref) or 'an application that left no name'}; "
                f"{claimant} must not write it too",
                remedy="Clear prepare: it opens a new attempt. Switch driver restarts (--supervise, YARN attempts) off",
                load=str(ref.load),
                attempt=ref.attempt,
            )

    def claimant(self, ref: AttemptRef) -> str | None:
        """Who claimed the attempt; None while nobody has."""
        text = _read(self._file(ref, "claim"))
        return None if text is None else str(json.loads(text)["claimant"])

    def identity(self, ref: AttemptRef, initialise: Callable[[], PreparedTxnState]) -> PreparedTxnState:
        """The identity of an attempt's one transaction (scope ``load``), initialised once and the same ever after.

        Initialising a second time would end what the first one's tasks are writing.

        :param initialise: sends InitProducerId; called once in the life of the attempt.
        :raises UndecidableError: it was called before, and what it answered was not written down.
        """
        file = self._file(ref, "identity")
        if _read(file) is None and self._create(self._file(ref, "initialising"), ""):
            self._create(file, str(initialise()))
        found = _read(file)
        if found is None:
            raise UndecidableError(
                "initialising the attempt's transaction was tried before, and did not come to its end",
                remedy="Clear prepare: it opens a new attempt. Write one DataFrame per application",
                load=str(ref.load),
                attempt=ref.attempt,
            )
        return PreparedTxnState.parse(found)

    def write(self, ref: AttemptRef, text: str) -> None:
        """Write the manifest: whole or not at all, and once. From the first moment on, writing counts as tried.

        :raises ManifestError: there is one, or the attempt was given up, or writing was tried before.
        """
        if not (self._create(self._file(ref, "writing"), "") and self._create(self._file(ref, "json"), text)):
            raise ManifestError(
                f"the manifest {self.path(ref)} exists, was given up, or writing it was tried before",
                remedy="Clear prepare: it opens a new attempt",
                load=str(ref.load),
                attempt=ref.attempt,
            )

    def is_written(self, ref: AttemptRef) -> bool:
        """True when the attempt has its manifest, or was given up: it takes no further write."""
        return self._file(ref, "json").exists()

    def give_up(self, ref: AttemptRef, reason: str) -> bool:
        """Put a tombstone in the manifest's place, so that no manifest can follow (rule 13).

        :returns: False when writing the manifest was tried: then nothing may be ended.
        """
        if self._file(ref, "writing").exists():
            return False
        return self._create(self._file(ref, "json"), manifest.dump_given_up(ref, reason))

    def note_ran_once(self, ref: AttemptRef) -> None:
        """The application's word, when its write is over: Spark has run no stage again, and no task twice at once."""
        self._create(self._file(ref, "once"), "")

    def writers_left(self, manifest: Manifest) -> bool:
        """Whether a writer of the attempt may live on that its manifest does not name (rule 5).

        False only where the application has said that nothing was run twice; nobody says it of a plain ``df.write``.
        """
        return manifest.ran_again or not self._file(manifest.attempt, "once").exists()

    def read(self, ref: AttemptRef) -> Manifest:
        """The manifest of an attempt.

        :raises ManifestError: it is missing, or not whole and this attempt's own (see ``manifest.load``).
        """
        text = _read(self._file(ref, "json"))
        if text is None:
            raise ManifestError(
                f"there is no manifest at {self.path(ref)}",
                remedy="prepare must run first, with the same manifest folder. If it succeeded, clear it",
                load=str(ref.load),
                attempt=ref.attempt,
            )
        return manifest.load(text, ref)

    def _file(self, ref: AttemptRef, kind: str) -> Path:
        # the encoding leaves neither '/' nor '.', so no name can step out of its folder or be '..'
        namespace, ledger_id, name, key, _ = naming.prefix(ref.load, ref.ledger_id).split(".")
        for field, part in (("namespace", namespace), ("name", name), ("key", key)):
            if len(part) > _COMPONENT_MAX:
                raise InvalidNameError(
                    f"the load's {field} is {len(part)} characters long when encoded, a file name has {_COMPONENT_MAX}",
                    remedy=f"Shorten the {field}",
                    load=str(ref.load),
                )
        return self._root / ledger_id / namespace / name / key / f"{ref.attempt}.{kind}"

    def _create(self, path: Path, text: str) -> bool:
        """Create a file with all of its text on the disk; False when it exists."""
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


def _local(base: str) -> Path:
    parts = urlsplit(base)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        path = Path(unquote(parts.path))
    elif "://" not in base:
        path = Path(base)
    else:
        raise ConfigurationError(
            f"manifest_dir {base!r} is not a local path", remedy="Use an absolute path or a file:/// URI"
        )
    if not path.is_absolute():
        raise ConfigurationError(f"manifest_dir {base!r} is not absolute", remedy="Use an absolute path")
    return path


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as e:
        raise ConfigurationError(
            f"{path} cannot be read ({e.strerror or e})",
            remedy="Give Airflow's user the right to read manifest_dir",
        ) from e


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
