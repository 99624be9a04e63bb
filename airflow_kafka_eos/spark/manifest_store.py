"""Where claims and manifests are kept: a place that the Spark driver writes and Airflow reads.

A folder, or a folder of an object store (:mod:`.storage`). Everything is create-only and whole: what has its name is
all there, and nothing is ever replaced (rules: one-application-per-attempt, writer-ends-only-unreported). Layout, with
names encoded as in transactional ids:

    <base>/<ledger id>/<namespace>/<load name>/<load key>/<attempt>.spec           what its application is to do
                                                          <attempt>.submitted      its application's id, and whose
                                                          <attempt>.claim          who claimed the attempt
                                                          <attempt>.until          where its job's range ends
                                                          <attempt>.initialising   InitProducerId was tried, and
                                                          <attempt>.identity       its answer (scope load only)
                                                          <attempt>.writing        writing the manifest was tried
                                                          <attempt>.json           the manifest, or "given up"
                                                          <attempt>.once           no task of it was run twice
                                                          <attempt>.failed         why its application failed
                                                          <attempt>.superseded     by whom: its driver is to stop
                                                          <attempt>.probe.*        object stores: is nothing replaced?
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_kafka_eos import manifest, naming
from airflow_kafka_eos.errors import InvalidNameError, ManifestError, UndecidableError
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.spark.storage import open_place
from airflow_kafka_eos.transaction import PreparedTxnState

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_COMPONENT_MAX = 255
#: In Airflow's home, where no ``manifest_dir`` is set.
DEFAULT_FOLDER = "kafka_eos_manifests"


@dataclass(frozen=True)
class Submitted:
    """An attempt's application, where it was handed to a platform.

    :param application: its id there.
    :param task: that submitted it, in its run.
    :param go: what that task's tries have in common between two clears (rule: reattach-to-its-own).
    :param try_number: the try that submitted it.
    """

    application: str
    task: str
    go: str
    try_number: int


class ManifestStore:
    """The claims and manifests below one base folder.

    :param base: an absolute path, a ``file:///`` URI or a URL such as ``s3://bucket/folder``; the same storage for
        Spark's driver and for Airflow.
    :param filesystem: see :func:`~airflow_kafka_eos.spark.storage.open_place`, which also says what it raises.
    """

    def __init__(self, base: str, filesystem: AbstractFileSystem | None = None) -> None:
        self._place = open_place(base, filesystem)
        self.base = self._place.base

    def path(self, ref: AttemptRef) -> str:
        """Where the manifest of an attempt is, or will be.

        :raises InvalidNameError: a name is too long for a file system.
        """
        return self._place.path(self._file(ref, "json"))

    def note_spec(self, ref: AttemptRef, text: str) -> str:
        """Leave what an attempt's application is to do where it can read that (:mod:`.spec_argument`).

        :returns: where it is.
        :raises UndecidableError: there is one already, for another application.
        """
        if not self._create(ref, "spec", text):
            raise UndecidableError(
                "an application was told already what to do for the attempt",
                remedy="Clear the task that submits it: it opens a new attempt",
                **ref.ids,
            )
        return self._place.path(self._file(ref, "spec"))

    def spec(self, ref: AttemptRef) -> str | None:
        """What :meth:`note_spec` has left; None where it has not."""
        return self._read(ref, "spec")

    def note_until(self, ref: AttemptRef, position: str) -> None:
        """Note where the range ends that an attempt's job has chosen, before it writes.

        :raises UndecidableError: it was noted before: the job was called twice.
        """
        if not self._create(ref, "until", position):
            raise UndecidableError(
                "where the attempt's range ends was noted before",
                remedy="Clear prepare: it opens a new attempt",
                **ref.ids,
            )

    def until(self, ref: AttemptRef) -> str | None:
        """What :meth:`note_until` has noted; None where it has not."""
        return self._read(ref, "until")

    def note_submitted(self, ref: AttemptRef, submitted: Submitted) -> None:
        """Leave word that an attempt's application was handed to a platform, for who waits for it later."""
        self._create(ref, "submitted", json.dumps(asdict(submitted)))

    def submitted(self, ref: AttemptRef) -> Submitted | None:
        """What :meth:`note_submitted` was told; None where it was not."""
        text = self._read(ref, "submitted")
        return None if text is None else Submitted(**json.loads(text))

    def claim(self, ref: AttemptRef, claimant: str) -> None:
        """Claim an attempt for one submitted application, once (rule: one-application-per-attempt).

        :param claimant: who claims, for people to read; different for every application.
        :raises UndecidableError: it is claimed, by a restarted driver's predecessor or a retried prepare.
        :raises ConfigurationError: the place does not keep what is there: a claim would mean nothing.
        """
        self._place.check_creates_only(self._file(ref, "probe"))
        if not self._note(ref, "claim", "claimant", claimant):
            raise UndecidableError(
                f"the attempt was already claimed by {self.claimant(ref) or 'an application that left no name'}; "
                f"{claimant} must not write it too",
                remedy="Clear prepare: it opens a new attempt. Switch driver restarts (--supervise, YARN attempts) off",
                **ref.ids,
            )

    def claimant(self, ref: AttemptRef) -> str | None:
        """Who claimed the attempt; None while nobody has."""
        return self._noted(ref, "claim", "claimant")

    def identity(self, ref: AttemptRef, initialise: Callable[[], PreparedTxnState]) -> PreparedTxnState:
        """The identity of an attempt's one transaction (scope ``load``), initialised once and the same ever after.

        Initialising a second time would end what the first one's tasks are writing.

        :param initialise: sends InitProducerId; called once in the life of the attempt.
        :raises UndecidableError: it was called before, and what it answered was not written down.
        """
        if not self._exists(ref, "identity") and self._create(ref, "initialising", _mark()):
            self._create(ref, "identity", str(initialise()))
        found = self._read(ref, "identity")
        if found is None:
            raise UndecidableError(
                "initialising the attempt's transaction was tried before, and was not finished",
                remedy="Clear prepare: it opens a new attempt. Write one DataFrame per application",
                **ref.ids,
            )
        return PreparedTxnState.parse(found)

    def write(self, ref: AttemptRef, text: str) -> None:
        """Write the manifest: whole or not at all, and once. From the first moment on, writing counts as tried.

        :raises ManifestError: there is one, or the attempt was given up, or writing was tried before.
        """
        if not (self._create(ref, "writing", _mark()) and self._create(ref, "json", text)):
            raise ManifestError(
                f"the manifest {self.path(ref)} exists, was given up, or writing it was tried before",
                remedy="Clear prepare: it opens a new attempt",
                **ref.ids,
            )

    def is_written(self, ref: AttemptRef) -> bool:
        """True when the attempt has its manifest, or was given up: it takes no further write."""
        return self._exists(ref, "json")

    def give_up(self, ref: AttemptRef, reason: str) -> bool:
        """Put a tombstone in the manifest's place, so that no manifest can follow (rule: writer-ends-only-unreported).

        :returns: False when writing the manifest was tried: then nothing may be ended.
        """
        if self._exists(ref, "writing"):
            return False
        return self._create(ref, "json", manifest.dump_given_up(ref, reason))

    def is_given_up(self, ref: AttemptRef) -> bool:
        """Whether :meth:`give_up` has left its tombstone: its application is about to fail."""
        text = self._read(ref, "json")
        return text is not None and manifest.is_given_up(text)

    def note_ran_once(self, ref: AttemptRef) -> None:
        """The application's word, when its write is over: Spark has run no stage again, and no task twice at once."""
        self._create(ref, "once", _mark())

    def note_failed(self, ref: AttemptRef, why: str) -> None:
        """The application's word, when it fails: its error, without secrets (:mod:`.errortext`)."""
        self._note(ref, "failed", "why", why)

    def failure(self, ref: AttemptRef) -> str | None:
        """Why the attempt's application failed; None where it has left no word."""
        return self._noted(ref, "failed", "why")

    def note_superseded(self, ref: AttemptRef, by: str) -> bool:
        """Tell an attempt's driver that it may stop (:mod:`.orphan`); the ledger has given the attempt up before.

        :param by: who has, and why, for people to read.
        :returns: False where it was told already.
        """
        return self._note(ref, "superseded", "superseded_by", by)

    def superseded_by(self, ref: AttemptRef) -> str | None:
        """Who has superseded the attempt, as :meth:`note_superseded` was told; None: nobody that is known here."""
        return self._noted(ref, "superseded", "superseded_by")

    def writers_left(self, manifest: Manifest) -> bool:
        """Whether a writer of the attempt may live on that its manifest does not name.

        Rule: verified-end-before-reuse.

        False only where the application has said that nothing was run twice; nobody says it of a plain ``df.write``.
        """
        return manifest.ran_again or not self._exists(manifest.attempt, "once")

    def read(self, ref: AttemptRef) -> Manifest:
        """The manifest of an attempt.

        :raises ManifestError: it is missing, or not whole and this attempt's own (see ``manifest.load``).
        """
        text = self._read(ref, "json")
        if text is None:
            raise ManifestError(
                f"there is no manifest at {self.path(ref)}",
                remedy="prepare must run first, with the same manifest folder. If it succeeded, clear it",
                **ref.ids,
            )
        return manifest.load(text, ref)

    def _file(self, ref: AttemptRef, kind: str) -> str:
        # the encoding leaves neither '/' nor '.', so no name can step out of its folder or be '..'
        namespace, ledger_id, name, key, _ = naming.prefix(ref.load, ref.ledger_id).split(".")
        for field, part in (("namespace", namespace), ("name", name), ("key", key)):
            if len(part) > _COMPONENT_MAX:
                raise InvalidNameError(
                    f"the load's {field} is {len(part)} characters long when encoded, a file name has {_COMPONENT_MAX}",
                    remedy=f"Shorten the {field}",
                    load=str(ref.load),
                )
        return f"{ledger_id}/{namespace}/{name}/{key}/{ref.attempt}.{kind}"

    def _exists(self, ref: AttemptRef, kind: str) -> bool:
        return self._read(ref, kind) is not None

    def _read(self, ref: AttemptRef, kind: str) -> str | None:
        return self._place.read(self._file(ref, kind))

    def _create(self, ref: AttemptRef, kind: str, text: str) -> bool:
        return self._place.create(self._file(ref, kind), text)

    def _note(self, ref: AttemptRef, kind: str, name: str, said: str) -> bool:
        return self._create(ref, kind, json.dumps({name: said, "noted_at": datetime.now(UTC).isoformat()}))

    def _noted(self, ref: AttemptRef, kind: str, name: str) -> str | None:
        text = self._read(ref, kind)
        return None if text is None else str(json.loads(text)[name])


def _mark() -> str:
    """The text of a file whose name says all: no two are equal, so that each writer knows its own (see ObjectPlace)."""
    return uuid.uuid4().hex
