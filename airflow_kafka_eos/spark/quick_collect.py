"""Between two tasks of a Python worker, 15 to 60 ms less: Spark has it collect garbage there.

Behind each task, and before the next one, ``pyspark/daemon.py`` calls ``gc.collect()``, which looks at every object of
the process. What a writer has imported is 70,000 of them; in the processes of a query's driver, which have the ledger,
100,000. A micro-batch pays that four times (seen with Spark 4.2 and Python 3.11).
"""

from __future__ import annotations

import gc
import sys

_DAEMON = "pyspark.daemon"
#: to ask the collector itself takes milliseconds: it counts
_is_done = False


def collect_less() -> None:
    """Leave what this process has by now out of every collection to come: call it behind a task, when all is imported.

    Nothing but the first call does anything, and that in a worker of Spark's daemon only. What was left out is freed
    all the same once nothing refers to it; only what refers to itself, and is let go later, stays.
    """
    global _is_done
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if not _is_done and spec is not None and spec.name == _DAEMON:
        _is_done = True
        gc.collect()
        gc.freeze()
