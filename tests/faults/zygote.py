"""A process that has imported everything and does nothing but fork: a party starts in milliseconds, not in seconds.

As ``tests/crashes/zygote.py``, whose victims always die: here a party may also be stopped and go on, outlive whoever
ordered it, and order others itself. Each gets a nurse that waits for it, wakes it up when it is stopped, and tells how
it ended. All of them are one process group, which ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from airflow_kafka_eos.sandbox.keeping import WATCH
from tests.faults.plan import Ended, Order
from tests.faults.striking import die_of_sigterm, end_strikes, obey_sigterm

ROOT = Path(__file__).parents[2]
ADDRESS = "KAFKA_EOS_FAULTS_ZYGOTE"
#: how long a stopped process sleeps when nobody says
PAUSE_S = 1.0
START_S = 60.0


def ask(address: str, order: Order) -> Ended:
    """Run a party to its end."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(order.limit_s + 60)
        asking.connect(address)
        with asking.makefile("rw") as line:
            line.write(json.dumps(asdict(order)) + "\n")
            line.flush()
            answer = line.readline()
    return Ended(**json.loads(answer)) if answer else Ended(error="its nurse is gone")


@contextmanager
def zygote() -> Iterator[str]:
    """:returns: the address to :func:`ask`."""
    with forking(__name__, ADDRESS) as address:
        yield address


@contextmanager
def forking(module: str, variable: str = "", within_s: float = START_S) -> Iterator[str]:
    """A process that runs a module, which listens at the address that it is given, and forks what it is asked for.

    :param variable: names the address in its environment, for what it forks.
    :param within_s: it listens.
    :returns: the address.
    """
    with tempfile.TemporaryDirectory(prefix="faults-forking-") as folder:
        address = f"{folder}/socket"
        named = {variable: address} if variable else {}
        # not started as other servers are, with their socket handed over: the watcher hands on none
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WATCH), str(os.getpid()), sys.executable, "-m", module, address],
            cwd=ROOT,
            env=os.environ | named | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        try:
            give_up = time.monotonic() + within_s
            while not Path(address).exists():
                assert process.poll() is None and time.monotonic() < give_up, f"{module} did not start"
                time.sleep(0.02)
            yield address
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()



def living(folder: str) -> list[int]:
    """Processes of a run that have not ended: each stands there as long as its nurse has not reaped it."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(int(p.name) for p in (Path(folder) / "living").iterdir())
    return []


def _serve(address: str) -> None:
    from tests.faults import party
    from tests.faults.preloading import preload

    preload()
    # a fork that collects garbage would look at, and by that copy, all that was imported
    gc.collect()
    gc.freeze()

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.new")
    listener.listen(256)
    os.rename(f"{address}.new", address)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nurses are nobody's to wait for
    while True:
        asking, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with contextlib.suppress(OSError):  # whoever asked may be dead
                _nurse(asking, party.run)
            os._exit(0)
        asking.close()


def _nurse(asking: socket.socket, run: Callable[[Order], Ended]) -> None:
    with asking, asking.makefile("rw") as line:
        text = line.readline()
        if not text:
            return
        order = Order(**json.loads(text))
        receiving, sending = os.pipe()
        patient = os.fork()
        if patient == 0:
            os.close(receiving)
            asking.close()
            _patient(order, sending, run)
        os.close(sending)
        home = Path(order.folder) / "living"
        home.mkdir(exist_ok=True)
        (home / str(patient)).touch()
        answer = bytearray()
        reading = threading.Thread(target=_read, args=(receiving, answer))
        reading.start()
        status = _watch(patient, order)
        (home / str(patient)).unlink(missing_ok=True)
        reading.join()
        if os.WIFSIGNALED(status):
            ended = Ended(killed_by=os.WTERMSIG(status))
        else:
            ended = Ended(**json.loads(answer)) if answer else Ended(error=f"exit code {os.WEXITSTATUS(status)}")
        line.write(json.dumps(asdict(ended)) + "\n")


def _watch(patient: int, order: Order) -> int:
    """Its status, once it has ended; a stopped one is woken up."""
    limit = threading.Timer(order.limit_s, os.kill, (patient, signal.SIGKILL))
    limit.daemon = True
    limit.start()
    try:
        while True:
            _, status = os.waitpid(patient, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return status
            note = Path(order.folder) / f"pause-{patient}"
            time.sleep(float(note.read_text()) if note.exists() else PAUSE_S)
            os.kill(patient, signal.SIGCONT)
    finally:
        limit.cancel()


def _read(pipe: int, into: bytearray) -> None:
    with os.fdopen(pipe, "rb") as reading:
        into += reading.read()


def _patient(order: Order, sending: int, run: Callable[[Order], Ended]) -> None:
    try:
        obey_sigterm()
        try:
            ended = run(order)
            end_strikes()
            os.write(sending, json.dumps(asdict(ended)).encode())
        finally:
            die_of_sigterm()
    finally:
        os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1])
