"""The first rows of a task, 40 ms earlier: Linux would hold back the acknowledgement that Spark's JVM waits for.

The JVM hands a task to Python in a small packet, and TCP lets it send the first rows only once that is acknowledged
(Nagle's algorithm, which Spark leaves on). The kernel on Python's side waits 40 ms with that, for an answer that could
carry it. Seen with Spark 4.2 on Linux 6.18; a batch of a streaming query pays it once, whatever it writes.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

_OPEN = "/proc/self/fd"


def ack_at_once() -> None:
    """Have the kernel acknowledge what this process has been sent. Never raises; does nothing but on Linux.

    Spark shows its worker's socket to nobody, so it is done for each TCP socket of the process. It holds until the
    kernel finds that a connection goes to and fro, and changes nothing but when acknowledgements are sent.
    """
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None:
        return
    with suppress(OSError, ValueError):
        for fd in [int(name) for name in os.listdir(_OPEN)]:
            with suppress(OSError):  # of another kind, or closed since
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    with socket.socket(fileno=os.dup(fd)) as found:
                        found.setsockopt(socket.IPPROTO_TCP, option, 1)
