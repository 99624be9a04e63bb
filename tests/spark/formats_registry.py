"""A real schema registry on loopback: Apicurio (Apache-2.0) with its Confluent-compatible API, kept in memory.

Its distribution comes from Maven Central and is kept in the sandbox's cache. 3.0.9 is the newest that runs on Java 17.
It knows no login by itself (it wants an OpenID server for that): :class:`Gate` stands before it, as a reverse proxy
with a password does elsewhere.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import http.client
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

from airflow_kafka_eos.sandbox.broker import BrokerProcess
from airflow_kafka_eos.sandbox.jars import QUICK_JVM, cache_root, find_java
from airflow_kafka_eos.sandbox.keeping import free_ports, log_tail

VERSION = "3.0.9"
API = "/apis/ccompat/v7"
HOST = "127.0.0.1"
MAVEN_SECONDS = 900
READY_SECONDS = 90


def distribution() -> Path:
    """The folder with the runner jar, fetched by Maven when it is not there yet."""
    root = cache_root()
    folder = root / f"apicurio-registry-{VERSION}"
    root.mkdir(parents=True, exist_ok=True)
    with open(root / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    assert maven, "the schema registry's distribution is fetched by Maven, and there is no mvn on the PATH"
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        packed = Path(temporary, "app.tar.gz")
        # plugin 2.10 is the last whose `get` copies to a place of our choice; 3.x's `copy` wants the parent's pom,
        # which is not published for 3.0.9
        command = [maven, "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:2.10:get"]
        command += [f"-Dartifact=io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"]
        command += ["-Dtransitive=false", f"-Ddest={packed}"]
        done = subprocess.run(
            command, cwd=temporary, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=MAVEN_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:]
        with tarfile.open(packed) as archive:
            archive.extractall(Path(temporary, "app"), filter="data")
        Path(temporary, "app").rename(folder)


@contextlib.contextmanager
def running_registry(folder: Path) -> Iterator[str]:
    """Start the registry, yield its URL, end it by its process group.

    :param folder: for its log.
    """
    app = distribution()
    (jar,) = app.glob("*-runner.jar")
    (port,) = free_ports(1)
    command = [find_java(), "-Xmx384m", *QUICK_JVM, f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={port}"]
    log = folder / "registry.log"
    process = BrokerProcess(SimpleNamespace(log=log), [*command, "-jar", str(jar)])  # type: ignore[arg-type]
    try:
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(port):
            assert process.exit_code is None and time.monotonic() < deadline, log_tail(log)
            time.sleep(0.1)
        yield f"http://{HOST}:{port}{API}"
    finally:
        process.kill()


def _answers(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection(HOST, port, timeout=5)
        connection.request("GET", f"{API}/subjects")
        return connection.getresponse().status == 200
    except OSError:
        return False


class Gate:
    """A reverse proxy before the registry: wants a login, can answer a status of its own, can stay silent.

    :ivar status: answered instead of asking the registry, when set.
    :ivar silent: when set, requests wait until it is cleared, without an answer.
    :ivar seen: method and path of every request that came.
    """

    def __init__(self, registry: str, user: str, password: str) -> None:
        self.status: int | None = None
        self.silent = False
        self.seen: list[str] = []
        self._target = registry
        self._login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                gate._pass(self)

            do_POST = do_PUT = do_GET

            def log_message(self, *ignored: object) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_port}"

    def close(self) -> None:
        self.silent = False
        self._server.shutdown()
        self._server.server_close()

    def _pass(self, request: BaseHTTPRequestHandler) -> None:
        self.seen.append(f"{request.command} {request.path}")
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        while self.silent:
            time.sleep(0.02)
        status, answer = self.status, b'{"error_code": 50001, "message": "said by\\nthe gate"}'
        if status is None and request.headers.get("Authorization") != self._login:
            status, answer = 401, b'{"error_code": 401, "message": "Unauthorized"}'
        if status is None:
            status, answer = self._ask(request, body)
        with contextlib.suppress(OSError):  # who asked may have gone away
            request.send_response(status)
            request.send_header("Content-Length", str(len(answer)))
            request.end_headers()
            request.wfile.write(answer)

    def _ask(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        host, _, path = self._target.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(host, timeout=30)
        headers = {k: v for k, v in request.headers.items() if k.lower() in ("content-type", "accept")}
        connection.request(request.command, f"/{path}{request.path}", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

