"""Stands for a YARN: a ``spark3-submit`` that hands an application over and ends, and a ResourceManager to be asked.

The driver is real, and nobody's child: it runs in a session of its own, in client mode on this host, with the files and
the environment that spark-submit would have shipped. A platform that is real cannot be had here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, pairwise
from pathlib import Path

import psutil

#: the folder of all applications
FOLDER = "TEST_YARN"
#: what runs in the place of ``spark-submit --master local[2]``
RUNS = "TEST_YARN_RUNS"
_ENV = "spark.yarn.appMasterEnv."


class Yarn:
    """:ivar down: the ResourceManager answers with an error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        submit = self.bin / "spark3-submit"
        submit.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" "$@"\n')
        submit.chmod(0o700)
        self.down = False
        self.asked = 0
        self.url = ""

    @property
    def environment(self) -> dict[str, str]:
        """Of who submits."""
        return {FOLDER: str(self.folder)}

    @property
    def connection(self) -> dict[str, object]:
        """An Airflow connection to it."""
        extra = {"deploy-mode": "cluster", "spark-binary": "spark3-submit"}
        return {
            "conn_type": "spark", "host": "yarn", "extra": extra | {"yarn_resourcemanager_webapp_address": self.url},
        }  # fmt: skip

    def applications(self, name: str = "") -> list[str]:
        """The ids of what was handed over, oldest first.

        :param name: of the application, or a part of it.
        """
        found = sorted(path.name for path in self.folder.glob("application_*"))
        return [one for one in found if name in (self.folder / one / "name").read_text()]

    def state(self, application: str) -> tuple[str, str]:
        """YARN's state and final status."""
        folder = self.folder / application
        with suppress(FileNotFoundError):
            return "FINISHED", "SUCCEEDED" if (folder / "exit").read_text() == "0" else "FAILED"
        with suppress(FileNotFoundError, ValueError, psutil.Error):
            if psutil.Process(int((folder / "pid").read_text())).status() != psutil.STATUS_ZOMBIE:
                return "RUNNING", "UNDEFINED"
        return "KILLED", "KILLED"

    def kill(self, application: str) -> None:
        """SIGKILL of all of it."""
        with suppress(ProcessLookupError):
            os.killpg(int((self.folder / application / "pid").read_text()), signal.SIGKILL)


@contextmanager
def yarn(folder: Path) -> Iterator[Yarn]:
    """Up to the end of the block; what still runs is ended then."""
    there = Yarn(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            there.asked += 1
            application = self.path.rpartition("/")[2]
            if there.down or not (there.folder / application).is_dir():
                self.send_error(503 if there.down else 404)
                return
            state, final = there.state(application)
            said = json.dumps({"app": {"state": state, "finalStatus": final}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        there.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield there
        finally:
            for application in there.applications():
                if there.state(application)[0] == "RUNNING":
                    there.kill(application)
            server.shutdown()
            thread.join()


def submit(arguments: list[str]) -> None:
    """What spark-submit does in cluster mode with ``spark.yarn.submit.waitAppCompletion=false``."""
    at = next(i for i, word in enumerate(arguments) if word.endswith("application.py"))
    given, application = arguments[:at], arguments[at:]
    conf = dict(word.split("=", 1) for flag, word in pairwise(given) if flag == "--conf")
    assert conf["spark.yarn.submit.waitAppCompletion"] == "false", conf
    for number in count(1):
        folder = Path(os.environ[FOLDER]) / f"application_1_{number:04}"
        with suppress(FileExistsError):
            folder.mkdir()
            break
    (folder / "name").write_text(given[given.index("--name") + 1])
    for path in given[given.index("--files") + 1].split(","):
        shutil.copy(path, folder)  # with its mode
    shipped = {key.removeprefix(_ENV): value for key, value in conf.items() if key.startswith(_ENV)}
    with (folder / "log").open("ab") as log:
        started = subprocess.Popen(
            [sys.executable, __file__, "--run", *application],
            cwd=folder, env=os.environ | shipped, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    (folder / "pid").write_text(str(started.pid))
    print(f"Submitted application {folder.name}", flush=True)


def run(application: list[str]) -> None:
    """The application's session: the driver, and its exit code for the ResourceManager."""
    command = json.loads(os.environ.get(RUNS, "null")) or ["spark-submit", "--master", "local[2]", application[0]]
    code = subprocess.run([*command, *application[1:]], check=False).returncode
    unfinished = Path("exit.new")
    unfinished.write_text(str(code))
    unfinished.rename("exit")


if __name__ == "__main__":
    run(sys.argv[2:]) if sys.argv[1] == "--run" else submit(sys.argv[1:])
