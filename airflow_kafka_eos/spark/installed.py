"""What an executor's Python must have installed: libraries with machine code, which no archive brings along."""

from __future__ import annotations

import importlib.util
import platform
import socket
import sys

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import WriterName

#: By writer: the module, and what installs it.
NEEDED = {
    WriterName.ARROW: {
        "kafka": "kafka-python",
        "pyarrow": "pyarrow",
        "numpy": "numpy",
        "crc32c": "crc32c",
        "lz4": "lz4",
        "xxhash": "xxhash",
    },
    WriterName.CONFLUENT: {
        "kafka": "kafka-python",
        "pyarrow": "pyarrow",
        "numpy": "numpy",
        "confluent_kafka": "confluent-kafka",
        "xxhash": "xxhash",
    },
}


def refuse_missing_libraries(writer: WriterName) -> None:
    """Before a row is read: all that is missing at once, and where.

    :raises ConfigurationError: naming each library, the host and its Python.
    """
    missing = [project for module, project in NEEDED[writer].items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigurationError(
            f"the Python of this Spark executor lacks {', '.join(missing)} "
            f"({sys.executable} {platform.python_version()} on {socket.gethostname()}): writer={writer.value} needs "
            "them, and an archive of Python files cannot bring them",
            remedy=f"pip install {' '.join(missing)} on every executor, or ship a whole environment (docs/spark.md)",
        )
