"""S3 over HTTP on loopback (moto), as any process here reaches it; and one that knows no conditional writes."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "manifests"
SECRET = "s3-secret-never-shown"


@dataclass
class ObjectStore:
    """A running server. ``lost_answers``: so many answers to PUT requests are lost on their way, after the deed."""

    url: str
    lost_answers: int = 0
    forgets_conditions: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """s3fs's arguments."""
        return {"endpoint_url": self.url, "key": "key", "secret": SECRET}

    @property
    def environment(self) -> dict[str, str]:
        """The same, as fsspec reads them in a new process."""
        return {"FSSPEC_S3": json.dumps(self.options)}

    def filesystem(self) -> Any:
        """A filesystem of its own, with nothing cached."""
        import s3fs

        return s3fs.S3FileSystem(**self.options, skip_instance_cache=True)

    def folder(self) -> str:
        """The URL of a new folder."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Start it, with one bucket."""
    store = ObjectStore("")
    s3 = DomainDispatcherApplication(create_backend_app)

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if store.forgets_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        answer: Iterable[bytes] = s3(environ, start)
        if environ["REQUEST_METHOD"] == "PUT" and store.lost_answers:
            store.lost_answers -= 1
            b"".join(answer)
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError("the answer is lost")
        return answer

    server = make_server("127.0.0.1", 0, application, threaded=True)
    server.log = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    store.url = f"http://127.0.0.1:{server.server_port}"
    try:
        store.filesystem().makedirs(BUCKET, exist_ok=True)  # moto keeps its buckets for the life of a process
        yield store
    finally:
        server.shutdown()
        thread.join(10)
