"""A Spark application that writes for nothing ends by itself: its Airflow task is gone, or its attempt is superseded.

A task process that dies by SIGKILL leaves its spark-submit behind, which goes on writing for an attempt that a retry
has given up long since. The broker fences what it writes, and cleanup finds it; but cleanup's quiet period is short
only because such a zombie does not live long. A driver on a platform may not even have begun by then.

The ledger lets one attempt of a load be decided, the newest (rule: one-decision-per-load). Whoever opens the next one,
or cleans up behind the last one, leaves a note for that one's driver where both look anyway, beside its claim
(:mod:`.manifest_store`; rule: writers-have-a-deadline). The
driver has no ledger to ask, and needs none: in cluster mode it could not reach it. Where it cannot look it goes on: by
ledger and broker what it writes is refused in any case. Stopping early saves the cluster's time, and its readers'.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.errors import SupersededError

if TYPE_CHECKING:
    from airflow_kafka_eos.manifest import AttemptRef
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

_log = logging.getLogger(__name__)

#: The environment variable with :func:`identity_of` the submitting process.
PARENT_VARIABLE = "AIRFLOW_KAFKA_EOS_PARENT"
EXIT_CODE = 75
POLL_SECONDS = 0.5
#: Between two looks: one small read of a file or an object each.
POLL_S = 10.0
#: The author's code may catch what a cancelled Spark job raises and begin another: it is cancelled again.
_AGAIN_S = 1.0
#: Or it waits for something that is not Spark: then the process ends, as it does when its task is gone. Where it is the
#: task's own process, its main thread is woken by a signal first: by an exit alone Airflow would try again, and that
#: try would supersede the one that has superseded this one.
_LAST_S = 60.0
_WAKE_S = 5.0
#: Of Airflow its scheduler alone listens to it (for tracemalloc), and no task.
_WAKES = signal.SIGUSR1
SUPERSEDED_EXIT_CODE = 1


def identity_of(pid: int) -> str:
    """``<pid>:<start time>:<place>``: a pid alone may be somebody else's later, and is another process elsewhere.

    Start time and place are empty where /proc does not tell them.
    """
    return f"{pid}:{_started(pid) or ''}:{_place()}"


def is_alive(identity: str) -> bool:
    """Whether that very process still runs."""
    pid, started, _ = _parts(identity)
    if started:
        try:
            return _started(pid) == started
        except OSError:
            return True  # out of file descriptors, say: not being able to look is no proof of death
    return _exists(pid)


def end_with_parent(environment: Mapping[str, str], last: Callable[[], object] = lambda: None) -> None:
    """Watch the submitting process from a thread, and leave at once when it is gone; also when it is gone already, for
    a JVM takes seconds to start.

    Nothing is watched without the variable, nor where that process cannot be seen from here to begin with: behind
    another PID namespace, on another host, or as another user with hidepid.
    """
    identity = environment.get(PARENT_VARIABLE)
    if not identity:
        return
    if is_alive(identity):
        threading.Thread(target=_watch, args=(identity, last), name="end-with-parent", daemon=True).start()
    elif _has_ended(identity):
        _leave(last)


def _watch(identity: str, last: Callable[[], object]) -> None:
    while is_alive(identity):
        time.sleep(POLL_SECONDS)
    _leave(last)


def _leave(last: Callable[[], object]) -> None:
    with suppress(OSError):  # nobody may read it any more
        print("airflow-kafka-eos: the Airflow task is gone, so this application ends", flush=True)
    # a load's transactions are the retry's to sweep, and spark-submit ends with its Python driver
    try:
        last()
    finally:
        os._exit(EXIT_CODE)


def _has_ended(identity: str) -> bool:
    """Whether that process is known to be gone, although it was never seen: its pid is one of those that are seen here,
    and is nobody's, a zombie's or another one's. An identity without a place is an older version's.
    """
    pid, started, place = _parts(identity)
    if not started or not place or place != _place():
        return False
    try:
        found = _started(pid)
    except OSError:
        return False
    return not _exists(pid) if found is None else found != started  # hidepid hides what exists


def _parts(identity: str) -> tuple[int, str, str]:
    pid, _, rest = identity.partition(":")
    started, _, place = rest.partition(":")
    return int(pid), started, place


def _place() -> str:
    """Within which a pid is one process: the kernel's boot and this process's PID namespace. Empty: it is not known.

    The namespace alone would not do: its number is the kernel's own, and the first one's is the same on every host.
    """
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""  # /proc is of another namespace, and its pids are others
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _exists(pid: int) -> bool:
    """Whether there is such a process, a zombie too, seen or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _started(pid: int) -> str | None:
    """The process's start time in clock ticks since boot (proc(5), field 22); None when it is gone or hidden, empty for
    a zombie.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return "" if fields[0] == "Z" else fields[19]


class StopWhenSuperseded:
    """Looks before the application works, and now and then meanwhile, from a thread. Leaving it raises what was found.

    :param ref: the attempt that this application has claimed.
    :param told: what is done then, for the log.
    :param in_task: it is Airflow's task itself, in its main thread.
    :raises SupersededError: on entering, where a platform runs an earlier try's application late or once more; or on
        leaving. It names who has superseded it.
    """

    def __init__(
        self,
        store: ManifestStore,
        ref: AttemptRef,
        *,
        poll_s: float = POLL_S,
        told: str = "its Spark jobs are cancelled",
        in_task: bool = False,
    ) -> None:
        self._store = store
        self._ref = ref
        self._poll_s = poll_s
        self._told = told
        self._in_task = in_task and threading.current_thread() is threading.main_thread()
        self._before: Any = None
        self._waking = threading.Lock()
        self._cancel: Callable[[], object] = lambda: None
        self._over = threading.Event()
        self._found: SupersededError | None = None
        self._thread = threading.Thread(target=self._watch, name="stop-when-superseded", daemon=True)

    def __enter__(self) -> StopWhenSuperseded:
        by = self._look()
        if by is not None:
            raise superseded(self._ref, by)
        if self._in_task:
            self._before = signal.signal(_WAKES, self._woken)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._in_task:
            with self._waking:
                signal.signal(_WAKES, self._before or signal.SIG_DFL)
        # what it is in the middle of is a read of the store, which may take its time: it is not waited for
        if self._found is not None and (error is None or isinstance(error, Exception)):
            raise self._found from error

    def cancels(self, cancel: Callable[[], object]) -> None:
        """What makes Spark's jobs end; there is none before Spark is up."""
        self._cancel = cancel

    def check(self) -> None:
        """
        :raises SupersededError: it was found to be superseded.
        """
        if self._found is not None:
            raise self._found

    def _watch(self) -> None:
        while not self._over.wait(self._poll_s):
            by = self._look()
            if by is not None and not self._over.is_set():
                self._found = superseded(self._ref, by)
                self._stop()
                return

    def _look(self) -> str | None:
        try:
            return self._store.superseded_by(self._ref)
        except Exception as e:  # whatever a store's library raises: a healthy driver goes on
            _log.debug("%s: cannot be asked whether it is superseded: %s", self._ref, e)
            return None

    def _stop(self) -> None:
        with suppress(OSError):  # nobody may read it any more
            print(f"airflow-kafka-eos: load {self._ref} is superseded: {self._told}", flush=True)
        # not here: asking a server may take as long as that server takes
        threading.Thread(target=self._cancel_on, name="cancel-when-superseded", daemon=True).start()
        if self._over.wait(_LAST_S):
            return
        give_up = time.monotonic() + _LAST_S
        while self._in_task and time.monotonic() < give_up:
            with self._waking:
                if not self._over.is_set():
                    signal.pthread_kill(threading.main_thread().ident or 0, _WAKES)
            if self._over.wait(_WAKE_S):
                return
        with suppress(OSError):  # as main() prints it, for Airflow to find
            print(f"{SupersededError.__name__}: {self._found}", file=sys.stderr, flush=True)
        os._exit(SUPERSEDED_EXIT_CODE)

    def _cancel_on(self) -> None:
        while True:
            try:
                self._cancel()
            except Exception as e:
                _log.debug("%s: its jobs cannot be cancelled: %s", self._ref, e)
            if self._over.wait(_AGAIN_S):
                return

    def _woken(self, *_: object) -> None:
        """In the main thread, wherever that is."""
        if self._found is not None and not self._over.is_set():
            raise self._found


def superseded(ref: AttemptRef, by: str) -> SupersededError:
    """
    :param by: who has superseded it, and how, as the ledger knows it.
    """
    return SupersededError(
        f"the attempt was superseded or aborted while it was written: {by}. Nothing of it can become visible, so "
        "the writing has ended",
        remedy="Let the newest attempt go on. `airflow-kafka-eos loads show` shows both",
        **ref.ids,
    )
