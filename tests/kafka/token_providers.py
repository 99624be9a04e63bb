"""Token providers of one's own, as ``oauth_cb`` names them: ``tests.kafka.token_providers.…``, in any process."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import jwt

#: What a provider may not show of what it knows.
CREDENTIAL = "cr3dential-of-mine"
_released = threading.Event()


def signed(config: str) -> tuple[str, float]:
    """A token of the tests' own authority.

    :param config: ``FILE SECONDS``: the file with its key, and how long a token lives. Each that is made becomes a line
        in the file beside it: by which process, and when.
    """
    name, life_s = config.split()
    now = int(time.time())
    claims = {"sub": "loader", "iat": now, "exp": now + int(life_s), "aud": "kafka", "iss": "tests"}
    with Path(name).with_suffix(".made").open("a") as made:
        made.write(f"{os.getpid()} {now}\n")
    token = jwt.encode(claims, Path(name).read_text(), algorithm="RS256", headers={"kid": "one"})
    return token, float(now + int(life_s))


def raising(config: str) -> tuple[str, float]:
    """One whose service refuses it."""
    raise PermissionError(f"the service said no to password={CREDENTIAL} and eyJhbGciOiJub25lIn0.eyJzdWIiOiJtZSJ9.x")


def hanging(config: str) -> tuple[str, float]:
    """One whose service does not answer."""
    _released.wait(600)
    return "too-late", time.time() + 60


NOT_A_FUNCTION = "a text"
