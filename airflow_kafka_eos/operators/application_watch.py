"""Whether an application that runs elsewhere is over: by what it has left beside its claim, and by its platform's word.

What it has left is what counts, and is looked at first: an application that is done stays so, whatever its platform
says of it, or if that cannot be asked any more. The platform's word tells only that nothing will be left: it was
killed, never began, or is forgotten. A look that fails tells nothing: a platform that does not answer is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.errors import NotFinishedError

if TYPE_CHECKING:
    from airflow_kafka_eos.manifest import AttemptRef
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

#: So many looks in a row in which the store does not answer fail whoever looks; as SparkSubmitHook counts.
MOST_FAILED = 10
#: So many looks in a row find an ended application without its word until it counts as lost: a folder that hosts share
#: may show a new file late (NFS: after a minute at most, which are six looks).
MOST_WORDLESS = 6
#: SparkSubmitHook, of a ResourceManager that was restarted without its state, or keeps no more of finished ones
_FORGOTTEN = "returned HTTP 404 for"
#: A platform's state of an application, for people; and whether it may still run, or begin.
Status = tuple[str, bool]


class ApplicationWatch:
    """Looks, and keeps in mind what the looks before have found. Each look blocks: it asks a store and a platform.

    :param status: asks the platform.
    :param application: its id there.
    :ivar lost: the platform's state of an application that is over without a word; else None.
    :ivar never_answered: so many looks has the platform not answered, and none before it.
    """

    def __init__(
        self, store: ManifestStore, ref: AttemptRef, application: str, status: Callable[[str], Status]
    ) -> None:
        self._store = store
        self._ref = ref
        self._application = application
        self._status = status
        self._failed = 0
        self._wordless = 0
        self._answered = False
        self.never_answered = 0
        self.lost: str | None = None

    def look(self, *, patient: bool = True) -> str | None:
        """What it is waited for, for people; None: it is over.

        :param patient: an application that has ended without a word is given time.
        :raises NotFinishedError: the store has not answered so many looks in a row.
        """
        try:
            said = self._look(patient)
        except Exception as e:  # whatever libraries of stores raise
            self._failed += 1
            text = f"what {self._application} has left cannot be read: {type(e).__name__}: {e}"
            if self._failed < MOST_FAILED:
                return text
            raise NotFinishedError(
                f"{text}. {self._failed} looks in a row have failed",
                remedy="It may be well. A retry of this task looks for it again, and waits on; to begin anew, clear "
                "the task",
                **self._ref.ids,
            ) from e
        self._failed = 0
        return said

    def _look(self, patient: bool) -> str | None:
        if self.has_left_word():
            return None
        try:
            status, may_run = self._status(self._application)
        except Exception as e:  # whatever libraries of platforms raise
            self.never_answered += not self._answered
            return f"whether {self._application} still runs cannot be asked: {type(e).__name__}: {e}"
        self._answered, self.never_answered = True, 0
        if may_run:
            self._wordless = 0
            return f"{self._application} is {status}"
        if self.has_left_word():  # meanwhile
            return None
        self._wordless += 1
        if not patient or self._wordless >= MOST_WORDLESS:
            self.lost = status
            return None
        return f"the last word of {self._application}, which is {status}"

    def has_left_word(self) -> bool:
        """A manifest, its error, or somebody's note that it is to stop. A tombstone is not the last word of it: that is
        why it has failed.
        """
        store, ref = self._store, self._ref
        if store.is_written(ref) and not store.is_given_up(ref):
            return True
        return store.failure(ref) is not None or store.superseded_by(ref) is not None


def status_by_spark_submit(operator: Any) -> Callable[[str], Status]:
    """The platform's word by a SparkSubmitOperator, which asks YARN's ResourceManager, or Kubernetes."""

    def status(application: str) -> Status:
        try:
            found = operator.get_job_status(application, {})
        except RuntimeError as e:
            if _FORGOTTEN not in str(e):
                raise
            return "not known to YARN any more", False
        # Kubernetes cannot ask the pod's node for now
        return found, found == "Unknown" or operator.is_job_active(found)

    return status
